"""Whatever happens between batches, every message is in exactly one batch that is done."""

from __future__ import annotations

import contextlib
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from cometmq.spark.errors import UnreachableError
from cometmq.spark.options.parsing import parse_options
from cometmq.spark.options.topics import TopicReadOptions
from cometmq.spark.schema import topic_columns
from cometmq.spark.sources.topic_stream import TopicStreamReader
from cometmq.system.clock import ManualClock
from support.memory_brokers import MemoryBrokers
from support.stream_protocol import Checkpoint, Row, SinkError, StreamProtocol

COLUMNS = topic_columns(properties=False)
STARTS = st.sampled_from(["earliest", "latest"])
LIMITS = st.fixed_dictionaries(
    {},
    optional={
        "maxOffsetsPerTrigger": st.integers(1, 9),
        "minPartitions": st.integers(1, 5),
        "maxRecordsPerPartition": st.integers(1, 4),
    },
)
EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.integers(0, 5), st.integers(1, 7)),
        st.tuples(st.just("queues"), st.integers(1, 4), st.sampled_from(["broker-a", "broker-b"])),
        st.tuples(st.just("trigger"), st.booleans(), st.none()),
        st.tuples(st.just("restart"), st.booleans(), st.none()),
        st.tuples(st.just("away"), st.sampled_from(["broker-a", "broker-b"]), st.none()),
        st.tuples(st.just("back"), st.none(), st.none()),
    ),
    max_size=30,
)


class Story:
    """A query, its brokers, and what it has done."""

    def __init__(self, start: str, limits: dict[str, int]) -> None:
        self.brokers = MemoryBrokers()
        self.keys = self.brokers.create("t", queues=1)
        self.brokers.send(self.keys[0], 3)
        given = {"nameServer": "n:1", "subscribe": "t", "startingOffsets": start}
        given |= {name: str(value) for name, value in limits.items()}
        self.options = parse_options(TopicReadOptions, given)
        self.checkpoint = Checkpoint()
        self.rows: list[Row] = []
        self.run = self.begin()
        # From here on a start at the latest is a place, whatever fails.
        self.trigger(fails=True)
        self.started_at = 0 if start == "earliest" else 3

    def begin(self, *, available_now: bool = False) -> StreamProtocol:
        def reader() -> TopicStreamReader:
            return TopicStreamReader(
                self.options,
                COLUMNS,
                self.brokers.connect,
                ManualClock(),  # type: ignore[arg-type]
            )

        return StreamProtocol(reader, self.checkpoint, available_now=available_now)

    def trigger(self, *, fails: bool = False) -> None:
        try:
            self.rows += self.run.trigger(fails=fails) or []
        except (SinkError, UnreachableError):
            with contextlib.suppress(UnreachableError):
                self.run = self.begin()

    def happen(self, event: tuple[str, Any, Any]) -> None:
        what, first, second = event
        if what == "send":
            self.brokers.send(self.keys[first % len(self.keys)], second)
        elif what == "queues":
            self.keys = sorted({*self.keys, *self.brokers.create("t", first, second)})
        elif what == "trigger":
            self.trigger(fails=first)
        elif what == "restart":
            with contextlib.suppress(UnreachableError):
                self.run = self.begin(available_now=first)
        elif what == "away":
            self.brokers.away.add(first)
        else:
            self.brokers.away.clear()


@given(start=STARTS, limits=LIMITS, events=EVENTS)
def test_every_message_is_in_one_batch(
    start: str, limits: dict[str, int], events: list[tuple[str, Any, Any]]
) -> None:
    story = Story(start, limits)

    for event in events:
        story.happen(event)
    story.brokers.away.clear()
    story.run = story.begin()
    story.rows += story.run.drain(200)

    expected = [
        (key.topic, key.queue_id, offset)
        for key, queue in story.brokers.held.items()
        for offset in range(queue.max)
        if key != ("t", "broker-a", 0) or offset >= story.started_at
    ]
    assert sorted(story.rows) == sorted(expected)
