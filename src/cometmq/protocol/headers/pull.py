"""Headers of pulling messages.

Source: PullMessageRequestHeader and PullMessageResponseHeader, RocketMQ 4.9 and 5.3.
"""

from cometmq.protocol.headers.base import Header, Int32, Int64, TopicHeader


class PullMessageRequest(TopicHeader, kw_only=True):
    """PULL_MESSAGE (11) and LITE_PULL_MESSAGE (361)."""

    consumer_group: str
    topic: str
    queue_id: Int32
    queue_offset: Int64
    """The first offset to read."""
    max_msg_nums: Int32
    sys_flag: Int32
    """Bits of :class:`cometmq.model.flags.PullSysFlag`."""
    commit_offset: Int64
    suspend_timeout_millis: Int64
    subscription: str | None = None
    sub_version: Int64
    expression_type: str | None = None
    max_msg_bytes: Int32 | None = None
    request_source: Int32 | None = None
    proxy_froward_client_id: str | None = None
    bulk: bool | None = None
    """Whether the client reads a backlog and takes long responses. RocketMQ has no such field; its
    brokers ignore it."""


class PullMessageResponse(Header, kw_only=True):
    """The response to a pull, complete with codes 0, 19, 20 and 21 alike."""

    suggest_which_broker_id: Int64
    next_begin_offset: Int64
    min_offset: Int64
    max_offset: Int64
    offset_delta: Int64 | None = None
    topic_sys_flag: Int32 | None = None
    group_sys_flag: Int32 | None = None
    forbidden_type: Int32 | None = None
