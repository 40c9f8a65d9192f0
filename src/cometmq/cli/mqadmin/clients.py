"""Commands about connected producers and consumers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TypeVar

from cometmq.cli.mqadmin import texts
from cometmq.cli.mqadmin.call import Call
from cometmq.cli.mqadmin.groups import connections
from cometmq.model.errors import CometError
from cometmq.model.queue import MessageQueue
from cometmq.model.times import now_ms
from cometmq.protocol.bodies.client import (
    ConsumerRunningInfo,
    PopProcessQueueInfo,
    ProcessQueueInfo,
)
from cometmq.protocol.bodies.heartbeat import ConsumeType
from cometmq.protocol.version import version_name

H = TypeVar("H")

STUCK_MS = 60_000
"""How long a queue with messages may be idle."""


async def producer_connection(call: Call) -> None:
    """List the connected clients of a producer group."""
    brokers = (await call.brokers_of(call.text("t"))).values()
    found = await call.admin.producer_connections(call.text("g"), brokers=brokers)
    for number, each in enumerate(found.connection_set, 1):
        version = version_name(each.version)
        row = (number, each.client_id, each.client_addr, each.language, version)
        print("%04d  %-32s %-22s %-8s %s" % row)


async def consumer_connection(call: Call) -> None:
    """List the connected clients of a consumer group, and its subscriptions."""
    found = await connections(call, call.text("g"), call.text("b"))
    print("%-36s %-22s %-10s %s" % ("#ClientId", "#ClientAddr", "#Language", "#Version"))
    for each in found.connection_set:
        version = version_name(each.version)
        print("%-36s %-22s %-10s %s" % (each.client_id, each.client_addr, each.language, version))
    print("\nBelow is subscription:")
    print("%-20s %s" % ("#Topic", "#SubExpression"))
    for subscription in found.subscription_table.values():
        print("%-20s %s" % (subscription.topic, subscription.sub_string))
    print(f"\nConsumeType: {texts.java(found.consume_type)}")
    print(f"MessageModel: {texts.java(found.message_model)}")
    print(f"ConsumeFromWhere: {texts.java(found.consume_from_where)}")


async def producer(call: Call) -> None:
    """List all producers of a broker."""
    for group, members in (await call.admin.producers(call.text("b"))).data.items():
        for each in members:
            print(
                f"producer group ({group}) instance : clientId={each.client_id},"
                f"remoteIP={each.remote_ip}, language={each.language}, version={each.version},"
                f" lastUpdateTimestamp={each.last_update_timestamp}"
            )


async def consumer_status(call: Call) -> None:
    """Show what one consumer holds, or write that of all members to files and compare them."""
    group, brokers = call.text("g"), [call.text("b")] if call.has("b") else None
    running_info = partial(call.admin.running_info, group, stacks=call.has("s"), brokers=brokers)
    members = await connections(call, group, call.text("b"))
    if call.has("i"):
        info = await running_info(call.text("i"))
        print(formatted(info, is_4=call.is_4))
        return
    folder, infos = str(now_ms()), dict[str, ConsumerRunningInfo]()
    print("%-10s %-40s %-20s %s" % ("#Index", "#ClientId", "#Version", "#ConsumerRunningInfoFile"))
    for number, each in enumerate(members.connection_set, 1):
        try:
            info = await running_info(each.client_id)
        except CometError as error:
            call.fail(error)
            continue
        infos[each.client_id] = info
        path = Path(folder) / texts.file_name(each.client_id)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(formatted(info, is_4=call.is_4))
        print("%-10d %-40s %-20s %s" % (number, each.client_id, version_name(each.version), path))
    if not infos:
        return
    if not have_same_subscriptions(infos):
        print("\n\nWARN: Different subscription in the same group of consumer!!!", end="")
        return
    print("\n\nSame subscription in the same group of consumer", end="")
    print("\n\nRebalance OK")
    for client_id, info in sorted(infos.items()):
        for line in stuck_queues(info, now_ms()):
            print(f"{client_id} {line}")


def have_same_subscriptions(infos: Mapping[str, ConsumerRunningInfo]) -> bool:
    """Whether all members of a group subscribe to the same topics with the same expressions."""
    found = [
        {(each.topic, each.sub_string, each.class_filter_mode) for each in info.subscription_set}
        for info in infos.values()
    ]
    return all(each == found[0] for each in found)


def stuck_queues(info: ConsumerRunningInfo, now: int) -> list[str]:
    """Return a line for each queue that a push consumer could not lock, or seems not to consume."""
    if info.properties.get("PROP_CONSUME_TYPE") != ConsumeType.CONSUME_PASSIVELY:
        return []
    ordered = info.properties.get("PROP_CONSUMEORDERLY") == "true"
    lines: list[str] = []
    for queue, held in sorted(info.mq_table.items(), key=lambda item: item[0]):
        shown, idle_ms = texts.queue(queue), now - held.last_consume_timestamp
        if not ordered:
            if idle_ms > STUCK_MS and held.cached_msg_count > 0:
                lines.append(f"{shown} can't consume for a while, maybe blocked, {idle_ms}ms")
        elif not held.locked:
            lines.append(f"{shown} can't lock for a while, {now - held.last_lock_timestamp}ms")
        elif held.droped and held.try_unlock_times > 0:
            lines.append(f"{shown} unlock {held.try_unlock_times} times, still failed")
    return lines


QUEUE_HEADS = ("#Topic", "#Broker Name", "#QID")
RATE_HEADS = ("#Topic", "#Pull RT", "#Pull TPS", "#Consume RT", "#ConsumeOK TPS")


def formatted(info: ConsumerRunningInfo, *, is_4: bool) -> str:
    """Return what a consumer holds, with a headline over each part."""
    parts = [
        ["#Consumer Properties#", *_named(info.properties)],
        ["#Consumer Subscription#", *_subscriptions(info)],
        [
            "#Consumer Offset#",
            "%-64s  %-32s  %-4s  %-20s" % (*QUEUE_HEADS, "#Consumer Offset"),
            *_queues("%-32s  %-32s  %-4s  %-20s", info.mq_table, lambda each: each.commit_offset),
        ],
        [
            "#Consumer MQ Detail#",
            "%-64s  %-32s  %-4s  %-20s" % (*QUEUE_HEADS, "#ProcessQueueInfo"),
            *_queues("%-64s  %-32s  %-4s  %s", info.mq_table, _held),
        ],
    ]
    if not is_4:
        parts.append(
            [
                "#Consumer Pop Detail#",
                "%-32s  %-32s  %-4s  %-20s" % (*QUEUE_HEADS, "#ProcessQueueInfo"),
                *_queues("%-32s  %-32s  %-4s  %s", info.mq_pop_table or {}, _popped),
            ]
        )
    parts.append(["#Consumer RT&TPS#", *_rates(info)])
    if not is_4:
        parts.append(["#User Consume Info#", *_named(info.user_consumer_info or {})])
    if info.jstack is not None:
        parts.append(["#Consumer jstack#", info.jstack])
    return "\n\n\n".join("\n".join(part) for part in parts)


def _named(values: Mapping[str, object]) -> list[str]:
    return [f"{name:<40}: {value}" for name, value in values.items()]


def _subscriptions(info: ConsumerRunningInfo) -> list[str]:
    return [
        "%03d Topic: %-40s ClassFilter: %-8s SubExpression: %s"
        % (number, each.topic, texts.lower(each.class_filter_mode), each.sub_string)
        for number, each in enumerate(sorted(info.subscription_set, key=lambda it: it.topic), 1)
    ]


def _queues(form: str, table: Mapping[MessageQueue, H], shown: Callable[[H], object]) -> list[str]:
    return [
        form % (queue.topic, queue.broker_name, queue.queue_id, shown(held))
        for queue, held in sorted(table.items(), key=lambda item: item[0])
    ]


def _rates(info: ConsumerRunningInfo) -> list[str]:
    form = "%-64s  %14s %14s %14s %14s %18s %25s"
    heads = form % (*RATE_HEADS, "#ConsumeFailed TPS", "#ConsumeFailedMsgsInHour")
    rows = [
        "%-32s  %14.2f %14.2f %14.2f %14.2f %18.2f %25d"
        % (
            *(topic, each.pull_rt, each.pull_tps, each.consume_rt, each.consume_ok_tps),
            *(each.consume_failed_tps, each.consume_failed_msgs),
        )
        for topic, each in sorted(info.status_table.items())
    ]
    return [heads, *rows]


def _popped(held: PopProcessQueueInfo) -> str:
    return (
        f"PopProcessQueueInfo [waitAckCount:{held.wait_ack_count},"
        f" droped:{texts.lower(held.droped)}, lastPopTimestamp:{held.last_pop_timestamp}]"
    )


def _held(held: ProcessQueueInfo) -> str:
    times = {"lastLockTimestamp", "lastPullTimestamp", "lastConsumeTimestamp"}
    members = texts.members(held)
    shown = {
        name: texts.digits(value) if name in times else value for name, value in members.items()
    }
    return f"ProcessQueueInfo [{texts.fields(shown)}]"
