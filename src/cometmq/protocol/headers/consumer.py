"""Headers of consumer groups: membership, retries, and requests of a broker to consumers.

Source: UnregisterClientRequestHeader, ConsumerSendMsgBackRequestHeader and relatives, RocketMQ 5.3.
"""

from msgspec import field

from cometmq.protocol.headers.base import Header, Int32, Int64, RpcHeader, TopicHeader


class HeartbeatResponse(Header, kw_only=True):
    """The response to HEART_BEAT; 5.1.3 and later brokers announce the second heartbeat form."""

    is_support_heart_beat_v2: bool | None = field(name="IS_SUPPORT_HEART_BEAT_V2", default=None)
    is_sub_change: bool | None = field(name="IS_SUB_CHANGE", default=None)


class UnregisterClientRequest(RpcHeader, kw_only=True):
    """UNREGISTER_CLIENT (35)."""

    client_id: str = field(name="clientID", default="")
    producer_group: str | None = None
    consumer_group: str | None = None


class ConsumerSendMsgBackRequest(RpcHeader, kw_only=True):
    """CONSUMER_SEND_MSG_BACK (36): deliver this message again later."""

    offset: Int64
    """Offset of the message in the commit log."""
    group: str
    delay_level: Int32
    """-1 dead letter, 0 as the broker decides, above 0 a delay level."""
    origin_msg_id: str | None = None
    origin_topic: str | None = None
    unit_mode: bool | None = False
    max_reconsume_times: Int32 | None = None


class GetConsumerListByGroupRequest(RpcHeader, kw_only=True):
    """GET_CONSUMER_LIST_BY_GROUP (38)."""

    consumer_group: str


class NotifyConsumerIdsChangedRequest(RpcHeader, kw_only=True):
    """NOTIFY_CONSUMER_IDS_CHANGED (40): a broker notifies a group that it has to rebalance."""

    consumer_group: str = ""


class InvokeBrokerToGetConsumerStatusRequest(TopicHeader, kw_only=True):
    """INVOKE_BROKER_TO_GET_CONSUMER_STATUS (223) and GET_CONSUMER_STATUS_FROM_CLIENT (221)."""

    topic: str
    """RocketMQ takes none for all topics; with access control each topic needs a right."""
    group: str
    client_addr: str | None = None


class GetConsumerRunningInfoRequest(RpcHeader, kw_only=True):
    """GET_CONSUMER_RUNNING_INFO (307), forwarded to the client."""

    consumer_group: str
    client_id: str
    jstack_enable: bool = False


class ConsumeMessageDirectlyRequest(TopicHeader, kw_only=True):
    """CONSUME_MESSAGE_DIRECTLY (309), forwarded to the client with the message as its body."""

    consumer_group: str
    client_id: str | None = None
    msg_id: str | None = None
    broker_name: str | None = None
    topic: str | None = None
    topic_sys_flag: Int32 | None = None
    group_sys_flag: Int32 | None = None


class RegisterFilterServerRequest(Header, kw_only=True):
    """REGISTER_FILTER_SERVER (301), of filter servers up to 4.2."""

    filter_server_addr: str


class RegisterFilterServerResponse(Header, kw_only=True):
    """The response to REGISTER_FILTER_SERVER."""

    broker_name: str
    broker_id: Int64


class RegisterMessageFilterClassRequest(Header, kw_only=True):
    """REGISTER_MESSAGE_FILTER_CLASS (302), of filter servers up to 4.2."""

    consumer_group: str
    topic: str
    class_name: str
    class_crc: Int32 = field(name="classCRC")
