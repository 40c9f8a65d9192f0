"""``cometmq admin broker``: the state of brokers, and jobs that they do when asked."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from cometmq.cli.admin.arguments import BrokerArgument, GroupName, OptionalTopic
from cometmq.cli.admin.commands import BROKERS, CLUSTER, Call, Commands
from cometmq.cli.admin.output import Change, Row, Rows
from cometmq.model.errors import ConfigError
from cometmq.model.nouns import counted
from cometmq.protocol.bodies.route import RegisteredBroker

app = Commands("Brokers: their state, replication, clients and clean-up.")

LAG_TIMEOUT_S = 50.0
"""Time for a broker to look at all its groups."""
Container = Annotated[str, typer.Argument(help="Address host:port of the broker container.")]


@app.show("list", "cluster broker id address", chooses=CLUSTER)
async def list_brokers(call: Call) -> Rows:
    """List the registered brokers, slaves too."""
    return await call.servers(slaves=True)


@app.each("status", "broker id name value", slaves=True, watch=True)
async def status(
    call: Call,
    server: RegisteredBroker,
    part: Annotated[str, typer.Option("--name", help="Only names that contain this.")] = "",
) -> list[Row]:
    """Show the counters and limits of running brokers."""
    figures = await call.admin.broker_runtime_info(server.address)
    return [
        (server.name, server.id, name, value)
        for name, value in sorted(figures.items())
        if part.lower() in name.lower()
    ]


@app.each("lag", "topic group broker queue committed end lag last_consumed_time_ms", watch=True)
async def lag(
    call: Call,
    server: RegisteredBroker,
    topic: OptionalTopic = None,
    min_lag: Annotated[int, typer.Option("--min-lag", min=0, help="Smallest lag to show.")] = 0,
    ordered: Annotated[
        bool, typer.Option("--ordered", help="Ordered topics instead of the others.")
    ] = False,
) -> list[Row]:
    """Show the lag of every group in every queue of brokers.

    A static topic is shown by the queues of its brokers; 'group lag' shows its logical queues.
    """
    found = await call.admin.broker_lag(server.address, ordered=ordered, timeout=LAG_TIMEOUT_S)
    return [
        (
            *(queue.topic, group, queue.broker_name, queue.queue_id),
            *(row.consumer_offset, row.broker_offset),
            max(row.broker_offset - row.consumer_offset, 0),
            row.last_timestamp if row.last_timestamp > 0 else None,
        )
        for groups in found.consume_stats_list
        for group, tables in groups.items()
        for table in tables
        for queue, row in sorted(table.offset_table.items())
        if topic in (None, queue.topic)
        and row.consumer_offset >= 0  # else the offset is at another broker of a static topic
        and row.broker_offset - row.consumer_offset >= min_lag
    ]


@app.each(
    "replication",
    "broker master slave end_offset lag_bytes transferred_bytes_per_s in_sync last_read_time_ms",
    watch=True,
)
async def replication(call: Call, server: RegisteredBroker) -> list[Row]:
    """Show the slaves of each master, and how far they are; brokers of 5.0 and later know it.

    end: the end of the master's log; lag: what a slave lacks.
    """
    found = await call.admin.replication(server.address)
    if not found.master:
        slave = found.ha_client_runtime_info
        head = (server.name, slave.master_addr, server.address, slave.max_offset)
        transferred = slave.transferred_byte_in_second
        return [(*head, None, transferred, None, slave.last_read_timestamp)]
    end = found.master_commit_log_max_offset
    rows: list[Row] = [
        (
            *(server.name, server.address, each.addr, end, each.diff),
            *(each.transferred_byte_in_second, each.in_sync, None),
        )
        for each in found.ha_connection_info
    ]
    return rows or [(server.name, server.address, None, end, None, None, None, None)]


@app.each("producers", "broker group client address language version last_update_time_ms")
async def producers(call: Call, server: RegisteredBroker) -> list[Row]:
    """List the connected producers of brokers."""
    from cometmq.protocol.version import version_name

    return [
        (
            *(server.name, group, each.client_id, each.remote_ip, str(each.language)),
            *(version_name(each.version), each.last_update_timestamp),
        )
        for group, members in sorted((await call.admin.producers(server.address)).data.items())
        for each in members
    ]


@app.change("clean", chooses=BROKERS)
async def clean(
    call: Call,
    what: Annotated[
        str, typer.Argument(help="logs, queues, topics, or all of them.", metavar="[WHAT]")
    ] = "all",
) -> list[Change]:
    """Delete expired files now: of the commit log, of consume queues, of topics that are gone."""
    steps = {
        "logs": ("delete expired commit log files", call.admin.delete_expired_logs),
        "queues": ("delete expired consume queue files", call.admin.delete_expired_queues),
        "topics": ("delete files of deleted topics", call.admin.delete_unused_topics),
    }
    if what != "all" and what not in steps:
        raise ConfigError(f"{what}: expected all, {', '.join(steps)}")
    return [
        change
        for name, (text, run) in steps.items()
        if what in ("all", name)
        for change in await call.change_each(text, run, slaves=True, destroys=True)
    ]


@app.change("stop-writing")
async def stop_writing(call: Call, broker: BrokerArgument) -> list[Change]:
    """Remove the write permission of a broker at the name servers, so that producers leave it.

    It lasts until 'resume-writing', or until the broker registers changed topics.
    """
    run = partial(call.admin.stop_writing, await _name(call, broker))
    return call.change_name_servers(f"remove write permission of {broker}", run, destroys=True)


@app.change("resume-writing")
async def resume_writing(call: Call, broker: BrokerArgument) -> list[Change]:
    """Restore the write permission of a broker at the name servers."""
    run = partial(call.admin.resume_writing, await _name(call, broker))
    return call.change_name_servers(f"restore write permission of {broker}", run)


async def _name(call: Call, broker: str) -> str:
    """Return the name of a broker that is given by its name or address."""
    for server in await call.registered(slaves=True):
        if broker in (server.name, server.address):
            return server.name
    raise ConfigError(f"no broker {broker} is registered")


@app.each("cold-reads", "broker info")
async def cold_reads(call: Call, server: RegisteredBroker) -> list[Row]:
    """Show how brokers of 5.1.3 and later limit the reading of cold data."""
    return [(server.name, await call.admin.cold_reads(server.address))]


@app.change("set-cold-limit", chooses=BROKERS)
async def set_cold_limit(
    call: Call,
    group: GroupName,
    limit: Annotated[int, typer.Argument(help="Bytes per second.", min=0)],
) -> list[Change]:
    """Set how many bytes of cold data per second a group may read."""
    return await call.change_each(
        f"limit cold reads of group {group}",
        lambda address: call.admin.set_cold_read_limit(address, group, str(limit)),
        f"{counted(limit, 'byte')} per second",
    )


@app.change("remove-cold-limit", chooses=BROKERS)
async def remove_cold_limit(call: Call, group: GroupName) -> list[Change]:
    """Remove a group's own limit for reads of cold data."""
    return await call.change_each(
        f"remove the cold-read limit of group {group}",
        lambda address: call.admin.remove_cold_read_limit(address, group),
    )


