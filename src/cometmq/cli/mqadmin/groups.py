"""Commands about consumer groups: their settings, lag and members."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

import msgspec

from cometmq.cli.exit_codes import print_error
from cometmq.cli.mqadmin import texts
from cometmq.cli.mqadmin.call import Call, CommandError
from cometmq.cli.mqadmin.topics import attributes, lag_in, read_list, remove_topic, show_removed
from cometmq.model.errors import CometError, ResponseError
from cometmq.model.group import GroupRetryPolicy, SubscriptionGroupConfig
from cometmq.model.queue import MessageQueue
from cometmq.model.topic import RETRY_PREFIX, dlq_topic, retry_topic
from cometmq.protocol.bodies.client import ConsumerConnection
from cometmq.protocol.bodies.group import ConsumeStats
from cometmq.protocol.bodies.heartbeat import MessageModel
from cometmq.protocol.bodies.pop import MessageRequestMode
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.version import version_name

MONITOR_S = 60.0
"""Seconds between two looks of `start_monitoring`."""
LAG_SHOWN_MIN = 1024
"""The lag from which `start_monitoring` shows a group."""


async def update_sub_group(call: Call) -> None:
    """Create a group or change its settings."""
    defaults = SubscriptionGroupConfig()
    config = SubscriptionGroupConfig(
        group_name=call.text("g"),
        consume_enable=call.true("s", defaults.consume_enable),
        consume_from_min_enable=call.true("m"),
        consume_broadcast_enable=call.true("d"),
        consume_message_orderly=call.true("o"),
        retry_queue_nums=call.number("q", defaults.retry_queue_nums),
        retry_max_times=call.number("r", defaults.retry_max_times),
        group_retry_policy=_retry_policy(call.text("p")),
        broker_id=call.number("i", defaults.broker_id),
        which_broker_when_consume_slowly=call.number(
            "w", defaults.which_broker_when_consume_slowly
        ),
        notify_consumer_ids_changed_enable=call.true("a", True),
        attributes=attributes(call.text("attributes")),
    )
    for broker in await call.chosen_masters():
        await call.admin.set_group_config(broker, config)
        print(f"create subscription group to {broker} success.")
    print(texts.group_config(config, is_4=call.is_4))


def _retry_policy(text: str) -> GroupRetryPolicy:
    if not text:
        return GroupRetryPolicy()
    try:
        return msgspec.json.decode(text, type=GroupRetryPolicy)
    except msgspec.MsgspecError as error:
        raise CommandError(f"-p {text}: expected the JSON of a retry policy: {error}") from None


async def update_sub_group_list(call: Call) -> None:
    """Create or change the groups of a JSON file."""
    configs = read_list(call.text("f"), SubscriptionGroupConfig)
    if configs is None:
        return
    kind = "group" if call.has("b") else "subscription group"
    for broker in await call.chosen_masters():
        await call.admin.set_group_configs(broker, configs)
        print(f"submit batch of {kind} config to {broker} success, please check the result later.")


async def delete_sub_group(call: Call) -> None:
    """Delete a group; with ``-c`` also its retry topic and its dead letters."""
    group = call.text("g")
    keep_offsets = not call.true("r")
    where = f" in cluster [{call.text('c')}]" if not call.has("b") else ""
    for broker in await call.chosen_masters():
        await call.admin.delete_broker_group(broker, group, keep_offsets=keep_offsets)
        print(f"delete subscription group [{group}] from broker [{broker}]{where} success.")
    if where:
        remove = show_removed if call.is_4 else remove_topic
        await remove(call, retry_topic(group), call.text("c"))
        await remove(call, dlq_topic(group), call.text("c"))


async def set_consume_mode(call: Call) -> None:
    """Set whether a group reads a topic by pull or by pop."""
    mode = call.text("m")
    if mode not in {each.value for each in MessageRequestMode}:
        raise CommandError(f"-m {mode}: expected PULL or POP")
    topic, group, share = call.text("t"), call.text("g"), call.number("q")
    if not (call.has("b") or call.has("c")):
        call.print_usage()
        return
    for broker in await call.chosen_masters():
        await call.admin.set_consume_mode(
            broker, group, topic, MessageRequestMode(mode), share_queues=share
        )
        print(f"set consume mode to {broker} success.")
    print(f"topic[{topic}] group[{group}] consume mode[{mode}] popShareQueueNum[{share}]")


async def get_consumer_config(call: Call) -> None:
    """Show the settings of a group on each broker that has it."""
    group = call.text("g")
    for broker in (await call.admin.cluster_info()).registered():
        if not broker.is_master:
            continue
        config = (await call.admin.broker_groups(broker.address)).get(group)
        if config is None:
            continue
        print(f"{'=' * 29}{broker.cluster}:{broker.name}{'=' * 29}")
        for name, value in texts.group_settings(config, is_4=call.is_4).items():
            print("%-40s=  %s" % (name, "" if value is None else texts.java(value)))


async def consumer_progress(call: Call) -> None:
    """Show the committed offsets and the lag of one group, or an overview of all."""
    if call.has("g"):
        await _print_group(call, call.text("g"))
    else:
        await _print_groups(call)


async def consume_stats(call: Call, group: str, *, topic: str = "", near: str = "") -> ConsumeStats:
    """Return the offsets of a group in every queue, from all brokers.

    Args:
        call: asks the servers.
        group: the group.
        topic: only the queues of this topic.
        near: a topic whose brokers are asked; the group's retry topic if empty.

    Raises:
        ResponseError: the group has no offset, or nothing that names its brokers exists.
    """
    found = ConsumeStats()
    for broker in (await call.brokers_of(near or retry_topic(group))).values():
        stats = await call.admin.broker_consume_stats(broker, group, topic or None)
        found.offset_table |= stats.offset_table
        found.consume_tps += stats.consume_tps
    found.offset_table = await call.admin.logical_consume_stats(group, found.offset_table)
    if found.offset_table:
        return found
    remark = "Not found the consumer group consume stats, because return offset table is empty, "
    if await _is_broadcast(call, group):
        code = ResponseCode.BROADCAST_CONSUMPTION
        raise ResponseError(code, remark + "the consumer is under the broadcast mode")
    raise ResponseError(ResponseCode.CONSUMER_NOT_ONLINE, remark + "maybe the consumer not online")


async def _is_broadcast(call: Call, group: str) -> bool:
    if call.is_4:
        return False
    try:
        connection = await connections(call, group)
    except ResponseError:
        return False
    return connection.message_model is MessageModel.BROADCASTING


async def connections(call: Call, group: str, broker: str = "") -> ConsumerConnection:
    """Return the online members of a group, as one of its brokers knows them.

    Raises:
        ResponseError: no member is online, or nothing that names its brokers exists.
    """
    brokers = [broker] if broker else (await call.brokers_of(retry_topic(group))).values()
    return await call.admin.consumer_connections(group, brokers=brokers)


async def _print_group(call: Call, group: str) -> None:
    stats = await consume_stats(call, group, topic=call.text("t"), near=call.text("c"))
    owners = await _owners(call, group) if call.true("s") else None
    form = "%-64s  %-32s  %-4s  %-20s  %-20s  " + ("%-20s " if owners is not None else "")
    heads = ["#Topic", "#Broker Name", "#QID", "#Broker Offset", "#Consumer Offset"]
    heads += ["#Client IP"] if owners is not None else []
    if call.is_4:
        row_form = head_form = f"{form}%-20s  %s"
        heads += ["#Diff", "#LastTime"]
    else:
        head_form, row_form = f"{form}%-20s %-20s%s", f"{form}%-20s %-20s %s"
        heads += ["#Diff", "#Inflight", "#LastTime"]
    print(head_form % tuple(heads))
    lag = in_flight = 0
    for queue, row in sorted(stats.offset_table.items()):
        behind = row.broker_offset - row.consumer_offset
        flying = row.pull_offset - row.consumer_offset
        lag, in_flight = lag + behind, in_flight + flying
        consumed = texts.to_seconds(row.last_timestamp) if row.last_timestamp > 0 else "N/A"
        values = [
            *(queue.topic[:64], queue.broker_name[:32], queue.queue_id),
            *(row.broker_offset, row.consumer_offset),
            *([owners.get(queue, "N/A")] if owners is not None else []),
            *([behind, consumed] if call.is_4 else [behind, flying, consumed]),
        ]
        print(row_form % tuple(values))
    print(f"\nConsume TPS: {stats.consume_tps:.2f}")
    if call.is_4:
        print(f"Diff Total: {lag}")
    else:
        print(f"Consume Diff Total: {lag}\nConsume Inflight Total: {in_flight}")


async def _owners(call: Call, group: str) -> dict[MessageQueue, str]:
    """Return the address of the member that has each queue."""
    found: dict[MessageQueue, str] = {}
    try:
        members = (await connections(call, group)).connection_set
    except ResponseError:
        return found
    for member in members:
        try:
            info = await call.admin.running_info(group, member.client_id)
        except CometError as error:
            print_error(f"{member.client_id}: {error}")
            continue
        found |= dict.fromkeys(info.mq_table, member.client_id.partition("@")[0])
    return found


class GroupRow(NamedTuple):
    """One group of the overview."""

    group: str
    members: int = 0
    version: str = "OFFLINE"
    kind: str = ""
    model: str = ""
    tps: int = 0
    lag: int = 0


async def group_rows(call: Call) -> list[GroupRow]:
    """Return all groups that have a retry topic, with their members and lag."""
    topics = [topic for topic in await call.admin.topics() if topic.startswith(RETRY_PREFIX)]
    return [await _row(call, topic.removeprefix(RETRY_PREFIX)) for topic in topics]


async def _row(call: Call, group: str) -> GroupRow:
    row = GroupRow(group)
    try:
        stats = await consume_stats(call, group)
        row = row._replace(tps=int(stats.consume_tps), lag=lag_in(stats))
    except ResponseError:
        pass  # it has no offset yet
    try:
        found = await connections(call, group)
    except ResponseError:
        return row
    version = min((member.version for member in found.connection_set), default=0)
    passive = found.consume_type is not None and found.consume_type.value == "CONSUME_PASSIVELY"
    return row._replace(
        members=len(found.connection_set),
        version=version_name(version),
        kind="PUSH" if passive else "PULL",
        model=found.message_model.value if found.message_model else "",
    )


async def _print_groups(call: Call) -> None:
    form = "%-64s  %-6s  %-24s %-5s  %-14s  %-7s  %s"
    print(form % ("#Group", "#Count", "#Version", "#Type", "#Model", "#TPS", "#Diff Total"))
    for row in await group_rows(call):
        print(form % (row.group[:64], *row[1:]))


async def start_monitoring(call: Call) -> None:
    """Watch all groups until the command is stopped, and print groups with a large lag."""
    while True:
        for row in await group_rows(call):
            if row.lag >= LAG_SHOWN_MIN:
                print(
                    f"{row.group}: lag {row.lag}, members {row.members}, TPS {row.tps}", flush=True
                )
        await asyncio.sleep(MONITOR_S)
