"""Consumer groups: their settings, members, locks and offsets.

Source: SubscriptionGroupWrapper, GetConsumerListByGroupResponseBody, LockBatchRequestBody,
ConsumerOffsetSerializeWrapper and relatives, RocketMQ 5.3.
"""

from typing import ClassVar

from msgspec import field

from cometmq.model.group import SubscriptionGroupConfig
from cometmq.model.queue import MessageQueue
from cometmq.protocol import fastjson
from cometmq.protocol.bodies.base import Body, InvalidBodyError, Part
from cometmq.protocol.bodies.common import DataVersion
from cometmq.protocol.bodies.heartbeat import SubscriptionData
from cometmq.protocol.lenient import read_struct


class SubscriptionGroupWrapper(Body, kw_only=True):
    """GET_ALL_SUBSCRIPTIONGROUP_CONFIG (201)."""

    subscription_group_table: dict[str, SubscriptionGroupConfig] = field(default_factory=dict)
    forbidden_table: dict[str, dict[str, int]] | None = None
    """Bits by group and topic."""
    data_version: DataVersion = field(default_factory=DataVersion)


def decode_group(data: bytes) -> SubscriptionGroupConfig:
    """Read UPDATE_AND_CREATE_SUBSCRIPTIONGROUP (200), whose body is the settings of a group.

    Raises:
        InvalidBodyError: the body is malformed.
    """
    try:
        return read_struct(fastjson.loads(data), SubscriptionGroupConfig)
    except fastjson.FastJsonError as problem:
        raise InvalidBodyError(f"SubscriptionGroupConfig: {problem}") from None


class SubscriptionGroupList(Body, kw_only=True):
    """UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST (225)."""

    group_config_list: list[SubscriptionGroupConfig] = field(default_factory=list)


class GroupForbidden(Body, kw_only=True):
    """UPDATE_AND_GET_GROUP_FORBIDDEN (353)."""

    group: str = ""
    topic: str = ""
    readable: bool | None = None


class GetConsumerListByGroupResponseBody(Body, kw_only=True):
    """GET_CONSUMER_LIST_BY_GROUP (38)."""

    consumer_id_list: list[str] = field(default_factory=list)


class LockBatchRequestBody(Body, kw_only=True):
    """LOCK_BATCH_MQ (41)."""

    consumer_group: str = ""
    client_id: str = ""
    mq_set: list[MessageQueue] = field(default_factory=list)
    only_this_broker: bool = False


class LockBatchResponseBody(Body, kw_only=True):
    """The response to LOCK_BATCH_MQ (41): the queues that are locked now."""

    lock_ok_mq_set: list[MessageQueue] = field(name="lockOKMQSet", default_factory=list)


class UnlockBatchRequestBody(Body, kw_only=True):
    """UNLOCK_BATCH_MQ (42)."""

    consumer_group: str = ""
    client_id: str = ""
    mq_set: list[MessageQueue] = field(default_factory=list)
    only_this_broker: bool = False


class QuerySubscriptionResponseBody(Body, kw_only=True):
    """QUERY_SUBSCRIPTION_BY_CONSUMER (345)."""

    group: str = ""
    topic: str | None = None
    subscription_data: SubscriptionData | None = None


class ConsumerOffsetSerializeWrapper(Body, kw_only=True):
    """GET_ALL_CONSUMER_OFFSET (43): offsets by ``topic@group`` and queue."""

    bare_keys: ClassVar[bool] = True

    offset_table: dict[str, dict[int, int]] = field(default_factory=dict)
    data_version: DataVersion | None = None
    group_topic_map: dict[str, list[str]] | None = None


class DelayOffsetSerializeWrapper(Body, kw_only=True):
    """GET_ALL_DELAY_OFFSET (45): offsets by delay level."""

    bare_keys: ClassVar[bool] = True

    offset_table: dict[int, int] = field(default_factory=dict)
    data_version: DataVersion | None = None


class QueryCorrectionOffsetBody(Body, kw_only=True):
    """QUERY_CORRECTION_OFFSET (308): offsets by queue."""

    bare_keys: ClassVar[bool] = True

    correction_offsets: dict[int, int] = field(default_factory=dict)


class ResetOffsetBody(Body, kw_only=True):
    """INVOKE_BROKER_TO_RESET_OFFSET (222) and RESET_CONSUMER_CLIENT_OFFSET (220)."""

    bare_keys: ClassVar[bool] = True

    offset_table: dict[MessageQueue, int] = field(default_factory=dict)


class MessageQueueForC(Part, kw_only=True):
    """A queue with an offset."""

    topic: str = ""
    broker_name: str = ""
    queue_id: int = 0
    offset: int = 0


class ResetOffsetBodyForC(Body, kw_only=True):
    """The body of a reset as a list, which C++ consumers can read."""

    offset_table: list[MessageQueueForC] = field(default_factory=list)


class GetConsumerStatusBody(Body, kw_only=True):
    """INVOKE_BROKER_TO_GET_CONSUMER_STATUS (223) and GET_CONSUMER_STATUS_FROM_CLIENT (221)."""

    bare_keys: ClassVar[bool] = True

    message_queue_table: dict[MessageQueue, int] = field(default_factory=dict)
    consumer_table: dict[str, dict[MessageQueue, int]] = field(default_factory=dict)


class OffsetWrapper(Part, kw_only=True):
    """The offsets of a group in one queue."""

    broker_offset: int = 0
    consumer_offset: int = 0
    pull_offset: int = 0
    last_timestamp: int = 0


class ConsumeStats(Body, kw_only=True):
    """GET_CONSUME_STATS (208)."""

    bare_keys: ClassVar[bool] = True

    offset_table: dict[MessageQueue, OffsetWrapper] = field(default_factory=dict)
    consume_tps: float = 0.0


class ConsumeStatsList(Body, kw_only=True):
    """GET_BROKER_CONSUME_STATS (317): for each group its figures by topic."""

    bare_keys: ClassVar[bool] = True

    consume_stats_list: list[dict[str, list[ConsumeStats]]] = field(default_factory=list)
    broker_addr: str | None = None
    total_diff: int = 0
    total_inflight_diff: int = 0
