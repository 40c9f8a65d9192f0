"""Elections, the brokers that controllers know, and the permission to write at a broker."""

from __future__ import annotations

from typing import Annotated

import msgspec

from cometmq.client.errors import ClientError
from cometmq.console.changes import Change
from cometmq.console.cluster.controllers import BrokerSet, broker_set_of
from cometmq.console.forms import Form
from cometmq.console.pages import Name, NotFoundError, Role, address
from cometmq.console.reads import Reads
from cometmq.model.errors import ConfigError
from cometmq.protocol.bodies.controller import ReplicasInfo
from cometmq.protocol.headers.controller import ControllerElectMasterResponse

CONTROLLERS = "/cluster/controllers"
SetName = Annotated[Name, msgspec.Meta(description="Name of the brokers of the set.")]
BrokerName = Annotated[Name, msgspec.Meta(description="Name of a broker, such as broker-a.")]
ClusterName = Annotated[
    Name, msgspec.Meta(description="Needed only if no broker of the set is registered.")
]


# --- elections ------------------------------------------------------------------------------------


class ElectMaster(Form):
    """Which broker of a set becomes its master."""

    broker_set: SetName
    broker_id: Annotated[
        int, msgspec.Meta(ge=0, le=2**63 - 1, description="Its id at the controllers.")
    ]
    cluster: ClusterName = ""


class Election(msgspec.Struct):
    """The master of now, and the one that is elected."""

    broker_set: str
    controller: str
    """The active one."""
    master_now: str
    master_then: str
    in_sync: bool
    """Whether the new master is in the in-sync set. If not, the controller refuses."""
    alive: bool


class Elected(msgspec.Struct):
    """The master after an election."""

    broker_set: str
    master_id: int
    master_address: str
    master_epoch: int


async def election(reads: Reads, form: ElectMaster) -> Election:
    """Return what an election changes."""
    leader, found = await _set_at_leader(reads, form.broker_set, form.cluster)
    for each in found.replicas:
        if each.id == form.broker_id:
            now = [
                f"{other.id} {other.address}" for other in found.replicas if other.role == "master"
            ]
            return Election(
                found.name, leader, ", ".join(now) or "none", f"{each.id} {each.address}",
                each.in_sync, each.alive,
            )  # fmt: skip
    ids = ", ".join(str(each.id) for each in found.replicas)
    raise ConfigError(f"broker_id={form.broker_id}: {found.name} has the ids {ids or 'none'}")


async def elect(reads: Reads, form: ElectMaster) -> Elected:
    """Let the active controller elect a broker."""
    await election(reads, form)
    leader, found = await _set_at_leader(reads, form.broker_set, form.cluster)
    response = await reads.admin.elect_master(leader, found.cluster, found.name, form.broker_id)
    made = response.header(ControllerElectMasterResponse)
    return Elected(
        found.name, made.master_broker_id or 0, made.master_address or "", made.master_epoch or 0
    )


async def _set_at_leader(reads: Reads, name: str, cluster: str) -> tuple[str, BrokerSet]:
    """Return the active controller and what it knows of a broker set.

    Raises:
        ClientError: no controller is active.
        NotFoundError: the controller knows no such set.
    """
    leader = await _leader(reads)
    table = (await reads.admin.sync_state(leader, [name])).replicas_info_table
    found = table.get(name, ReplicasInfo())
    if not found.in_sync_replicas and not found.not_in_sync_replicas:
        raise NotFoundError(f"the controllers know no broker set {name}")
    clusters = [each.cluster for each in await reads.brokers() if each.name == name]
    return leader, broker_set_of(name, clusters[0] if clusters else cluster, found)


async def _leader(reads: Reads) -> str:
    """Return the address of the active controller.

    Raises:
        ClientError: there is none.
    """
    addresses = await reads.controllers()
    for found in await reads.each(addresses, reads.admin.controller_metadata):
        if not isinstance(found, Exception) and found.controller_leader_address:
            return found.controller_leader_address
    raise ClientError(
        "no broker names a controller: expected enableControllerMode and controllerAddr"
        if not addresses
        else f"none of the controllers {', '.join(addresses)} is active: is a majority running?"
    )


# --- brokers that controllers know ----------------------------------------------------------------


