"""Headers of committed offsets and the bounds of queues.

Source: QueryConsumerOffsetRequestHeader, GetMaxOffsetRequestHeader and relatives, RocketMQ 5.3.
"""

from cometmq.protocol.headers.base import Header, Int32, Int64, RpcHeader, TopicHeader


class _QueueFields(TopicHeader, kw_only=True):
    """The fields of a queue."""

    topic: str
    queue_id: Int32


class _FoundOffset(Header, kw_only=True):
    """The field of an offset that a broker found."""

    offset: Int64


class QueryConsumerOffsetRequest(TopicHeader, kw_only=True):
    """QUERY_CONSUMER_OFFSET (14): the committed offset of a group in a queue."""

    consumer_group: str = ""
    topic: str
    queue_id: Int32
    set_zero_if_not_found: bool | None = None


class QueryConsumerOffsetResponse(_FoundOffset):
    """The response to QUERY_CONSUMER_OFFSET."""


class UpdateConsumerOffsetRequest(TopicHeader, kw_only=True):
    """UPDATE_CONSUMER_OFFSET (15): commit an offset."""

    consumer_group: str
    topic: str
    queue_id: Int32
    commit_offset: Int64


class SearchOffsetByTimestampRequest(_QueueFields, kw_only=True):
    """SEARCH_OFFSET_BY_TIMESTAMP (29)."""

    timestamp: Int64
    boundary_type: str | None = None
    """``UPPER`` in any case for the upper bound; anything else means the lower."""


class SearchOffsetByTimestampResponse(_FoundOffset):
    """The response to SEARCH_OFFSET_BY_TIMESTAMP."""


class GetMaxOffsetRequest(_QueueFields, kw_only=True):
    """GET_MAX_OFFSET (30)."""

    committed: bool | None = None


class GetMaxOffsetResponse(_FoundOffset):
    """The response to GET_MAX_OFFSET."""


class GetMinOffsetRequest(_QueueFields, kw_only=True):
    """GET_MIN_OFFSET (31)."""


class GetMinOffsetResponse(_FoundOffset):
    """The response to GET_MIN_OFFSET."""


class GetEarliestMsgStoretimeRequest(_QueueFields, kw_only=True):
    """GET_EARLIEST_MSG_STORETIME (32)."""


class GetEarliestMsgStoretimeResponse(Header, kw_only=True):
    """The response to GET_EARLIEST_MSG_STORETIME."""

    timestamp: Int64


class QueryCorrectionOffsetRequest(TopicHeader, kw_only=True):
    """QUERY_CORRECTION_OFFSET (308)."""

    topic: str
    compare_group: str = ""
    filter_groups: str | None = None
    """Names of groups, joined by commas."""


class CloneGroupOffsetRequest(RpcHeader, kw_only=True):
    """CLONE_GROUP_OFFSET (314): copy the offsets of one group to another."""

    src_group: str
    dest_group: str
    topic: str | None = None
    offline: bool = False


class InvokeBrokerToResetOffsetRequest(TopicHeader, kw_only=True):
    """INVOKE_BROKER_TO_RESET_OFFSET (222) and RESET_CONSUMER_CLIENT_OFFSET (220)."""

    topic: str
    group: str
    timestamp: Int64 = 0
    """Milliseconds; -1 for the end of the queue."""
    is_force: bool = False
    queue_id: Int32 | None = None
    offset: Int64 | None = None
