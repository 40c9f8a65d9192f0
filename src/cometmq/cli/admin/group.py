"""``cometmq admin group``: consumer groups, their settings, members and lag."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cometmq.cli.admin.arguments import (
    GroupName,
    OptionalTopic,
    SettingsFile,
    TopicName,
    print_settings,
    settings_changes,
    settings_in,
)
from cometmq.cli.admin.commands import BROKERS, Call, Commands
from cometmq.cli.admin.output import Change, Row, Rows
from cometmq.model.errors import CometError, ConfigError, ResponseError
from cometmq.model.nouns import counted
from cometmq.model.times import now_ms

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Mapping, Sequence

    from cometmq.client.admin import GroupLag
    from cometmq.model.group import SubscriptionGroupConfig
    from cometmq.model.queue import MessageQueue
    from cometmq.protocol.bodies.client import ConsumerConnection, ConsumerRunningInfo
    from cometmq.protocol.bodies.common import Connection
    from cometmq.protocol.bodies.group import OffsetWrapper
    from cometmq.protocol.bodies.route import RegisteredBroker

app = Commands("Consumer groups: their settings, members and lag.")

Client = Annotated[str, typer.Argument(help="Client id of a member.")]


def _flag(names: str, help: str) -> Any:
    return Annotated[bool | None, typer.Option(names, help=help)]


def _number(name: str, minimum: int, help: str) -> Any:
    return Annotated[int | None, typer.Option(name, min=minimum, help=help)]


SETTINGS: dict[str, Any] = {
    "consume_enable": _flag("--consume/--no-consume", "Whether the group may consume."),
    "consume_broadcast_enable": _flag("--broadcast/--no-broadcast", "Whether it may broadcast."),
    "consume_from_min_enable": _flag(
        "--from-min/--no-from-min", "Whether it may start at the smallest offset."
    ),
    "consume_message_orderly": _flag("--ordered/--not-ordered", "Whether it consumes in order."),
    "notify_consumer_ids_changed_enable": _flag(
        "--notify/--no-notify", "Whether brokers notify members when members change."
    ),
    "retry_queue_nums": _number("--retry-queues", 1, "Queues of the retry topic."),
    "retry_max_times": _number("--max-retries", -1, "Retries before a message is dead-lettered."),
    "broker_id": _number("--read-from", 0, "Id of the broker that members read from."),
    "which_broker_when_consume_slowly": _number(
        "--slow-read-from", 0, "Id of the broker that members with a large lag read from."
    ),
    "group_retry_policy": Annotated[
        str | None,
        typer.Option("--retry-policy", help="JSON of a retry policy of 5.0.", metavar="JSON"),
    ],
}
"""The options of a group's settings, by setting."""


def _settings(given: dict[str, Any]) -> dict[str, Any]:
    import msgspec

    from cometmq.model.group import GroupRetryPolicy

    policy = given.get("group_retry_policy")
    if policy is None:
        return given
    try:
        return given | {"group_retry_policy": msgspec.json.decode(policy, type=GroupRetryPolicy)}
    except msgspec.MsgspecError as error:
        raise ConfigError(
            f"--retry-policy {policy}: expected the JSON of a policy: {error}"
        ) from None


def _shown(value: Any) -> str:
    """Return the value of a setting as the options take it."""
    import msgspec

    is_json = isinstance(value, msgspec.Struct | bool)
    return msgspec.json.encode(value).decode() if is_json else str(value)


@app.show("list", "group members model type lag tps oldest_age_ms", watch=True)
async def list_groups(
    call: Call,
    groups: Annotated[
        list[str] | None, typer.Argument(help="Groups; all if none is given.")
    ] = None,
    min_lag: Annotated[int, typer.Option("--min-lag", min=0, help="Smallest lag to show.")] = 0,
    age: Annotated[
        bool, typer.Option("--age", help="Show the age of the first message not consumed.")
    ] = False,
) -> Rows:
    """List groups with their members and their lag over all topics."""
    from cometmq.cli.admin.names import group_names

    wanted = groups or await group_names(call.admin)
    masters = [each.address for each in await call.servers()]
    rows = await call.side_by_side(wanted, lambda group: _overview(call, group, masters, age=age))
    return [row for row in rows if int(str(row[4])) >= min_lag]


