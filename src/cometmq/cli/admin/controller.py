"""``cometmq admin controller``: controllers, and the broker sets that they elect masters of."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from cometmq.cli.admin.commands import BROKERS, Call, Commands
from cometmq.cli.admin.config import Part, Settings, settings_changes, settings_of
from cometmq.cli.admin.output import Change, Row, Rows
from cometmq.cli.controllers import from_any
from cometmq.model.errors import ConfigError
from cometmq.protocol.bodies.route import RegisteredBroker

app = Commands("Controllers: their leader, in-sync sets, epochs and elections.")

Addresses = Annotated[
    str,
    typer.Option(
        "--controller", "-a", help="Addresses of controllers: host:port;host:port.",
        envvar="COMETMQ_CONTROLLERS",
    ),
]  # fmt: skip
ClusterOfSet = Annotated[str, typer.Option("--cluster", help="Cluster of the set.")]
SetName = Annotated[str, typer.Argument(help="Name of the brokers of the set.")]


def addresses(text: str) -> list[str]:
    """Return the addresses in a text.

    Raises:
        ConfigError: there is none.
    """
    found = [each.strip() for each in text.split(";") if each.strip()]
    if not found:
        raise ConfigError("--controller: expected host:port;host:port")
    return found


@app.show("status", "group active_id active_address peers", one=True, watch=True)
async def status(call: Call, controller: Addresses) -> Row:
    """Show the active controller and all members of the controllers."""
    found = await from_any(call.admin.controller_metadata, addresses(controller))
    peers = [each for each in (found.peers or "").split(";") if each]
    return (found.group, found.controller_leader_id, found.controller_leader_address, peers)


@app.show("config", "address key value")
async def config(call: Call, controller: Addresses, part: Part = "") -> Rows:
    """Show the settings of controllers. Passwords are shown as stars."""
    return await settings_of(addresses(controller), call.admin.controller_config, part)


@app.change("set-config")
async def set_config(call: Call, controller: Addresses, settings: Settings) -> list[Change]:
    """Change settings of controllers."""
    return settings_changes(addresses(controller), settings, call.admin.set_controller_config)


@app.show(
    "sync-state",
    "set broker_id address role in_sync alive master_epoch",
    watch=True,
    chooses=BROKERS,
)
async def sync_state(call: Call, controller: Addresses) -> Rows:
    """Show which brokers of each set are in sync, and which one is the master."""
    leader = await from_any(call.admin.controller_leader, addresses(controller))
    names = [call.broker] if call.broker else await _sets(call)
    rows: list[Row] = []
    table = (await call.admin.sync_state(leader, names)).replicas_info_table
    for name, found in sorted(table.items()):
        for replicas, in_sync in (
            (found.in_sync_replicas, True),
            (found.not_in_sync_replicas, False),
        ):
            for each in sorted(replicas, key=lambda each: each.broker_id):
                is_master = each.broker_id == found.master_broker_id
                rows.append(
                    (
                        *(name, each.broker_id, each.broker_address),
                        *("master" if is_master else "slave", in_sync, each.alive),
                        found.master_epoch,
                    )
                )
    return rows


async def _sets(call: Call) -> list[str]:
    return sorted({each.name for each in await call.servers(slaves=True)})


@app.each("epochs", "broker id epoch start_offset end_offset", slaves=True, watch=True)
async def epochs(call: Call, server: RegisteredBroker) -> list[Row]:
    """Show the epochs of the logs of brokers."""
    found = await call.admin.broker_epochs(server.address)
    last = found.epoch_list[-1:]
    return [
        (
            *(found.broker_name, found.broker_id, each.epoch, each.start_offset),
            found.max_offset if [each] == last else each.end_offset,
        )
        for each in found.epoch_list
    ]


@app.change("elect")
async def elect(
    call: Call,
    controller: Addresses,
    name: SetName,
    broker_id: Annotated[int, typer.Argument(help="Id of the broker to become master.", min=0)],
    cluster: ClusterOfSet = "DefaultCluster",
) -> list[Change]:
    """Let the controller elect a broker of a set as its master."""
    leader = await from_any(call.admin.controller_leader, addresses(controller))
    found = (await call.admin.sync_state(leader, [name])).replicas_info_table.get(name)
    if found is None:
        raise ConfigError(f"the controller knows no broker set {name}")
    return [
        Change(
            f"elect broker {broker_id} of {name} as master",
            leader,
            partial(call.admin.elect_master, leader, cluster, name, broker_id),
            f"master now {found.master_broker_id} {found.master_address}",
            destroys=True,
        )
    ]


@app.change("forget")
async def forget(
    call: Call,
    controller: Addresses,
    name: SetName,
    broker_ids: Annotated[
        list[int] | None, typer.Argument(help="Their ids at the controller; all if none is given.")
    ] = None,
    cluster: ClusterOfSet = "DefaultCluster",
    living: Annotated[bool, typer.Option("--living", help="Also brokers that are alive.")] = False,
) -> list[Change]:
    """Remove brokers of a set from the controllers."""
    leader = await from_any(call.admin.controller_leader, addresses(controller))
    run = partial(
        call.admin.forget_brokers,
        leader,
        name,
        cluster=cluster,
        broker_ids=broker_ids or (),
        living=living,
    )
    shown = ", ".join(map(str, broker_ids)) if broker_ids else "all brokers"
    return [Change(f"remove {shown} of {name}", leader, run, destroys=True)]
