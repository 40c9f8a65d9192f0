"""Headers of broker administration: configuration, statistics, access lists, replication.

Source: GetBrokerConfigResponseHeader, ViewBrokerStatsDataRequestHeader and relatives,
RocketMQ 4.9 and 5.3.
"""

from msgspec import field

from cometmq.protocol.headers.base import Header, Int32, Int64


class GetBrokerConfigResponse(Header, kw_only=True):
    """The response to GET_BROKER_CONFIG (26)."""

    version: str
    """The data version of the configuration, as JSON."""


class GetBrokerRuntimeInfoRequest(Header, kw_only=True):
    """GET_BROKER_RUNTIME_INFO (28); RocketMQ has no header here."""

    half_messages: bool = False
    """Whether the table has the figures of half messages, which RocketMQ does not have."""


class ViewBrokerStatsDataRequest(Header, kw_only=True):
    """VIEW_BROKER_STATS_DATA (315)."""

    stats_name: str
    stats_key: str


class SetCommitlogReadModeRequest(Header, kw_only=True):
    """SET_COMMITLOG_READ_MODE (2004)."""

    read_ahead_mode: Int32 = field(name="READ_AHEAD_MODE")


class UpdateAndCreateAclConfigRequest(Header, kw_only=True):
    """UPDATE_AND_CREATE_ACL_CONFIG (50), 4.5.2 to 5.3.2."""

    access_key: str
    secret_key: str | None = None
    white_remote_address: str | None = None
    admin: bool | None = None
    """RocketMQ's tools always send it; without it an account of CometMQ's brokers keeps its own."""
    default_topic_perm: str | None = None
    default_group_perm: str | None = None
    topic_perms: str | None = None
    """Permissions by topic, such as ``T=PUB|SUB``, joined by commas."""
    group_perms: str | None = None


class DeleteAclConfigRequest(Header, kw_only=True):
    """DELETE_ACL_CONFIG (51), 4.5.2 to 5.3.2."""

    access_key: str


class GetBrokerClusterAclInfoResponse(Header, kw_only=True):
    """The response to GET_BROKER_CLUSTER_ACL_INFO (52)."""

    version: str
    all_acl_file_version: str | None = None
    broker_name: str
    broker_addr: str
    cluster_name: str


class UpdateGlobalWhiteAddrsConfigRequest(Header, kw_only=True):
    """UPDATE_GLOBAL_WHITE_ADDRS_CONFIG (53), 4.5.2 to 5.3.2."""

    global_white_addrs: str
    acl_file_full_path: str | None = None


class ExchangeBrokerHaInfoRequest(Header, kw_only=True):
    """EXCHANGE_BROKER_HA_INFO (906); without an address it is a query.

    RocketMQ has no ``logSlave``.
    """

    master_ha_address: str | None = None
    master_flush_offset: Int64 | None = None
    master_address: str | None = None
    log_slave: str | None = None
    """The slave that requests a ticket for the port of the log, in hexadecimal digits."""


class ExchangeBrokerHaInfoResponse(Header, kw_only=True):
    """The response to EXCHANGE_BROKER_HA_INFO; RocketMQ has neither ``logTicket`` nor ``setId``."""

    master_ha_address: str | None = None
    master_flush_offset: Int64 | None = None
    master_address: str | None = None
    log_ticket: str | None = None
    """The ticket for ``logSlave``, in hexadecimal digits."""
    set_id: str | None = None
    """The broker set of this master."""


class GetTimerCheckPointResponse(Header, kw_only=True):
    """The response to GET_TIMER_CHECK_POINT; RocketMQ's has no header fields."""

    read_ms: Int64 | None = None
    """The first slot that is not passed."""
    log_offset: Int64 | None = None
    """What was delivered of it is behind this log offset."""
    passed_offset: Int64 | None = None
    """Messages of the timer topic before it whose slots are passed do not wait."""


class ResetMasterFlushOffsetRequest(Header, kw_only=True):
    """RESET_MASTER_FLUSH_OFFSET (908)."""

    master_flush_offset: Int64 | None = None


class NotifyBrokerRoleChangedRequest(Header, kw_only=True):
    """NOTIFY_BROKER_ROLE_CHANGED (1008)."""

    master_address: str | None = None
    master_epoch: Int32 | None = None
    sync_state_set_epoch: Int32 | None = None
    master_broker_id: Int64 | None = None


class AddBrokerRequest(Header, kw_only=True):
    """ADD_BROKER (902), to a container of brokers."""

    config_path: str | None = None


class RemoveBrokerRequest(Header, kw_only=True):
    """REMOVE_BROKER (903), to a container of brokers."""

    broker_name: str
    broker_cluster_name: str
    broker_id: Int64