async def _overview(call: Call, group: str, masters: Sequence[str], *, age: bool) -> Row:
    (stats, tps), online = await asyncio.gather(
        _stats_and_rate(call, group, masters), _online(call, group)
    )
    oldest = await _ages(call, group, {queue.topic for queue in stats}) if age else {}
    return (
        group,
        len(online.connection_set) if online else 0,
        online.message_model.value if online and online.message_model else None,
        online.consume_type.value if online and online.consume_type else None,
        sum(_lag(row) for row in stats.values()),
        tps,
        max((each for each in oldest.values() if each is not None), default=None),
    )


async def _stats_and_rate(
    call: Call, group: str, masters: Sequence[str]
) -> tuple[dict[MessageQueue, OffsetWrapper], float]:
    """Return the offsets of a group and the rate at which it consumes; none without an offset."""
    try:
        stats = await call.admin.consume_stats(group)
    except ResponseError:
        return {}, 0.0
    topics = sorted({queue.topic for queue in stats})
    found = await call.side_by_side(
        topics,
        lambda topic: call.admin.broker_counters(masters, "GROUP_GET_NUMS", f"{topic}@{group}"),
    )
    return stats, sum(tps for tps, _ in found)


def _lag(row: OffsetWrapper) -> int:
    return max(row.broker_offset - row.consumer_offset, 0)


async def _online(call: Call, group: str) -> ConsumerConnection | None:
    """Return the members of a group; None if none is online."""
    from cometmq.protocol.codes import ResponseCode

    try:
        return await call.admin.consumer_connections(group)
    except ResponseError as error:
        if error.code != ResponseCode.CONSUMER_NOT_ONLINE:
            raise
        return None


async def _members(call: Call, group: str) -> ConsumerConnection:
    """Return the members of a group.

    Raises:
        ConfigError: none is online.
    """
    online = await _online(call, group)
    if online is None:
        raise ConfigError(f"no member of group {group} is online")
    return online


async def _running_infos(
    call: Call, group: str, online: ConsumerConnection | None
) -> AsyncIterator[tuple[str, ConsumerRunningInfo]]:
    """Yield each member's client id and what it does; note members that do not respond."""

    async def ask(member: Connection) -> ConsumerRunningInfo | CometError:
        try:
            return await call.admin.running_info(group, member.client_id)
        except CometError as error:
            return error

    members = online.connection_set if online else ()
    for member, info in zip(members, await call.side_by_side(members, ask), strict=True):
        if isinstance(info, CometError):
            call.fail(info, member.client_id)
        else:
            yield member.client_id, info


async def _ages(call: Call, group: str, topics: set[str]) -> dict[MessageQueue, int | None]:
    """Return the age of the first unconsumed message in each queue, in ms."""
    now = now_ms()

    async def read(topic: str) -> dict[MessageQueue, int | None]:
        try:
            return await call.admin.oldest_unconsumed(group, topic)
        except CometError as error:
            call.fail(error, f"age of the lag in {topic}")
            return {}

    return {
        queue: None if stored_ms is None else max(now - stored_ms, 0)
        for oldest in await call.side_by_side(sorted(topics), read)
        for queue, stored_ms in oldest.items()
    }


