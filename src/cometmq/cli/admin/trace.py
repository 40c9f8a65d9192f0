"""``cometmq admin trace``: who sent and who consumed a message."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from cometmq.cli.admin.commands import Call, Commands
from cometmq.cli.admin.output import Row, Rows
from cometmq.model.errors import ConfigError

if TYPE_CHECKING:
    from cometmq.client.admin.messages import TraceEvent

app = Commands("Traces: who sent and who consumed a message.")


@app.show("show", "event group client time_ms cost_ms success retries")
async def show(
    call: Call,
    message_id: Annotated[str, typer.Argument(help="Unique id of the message.")],
    trace_topic: Annotated[
        str | None,
        typer.Option("--trace-topic", help="Topic of the traces.", show_default="the built-in one"),
    ] = None,
) -> Rows:
    """Show who sent and who consumed a message, from the traces that clients have recorded."""
    from cometmq.client import TopicNotFoundError
    from cometmq.client.admin.messages import trace_events
    from cometmq.model.topic import TRACE_TOPIC

    topic = trace_topic or TRACE_TOPIC
    try:
        messages = await call.admin.messages_by_key(topic, message_id)
    except TopicNotFoundError:
        raise ConfigError(
            f"no traces: topic {topic} does not exist; clients record traces with trace=True"
        ) from None
    return [_row(each) for each in trace_events(messages, message_id)]


def _row(event: TraceEvent) -> Row:
    """Return the row of an event. A start without an end has no result yet."""
    from cometmq.client.trace.records import (
        ConsumeAfter,
        ConsumeBefore,
        EndTransaction,
        Publish,
        Recall,
    )

    client = (event.group, event.host, event.time_ms)
    match event.record:
        case Publish() as record:
            return ("send", *client, record.cost_ms, record.success, None)
        case ConsumeBefore() as record:
            return ("consume", *client, None, None, record.retries)
        case ConsumeAfter() as record:
            retries = event.start.retries if event.start else None
            return ("consume", *client, record.cost_ms, record.success, retries)
        case EndTransaction() as record:
            return (f"end transaction: {record.state.value}", *client, None, None, None)
        case Recall() as record:
            return ("recall", *client, None, record.success, None)
