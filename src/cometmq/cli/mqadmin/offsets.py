"""Commands that move the committed offsets of groups."""

from __future__ import annotations

from cometmq.cli.mqadmin.call import Call, parsed_time
from cometmq.cli.mqadmin.groups import consume_stats
from cometmq.cli.mqadmin.texts import lower
from cometmq.model.errors import ResponseError
from cometmq.model.queue import MessageQueue
from cometmq.model.times import now_ms
from cometmq.protocol.bodies.group import ResetOffsetBody
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.headers.offset import InvokeBrokerToResetOffsetRequest

TO_THE_END = -1
"""The time that means the end of a queue."""


async def clone_group_offset(call: Call) -> None:
    """Give one group the offsets of another."""
    source, target, topic = call.text("s"), call.text("d"), call.text("t")
    stats = await consume_stats(call, source)
    brokers = await call.brokers_of(topic)
    for queue, row in sorted(stats.offset_table.items()):
        if queue.topic == topic and queue.broker_name in brokers:
            broker = brokers[queue.broker_name]
            await call.admin.commit_offset(broker, target, queue, row.consumer_offset)
    print(
        f"clone group offset success. srcGroup[{source}], destGroup=[{target}], topic[{topic}]",
        end="",
    )


async def reset_offset_by_time(call: Call) -> None:
    """Move a group to the offsets of a time, or to an offset of one queue."""
    group, topic, text = call.text("g"), call.text("t"), call.text("s")
    when = parsed_time(text, now=TO_THE_END if call.is_4 else now_ms())
    times = f"timestamp(string)[{text}], timestamp(long)[{when}]"
    if call.has("b") and call.has("q"):
        await _reset_queue(call, group, MessageQueue(topic, "", call.number("q")), when, times)
        return
    force = call.true("f", default=True)
    try:
        moved = await _reset(call, group, topic, when, force=force)
    except ResponseError as error:
        if error.code != ResponseCode.CONSUMER_NOT_ONLINE:
            raise
        head = f"rollback consumer offset by specified consumerGroup[{group}]"
        print(f"{head}, topic[{topic}], force[{lower(force)}], {times}")
        await _roll_back(call, group, topic, when, force=force)
        return
    verb = "rollback" if call.is_4 else "start reset"
    comma = "" if call.is_4 else ","
    head = f"{verb} consumer offset by specified{comma} group[{group}]"
    print(f"{head}, topic[{topic}], force[{lower(force)}], {times}")
    _print_moved(moved)


async def _reset_queue(call: Call, group: str, queue: MessageQueue, when: int, times: str) -> None:
    broker, topic = call.text("b"), queue.topic
    head = f"start reset consumer offset by specified, group[{group}], topic[{topic}]"
    print(f"{head}, queueId[{queue.queue_id}], broker[{broker}], {times}")
    offset = call.number("o")
    if not call.has("o"):
        offset = await call.admin.broker_offset_at(broker, queue, when)
    header = InvokeBrokerToResetOffsetRequest(
        topic=topic,
        group=group,
        timestamp=TO_THE_END,
        queue_id=queue.queue_id,
        offset=offset,
    )
    await call.admin.call(broker, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header)
    print(f"reset consumer offset to {offset}")


async def skip_accumulated_message(call: Call) -> None:
    """Move a group to the end of every queue."""
    group, topic, force = call.text("g"), call.text("t"), call.true("f", default=True)
    try:
        moved = await _reset(call, group, topic, TO_THE_END, force=force)
    except ResponseError as error:
        if error.code != ResponseCode.CONSUMER_NOT_ONLINE:
            raise
        await _roll_back(call, group, topic, TO_THE_END, force=force)
        return
    _print_moved(moved)


async def _reset(
    call: Call, group: str, topic: str, when: int, *, force: bool
) -> dict[MessageQueue, int]:
    """Let the brokers of a topic move a group; return the new offsets.

    Raises:
        ResponseError: a broker refused, for example because the group has no member.
    """
    header = InvokeBrokerToResetOffsetRequest(
        topic=topic, group=group, timestamp=when, is_force=force
    )
    moved: dict[MessageQueue, int] = {}
    for broker in (await call.brokers_of(_near(call) or topic)).values():
        code = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET
        response = await call.admin.call(broker, code, header)
        moved |= ResetOffsetBody.decode(response.body).offset_table
    return moved


def _near(call: Call) -> str:
    """Return the topic whose brokers are asked; in 4.9 the flag says that clients are C++'s."""
    return "" if call.is_4 else call.text("c")


def _print_moved(moved: dict[MessageQueue, int]) -> None:
    print("%-40s  %-40s  %-40s" % ("#brokerName", "#queueId", "#offset"))
    for queue, offset in sorted(moved.items()):
        print("%-40s  %-40d  %-40d" % (queue.broker_name[:32], queue.queue_id, offset))


async def _roll_back(call: Call, group: str, topic: str, when: int, *, force: bool) -> None:
    """Move a group without members, by writing its offsets."""
    stats = await consume_stats(call, group, topic=topic)
    brokers = await call.brokers_of(_near(call) or topic)
    form = "%-20s  %-20s  %-20s  %-20s  %-20s  %-20s"
    heads = ("#brokerName", "#queueId", "#brokerOffset", "#consumerOffset", "#timestampOffset")
    print(form % (*heads, "#rollbackOffset"))
    for queue, row in sorted(stats.offset_table.items()):
        broker = brokers.get(queue.broker_name)
        if broker is None:
            continue
        at = row.broker_offset
        if when != TO_THE_END:
            at = await call.admin.broker_offset_at(broker, queue, when)
        target = at if force or at <= row.consumer_offset else row.consumer_offset
        await call.admin.commit_offset(broker, group, queue, target)
        offsets = (row.broker_offset, row.consumer_offset, at, target)
        print(form % (queue.broker_name[:32], queue.queue_id, *offsets))
