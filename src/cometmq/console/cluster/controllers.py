"""Controllers, and the broker sets whose masters they elect."""

from __future__ import annotations

import msgspec

from cometmq.console.pages import Page, PageNumber, Paging, Query, Search, matching, paged
from cometmq.console.reads import Reads
from cometmq.model.errors import CometError
from cometmq.protocol.bodies.controller import ReplicaIdentity, ReplicasInfo
from cometmq.protocol.headers.controller import ControllerGetMetadataInfoResponse

SETS_SHOWN = 25
CONTROLLERS_SHOWN = 16


class ControllersQuery(Query):
    """Which broker sets."""

    search: Search = ""
    page: PageNumber = 1


class ControllerState(msgspec.Struct):
    """A controller, and what it knows of the others."""

    address: str
    role: str = ""
    group: str = ""
    leader_id: str = ""
    leader: str = ""
    """The address of the active controller."""
    members: list[str] = msgspec.field(default_factory=list)
    error: str = ""


class Replica(msgspec.Struct):
    """A broker of a set as the active controller knows it."""

    id: int
    address: str
    role: str
    in_sync: bool
    alive: bool
    log_state: str
    """``unverified`` or ``replaced`` if a master has to compare its log before it is elected."""


class BrokerSet(msgspec.Struct):
    """The brokers of one name."""

    name: str
    cluster: str
    master_epoch: int
    in_sync_epoch: int
    replicas: list[Replica]


class Controllers(msgspec.Struct):
    """The controllers of a cluster."""

    controllers: list[ControllerState]
    paging: Paging
    sets: list[BrokerSet]
    errors: list[str]


async def controllers(reads: Reads, query: ControllersQuery) -> Controllers:
    """Return the controllers; the active one is asked for the sets of the page only."""
    addresses = (await reads.controllers())[:CONTROLLERS_SHOWN]
    clusters = {each.name: each.cluster for each in await reads.brokers()}
    shown, paging = paged(matching(sorted(clusters), query.search), query.page, SETS_SHOWN)
    found = await reads.each(addresses, reads.admin.controller_metadata)
    states = [_state(*each) for each in zip(addresses, found, strict=True)]
    leader = next((each.leader for each in states if each.leader), "")
    errors, table = list[str](), dict[str, ReplicasInfo]()
    if leader:
        try:
            table = (await reads.admin.sync_state(leader, shown)).replicas_info_table
        except CometError as error:
            errors.append(f"controller {leader}: {error}")
    elif addresses:
        errors.append("no controller is active: no master is elected until a majority runs")
    sets = [broker_set_of(name, clusters[name], table[name]) for name in shown if name in table]
    return Controllers(states, paging, sets, errors)


def _state(address: str, found: ControllerGetMetadataInfoResponse | CometError) -> ControllerState:
    if isinstance(found, CometError):
        return ControllerState(address, error=str(found))
    return ControllerState(
        address,
        "active" if found.is_leader else "standby",
        found.group or "",
        found.controller_leader_id or "",
        found.controller_leader_address or "",
        [each for each in (found.peers or "").split(";") if each],
    )


def broker_set_of(name: str, cluster: str, found: ReplicasInfo) -> BrokerSet:
    """Return a broker set as a controller has described it."""

    def replica(each: ReplicaIdentity, *, in_sync: bool) -> Replica:
        role = "master" if each.broker_id == found.master_broker_id else "slave"
        address = each.broker_address or ""
        return Replica(each.broker_id, address, role, in_sync, each.alive, each.log_state or "")

    replicas = [replica(each, in_sync=True) for each in found.in_sync_replicas]
    replicas += [replica(each, in_sync=False) for each in found.not_in_sync_replicas]
    replicas.sort(key=lambda each: each.id)
    return BrokerSet(name, cluster, found.master_epoch, found.sync_state_set_epoch, replicas)


PAGES = (
    Page(
        "/cluster/controllers", "Controllers", "cluster/controllers.html",
        ControllersQuery, Controllers, controllers,
    ),
)  # fmt: skip
