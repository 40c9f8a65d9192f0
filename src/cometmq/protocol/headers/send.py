"""Headers of sending: messages, batches, replies, and recalling a timer message.

Source: SendMessageRequestHeader and its relatives, RocketMQ 4.9 and 5.3.
"""

from msgspec import field

from cometmq.protocol.headers.base import Header, Int32, Int64, TopicHeader


class _MessageFields(TopicHeader, kw_only=True):
    """The fields of a message that is sent or passed on, under their long names."""

    producer_group: str = ""
    topic: str
    default_topic: str = ""
    default_topic_queue_nums: Int32 | None = None
    queue_id: Int32
    sys_flag: Int32
    born_timestamp: Int64
    flag: Int32
    properties: str | None = None
    reconsume_times: Int32 | None = None
    unit_mode: bool | None = None


class SendMessageRequest(_MessageFields, kw_only=True):
    """SEND_MESSAGE (10) and SEND_REPLY_MESSAGE (324): the long names."""

    batch: bool | None = None
    max_reconsume_times: Int32 | None = None
    producer_session: str | None = None
    producer_epoch: Int64 | None = None
    producer_owner: str | None = None


class SendMessageV2Request(Header, kw_only=True):
    """SEND_MESSAGE_V2 (310), SEND_BATCH_MESSAGE (320) and SEND_REPLY_MESSAGE_V2 (325).

    The same fields as :class:`SendMessageRequest` under names of one letter. only ``batch`` says
    whether the body is a batch.
    """

    producer_group: str = field(name="a")
    topic: str = field(name="b")
    default_topic: str = field(name="c")
    default_topic_queue_nums: Int32 = field(name="d")
    queue_id: Int32 = field(name="e")
    sys_flag: Int32 = field(name="f")
    born_timestamp: Int64 = field(name="g")
    flag: Int32 = field(name="h")
    properties: str | None = field(name="i", default=None)
    reconsume_times: Int32 | None = field(name="j", default=None)
    unit_mode: bool | None = field(name="k", default=None)
    max_reconsume_times: Int32 | None = field(name="l", default=None)
    batch: bool | None = field(name="m", default=None)
    bname: str | None = field(name="n", default=None)
    producer_session: str | None = field(name="producerSession", default=None)
    """The producer session of the send, at a broker of CometMQ; its epoch and its owner follow."""
    producer_epoch: Int64 | None = field(name="producerEpoch", default=None)
    producer_owner: str | None = field(name="producerOwner", default=None)


class SendMessageResponse(Header, kw_only=True):
    """The response to every kind of send; also with codes 10, 11 and 12."""

    msg_id: str
    """Offset message id; of a batch all ids, joined by commas."""
    queue_id: Int32
    queue_offset: Int64
    transaction_id: str | None = None
    batch_uniq_id: str | None = None
    recall_handle: str | None = None
    msg_region: str | None = field(name="MSG_REGION", default=None)
    trace_on: str | None = field(name="TRACE_ON", default=None)


class PushReplyMessageToClientRequest(_MessageFields, kw_only=True):
    """PUSH_REPLY_MESSAGE_TO_CLIENT (326): a broker passes a reply to the requester."""

    born_host: str = ""
    """``ip:port`` of the replying client."""
    store_host: str = ""
    """``ip:port`` of the broker."""
    store_timestamp: Int64


class RecallMessageRequest(TopicHeader, kw_only=True):
    """RECALL_MESSAGE (370): take back a timer message before it is due."""

    producer_group: str | None = None
    topic: str
    recall_handle: str


class RecallMessageResponse(Header, kw_only=True):
    """The response to RECALL_MESSAGE."""

    msg_id: str
    """Unique id of the recalled message."""
    msg_region: str | None = field(name="MSG_REGION", default=None)
    trace_on: str | None = field(name="TRACE_ON", default=None)
