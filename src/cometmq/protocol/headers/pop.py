"""Headers of pop consumption.

Source: PopMessageRequestHeader and relatives, RocketMQ 5.3.
"""

from cometmq.protocol.headers.base import Header, Int32, Int64, TopicHeader


class PopMessageRequest(TopicHeader, kw_only=True):
    """POP_MESSAGE (200050): pop messages, which are then invisible for a time."""

    consumer_group: str
    topic: str
    queue_id: Int32
    """-1 for any queue."""
    max_msg_nums: Int32
    invisible_time: Int64
    poll_time: Int64
    born_time: Int64 = 0
    init_mode: Int32
    exp_type: str | None = None
    exp: str | None = None
    order: bool | None = False
    attempt_id: str | None = None


class PopMessageResponse(Header, kw_only=True):
    """The response to POP_MESSAGE and PEEK_MESSAGE; its body holds the records."""

    pop_time: Int64
    invisible_time: Int64
    revive_qid: Int32
    rest_num: Int64
    start_offset_info: str | None = None
    msg_offset_info: str | None = None
    order_count_info: str | None = None


class AckMessageRequest(TopicHeader, kw_only=True):
    """ACK_MESSAGE (200051)."""

    consumer_group: str
    topic: str
    queue_id: Int32
    extra_info: str
    """The receipt of the message."""
    offset: Int64


class ChangeMessageInvisibletimeRequest(TopicHeader, kw_only=True):
    """CHANGE_MESSAGE_INVISIBLETIME (200053)."""

    consumer_group: str
    topic: str
    queue_id: Int32
    extra_info: str
    offset: Int64
    invisible_time: Int64


class ChangeMessageInvisibletimeResponse(Header, kw_only=True):
    """The response to CHANGE_MESSAGE_INVISIBLETIME, from which clients make the new receipt."""

    pop_time: Int64
    invisible_time: Int64
    revive_qid: Int32


class NotificationRequest(TopicHeader, kw_only=True):
    """NOTIFICATION (200054): wait for a message to pop."""

    consumer_group: str
    topic: str
    queue_id: Int32
    poll_time: Int64
    born_time: Int64
    order: bool | None = None
    attempt_id: str | None = None


class NotificationResponse(Header, kw_only=True):
    """The response to NOTIFICATION."""

    has_msg: bool
    polling_full: bool | None = None


class PeekMessageRequest(TopicHeader, kw_only=True):
    """PEEK_MESSAGE (200052)."""

    topic: str
    queue_id: Int32
    max_msg_nums: Int32
    consumer_group: str


class PollingInfoRequest(TopicHeader, kw_only=True):
    """POLLING_INFO (200055)."""

    consumer_group: str
    topic: str
    queue_id: Int32


class PollingInfoResponse(Header, kw_only=True):
    """The response to POLLING_INFO."""

    polling_num: Int32
