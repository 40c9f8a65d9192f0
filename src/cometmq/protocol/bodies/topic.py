"""Tables of topics: between brokers, to name servers and to administrators.

Source: TopicConfigSerializeWrapper, TopicConfigAndMappingSerializeWrapper and TopicStatsTable,
RocketMQ 5.3.
"""

from typing import ClassVar

from msgspec import field

from cometmq.model.queue import MessageQueue
from cometmq.model.topic import TopicConfig
from cometmq.protocol.bodies.base import Body, Part
from cometmq.protocol.bodies.common import DataVersion, DataVersion4
from cometmq.protocol.bodies.route import TopicQueueMappingDetail, TopicQueueMappingInfo


class TopicConfigSerializeWrapper(Body, kw_only=True):
    """GET_ALL_TOPIC_CONFIG (21), and a part of a registration.

    A broker of 4.9 leaves out the members about mappings. Only those have bare keys.
    """

    bare_keys: ClassVar[bool] = True

    topic_config_table: dict[str, TopicConfig] = field(default_factory=dict)
    data_version: DataVersion = field(default_factory=DataVersion)
    topic_queue_mapping_info_map: dict[str, TopicQueueMappingInfo] | None = None
    topic_queue_mapping_detail_map: dict[str, TopicQueueMappingDetail] | None = None
    mapping_data_version: DataVersion | None = None


class TopicConfigSerializeWrapper4(Body, kw_only=True):
    """The topics of a broker for requesters of 4.9: their version has no state.

    They skip the members about mappings, which brokers of 5.3 send to all.
    """

    bare_keys: ClassVar[bool] = True

    topic_config_table: dict[str, TopicConfig]
    data_version: DataVersion4
    topic_queue_mapping_info_map: dict[str, TopicQueueMappingInfo] | None = None
    topic_queue_mapping_detail_map: dict[str, TopicQueueMappingDetail] | None = None
    mapping_data_version: DataVersion | None = None


class TopicQueueMappingSerializeWrapper(Body, kw_only=True):
    """topicQueueMapping.json: the parts of static topics that a broker has."""

    bare_keys: ClassVar[bool] = True

    data_version: DataVersion = field(default_factory=DataVersion)
    topic_queue_mapping_info_map: dict[str, TopicQueueMappingDetail] = field(default_factory=dict)


class TopicConfigList(Body, kw_only=True):
    """UPDATE_AND_CREATE_TOPIC_LIST (18)."""

    topic_config_list: list[TopicConfig] = field(default_factory=list)


class TopicConfigAndQueueMapping(Body, kw_only=True):
    """GET_TOPIC_CONFIG (351): a topic, and the queues it has here if it is a static one."""

    bare_keys: ClassVar[bool] = True

    topic_name: str = ""
    read_queue_nums: int = 16
    write_queue_nums: int = 16
    perm: int = 6
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: int = 0
    order: bool = False
    attributes: dict[str, str] = field(default_factory=dict)
    mapping_detail: TopicQueueMappingDetail | None = None


def detail_of(part: TopicConfigAndQueueMapping) -> TopicQueueMappingDetail:
    """Return the mapping of a part, which has one."""
    assert part.mapping_detail is not None
    return part.mapping_detail


class TopicRemappingDetailWrapper(Body, kw_only=True):
    """The mappings of a static topic at all brokers, as a tool writes them to a file."""

    bare_keys: ClassVar[bool] = True

    topic: str = ""
    type: str = ""
    epoch: int = 0
    broker_config_map: dict[str, TopicConfigAndQueueMapping] = field(default_factory=dict)
    broker_to_map_in: list[str] = field(default_factory=list)
    broker_to_map_out: list[str] = field(default_factory=list)


class TopicOffset(Part, kw_only=True):
    """The bounds of one queue, and when it last got a message."""

    min_offset: int = 0
    max_offset: int = 0
    last_update_timestamp: int = 0


class TopicStatsTable(Body, kw_only=True):
    """GET_TOPIC_STATS_INFO (202)."""

    bare_keys: ClassVar[bool] = True

    offset_table: dict[MessageQueue, TopicOffset] = field(default_factory=dict)
    topic_put_tps: float = 0.0


class TimerMetric(Part, kw_only=True):
    """How many timer messages of a topic wait."""

    count: int = 0
    time_stamp: int = 0


class TimerMetricsSerializeWrapper(Body, kw_only=True):
    """GET_TIMER_METRICS (61)."""

    timing_count: dict[str, TimerMetric] = field(default_factory=dict)
    data_version: DataVersion = field(default_factory=DataVersion)
