"""``cometmq admin topic``: topics, their settings, routes and queues."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from cometmq.cli.admin.arguments import (
    SettingsFile,
    TopicName,
    names_shown,
    print_settings,
    queue_of,
    settings_changes,
    settings_in,
)
from cometmq.cli.admin.commands import BROKERS, Call, Commands
from cometmq.cli.admin.output import Change, Row, Rows
from cometmq.model.errors import CometError, ConfigError
from cometmq.model.nouns import counted
from cometmq.protocol.bodies.route import RegisteredBroker

if TYPE_CHECKING:
    from cometmq.model.topic import TopicConfig

app = Commands("Topics: their settings, routes and queues.")

Queues = Annotated[int | None, typer.Option("--queues", min=1, help="Queues on each broker.")]
ReadQueues = Annotated[
    int | None, typer.Option("--read-queues", min=1, help="Queues that consumers read.")
]
WriteQueues = Annotated[
    int | None, typer.Option("--write-queues", min=1, help="Queues that producers write to.")
]
PermText = Annotated[
    str | None, typer.Option("--perm", help="What is allowed: r, w or rw.", metavar="PERM")
]
Ordered = Annotated[
    bool | None,
    typer.Option("--ordered/--not-ordered", help="Whether each key has to stay in its queue."),
]
Attributes = Annotated[
    list[str] | None,
    typer.Option(
        "--attribute", metavar="NAME=VALUE",
        help="Attribute for brokers of 5.0 and later; NAME= removes it. Repeat for several.",
    ),
]  # fmt: skip
FewerQueues = Annotated[
    bool,
    typer.Option(
        "--allow-fewer-queues", help="Also remove queues with messages, which nobody reads then."
    ),
]
OnBrokers = Annotated[
    list[str] | None,
    typer.Option(
        "--on", metavar="BROKER", show_default="all",
        help="Broker that gets queues; repeat for several.",
    ),
]  # fmt: skip
PERMS = {"r": 4, "w": 2, "rw": 6, "wr": 6}
QUEUES = 8
"""The queues of a new topic, if no number is given."""


def perm_text(perm: int) -> str:
    """Return permissions as letters, such as ``rw``."""
    return "".join(letter for letter, bit in (("r", 4), ("w", 2)) if perm & bit)


def perm_of(text: str) -> int:
    """Return the permissions that letters mean.

    Raises:
        ConfigError: the letters mean none.
    """
    if text.lower() not in PERMS:
        raise ConfigError(f"--perm {text}: expected r, w or rw")
    return PERMS[text.lower()]


def attribute_changes(texts: list[str] | None) -> dict[str, str]:
    """Return changes of attributes as a broker expects them.

    Raises:
        ConfigError: a text is not NAME=VALUE.
    """
    changes: dict[str, str] = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise ConfigError(f"--attribute {text}: expected NAME=VALUE")
        changes[f"+{name}" if value else f"-{name}"] = value
    return changes


@app.show("list", "topic")
async def list_topics(
    call: Call,
    all_topics: Annotated[
        bool, typer.Option("--all", help="System, retry and dead-letter topics too.")
    ] = False,
) -> Rows:
    """List the topics that the name server knows."""
    from cometmq.cli.admin.names import topic_names

    names = await call.admin.topics() if all_topics else await topic_names(call.admin)
    return [(topic,) for topic in names]


@app.show("show", "broker read_queues write_queues perm ordered attributes")
async def show(call: Call, topic: TopicName) -> Rows:
    """Show the settings of a topic on each broker."""
    return [
        (
            *(name, config.read_queue_nums, config.write_queue_nums, perm_text(config.perm)),
            *(config.order, config.attributes),
        )
        for name, config in (await call.admin.topic_configs(topic)).items()
    ]


@app.show("route", "cluster broker addresses read_queues write_queues perm")
async def show_route(call: Call, topic: TopicName) -> Rows:
    """Show the brokers of a topic, as clients see them."""
    route = await call.admin.route(topic)
    brokers = {each.broker_name: each for each in route.broker_datas}
    return [
        (
            *(brokers[each.broker_name].cluster, each.broker_name),
            {str(key): where for key, where in brokers[each.broker_name].broker_addrs.items()},
            *(each.read_queue_nums, each.write_queue_nums, perm_text(each.perm)),
        )
        for each in sorted(route.queue_datas, key=lambda each: each.broker_name)
        if each.broker_name in brokers
    ]


@app.show("clusters", "cluster brokers")
async def clusters(call: Call, topic: TopicName) -> Rows:
    """List the clusters that have a topic, and its brokers there."""
    names = {each.broker_name for each in (await call.admin.route(topic)).broker_datas}
    found = (await call.admin.cluster_info()).cluster_addr_table
    return [
        (cluster, sorted(names & {*brokers}))
        for cluster, brokers in sorted(found.items())
        if names & {*brokers}
    ]


@app.show("status", "broker queue min_offset max_offset messages last_stored_time_ms", watch=True)
async def status(call: Call, topic: TopicName) -> Rows:
    """Show the offsets of each queue of a topic, and when its last message was stored.

    A static topic is shown by its logical queues, then by the queues of its brokers.
    """
    found = await call.admin.topic_stats(topic)
    logical = await call.admin.logical_topic_stats(topic, found)
    return [
        (
            *(queue.broker_name, queue.queue_id, row.min_offset, row.max_offset),
            row.max_offset - row.min_offset,
            row.last_update_timestamp if row.last_update_timestamp > 0 else None,
        )
        for queue, row in [*logical.items(), *sorted(found.items())]
    ]


@app.show("stats", "topic group lag in_tps out_tps in_day out_day", watch=True)
async def stats(
    call: Call,
    topics: Annotated[
        list[str] | None, typer.Argument(help="Topics; all of applications if none is given.")
    ] = None,
    active: Annotated[
        bool, typer.Option("--active", help="Leave out what had no messages for a day.")
    ] = False,
) -> Rows:
    """Show the rates of topics and of the groups that consume them, and the lag of these."""

    async def read(topic: str) -> list[Row]:
        try:
            return await _stats(call, topic)
        except CometError as error:
            call.fail(error, topic)
            return []

    found = await call.side_by_side(
        topics or [str(row[0]) for row in await list_topics(call)], read
    )
    return [row for rows in found for row in rows if not active or row[5] or row[6]]


async def _stats(call: Call, topic: str) -> list[Row]:
    addresses = (await call.admin.route(topic)).masters()
    (in_tps, in_day), groups = await asyncio.gather(
        call.admin.broker_counters(addresses, "TOPIC_PUT_NUMS", topic),
        call.admin.groups_of_topic(topic),
    )

    async def read(group: str) -> Row:
        (out_tps, out_day), found = await asyncio.gather(
            call.admin.broker_counters(addresses, "GROUP_GET_NUMS", f"{topic}@{group}"),
            call.admin.consume_stats(group, topic),
        )
        lag = sum(max(row.broker_offset - row.consumer_offset, 0) for row in found.values())
        return topic, group, lag, in_tps, out_tps, in_day, out_day

    rows = await call.side_by_side(groups, read)
    return rows or [(topic, None, None, in_tps, None, in_day, None)]


@app.action("export", chooses=BROKERS)
async def export(call: Call) -> None:
    """Print the settings of the topics of applications as JSON that 'topic apply' reads.

    Static topics are left out, and named on standard error: 'topic create-static' creates them.
    """
    from cometmq.model.topic import application_topics

    addresses = [each.address for each in await call.servers()]
    tables = await call.side_by_side(addresses, call.admin.broker_topics)
    static = {
        name: mapping.total_queues
        for mappings in await call.side_by_side(addresses, call.admin.broker_static_topics)
        for name, mapping in mappings.items()
    }
    info = await call.admin.cluster_info()
    brokers, clusters = info.broker_addr_table, info.cluster_addr_table
    print_settings(
        {
            name: table[name]
            for name in application_topics(table, brokers, clusters)
            if name not in static
        }
        for table in tables
    )
    if static:
        named = names_shown([f"{name} --queues {count}" for name, count in sorted(static.items())])
        print(
            "cometmq admin: static topics are left out, create each with 'cometmq admin topic"
            f" create-static': {named}",
            file=sys.stderr,
        )


@app.show("order", "broker queues")
async def order(call: Call, topic: TopicName) -> Rows:
    """Show the fixed number of queues per broker of an ordered topic."""
    return sorted((await call.admin.order_conf(topic)).items())


@app.show("allocate", "client broker queue")
async def allocate(
    call: Call,
    topic: TopicName,
    clients: Annotated[list[str], typer.Argument(help="Client ids.")],
) -> Rows:
    """Show how the queues of a topic would be shared among clients."""
    from cometmq.client.allocation import Averagely

    queues = sorted(await call.admin.queue_bounds(topic))
    return [
        (client, queue.broker_name, queue.queue_id)
        for client in sorted(clients)
        for queue in Averagely().allocate("", client, queues, sorted(clients))
    ]


@app.change("create", chooses=BROKERS)
async def create(
    call: Call,
    topic: Annotated[str, typer.Argument(help="Name of the new topic.")],
    queues: Queues = QUEUES,
    read_queues: ReadQueues = None,
    write_queues: WriteQueues = None,
    perm: PermText = "rw",
    ordered: Ordered = False,
    attribute: Attributes = None,
) -> list[Change]:
    """Create a topic. It is an error if it exists."""
    from cometmq.model.topic import TopicConfig, check_topic_name

    check_topic_name(topic)
    servers = await call.servers()
    if topic in await call.admin.topics():
        raise ConfigError(f"topic {topic} exists: change it with 'topic update'")
    config = TopicConfig(
        topic_name=topic,
        read_queue_nums=read_queues or queues or QUEUES,
        write_queue_nums=write_queues or queues or QUEUES,
        perm=perm_of(perm or "rw"),
        order=bool(ordered),
        attributes=attribute_changes(attribute),
    )
    detail = _settings(config)
    changes = [
        Change(
            f"create topic {topic}",
            each.name,
            partial(call.admin.set_topic_config, each.address, config),
            detail,
        )
        for each in servers
    ]
    if config.order:
        fixed = {each.name: config.write_queue_nums for each in servers}
        changes.append(_order_change(call, topic, fixed))
    return changes


def _settings(config: TopicConfig) -> str:
    parts = [
        f"read queues {config.read_queue_nums}",
        f"write queues {config.write_queue_nums}",
        f"perm {perm_text(config.perm)}",
    ]
    parts += ["ordered"] if config.order else []
    parts += [f"{name}={value}" if value else name for name, value in config.attributes.items()]
    return ", ".join(parts)


def _order_change(call: Call, topic: str, queues: dict[str, int]) -> Change:
    text = ", ".join(f"{name}:{count}" for name, count in sorted(queues.items())) or "none"
    return Change(
        f"set order configuration of {topic}",
        "name servers",
        partial(call.admin.set_order_conf, topic, queues),
        text,
    )


@app.change("update", chooses=BROKERS)
async def update(
    call: Call,
    topic: TopicName,
    queues: Queues = None,
    read_queues: ReadQueues = None,
    write_queues: WriteQueues = None,
    perm: PermText = None,
    ordered: Ordered = None,
    attribute: Attributes = None,
) -> list[Change]:
    """Change settings of a topic on each of its brokers; the others keep their values.

    It asks before it removes queues or permissions.
    """
    import msgspec

    if all(each is None for each in (queues, read_queues, write_queues, perm, ordered, attribute)):
        raise ConfigError("nothing to change: expected an option, such as --queues")
    has_counts = any(each is not None for each in (queues, read_queues, write_queues))
    if has_counts and await call.admin.is_static_topic(topic):
        raise ConfigError(
            f"topic {topic} is a static topic: change the number of its queues with 'topic"
            f" create-static {topic} --queues N'"
        )
    servers = {each.name: each for each in await call.registered(cluster=call.cluster)}
    changes: list[Change] = []
    for name, old in (await call.admin.topic_configs(topic)).items():
        if name not in servers or call.broker not in (None, name, servers[name].address):
            continue
        new = msgspec.structs.replace(
            old,
            read_queue_nums=read_queues or queues or old.read_queue_nums,
            write_queue_nums=write_queues or queues or old.write_queue_nums,
            perm=old.perm if perm is None else old.perm & ~6 | perm_of(perm),
            order=old.order if ordered is None else ordered,
            attributes=attribute_changes(attribute),
        )
        before, after = _settings(msgspec.structs.replace(old, attributes={})), _settings(new)
        changes.append(
            Change(
                f"update topic {topic}",
                name,
                partial(call.admin.set_topic_config, servers[name].address, new),
                f"{before} -> {after}",
                destroys=_has_fewer_queues(new, old) or bool(old.perm & ~new.perm),
            )
        )
    if not changes:
        raise ConfigError(f"topic {topic} is on no broker that was chosen")
    return changes


@app.change("apply", chooses=BROKERS)
async def apply(
    call: Call, file: SettingsFile, allow_fewer_queues: FewerQueues = False
) -> list[Change]:
    """Create or change the topics of a JSON file, which has their settings with RocketMQ's names.

    It names topics that get fewer queues, and refuses to remove read queues that have messages, or
    to change the queues of a static topic. A broker checks the topics after it has responded: see
    'topic show' for the result.
    """
    from cometmq.model.topic import TopicConfig

    servers = await call.servers()
    configs = settings_in(file, TopicConfig)
    warnings: dict[str, str] = {}
    unread: dict[str, int] = {}
    for each in servers:
        there = await call.admin.broker_topics(each.address)
        static = await call.admin.broker_static_topics(each.address)
        fewer = []
        for new in configs:
            old = there.get(new.topic_name)
            if old is None:
                continue
            if new.topic_name in static and _queue_counts(new) != _queue_counts(old):
                raise ConfigError(
                    f"{file} changes the queues of {new.topic_name}, which is a static topic on"
                    f" {each.name}: leave it out, and use 'topic create-static'"
                )
            if not _has_fewer_queues(new, old):
                continue
            fewer.append(_fewer(old, new))
            if new.read_queue_nums < old.read_queue_nums:
                unread[f"{fewer[-1]} on {each.name}"] = await _messages_beyond(call, each, new)
        if fewer:
            warnings[each.name] = f"fewer queues: {names_shown(fewer)}"
    unread = {what: count for what, count in unread.items() if count}
    if unread and not allow_fewer_queues:
        raise ConfigError(
            f"{file} removes read queues with {counted(sum(unread.values()), 'message')}, which"
            f" consumers could not read any more: {names_shown([*unread])}. Lower only"
            " writeQueueNums, until all groups have consumed them; or add --allow-fewer-queues"
        )
    return settings_changes(file, configs, "topic", servers, call.admin.set_topic_configs, warnings)


def _queue_counts(config: TopicConfig) -> tuple[int, int]:
    return config.read_queue_nums, config.write_queue_nums


def _has_fewer_queues(new: TopicConfig, old: TopicConfig) -> bool:
    return new.read_queue_nums < old.read_queue_nums or new.write_queue_nums < old.write_queue_nums


def _fewer(old: TopicConfig, new: TopicConfig) -> str:
    return (
        f"{new.topic_name} (read {old.read_queue_nums} -> {new.read_queue_nums},"
        f" write {old.write_queue_nums} -> {new.write_queue_nums})"
    )


async def _messages_beyond(call: Call, server: RegisteredBroker, config: TopicConfig) -> int:
    """Count the messages of a broker in queues that a topic would not have any more."""
    stats = await call.admin.topic_stats(config.topic_name)
    return sum(
        row.max_offset - row.min_offset
        for queue, row in stats.items()
        if queue.broker_name == server.name and queue.queue_id >= config.read_queue_nums
    )


@app.change("create-static")
async def create_static(
    call: Call,
    topic: Annotated[str, typer.Argument(help="Name of the topic.")],
    queues: Annotated[int, typer.Option("--queues", min=1, help="Logical queues of the topic.")],
    on: OnBrokers = None,
) -> list[Change]:
    """Create a static topic, whose queues can move between brokers, or give it more queues."""
    from cometmq.client.admin.static_plans import leaders_of
    from cometmq.model.topic import check_topic_name

    check_topic_name(topic)
    names = on or sorted((await call.admin.cluster_info()).broker_addr_table)
    plan = await call.admin.plan_static_topic(topic, queues, names)
    led = leaders_of(plan.parts)
    return [
        Change(
            f"create static topic {topic}",
            name,
            partial(call.admin.write_static_parts, plan, [name]),
            _numbers(number for number, leader in led.items() if leader == name),
        )
        for name in sorted(plan.parts)
    ]


@app.change("move-queues")
async def move_queues(
    call: Call,
    topic: TopicName,
    to: Annotated[
        list[str], typer.Option("--to", metavar="BROKER", help="New broker; repeat for several.")
    ],
    lost: Annotated[
        str | None,
        typer.Option(
            "--lost",
            metavar="BROKER",
            help="Broker whose master is lost; its replica serves the messages that it has.",
        ),
    ] = None,
) -> list[Change]:
    """Move the queues of a static topic to other brokers, while clients run.

    Messages stay where they are and are read from there; new ones go to the new brokers. A move
    that was interrupted is finished first.
    """
    plan = await call.admin.plan_queue_moves(topic, to, lost=lost)

    async def move() -> None:
        await call.admin.move_static_queues(topic, to, lost=lost)

    changes: list[Change] = [
        Change(
            f"move queue {each.queue_id} of {topic}",
            each.target,
            move if number == 0 else None,
            f"from {each.source}",
        )
        for number, each in enumerate(plan.moves)
    ]
    return changes or [
        Change(
            f"renew the mapping of {topic}", ", ".join(sorted(plan.parts)), move, "nothing moves"
        )
    ]


def _numbers(numbers: Iterable[int]) -> str:
    return f"queues {', '.join(map(str, numbers))}".removesuffix("queues ") or "no queue"


@app.change("delete")
async def delete(call: Call, topic: TopicName) -> list[Change]:
    """Delete a topic with all its messages, from all brokers and name servers."""
    stats = await call.admin.topic_stats(topic)
    groups = await call.admin.groups_of_topic(topic)
    # A broker may have a static topic without a queue.
    messages = {each.broker_name: 0 for each in (await call.admin.route(topic)).queue_datas}
    for queue, row in stats.items():
        count = row.max_offset - row.min_offset
        messages[queue.broker_name] = messages.get(queue.broker_name, 0) + count
    detail = f"groups {', '.join(groups)}" if groups else "no group"
    brokers = [
        Change(
            f"delete topic {topic}",
            name,
            None,
            f"{counted(count, 'message')}, {detail}",
            destroys=True,
        )
        for name, count in sorted(messages.items())
    ]
    run = partial(call.admin.delete_topic, topic)
    first = call.change_name_servers(f"delete topic {topic}", run, destroys=True)
    return [*first, *brokers]


@app.change("set-order")
async def set_order(
    call: Call,
    topic: TopicName,
    queues: Annotated[
        list[str], typer.Argument(help="Queues per broker.", metavar="BROKER:QUEUES...")
    ],
) -> list[Change]:
    """Fix the number of queues per broker of an ordered topic, so that keys stay in their queues.

    Name servers return the rule to producers only with orderMessageEnable=true.
    """
    return [_order_change(call, topic, dict(queue_of(each) for each in queues))]


@app.change("delete-order")
async def delete_order(call: Call, topic: TopicName) -> list[Change]:
    """Delete the fixed number of queues per broker of an ordered topic."""
    return [_order_change(call, topic, {})]