@app.show(
    "lag",
    "topic broker queue committed end lag in_flight oldest_age_ms last_consumed_time_ms client",
    watch=True,
)
async def lag(
    call: Call,
    group: GroupName,
    topic: OptionalTopic = None,
    min_lag: Annotated[int, typer.Option("--min-lag", min=0, help="Smallest lag to show.")] = 0,
    members: Annotated[
        bool, typer.Option("--members", help="Ask the members which queues they have.")
    ] = False,
) -> Rows:
    """Show the lag of a group in each queue: in messages, and in time.

    The age is the age of the first message that the group has not consumed.
    """
    stats = await call.admin.consume_stats(group, topic)
    topics = {queue.topic for queue in stats}
    found: dict[MessageQueue, GroupLag] = {}
    for each in await call.side_by_side(sorted(topics), lambda name: call.admin.lag(group, name)):
        found |= each
    await check_committed(call, group, found, topic)
    ages = await _ages(call, group, topics)
    owners = await _owners(call, group) if members else {}
    rows: list[Row] = []
    for queue, row in sorted(stats.items()):
        if (here := found.get(queue)) is None or here.lag < min_lag:
            continue
        committed = None if here.committed is None else int(here.committed)
        rows.append(
            (
                *(queue.topic, queue.broker_name, queue.queue_id, committed),
                *(int(here.end), here.lag),
                None if committed is None else max(row.pull_offset - committed, 0),
                ages.get(queue) if here.lag else None,
                row.last_timestamp if row.last_timestamp > 0 else None,
                owners.get(queue),
            )
        )
    return rows


async def check_committed(
    call: Call, group: str, found: Mapping[MessageQueue, GroupLag], topic: str | None = None
) -> None:
    """Check that a group has committed an offset or has a member: it may not exist otherwise.

    Raises:
        ConfigError: it has no committed offset in any of the queues, and no member is online.
    """
    nothing = all(each.committed is None for each in found.values())
    if nothing and await _online(call, group) is None:
        raise ConfigError(f"group {group} has no committed offset{f' in {topic}' if topic else ''}")


async def check_exists(call: Call, group: str, found: Mapping[MessageQueue, GroupLag]) -> None:
    """Check that there is a group before it is moved: a misspelled name would become one.

    Raises:
        ConfigError: it has no committed offset in any of the queues, no settings on a broker, and
            no member is online.
    """
    if any(each.committed is not None for each in found.values()):
        return
    if group not in await call.admin.groups() and await _online(call, group) is None:
        raise ConfigError(f"there is no group {group}: see 'group list', or 'group create'")


async def _owners(call: Call, group: str) -> dict[MessageQueue, str]:
    found: dict[MessageQueue, str] = {}
    async for client_id, info in _running_infos(call, group, await _online(call, group)):
        found |= dict.fromkeys(info.mq_table, client_id)
    return found


@app.show("show", "broker setting value", chooses=BROKERS)
async def show(call: Call, group: GroupName) -> Rows:
    """Show the settings of a group on each broker that has them."""
    import msgspec

    rows = [
        (server.name, name, value)
        for server, groups in await _tables(call)
        if (config := groups.get(group)) is not None
        for name, value in msgspec.to_builtins(config).items()
    ]
    if not rows:
        raise ConfigError(f"no broker has settings of group {group}")
    return rows


async def _tables(
    call: Call,
) -> list[tuple[RegisteredBroker, dict[str, SubscriptionGroupConfig]]]:
    """Return the groups of each broker that was chosen, with their settings."""
    servers = await call.servers()
    tables = await call.side_by_side(servers, lambda each: call.admin.broker_groups(each.address))
    return list(zip(servers, tables, strict=True))


@app.show("members", "client address language version", watch=True)
async def members(call: Call, group: GroupName) -> Rows:
    """List the members of a group that are online."""
    return _client_rows((await _members(call, group)).connection_set)


def _client_rows(clients: Iterable[Connection]) -> list[Row]:
    """Return the rows of clients, by client id."""
    from cometmq.protocol.version import version_name

    return [
        (each.client_id, each.client_addr, str(each.language), version_name(each.version))
        for each in sorted(clients, key=lambda each: each.client_id)
    ]


