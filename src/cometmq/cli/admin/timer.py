"""``cometmq admin timer``: timed messages that wait on brokers."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from cometmq.cli.admin.arguments import OptionalTopic, TopicName
from cometmq.cli.admin.commands import Call, Commands
from cometmq.cli.admin.output import Change, Row
from cometmq.model.errors import ConfigError, InvalidMessageError
from cometmq.model.runtime_figures import number, rate
from cometmq.model.times import now_ms
from cometmq.protocol.bodies.route import RegisteredBroker
from cometmq.protocol.recall_handle import decode_handle

app = Commands(
    "Timed messages on brokers of 5.0 and later: what waits, how late it is, single messages."
)

LIMIT_MAX = 10_000
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


@app.show("find", "message_id broker due_time_ms state stored_time_ms body_bytes handle")
async def find(call: Call, topic: TopicName, key: MessageKey) -> list[Row]:
    """Show the timed messages with a unique id or a key: when they are due, how to recall them.

    A message whose time is over is 'past': it is delivered, unless 'timer status' shows that its
    broker is late.
    """
    return [
        (
            *(each.message.message_id, each.message.broker_name, each.due_ms, each.state.value),
            *(each.message.store_time_ms, len(each.message.body), each.handle),
        )
        for each in await call.admin.find_timers(topic, key)
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
            (each.handle, each.message.message_id)
            for each in await call.admin.find_timers(topic, handle)
            if each.state.value == "waiting"
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
