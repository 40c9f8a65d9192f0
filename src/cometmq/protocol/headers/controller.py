"""Headers between brokers, tools and a controller: broker ids, elections and in-sync sets.

Fields that RocketMQ does not know say which set, store and process a broker is, see decision 24. A
controller sends them to brokers that have sent some themselves, and RocketMQ ignores them.

Source: AlterSyncStateSetRequestHeader, ElectMasterRequestHeader, GetReplicaInfoRequestHeader
and relatives, RocketMQ 5.3.
"""

from cometmq.protocol.headers.base import Header, Int32, Int64


class _ElectedMaster(Header, kw_only=True):
    """The fields of the master of a broker set."""

    master_broker_id: Int64 | None = None
    master_address: str | None = None
    master_epoch: Int32 | None = None
    set_id: str | None = None
    master_incarnation: str | None = None


class ControllerAlterSyncStateSetRequest(Header, kw_only=True):
    """CONTROLLER_ALTER_SYNC_STATE_SET (1001); RocketMQ does not know the last five."""

    broker_name: str
    master_broker_id: Int64
    master_epoch: Int32
    invoke_time: Int64 = 0
    renew_sync_state_set: bool | None = None
    """Whether a set that is in force already gets a new number."""
    known_sync_state_set_epoch: Int32 | None = None
    """The newest number that the master knows: the next one is larger."""
    set_id: str | None = None
    incarnation: str | None = None
    member_incarnations: str | None = None
    """The processes of members whose log the master has compared: ``id:incarnation;``."""


class ControllerAlterSyncStateSetResponse(Header, kw_only=True):
    """The response to CONTROLLER_ALTER_SYNC_STATE_SET."""

    new_sync_state_set_epoch: Int32 = 0
    set_id: str | None = None


class ControllerElectMasterRequest(Header, kw_only=True):
    """CONTROLLER_ELECT_MASTER (1002)."""

    cluster_name: str = ""
    broker_name: str = ""
    broker_id: Int64 = -1
    """The broker that asks or is designated; -1 if the controller chooses."""
    designate_elect: bool = False
    """Whether only the broker of this id may be elected."""
    invoke_time: Int64 = 0
    set_id: str | None = None
    incarnation: str | None = None


class ControllerElectMasterResponse(_ElectedMaster, kw_only=True):
    """The response to CONTROLLER_ELECT_MASTER; its fields are set if there is a master."""

    sync_state_set_epoch: Int32 | None = None


class ControllerRegisterBrokerRequest(Header, kw_only=True):
    """CONTROLLER_REGISTER_BROKER (1003)."""

    cluster_name: str
    broker_name: str
    broker_id: Int64
    broker_address: str
    invoke_time: Int64 = 0
    set_id: str | None = None
    """The set to which the store belongs; None before a controller has named it."""
    store_id: str | None = None
    incarnation: str | None = None
    """The process."""
    earlier_incarnations: str | None = None
    """The ids of earlier starts, the newest first, with semicolons between them."""
    stopped_cleanly: bool | None = None
    """Whether the process before stopped cleanly."""


class ControllerRegisterBrokerResponse(_ElectedMaster, kw_only=True):
    """The response to CONTROLLER_REGISTER_BROKER; those of a master are set if it is alive."""

    cluster_name: str | None = None
    broker_name: str | None = None
    sync_state_set_epoch: Int32 | None = None


class ControllerGetReplicaInfoRequest(Header, kw_only=True):
    """CONTROLLER_GET_REPLICA_INFO (1004); RocketMQ knows the name only."""

    broker_name: str
    broker_id: Int64 | None = None
    """The broker that asks."""
    set_id: str | None = None
    incarnation: str | None = None


class ControllerGetReplicaInfoResponse(_ElectedMaster):
    """The response to CONTROLLER_GET_REPLICA_INFO; id and address are None without a master."""


class ControllerGetMetadataInfoResponse(Header, kw_only=True):
    """The response to CONTROLLER_GET_METADATA_INFO (1005)."""

    group: str | None = None
    controller_leader_id: str | None = None
    controller_leader_address: str | None = None
    is_leader: bool = False
    peers: str | None = None
    """The controllers, each as ``id:host:port;``."""


class CleanBrokerDataRequest(Header, kw_only=True):
    """CLEAN_BROKER_DATA (1011)."""

    cluster_name: str | None = None
    broker_name: str
    broker_controller_ids_to_clean: str | None = None
    """The ids, separated by semicolons; None for all of the broker set."""
    is_clean_living_broker: bool = False
    """Whether brokers that are alive are removed too."""
    invoke_time: Int64 = 0


class ControllerGetNextBrokerIdRequest(Header, kw_only=True):
    """CONTROLLER_GET_NEXT_BROKER_ID (1012)."""

    cluster_name: str
    broker_name: str


class ControllerGetNextBrokerIdResponse(Header, kw_only=True):
    """The response to CONTROLLER_GET_NEXT_BROKER_ID."""

    cluster_name: str | None = None
    broker_name: str | None = None
    next_broker_id: Int64 | None = None


class ControllerApplyBrokerIdRequest(Header, kw_only=True):
    """CONTROLLER_APPLY_BROKER_ID (1013)."""

    cluster_name: str
    broker_name: str
    applied_broker_id: Int64
    register_check_code: str
    """Proves that a repeated request comes from the same broker."""
    store_id: str | None = None


class ControllerApplyBrokerIdResponse(Header, kw_only=True):
    """The response to CONTROLLER_APPLY_BROKER_ID."""

    cluster_name: str | None = None
    broker_name: str | None = None
