"""Bodies between brokers, tools and a controller.

Source: SyncStateSet, ElectMasterResponseBody, BrokerReplicasInfo and EpochEntryCache, RocketMQ 5.3.
"""

from typing import ClassVar

from msgspec import field

from cometmq.protocol.bodies.base import Body, Part
from cometmq.protocol.bodies.route import BrokerMemberGroup


class SyncStateSet(Body, kw_only=True):
    """The controller ids that hold every confirmed byte.

    CONTROLLER_ALTER_SYNC_STATE_SET (1001), CONTROLLER_REGISTER_BROKER (1003),
    CONTROLLER_GET_REPLICA_INFO (1004) and NOTIFY_BROKER_ROLE_CHANGED (1008).
    """

    sync_state_set: list[int] = field(default_factory=list)
    sync_state_set_epoch: int = 0


class ElectMasterResponseBody(Body, kw_only=True):
    """CONTROLLER_ELECT_MASTER (1002); the members have bare keys."""

    bare_keys: ClassVar[bool] = True

    broker_member_group: BrokerMemberGroup | None = None
    """None if the old master stays."""
    sync_state_set: list[int] = field(default_factory=list)


class ReplicaIdentity(Part, kw_only=True):
    """One broker of a broker set."""

    broker_name: str = ""
    broker_id: int = 0
    broker_address: str | None = None
    alive: bool = False
    log_state: str | None = None
    """``unverified`` or ``replaced`` if a master has to compare its log first; not RocketMQ's."""


class ReplicasInfo(Part, kw_only=True):
    """The master, in-sync set and other brokers of one broker set."""

    master_broker_id: int | None = None
    master_address: str | None = None
    master_epoch: int = 0
    sync_state_set_epoch: int = 0
    in_sync_replicas: list[ReplicaIdentity] = field(default_factory=list)
    not_in_sync_replicas: list[ReplicaIdentity] = field(default_factory=list)


class BrokerReplicasInfo(Body, kw_only=True):
    """The response to CONTROLLER_GET_SYNC_STATE_DATA (1006): the broker sets by name."""

    replicas_info_table: dict[str, ReplicasInfo] = field(default_factory=dict)


class EpochEntry(Part, kw_only=True):
    """One mastership: its epoch and where in the log it starts and ends."""

    epoch: int = 0
    start_offset: int = 0
    end_offset: int = 0


class EpochEntryCache(Body, kw_only=True):
    """GET_BROKER_EPOCH_CACHE (1007)."""

    cluster_name: str | None = None
    broker_name: str | None = None
    broker_id: int = 0
    epoch_list: list[EpochEntry] = field(default_factory=list)
    max_offset: int = 0