@app.show("subscriptions", "topic expression type")
async def subscriptions(call: Call, group: GroupName) -> Rows:
    """Show what a group subscribes to; its members must agree."""
    online = await _members(call, group)
    return [
        (each.topic, each.sub_string, each.expression_type)
        for each in sorted(online.subscription_table.values(), key=lambda each: each.topic)
    ]


@app.show("producers", "client address language version")
async def producers(
    call: Call, group: Annotated[str, typer.Argument(help="Producer group.")]
) -> Rows:
    """List the producers of a producer group that are online."""
    return _client_rows((await call.admin.producer_connections(group)).connection_set)


@app.show(
    "status",
    "client topic pull_mean_ms pull_tps consume_mean_ms consume_ok_tps consume_failed_tps"
    " failed_in_hour",
    watch=True,
)
async def status(call: Call, group: GroupName) -> Rows:
    """Show how fast each member consumes."""
    rows: list[Row] = []
    async for client_id, info in _running_infos(call, group, await _members(call, group)):
        rows += [
            (
                *(client_id, topic, each.pull_rt, each.pull_tps, each.consume_rt),
                *(each.consume_ok_tps, each.consume_failed_tps, each.consume_failed_msgs),
            )
            for topic, each in sorted(info.status_table.items())
        ]
    return rows


@app.show(
    "queues", "client topic broker queue committed cached locked dropped last_consumed_time_ms"
)
async def queues(call: Call, group: GroupName) -> Rows:
    """Show the assigned queues of each member, and what it has in memory."""
    rows: list[Row] = []
    async for client_id, info in _running_infos(call, group, await _members(call, group)):
        rows += [
            (
                *(client_id, queue.topic, queue.broker_name, queue.queue_id),
                *(held.commit_offset, held.cached_msg_count, held.locked, held.droped),
                held.last_consume_timestamp if held.last_consume_timestamp > 0 else None,
            )
            for queue, held in sorted(info.mq_table.items())
        ]
    return rows


@app.show("stack", "client stack", one=True)
async def stack(call: Call, group: GroupName, client: Client) -> Row:
    """Show the stacks of the threads and tasks of one member."""
    info = await call.admin.running_info(group, client, stacks=True)
    return client, info.jstack


@app.action("export", chooses=BROKERS)
async def export(call: Call) -> None:
    """Print the settings of the groups of applications as JSON that 'group apply' reads."""
    from cometmq.model.namespace import is_system_group

    print_settings(
        {name: config for name, config in table.items() if not is_system_group(name)}
        for _, table in await _tables(call)
    )


@app.change("create", settings=SETTINGS, chooses=BROKERS)
async def create(
    call: Call,
    group: Annotated[str, typer.Argument(help="Name of the new group.")],
    settings: dict[str, Any],
) -> list[Change]:
    """Create a group. It is an error if a broker that was chosen has it."""
    from cometmq.model.group import SubscriptionGroupConfig
    from cometmq.model.topic import check_group_name

    check_group_name(group)
    given = _settings(settings)
    config = SubscriptionGroupConfig(group_name=group, **given)
    changes: list[Change] = []
    for server, groups in await _tables(call):
        if group in groups:
            raise ConfigError(
                f"group {group} exists on {server.name}: change it with 'group update'"
            )
        set_config = partial(call.admin.set_group_config, server.address, config)
        detail = ", ".join(f"{name}={_shown(value)}" for name, value in given.items())
        changes.append(Change(f"create group {group}", server.name, set_config, detail))
    return changes