class ForgetBrokers(Form):
    """Brokers of a set that controllers forget."""

    broker_set: SetName
    broker_ids: Annotated[
        list[str], msgspec.Meta(description="Their ids at the controllers; all if there is none.")
    ] = msgspec.field(default_factory=list)
    also_alive: Annotated[
        bool, msgspec.Meta(description="Also brokers that send heartbeats to the controllers.")
    ] = False
    cluster: ClusterName = ""


class Forgotten(msgspec.Struct):
    """Brokers, by id and address."""

    broker_set: str
    brokers: list[str]


async def forgotten(reads: Reads, form: ForgetBrokers) -> Forgotten:
    """Return the brokers that the form names.

    Raises:
        ConfigError: it names others, or brokers that are alive.
    """
    ids = _ids(form)
    _, found = await _set_at_leader(reads, form.broker_set, form.cluster)
    named = [each for each in found.replicas if not ids or each.id in ids]
    if unknown := sorted(set(ids) - {each.id for each in named}):
        raise ConfigError(f"broker_ids: {found.name} has no broker {', '.join(map(str, unknown))}")
    alive = [str(each.id) for each in named if each.alive]
    if alive and not form.also_alive:
        raise ConfigError(
            f"broker_ids: {', '.join(alive)} of {found.name} is alive: stop it, or set also_alive"
        )
    return Forgotten(found.name, [f"{each.id} {each.address}" for each in named])


async def forget(reads: Reads, form: ForgetBrokers) -> Forgotten:
    """Remove the brokers from the controllers."""
    gone = await forgotten(reads, form)
    leader, found = await _set_at_leader(reads, form.broker_set, form.cluster)
    await reads.admin.forget_brokers(
        leader, found.name, cluster=found.cluster, broker_ids=_ids(form), living=form.also_alive
    )
    return gone


def _ids(form: ForgetBrokers) -> list[int]:
    words = [word for line in form.broker_ids for word in line.replace(",", " ").split()]
    if wrong := [word for word in words if not word.isdecimal() or len(word) > 18]:
        raise ConfigError(f"broker_ids: {wrong[0]}, expected numbers")
    return [int(word) for word in words]


# --- the permission to write ----------------------------------------------------------------------


class Writing(Form):
    """The broker that producers leave, or come back to."""

    broker: BrokerName


class WritingChange(msgspec.Struct):
    """The broker whose permission changes."""

    broker: str
    addresses: list[str]
    name_servers: list[str]
    """They take the permission away, or give it back, in the routes of its topics."""


class WritingChanged(msgspec.Struct):
    """What the name servers have changed."""

    broker: str
    topics: int
    """The topics whose routes have changed."""


async def writing(reads: Reads, form: Writing) -> WritingChange:
    """Return what is changed."""
    addresses = [each.address for each in await reads.brokers() if each.name == form.broker]
    if not addresses:
        raise NotFoundError(f"no broker {form.broker} is registered")
    return WritingChange(form.broker, addresses, reads.admin.name_servers)


async def stop_writing(reads: Reads, form: Writing) -> WritingChanged:
    """Remove the permission to write."""
    await writing(reads, form)
    return WritingChanged(form.broker, await reads.admin.stop_writing(form.broker))


async def resume_writing(reads: Reads, form: Writing) -> WritingChanged:
    """Restore the permission to write."""
    await writing(reads, form)
    return WritingChanged(form.broker, await reads.admin.resume_writing(form.broker))


def _to_controllers(form: ElectMaster | ForgetBrokers) -> str:
    return address(CONTROLLERS, search=form.broker_set)


CHANGES = (
    Change(
        "/cluster/controllers/elect", "Elect a master", ElectMaster, elect, Elected,
        role=Role.ADMINISTRATOR, preview=election, previewed=Election, back=_to_controllers,
    ),
    Change(
        "/cluster/controllers/forget", "Remove brokers from the controllers",
        ForgetBrokers, forget, Forgotten,
        role=Role.ADMINISTRATOR, preview=forgotten, previewed=Forgotten, back=_to_controllers,
    ),
    Change(
        "/cluster/stop-writing", "Stop writing to a broker", Writing, stop_writing, WritingChanged,
        preview=writing, previewed=WritingChange,
    ),
    Change(
        "/cluster/resume-writing", "Resume writing to a broker",
        Writing, resume_writing, WritingChanged, preview=writing, previewed=WritingChange,
    ),
)  # fmt: skip
