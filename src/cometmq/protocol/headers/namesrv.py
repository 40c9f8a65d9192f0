"""Headers of the name server: registration, routes and its own settings.

Source: RegisterBrokerRequestHeader, GetRouteInfoRequestHeader and relatives, RocketMQ 4.9 and 5.3.
"""

from msgspec import field

from cometmq.protocol.headers.base import Header, Int32, Int64, TopicHeader


class PutKvConfigRequest(Header, kw_only=True):
    """PUT_KV_CONFIG (100)."""

    namespace: str
    key: str
    value: str


class GetKvConfigRequest(Header, kw_only=True):
    """GET_KV_CONFIG (101)."""

    namespace: str = ""
    key: str = ""


class GetKvConfigResponse(Header, kw_only=True):
    """The response to GET_KV_CONFIG."""

    value: str | None = None


class DeleteKvConfigRequest(Header, kw_only=True):
    """DELETE_KV_CONFIG (102)."""

    namespace: str
    key: str


class GetKvlistByNamespaceRequest(Header, kw_only=True):
    """GET_KVLIST_BY_NAMESPACE (219)."""

    namespace: str = ""


class RegisterBrokerRequest(Header, kw_only=True):
    """REGISTER_BROKER (103)."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    ha_server_addr: str = ""
    broker_id: Int64
    compressed: bool = False
    body_crc32: Int32 = field(name="bodyCrc32", default=0)
    """CRC-32 of the body without its top bit; 0 for unchecked."""
    heartbeat_timeout_millis: Int64 | None = None
    enable_acting_master: bool | None = None
    zone_name: str | None = field(name="__ZONE_NAME", default=None)
    is_part: bool | None = None
    """Whether the body has only a part of the topics: not RocketMQ's, whose servers ignore it."""


class RegisterBrokerResponse(Header, kw_only=True):
    """The response to REGISTER_BROKER; its fields are set if a slave has a master."""

    ha_server_addr: str | None = None
    master_addr: str | None = None


class UnregisterBrokerRequest(Header, kw_only=True):
    """UNREGISTER_BROKER (104)."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Int64


class QueryDataVersionRequest(Header, kw_only=True):
    """QUERY_DATA_VERSION (322): whether the name server has this version of the topics."""

    broker_name: str = ""
    broker_addr: str
    cluster_name: str
    broker_id: Int64 = 0


class QueryDataVersionResponse(Header, kw_only=True):
    """The response to QUERY_DATA_VERSION."""

    changed: bool


class GetRouteinfoByTopicRequest(TopicHeader, kw_only=True):
    """GET_ROUTEINFO_BY_TOPIC (105)."""

    topic: str = ""
    accept_standard_json_only: bool | None = None
    zone_name: str | None = field(name="__ZONE_NAME", default=None)
    zone_mode: str | None = field(name="__ZONE_MODE", default=None)


class WipeWritePermOfBrokerRequest(Header, kw_only=True):
    """WIPE_WRITE_PERM_OF_BROKER (205)."""

    broker_name: str = ""


class WipeWritePermOfBrokerResponse(Header, kw_only=True):
    """The response to WIPE_WRITE_PERM_OF_BROKER."""

    wipe_topic_count: Int32


class AddWritePermOfBrokerRequest(Header, kw_only=True):
    """ADD_WRITE_PERM_OF_BROKER (327)."""

    broker_name: str = ""


class AddWritePermOfBrokerResponse(Header, kw_only=True):
    """The response to ADD_WRITE_PERM_OF_BROKER."""

    add_topic_count: Int32


class DeleteTopicInNamesrvRequest(TopicHeader, kw_only=True):
    """DELETE_TOPIC_IN_NAMESRV (216)."""

    topic: str = ""
    cluster_name: str | None = None


class RegisterTopicInNamesrvRequest(TopicHeader, kw_only=True):
    """REGISTER_TOPIC_IN_NAMESRV (217)."""

    topic: str


class GetTopicsByClusterRequest(Header, kw_only=True):
    """GET_TOPICS_BY_CLUSTER (224)."""

    cluster: str = ""


class GetBrokerMemberGroupRequest(Header, kw_only=True):
    """GET_BROKER_MEMBER_GROUP (901)."""

    cluster_name: str = ""
    broker_name: str = ""


class BrokerHeartbeatRequest(Header, kw_only=True):
    """BROKER_HEARTBEAT (904); the fields after the first three are for controllers."""

    cluster_name: str
    broker_addr: str
    broker_name: str = ""
    broker_id: Int64 | None = None
    epoch: Int32 | None = None
    max_offset: Int64 | None = None
    confirm_offset: Int64 | None = None
    heartbeat_timeout_mills: Int64 | None = None
    election_priority: Int32 | None = None
    set_id: str | None = None
    """The set of the sender; RocketMQ knows neither this field nor the next four."""
    incarnation: str | None = None
    known_master_epoch: Int32 | None = None
    """The newest decision that it knows."""
    known_sync_state_set_epoch: Int32 | None = None
    confirmed_to: Int64 | None = None
    """The confirm offset, if messages wait for all of the in-sync set."""


class NotifyMinBrokerIdChangeRequest(Header, kw_only=True):
    """NOTIFY_MIN_BROKER_ID_CHANGE (905), from a name server to brokers."""

    min_broker_id: Int64 | None = None
    broker_name: str | None = None
    min_broker_addr: str | None = None
    offline_broker_addr: str | None = None
    ha_broker_addr: str | None = None