@app.change("update", settings=SETTINGS, chooses=BROKERS)
async def update(call: Call, group: GroupName, settings: dict[str, Any]) -> list[Change]:
    """Change settings of a group on the brokers that have it; the others keep their values.

    It asks before the group may no longer consume.
    """
    import msgspec

    given = _settings(settings)
    if not given:
        raise ConfigError("nothing to change: expected an option, such as --max-retries")
    changes: list[Change] = []
    for server, groups in await _tables(call):
        old = groups.get(group)
        if old is None:
            continue
        new = msgspec.structs.replace(old, **given)
        detail = ", ".join(
            f"{name} {_shown(getattr(old, name))} -> {_shown(value)}"
            for name, value in given.items()
        )
        changes.append(
            Change(
                f"update group {group}",
                server.name,
                partial(call.admin.set_group_config, server.address, new),
                detail,
                destroys=old.consume_enable and not new.consume_enable,
            )
        )
    if not changes:
        raise ConfigError(f"no broker that was chosen has settings of group {group}")
    return changes


@app.change("apply", chooses=BROKERS)
async def apply(call: Call, file: SettingsFile) -> list[Change]:
    """Create or change the groups of a JSON file, which has their settings with RocketMQ's names.

    A broker checks the groups after it has responded: see 'group show' for the result.
    """
    from cometmq.model.group import SubscriptionGroupConfig

    servers = await call.servers()
    configs = settings_in(file, SubscriptionGroupConfig)
    return settings_changes(file, configs, "group", servers, call.admin.set_group_configs)


@app.change("delete", chooses=BROKERS)
async def delete(
    call: Call,
    group: GroupName,
    keep_offsets: Annotated[
        bool, typer.Option("--keep-offsets", help="Keep the committed offsets.")
    ] = False,
    keep_topics: Annotated[
        bool, typer.Option("--keep-topics", help="Keep the retry topic and the dead letters.")
    ] = False,
) -> list[Change]:
    """Delete a group with its offsets, its retry topic and its dead letters.

    With --broker or --cluster, the retry topic and the dead letters are kept.
    """
    from cometmq.model.topic import dlq_topic, retry_topic

    online = await _online(call, group)
    servers = await call.servers()
    known = await call.admin.topics()
    its_topics = [each for each in (retry_topic(group), dlq_topic(group)) if each in known]
    if online is None and not its_topics:
        tables = [await call.admin.broker_groups(each.address) for each in servers]
        if not any(group in each for each in tables):
            raise ConfigError(f"there is no group {group} on the brokers that were chosen")
    count = len(online.connection_set) if online else 0
    detail = f"{counted(count, 'member')} online" if count else "no member is online"
    changes = [
        Change(
            f"delete group {group}",
            each.name,
            partial(call.admin.delete_group, group, keep_offsets=keep_offsets, brokers=[each.name]),
            detail,
            destroys=True,
        )
        for each in servers
    ]
    if keep_topics or call.broker or call.cluster:
        return changes
    for topic in its_topics:
        stats = await call.admin.topic_stats(topic)
        messages = sum(row.max_offset - row.min_offset for row in stats.values())
        changes.append(
            Change(
                f"delete topic {topic}",
                "all brokers and name servers",
                partial(call.admin.delete_topic, topic),
                counted(messages, "message"),
                destroys=True,
            )
        )
    return changes


@app.change("set-mode", chooses=BROKERS)
async def set_mode(
    call: Call,
    group: GroupName,
    topic: TopicName,
    mode: Annotated[str, typer.Argument(help="pull or pop.")],
    share_queues: Annotated[
        int, typer.Option("--share-queues", min=0, help="Further queues of a member in pop mode.")
    ] = 0,
) -> list[Change]:
    """Set whether a group reads a topic by pull or by pop, on brokers of 5.0 and later."""
    from cometmq.protocol.bodies.pop import MessageRequestMode

    if mode.upper() not in {each.value for each in MessageRequestMode}:
        raise ConfigError(f"mode {mode}: expected pull or pop")
    wanted = MessageRequestMode(mode.upper())
    return [
        Change(
            f"let group {group} read {topic} by {mode.lower()}",
            each.name,
            partial(
                call.admin.set_consume_mode,
                each.address,
                group,
                topic,
                wanted,
                share_queues=share_queues,
            ),
        )
        for each in await call.servers()
    ]
