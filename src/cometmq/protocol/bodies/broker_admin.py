"""Figures of a broker for its administrators.

Source: BrokerStatsData, QueryConsumeTimeSpanBody, QueryConsumeQueueResponseBody, HARuntimeInfo and
relatives, RocketMQ 5.3.
"""

from msgspec import field

from cometmq.model.queue import MessageQueue
from cometmq.protocol.bodies.base import Body, Part
from cometmq.protocol.bodies.heartbeat import SubscriptionData


class BrokerStatsItem(Part, kw_only=True):
    """Sum, rate and average per put over some time."""

    sum: int = 0
    tps: float = 0.0
    avgpt: float = 0.0


class BrokerStatsData(Body, kw_only=True):
    """VIEW_BROKER_STATS_DATA (315)."""

    stats_minute: BrokerStatsItem = field(default_factory=BrokerStatsItem)
    stats_hour: BrokerStatsItem = field(default_factory=BrokerStatsItem)
    stats_day: BrokerStatsItem = field(default_factory=BrokerStatsItem)


class QueueTimeSpan(Part, kw_only=True):
    """Times of the first, last and last consumed message of a queue, in milliseconds."""

    message_queue: MessageQueue = field(default_factory=MessageQueue)
    min_time_stamp: int = 0
    max_time_stamp: int = 0
    consume_time_stamp: int = 0
    delay_time: int = 0
    min_time_stamp_str: str | None = None
    max_time_stamp_str: str | None = None
    consume_time_stamp_str: str | None = None


class QueryConsumeTimeSpanBody(Body, kw_only=True):
    """QUERY_CONSUME_TIME_SPAN (303)."""

    consume_time_span_set: list[QueueTimeSpan] = field(default_factory=list)


class ConsumeQueueData(Part, kw_only=True):
    """One unit of a consume queue."""

    physic_offset: int = 0
    physic_size: int = 0
    tags_code: int = 0
    extend_data_json: str | None = None
    bit_map: str | None = None
    eval: bool = False
    msg: str | None = None


class QueryConsumeQueueResponseBody(Body, kw_only=True):
    """QUERY_CONSUME_QUEUE (321)."""

    subscription_data: SubscriptionData | None = None
    filter_data: str | None = None
    queue_data: list[ConsumeQueueData] = field(default_factory=list)
    max_queue_index: int = 0
    min_queue_index: int = 0


class CheckRocksdbCqWriteResult(Body, kw_only=True):
    """CHECK_ROCKSDB_CQ_WRITE_PROGRESS (354)."""

    check_result: str | None = None
    check_status: int = 0
    """0 right, 1 wrong, 2 under way, 3 failed."""


class HAConnectionRuntimeInfo(Part, kw_only=True):
    """One slave of a master."""

    addr: str = ""
    slave_ack_offset: int = 0
    diff: int = 0
    in_sync: bool = False
    transferred_byte_in_second: int = 0
    transfer_from_where: int = 0


class HAClientRuntimeInfo(Part, kw_only=True):
    """How a slave follows its master."""

    master_addr: str | None = None
    transferred_byte_in_second: int = 0
    max_offset: int = 0
    last_read_timestamp: int = 0
    last_write_timestamp: int = 0
    master_flush_offset: int = 0


class HARuntimeInfo(Body, kw_only=True):
    """GET_BROKER_HA_STATUS (907)."""

    master: bool = False
    master_commit_log_max_offset: int = 0
    in_sync_slave_nums: int = 0
    ha_connection_info: list[HAConnectionRuntimeInfo] = field(default_factory=list)
    ha_client_runtime_info: HAClientRuntimeInfo = field(default_factory=HAClientRuntimeInfo)
