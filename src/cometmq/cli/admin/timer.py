"""``cometmq admin timer``: timed messages that wait on brokers."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from cometmq.cli.admin.arguments import OptionalTopic, TopicName
from cometmq.cli.admin.commands import Call, Commands
from cometmq.cli.admin.output import Change, Row
from cometmq.model import property_names as names
from cometmq.model.errors import ConfigError, InvalidMessageError
from cometmq.model.runtime_figures import number, rate
from cometmq.model.times import now_ms
from cometmq.protocol.bodies.route import RegisteredBroker
from cometmq.protocol.recall_handle import RecallHandle, decode_handle

if TYPE_CHECKING:
    from cometmq.model.message import StoredMessage

app = Commands(
    "Timed messages on brokers of 5.0 and later: what waits, how late it is, single messages."
)

LIMIT_MAX = 10_000
SLOT_MS_MAX = 1_000
"""The longest `timerPrecisionMs`."""
MessageKey = Annotated[str, typer.Argument(help="Unique id or key of messages.")]


@app.each("list", "broker topic message_id keys due_time_ms state sender stored_time_ms body_bytes")
async def waiting(
    call: Call,
    server: RegisteredBroker,
    topic: OptionalTopic = None,
    key: Annotated[
        str | None, typer.Option(help="Only messages with this key or unique id.")
    ] = None,
    limit: Annotated[
        int, typer.Option(min=1, max=LIMIT_MAX, help="The most messages of each broker.")
    ] = 100,
) -> list[Row]:
    """Show the timed messages that wait on brokers of CometMQ, the next ones first."""
    found = await call.admin.waiting_timers(server.address, topic=topic, key=key, limit=limit)
    now = now_ms()
    return [
        (
            *(server.name, each.topic, each.message_id, each.keys, each.due_ms),
            "recalled" if each.is_recalled else "waiting" if each.due_ms >= now else "due",
            *(each.sender, each.store_ms, each.body_bytes),
        )
        for each in found
    ]


@app.each("count", "broker topic waiting counted_time_ms", watch=True)
async def counts(call: Call, server: RegisteredBroker) -> list[Row]:
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


def state_of(slot_ms: int, now: int) -> str:
    """Return the state of a message by its slot: whether its time comes, is here, or is over."""
    if slot_ms >= now:
        return "waiting"
    return "due" if slot_ms + SLOT_MS_MAX >= now else "past"


def _handle(topic: str, message: StoredMessage) -> str:
    """Return the handle that recalls a message that waits."""
    due_ms = str(_slot_ms(message) + 1)
    return RecallHandle(topic, message.broker_name, due_ms, message.message_id).encode()


def _recalls(recall: StoredMessage, message: StoredMessage) -> bool:
    """Return whether a recall counts for a message, by the account of its sender, too."""
    account, sender = (each.properties.get(names.TIMER_SENDER) for each in (recall, message))
    return (
        (recall.broker_name, recall.message_id, _slot_ms(recall))
        == (message.broker_name, message.message_id, _slot_ms(message))
    ) and (None in (account, sender) or account == sender)


async def _found(call: Call, topic: str, key: str) -> list[tuple[StoredMessage, str]]:
    """Return the timed messages with an id or a key, and whether each waits."""
    records = await call.admin.timer_messages(topic, key)
    if not records:
        with_key = await call.admin.timer_messages(topic, key, unique_id=False)
        for message_id in sorted({each.message_id for each in with_key}):
            records += await call.admin.timer_messages(topic, message_id)
    recalls = [each for each in records if names.TIMER_DEL_UNIQKEY in each.properties]
    now = now_ms()
    found: list[tuple[StoredMessage, str]] = []
    for each in records:
        if names.TIMER_DEL_UNIQKEY in each.properties:
            continue
        if any(_recalls(recall, each) for recall in recalls):
            state = "recalled"
        else:
            state = state_of(_slot_ms(each), now)
        found.append((each, state))
    return found


@app.show("find", "message_id broker due_time_ms state stored_time_ms body_bytes handle")
async def find(call: Call, topic: TopicName, key: MessageKey) -> list[Row]:
    """Show the timed messages with a unique id or a key: when they are due, how to recall them.

    A message whose time is over is 'past': it is delivered, unless 'timer status' shows that its
    broker is late.
    """
    return [
        (
            *(each.message_id, each.broker_name, _slot_ms(each), state, each.store_time_ms),
            *(len(each.body), _handle(topic, each)),
        )
        for each, state in await _found(call, topic, key)
    ]


@app.change("recall")
async def recall(
    call: Call,
    topic: TopicName,
    handle: Annotated[str, typer.Argument(help="Recall handle, unique id or key of the message.")],
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
            f"no broker of {topic} has a timed message with the id or key {handle} that waits;"
            " expected a recall handle, or the unique id or a key of one"
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
