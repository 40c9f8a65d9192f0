"""``cometmq admin timer``: timed messages that wait on brokers."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from cometmq.cli.admin.arguments import TopicName
from cometmq.cli.admin.commands import Call, Commands
from cometmq.cli.admin.output import Change, Row
from cometmq.cli.figures import number, rate
from cometmq.model import property_names as names
from cometmq.model.errors import ConfigError, InvalidMessageError
from cometmq.model.times import now_ms
from cometmq.protocol.bodies.route import RegisteredBroker
from cometmq.protocol.recall_handle import RecallHandle, decode_handle

if TYPE_CHECKING:
    from cometmq.model.message import StoredMessage

app = Commands(
    "Timed messages: how many wait on brokers of 5.0 and later, how late they are, single ones."
)

MessageId = Annotated[str, typer.Argument(help="Unique id of the message.")]


@app.each("list", "broker topic waiting counted_time_ms", watch=True)
async def waiting(call: Call, server: RegisteredBroker) -> list[Row]:
    """Show how many timed messages of each topic wait on each broker."""
    return [
        (server.name, topic, found.count, found.time_stamp)
        for topic, found in sorted((await call.admin.timer_counts(server.address)).items())
    ]


@app.each(
    "status", "broker read_behind_ms offsets_behind congested enqueue_tps dequeue_tps", watch=True
)
async def status(call: Call, server: RegisteredBroker) -> list[Row]:
    """Show whether the timers of brokers keep up."""
    figures = await call.admin.broker_runtime_info(server.address)
    behind_s = number(figures, "timerReadBehind")
    return [
        (
            server.name,
            None if behind_s is None else behind_s * 1000,
            number(figures, "timerOffsetBehind"),
            number(figures, "timerCongestNum"),
            rate(figures, "timerEnqueueTps"),
            rate(figures, "timerDequeueTps"),
        )
    ]


def _slot_ms(message: StoredMessage) -> int:
    text = message.properties.get(names.TIMER_OUT_MS, "")
    return int(text) if text.isdecimal() and len(text) < 19 else 0


def _handle(topic: str, message: StoredMessage) -> str:
    """Return the handle that recalls a message that waits."""
    due_ms = str(_slot_ms(message) + 1)
    return RecallHandle(topic, message.broker_name, due_ms, message.message_id).encode()


async def _found(call: Call, topic: str, message_id: str) -> list[tuple[StoredMessage, str]]:
    """Return the timed messages with an id, and whether each waits."""
    records = await call.admin.timer_messages(topic, message_id)
    recalls = {
        (each.broker_name, _slot_ms(each))
        for each in records
        if names.TIMER_DEL_UNIQKEY in each.properties
    }
    now = now_ms()
    found: list[tuple[StoredMessage, str]] = []
    for each in records:
        if names.TIMER_DEL_UNIQKEY in each.properties:
            continue
        if (each.broker_name, _slot_ms(each)) in recalls:
            state = "recalled"
        else:
            state = "waiting" if _slot_ms(each) >= now else "due"
        found.append((each, state))
    return found


@app.show("find", "message_id broker due_time_ms state stored_time_ms body_bytes handle")
async def find(call: Call, topic: TopicName, message_id: MessageId) -> list[Row]:
    """Show the timed messages with a unique id: when they are due, and how to recall them."""
    return [
        (
            *(each.message_id, each.broker_name, _slot_ms(each), state, each.store_time_ms),
            *(len(each.body), _handle(topic, each)),
        )
        for each, state in await _found(call, topic, message_id)
    ]


@app.change("recall")
async def recall(
    call: Call,
    topic: TopicName,
    handle: Annotated[str, typer.Argument(help="Recall handle or unique id of the message.")],
) -> list[Change]:
    """Recall a timed message before it is due: it is never delivered."""
    try:
        handles = [(handle, decode_handle(handle).message_id)]
    except InvalidMessageError:
        handles = [
            (_handle(topic, each), each.message_id)
            for each, state in await _found(call, topic, handle)
            if state == "waiting"
        ]
    if not handles:
        raise ConfigError(
            f"no broker of {topic} has a timed message with the id {handle} that waits; expected"
            " a recall handle, or the unique id of one"
        )
    return [
        Change(
            f"recall timed message {message_id}",
            f"broker {decode_handle(each).broker_name}",
            partial(call.admin.recall, topic, each),
            destroys=True,
        )
        for each, message_id in handles
    ]
