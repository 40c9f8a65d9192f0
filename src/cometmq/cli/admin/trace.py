"""``cometmq admin trace``: who sent and who consumed a message."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from cometmq.cli.admin.commands import Call, Commands
from cometmq.cli.admin.output import Row, Rows
from cometmq.model.errors import ConfigError

if TYPE_CHECKING:
    from cometmq.client.trace.records import ConsumeBefore, Record

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
    from cometmq.client.admin.messages import records_of
    from cometmq.client.trace.records import ConsumeAfter, ConsumeBefore
    from cometmq.model.topic import TRACE_TOPIC

    topic = trace_topic or TRACE_TOPIC
    try:
        messages = await call.admin.messages_by_key(topic, message_id)
    except TopicNotFoundError:
        raise ConfigError(
            f"no traces: topic {topic} does not exist; clients record traces with trace=True"
        ) from None
    records = [
        (message.born_host.rpartition(":")[0], record)
        for message in messages
        for record in records_of(message, message_id)
    ]
    starts = {
        record.request_id: record for _, record in records if isinstance(record, ConsumeBefore)
    }
    ended = {record.request_id for _, record in records if isinstance(record, ConsumeAfter)}
    return [
        _row(host, record, starts)
        for host, record in records
        if not (isinstance(record, ConsumeBefore) and record.request_id in ended)
    ]


def _row(host: str, record: Record, starts: dict[str, ConsumeBefore]) -> Row:
    """Return the row of a record. A start without an end has no result yet."""
    from cometmq.client.trace.records import (
        ConsumeAfter,
        ConsumeBefore,
        EndTransaction,
        Publish,
        Recall,
    )

    match record:
        case Publish():
            end = (record.time_ms, record.cost_ms, record.success, None)
            return ("send", record.group, host, *end)
        case ConsumeBefore():
            return ("consume", record.group, host, record.time_ms, None, None, record.retries)
        case ConsumeAfter():
            start = starts.get(record.request_id)
            group = start.group if start else record.group
            began = start.time_ms if start else record.time_ms
            retries = start.retries if start else None
            return ("consume", group, host, began, record.cost_ms, record.success, retries)
        case EndTransaction():
            event = f"end transaction: {record.state.value}"
            return (event, record.group, host, record.time_ms, None, None, None)
        case Recall():
            return ("recall", record.group, host, record.time_ms, None, record.success, None)
