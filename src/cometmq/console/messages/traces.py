"""The trace of a message as a timeline: its send, its consumptions, the end of its transaction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, NamedTuple

import msgspec

from cometmq.client.admin.messages import TraceEvent, trace_events
from cometmq.client.errors import TopicNotFoundError
from cometmq.client.trace.records import (
    ConsumeAfter,
    ConsumeBefore,
    EndTransaction,
    Publish,
    Recall,
)
from cometmq.console.pages import NotFoundError, Page, Query
from cometmq.console.reads import Reads
from cometmq.model.topic import TRACE_TOPIC

EVENTS_SHOWN = 200
WIDTH = 100.0
"""Of the timeline, in units of its drawing."""
BAR_WIDTH_MIN = 0.75
_TopicOfTraces = Annotated[
    str, msgspec.Meta(max_length=255, description="Topic of the traces, if it is another one.")
]


class TraceQuery(Query):
    """The unique id of a message."""

    id: Annotated[str, msgspec.Meta(min_length=1, max_length=255)]
    trace_topic: _TopicOfTraces = ""


class TraceStep(msgspec.Struct):
    """What one client did with the message."""

    event: str
    """``send``, ``consume``, ``transaction`` or ``recall``."""
    result: str
    is_failure: bool
    group: str
    client: str
    begin_time_ms: int
    after_ms: int
    """How long after the first step."""
    cost_ms: int | None
    retry: int | None
    bar_from: float
    """Where the timeline has it, from 0 to 100."""
    bar_width: float


class Trace(msgspec.Struct):
    """What clients have recorded about a message, in the order of time."""

    id: str
    topic: str
    """The topic of the message; empty if its producer has recorded no trace."""
    trace_topic: str
    steps: list[TraceStep]
    total: int
    whole_ms: int
    """From the beginning of the first step to the end of the last one."""


class _Step(NamedTuple):
    event: str
    result: str
    cost_ms: int | None
    retry: int | None
    is_failure: bool = False


async def trace(reads: Reads, query: TraceQuery) -> Trace:
    """Return what clients have recorded about a message."""
    topic = query.trace_topic or TRACE_TOPIC
    try:
        records = await reads.admin.messages_by_key(topic, query.id)
    except TopicNotFoundError:
        raise NotFoundError(
            f"there are no traces: topic {topic} does not exist; clients of CometMQ record traces"
            " with trace=True"
        ) from None
    events = trace_events(records, query.id)
    steps, whole_ms = timeline_of(events[:EVENTS_SHOWN])
    return Trace(query.id, _topic_of(events), topic, steps, len(events), whole_ms)


def _topic_of(events: Sequence[TraceEvent]) -> str:
    records = [each.record for each in events]
    named = [each for each in records if isinstance(each, Publish | EndTransaction | Recall)]
    return named[0].topic if named else ""


def timeline_of(events: Sequence[TraceEvent]) -> tuple[list[TraceStep], int]:
    """Return the steps of a timeline in order of time, and how long all of it took."""
    if not events:
        return [], 0
    begun = [_begin_ms(each) for each in events]
    first = min((each for each in begun if each > 0), default=0)
    steps = sorted(
        (
            (max(each, first), event, _step(event))
            for each, event in zip(begun, events, strict=True)
        ),
        key=lambda each: each[0],
    )
    whole_ms = max(max(begin + (step.cost_ms or 0) for begin, _, step in steps) - first, 1)
    found = []
    for begin, event, step in steps:
        width = min(max((step.cost_ms or 0) / whole_ms * WIDTH, BAR_WIDTH_MIN), WIDTH)
        left = min((begin - first) / whole_ms * WIDTH, WIDTH - width)
        found.append(
            TraceStep(
                *(step.event, step.result, step.is_failure, event.group, event.host, begin),
                *(begin - first, step.cost_ms, step.retry, round(left, 2), round(width, 2)),
            )
        )
    return found, whole_ms


def _begin_ms(event: TraceEvent) -> int:
    """Return when a step began; of an end whose start was not recorded, by its cost.

    It is 0 or less if the client has recorded no time, as clients of RocketMQ 4.
    """
    record = event.record
    if isinstance(record, ConsumeAfter) and event.start is None:
        return record.time_ms - record.cost_ms
    return event.time_ms


def _step(event: TraceEvent) -> _Step:
    match event.record:
        case Publish() as record:
            result = "stored" if record.success else "failed"
            return _Step("send", result, record.cost_ms, None, not record.success)
        case ConsumeBefore() as record:
            return _Step("consume", "no end recorded", None, record.retries)
        case ConsumeAfter() as record:
            retry = event.start.retries if event.start else None
            result = record.end.name.lower().replace("_", " ")
            return _Step("consume", result, record.cost_ms, retry, not record.success)
        case EndTransaction() as record:
            by = " after a check" if record.from_check else ""
            return _Step("transaction", f"{record.state.name.lower()}{by}", None, None)
        case Recall() as record:
            result = "recalled" if record.success else "failed"
            return _Step("recall", result, None, None, not record.success)


PAGE = Page(
    "/messages/trace", "Trace of a message", "messages/trace.html", TraceQuery, Trace, trace
)
