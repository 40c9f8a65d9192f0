"""Headers between brokers, tools and a controller: broker ids, elections and in-sync sets.

Source: AlterSyncStateSetRequestHeader, ElectMasterRequestHeader, GetReplicaInfoRequestHeader
and relatives, RocketMQ 5.3.
"""

from cometmq.protocol.headers.base import Header, Int32, Int64


class ControllerAlterSyncStateSetRequest(Header, kw_only=True):
    """CONTROLLER_ALTER_SYNC_STATE_SET (1001)."""

    broker_name: str
    master_broker_id: Int64
    master_epoch: Int32
    invoke_time: Int64 = 0
    renew_sync_state_set: bool | None = None
    """Whether a set that is in force already gets a new number; RocketMQ does not know this."""


class ControllerAlterSyncStateSetResponse(Header, kw_only=True):
    """The response to CONTROLLER_ALTER_SYNC_STATE_SET."""

    new_sync_state_set_epoch: Int32 = 0


class ControllerElectMasterRequest(Header, kw_only=True):
    """CONTROLLER_ELECT_MASTER (1002)."""

    cluster_name: str = ""
    broker_name: str = ""
    broker_id: Int64 = -1
    """The broker that asks or is designated; -1 if the controller chooses."""
    designate_elect: bool = False
    """Whether only the broker of this id may be elected."""
    invoke_time: Int64 = 0


class ControllerElectMasterResponse(Header, kw_only=True):
    """The response to CONTROLLER_ELECT_MASTER; its fields are set if there is a master."""

    master_broker_id: Int64 | None = None
    master_address: str | None = None
    master_epoch: Int32 | None = None
    sync_state_set_epoch: Int32 | None = None


class ControllerRegisterBrokerRequest(Header, kw_only=True):
    """CONTROLLER_REGISTER_BROKER (1003)."""

    cluster_name: str
    broker_name: str
    broker_id: Int64
    broker_address: str
    invoke_time: Int64 = 0


class ControllerRegisterBrokerResponse(Header, kw_only=True):
    """The response to CONTROLLER_REGISTER_BROKER; the last four are set if a master is alive."""

    cluster_name: str | None = None
    broker_name: str | None = None
    master_broker_id: Int64 | None = None
    master_address: str | None = None
    master_epoch: Int32 | None = None
    sync_state_set_epoch: Int32 | None = None


class ControllerGetReplicaInfoRequest(Header, kw_only=True):
    """CONTROLLER_GET_REPLICA_INFO (1004)."""

    broker_name: str


class ControllerGetReplicaInfoResponse(Header, kw_only=True):
    """The response to CONTROLLER_GET_REPLICA_INFO; id and address are None without a master."""

    master_broker_id: Int64 | None = None
    master_address: str | None = None
    master_epoch: Int32 | None = None


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


class ControllerApplyBrokerIdResponse(Header, kw_only=True):
    """The response to CONTROLLER_APPLY_BROKER_ID."""

    cluster_name: str | None = None
    broker_name: str | None = None


class GetBrokerEpochCacheRequest(Header, kw_only=True):
    """GET_BROKER_EPOCH_CACHE (1007)."""

    broker_name: str | None = None