@app.change("set-read-ahead", chooses=BROKERS)
async def set_read_ahead(
    call: Call, mode: Annotated[str, typer.Argument(help="normal or random.")]
) -> list[Change]:
    """Set how the kernel reads ahead in commit logs, on brokers of 5.1.3 and later."""
    modes = {"normal": 0, "random": 1}
    if mode not in modes:
        raise ConfigError(f"mode {mode}: expected normal or random")
    return await call.change_each(
        f"set reading ahead to {mode}",
        lambda address: call.admin.set_read_ahead(address, modes[mode]),
        slaves=True,
    )


@app.change("set-flushed-of-master")
async def set_flushed_of_master(
    call: Call,
    address: Annotated[str, typer.Argument(help="Address host:port of the slave.")],
    offset: Annotated[int, typer.Argument(help="Physical offset.", min=0)],
) -> list[Change]:
    """Set on a slave how far its master is known to have flushed; 5.0 and later."""
    run = partial(call.admin.set_flushed_of_master, address, offset)
    return [
        Change(f"set the flushed offset of the master to {offset}", address, run, destroys=True)
    ]


@app.change("add-to-container")
async def add_to_container(
    call: Call,
    container: Container,
    config_path: Annotated[
        str, typer.Argument(help="Configuration file of the broker, on the container's machine.")
    ],
) -> list[Change]:
    """Start a broker in a broker container of RocketMQ 5."""
    run = partial(call.admin.add_broker, container, config_path)
    return [Change(f"start the broker of {config_path}", container, run)]


@app.change("remove-from-container")
async def remove_from_container(
    call: Call,
    container: Container,
    identity: Annotated[str, typer.Argument(help="The broker.", metavar="CLUSTER:NAME:ID")],
) -> list[Change]:
    """Stop a broker in a broker container of RocketMQ 5."""
    parts = identity.split(":")
    if len(parts) != 3 or not parts[2].isdecimal():
        raise ConfigError(f"{identity}: expected CLUSTER:NAME:ID")
    run = partial(call.admin.remove_broker, container, parts[0], parts[1], int(parts[2]))
    return [Change(f"stop broker {identity}", container, run, destroys=True)]
