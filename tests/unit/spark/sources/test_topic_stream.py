"""Streams of topics: the messages of each batch, after failures, losses and changes."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import InputPartition

from cometmq.spark.compat import ReadAllAvailable, ReadMaxRows
from cometmq.spark.errors import (
    DataLossError,
    GoneError,
    OptionError,
    RangeError,
    SourceError,
    UnreachableError,
)
from cometmq.spark.offsets import Bounds, QueueKey, QueueRange
from cometmq.spark.options.parsing import parse_options
from cometmq.spark.options.topics import TopicReadOptions
from cometmq.spark.schema import topic_columns
from cometmq.spark.sources.topic_stream import TopicStreamReader
from support.checks.manual_clock import ManualClock
from support.spark.memory_brokers import MemoryBrokers
from support.spark.stream_protocol import (
    Checkpoint,
    OldStreamProtocol,
    Row,
    SinkError,
    StreamProtocol,
    rows_of,
)

COLUMNS = topic_columns(properties=False)


class Query:
    """A query with its options and its checkpoint; `start` starts it as a new process would."""

    def __init__(self, brokers: MemoryBrokers, clock: ManualClock | None = None, **options: Any):
        given = {"nameServer": "n:1", "subscribe": "t", "startingOffsets": "earliest"}
        self.given = given | {name.replace("_", "."): str(value) for name, value in options.items()}
        self.brokers = brokers
        self.clock = clock or ManualClock()
        self.checkpoint = Checkpoint()

    def reader(self) -> TopicStreamReader:
        options = parse_options(TopicReadOptions, self.given)
        return TopicStreamReader(options, COLUMNS, self.brokers.connect, self.clock)

    def start(self, **how: Any) -> StreamProtocol:
        return StreamProtocol(self.reader, self.checkpoint, **how)

    def once(self, **how: Any) -> list[Row]:
        """Start, read all there is, end."""
        return self.start(**how).drain()

    def fail_a_batch(self) -> None:
        """Start, read a batch, end as its sink fails."""
        with pytest.raises(SinkError):
            self.start().trigger(fails=True)

    def task(self) -> tuple[TopicStreamReader, InputPartition]:
        """A reader, and the one part there is of all there is."""
        reader = self.reader()
        end = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
        (part,) = reader.partitions(reader.initialOffset(), end)
        return reader, part


@pytest.fixture
def brokers() -> MemoryBrokers:
    return MemoryBrokers()


def one_queue(brokers: MemoryBrokers, count: int, **sent: Any) -> QueueKey:
    """The only queue of topic t, with so many messages."""
    (key,) = brokers.create("t", queues=1)
    brokers.send(key, count, **sent)
    return key


def caught_up(brokers: MemoryBrokers, count: int, **options: Any) -> tuple[QueueKey, Query]:
    """The only queue of topic t, and a query that has read its messages."""
    key, query = one_queue(brokers, count), Query(brokers, **options)
    query.once()
    return key, query


def forget_additions(checkpoint: Checkpoint) -> None:
    """Leave the offsets of the last batch alone, as older versions wrote them."""
    document = json.loads(checkpoint.ends[-1])
    offsets = {name: each for name, each in document.items() if not name.startswith("$")}
    checkpoint.ends[-1] = json.dumps(offsets)


def rows(key: QueueKey, *offsets: int) -> list[Row]:
    return [(key.topic, key.queue_id, offset) for offset in offsets]


# --- the first batch -----------------------------------------------------------------------------


def test_a_query_from_the_earliest_reads_everything_once(brokers: MemoryBrokers) -> None:
    first, second = brokers.create("t")
    brokers.send(first, 5)
    brokers.send(second, 2)
    query = Query(brokers)

    found = query.once()

    assert sorted(found) == rows(first, *range(5)) + rows(second, 0, 1)
    assert query.once() == []


@pytest.mark.parametrize("start", ["latest", "group", '{"t":{"broker-a":{"0":-1}}}'])
def test_rows_between_a_failed_first_batch_and_the_next_start_are_read(
    brokers: MemoryBrokers, start: str
) -> None:
    """Spark does not keep the initial offset: asked again later, it would be another one."""
    key = one_queue(brokers, 3)
    brokers.groups["g", key] = 3
    query = Query(brokers, startingOffsets=start, rocketmq_group="g")
    query.fail_a_batch()
    brokers.send(key, 2)
    brokers.groups["g", key] = 5

    assert query.once() == rows(key, 3, 4)


def test_rows_after_a_time_that_was_not_reached_yet_survive_a_failed_first_batch(
    brokers: MemoryBrokers,
) -> None:
    key = one_queue(brokers, 3, time_ms=1_000)
    strategy = {"startingOffsetsByTimestampStrategy": "latest"}
    query = Query(brokers, startingTimestamp=2_000, **strategy)
    query.fail_a_batch()
    brokers.send(key, 2, time_ms=1_500)
    brokers.send(key, 1, time_ms=3_000)

    assert query.once() == rows(key, 3, 4, 5), "the end of the queue then was the start"


def test_a_failed_first_batch_from_the_earliest_has_the_same_rows_again(
    brokers: MemoryBrokers,
) -> None:
    key = one_queue(brokers, 3)
    query = Query(brokers)
    query.fail_a_batch()
    brokers.send(key, 2)
    run = query.start()

    assert run.trigger() == rows(key, 0, 1, 2)
    assert run.drain() == rows(key, 3, 4)


def test_the_start_is_symbolic_and_the_latest_is_fixed_by_a_batch_without_rows(
    brokers: MemoryBrokers,
) -> None:
    one_queue(brokers, 3)
    query = Query(brokers, startingOffsets="latest")
    run = query.start()

    assert run.reader.initialOffset() == {"$start": "latest"}
    assert run.trigger() == []
    fixed = '{"t": {"broker-a": {"0": 3}}}'
    stored = '{"t": {"broker-a": {"0": 1003}}}'
    assert query.checkpoint.ends == [f'{{"$from": {fixed}, "$stored": {stored}, {fixed[1:]}']
    assert run.partitions == 0
    assert run.trigger() is None, "no news gives the very same text"


@pytest.mark.parametrize(
    ("planned", "restarted"),
    [
        ("earliest", "latest"),
        ("earliest", '{"t":{"broker-a":{"0":2}}}'),
        ("latest", "earliest"),
        ("group", "earliest"),
        ('{"t":{"broker-a":{"0":1}}}', "earliest"),
    ],
)
def test_a_failed_first_batch_is_repeated_from_its_own_start_whatever_the_option_says_now(
    brokers: MemoryBrokers, planned: str, restarted: str
) -> None:
    """The checkpoint decides: else the batch's rows are lost, or rows before its start are read."""
    key = one_queue(brokers, 3)
    brokers.groups["g", key] = 1
    options = {"rocketmq_group": "g", "startingOffsetsDefault": "earliest"}
    expected = Query(brokers, startingOffsets=planned, **options).once()
    query = Query(brokers, startingOffsets=planned, **options)
    query.fail_a_batch()
    brokers.send(key, 2)
    query.given["startingOffsets"] = restarted

    assert query.once() == [*expected, *rows(key, 3, 4)]


@pytest.mark.parametrize("start", ["earliest", "latest"])
def test_a_first_batch_whose_start_the_checkpoint_does_not_say_is_refused(
    brokers: MemoryBrokers, start: str
) -> None:
    """The option may have changed since: to go by it would lose rows, or read others."""
    one_queue(brokers, 3)
    query = Query(brokers, startingOffsets=start)
    query.checkpoint.ends = ['{"t": {"broker-a": {"0": 3}}}']

    with pytest.raises(SourceError, match="met no start of the first batch in the checkpoint"):
        query.once()


def test_a_stream_begins_at_the_latest_if_nobody_says(brokers: MemoryBrokers) -> None:
    query = Query(brokers)
    del query.given["startingOffsets"]

    assert query.reader().initialOffset() == {"$start": "latest"}


def test_explicit_offsets_begin_where_they_say(brokers: MemoryBrokers) -> None:
    first, second = brokers.create("t")
    brokers.send(first, 5)
    brokers.send(second, 5)
    query = Query(brokers, startingOffsets='{"t":{"broker-a":{"0":3,"1":-2}}}')

    found = query.start().drain()

    assert sorted(found) == rows(first, 3, 4) + rows(second, *range(5))


@pytest.mark.parametrize(
    ("offset", "text"),
    [
        (3, "offsets from 3 have expired; the queue has 10 to 30"),
        (31, "offsets from 31, as in option startingOffsets, do not exist; the queue has 10 to 30"),
    ],
)
def test_explicit_offsets_that_are_not_there_fail_at_once(
    brokers: MemoryBrokers, offset: int, text: str
) -> None:
    """Also where the first batch only fixes the start, as here: another queue begins at its end."""
    first, second = brokers.create("t")
    brokers.send(first, 30)
    brokers.expire(first, 10)
    brokers.send(second, 2)
    offsets = '{"t":{"broker-a":{"0":%d,"1":-1}}}' % offset

    with pytest.raises(DataLossError, match=f"queue 0 of broker-a: {text}"):
        Query(brokers, startingOffsets=offsets).start().trigger()
    query = Query(brokers, startingOffsets=offsets, failOnDataLoss="false")
    assert query.once() == rows(first, *range(10, 30))


def test_queues_that_are_not_named_begin_where_the_default_says(brokers: MemoryBrokers) -> None:
    first, second = brokers.create("t")
    brokers.send(first, 5)
    brokers.send(second, 5)
    offsets = '{"t":{"broker-a":{"0":3}}}'

    assert Query(brokers, startingOffsets=offsets).once() == rows(first, 3, 4)
    query = Query(brokers, startingOffsets=offsets, startingOffsetsDefault="earliest")
    assert len(query.once()) == 7


def test_a_group_begins_where_it_stands_and_elsewhere_as_the_default_says(
    brokers: MemoryBrokers,
) -> None:
    first, second = brokers.create("t")
    brokers.send(first, 5)
    brokers.send(second, 5)
    brokers.groups["g", first] = 2
    options = {"startingOffsets": "group", "rocketmq_group": "g"}

    assert Query(brokers, **options).once() == rows(first, 2, 3, 4)
    found = Query(brokers, **options, startingOffsetsDefault="earliest").once()
    assert sorted(found) == rows(first, 2, 3, 4) + rows(second, *range(5))


def test_a_time_that_no_message_is_as_young_as_fails_unless_told_otherwise(
    brokers: MemoryBrokers,
) -> None:
    key = one_queue(brokers, 2, time_ms=1_000)
    brokers.send(key, 2, time_ms=2_000)

    assert Query(brokers, startingTimestamp=1_500).once() == rows(key, 2, 3)
    with pytest.raises(DataLossError, match=r"queue 0 of broker-a: no message .* 2500 ms"):
        Query(brokers, startingTimestamp=2_500).once()


def test_a_topic_that_does_not_exist_is_named_at_the_first_trigger(brokers: MemoryBrokers) -> None:
    with pytest.raises(GoneError, match="topic t"):
        Query(brokers).once()


def test_an_assigned_queue_that_does_not_exist_is_named(brokers: MemoryBrokers) -> None:
    brokers.create("t")
    query = Query(brokers, assign='{"t":{"broker-a":[1,9]}}', failOnDataLoss="false")
    del query.given["subscribe"]

    with pytest.raises(GoneError, match="queue 9"):
        query.once()


# --- documents -----------------------------------------------------------------------------------


def test_no_news_gives_the_very_same_text(brokers: MemoryBrokers) -> None:
    """Spark compares texts: another order of keys would be an empty batch at every trigger."""
    for topic in ("t", "a"):
        for broker in ("z", "b"):
            brokers.create(topic, queues=11, broker=broker)
    query = Query(brokers, subscribe="t,a")
    query.once()
    text = query.checkpoint.ends[-1]

    assert query.start().trigger() is None
    document = json.loads(text)
    assert list(document) == ["$from", "a", "t"]
    assert list(document["t"]) == ["b", "z"]
    assert list(document["t"]["b"]) == [str(number) for number in range(11)]


def test_documents_of_another_order_are_understood_and_put_right(brokers: MemoryBrokers) -> None:
    _, second = brokers.create("t")
    query = Query(brokers)
    query.checkpoint.ends, query.checkpoint.done = ['{"t": {"broker-a": {"1": 0, "0": 0}}}'], 1

    assert query.start().trigger() is None
    brokers.send(second, 1)
    assert query.once() == rows(second, 0)
    assert query.checkpoint.ends[-1].endswith('"t": {"broker-a": {"0": 0, "1": 1}}}')


# --- limits --------------------------------------------------------------------------------------


def test_a_limit_is_shared_in_proportion_and_nobody_is_left_out(brokers: MemoryBrokers) -> None:
    first, second = brokers.create("t")
    brokers.send(first, 90)
    brokers.send(second, 10)
    query = Query(brokers, maxOffsetsPerTrigger=10)
    run = query.start()

    assert sorted(run.trigger() or ()) == rows(first, *range(9)) + rows(second, 0)
    assert len(run.drain()) == 90
    assert query.reader().getDefaultReadLimit() == ReadMaxRows(10)


@pytest.mark.parametrize("limit", [{"maxBytesPerTrigger": 500}, {"maxTimePerTrigger": "7ms"}])
@pytest.mark.parametrize("now", [True, False])
def test_batches_within_a_limit_have_all_messages(
    brokers: MemoryBrokers, limit: dict[str, Any], now: bool
) -> None:
    first, second = brokers.create("t")
    brokers.send(first, 30)
    brokers.send(second, 20)
    query = Query(brokers, **limit)
    run = query.start(available_now=now)
    batches = [run.trigger() or [] for _ in range(3)]
    found = [row for batch in batches for row in batch]

    assert all(0 < len(batch) < 10 for batch in batches)
    assert sorted(found + run.drain()) == sorted(rows(first, *range(30)) + rows(second, *range(20)))


def test_a_trigger_that_takes_all_heeds_no_limit(brokers: MemoryBrokers) -> None:
    key = one_queue(brokers, 30)

    run = Query(brokers, maxOffsetsPerTrigger=10).start(limit=ReadAllAvailable())

    assert run.trigger() == rows(key, *range(30))


def test_few_messages_wait_but_no_longer_than_the_delay(brokers: MemoryBrokers) -> None:
    key = one_queue(brokers, 1)
    clock = ManualClock()
    query = Query(brokers, clock, minOffsetsPerTrigger=5, maxTriggerDelay="10s")
    run = query.start()
    assert run.trigger() == rows(key, 0), "a start is not held back"
    brokers.send(key, 3)

    assert run.trigger() is None
    brokers.send(key, 2)
    assert run.trigger() == rows(key, 1, 2, 3, 4, 5)
    brokers.send(key, 1)
    clock.advance(9_000)
    assert run.trigger() is None
    clock.advance(1_000)
    assert run.trigger() == rows(key, 6)


def test_large_ranges_are_cut_for_more_tasks(brokers: MemoryBrokers) -> None:
    first, second = brokers.create("t")
    brokers.send(first, 30)
    brokers.send(second, 2)
    run = Query(brokers, minPartitions=4).start()

    assert sorted(run.trigger() or ()) == rows(first, *range(30)) + rows(second, 0, 1)
    assert run.partitions >= 4


# --- AvailableNow --------------------------------------------------------------------------------


def test_available_now_stops_at_what_there_was(brokers: MemoryBrokers) -> None:
    key = one_queue(brokers, 5)
    query = Query(brokers, maxOffsetsPerTrigger=2)
    run = query.start(available_now=True)
    brokers.send(key, 5)
    (late,) = brokers.create("t", queues=1, broker="broker-b")
    brokers.send(late, 1)

    assert run.drain() == rows(key, *range(5))
    assert sorted(query.once(available_now=True)) == sorted(
        rows(key, *range(5, 10)) + rows(late, 0)
    )


def test_available_now_heeds_no_least_number(brokers: MemoryBrokers) -> None:
    (key,) = brokers.create("t", queues=1)
    query = Query(brokers, minOffsetsPerTrigger=100)
    query.once(available_now=True)
    brokers.send(key, 3)
    run = query.start()
    run.trigger()
    brokers.send(key, 2)

    assert run.trigger() is None
    assert query.once(available_now=True) == rows(key, 3, 4)


def test_available_now_from_the_latest_ends_without_rows(brokers: MemoryBrokers) -> None:
    one_queue(brokers, 5)

    assert Query(brokers, startingOffsets="latest").once(available_now=True) == []


def test_available_now_leaves_a_broker_that_is_away_to_the_next_run(
    brokers: MemoryBrokers,
) -> None:
    """A topic whose only broker is away seems not to exist; the checkpoint knows better."""
    key, query = caught_up(brokers, 2)
    brokers.send(key, 2)
    brokers.away.add("broker-a")
    assert query.once(available_now=True) == []
    brokers.away.clear()

    assert query.once(available_now=True) == rows(key, 2, 3)


# --- queues and topics come and go ---------------------------------------------------------------


def test_queues_that_appear_are_read_from_their_beginning(brokers: MemoryBrokers) -> None:
    (key,) = brokers.create("t", queues=1)
    query = Query(brokers, startingOffsets="latest")
    run = query.start()
    run.drain()
    _, more = brokers.create("t", queues=2)
    (other,) = brokers.create("t", queues=1, broker="broker-b")
    for each in (key, more, other):
        brokers.send(each, 2)

    found = run.drain()

    assert sorted(found) == sorted(rows(key, 0, 1) + rows(more, 0, 1) + rows(other, 0, 1))


def test_topics_that_come_to_match_are_read_from_their_beginning(brokers: MemoryBrokers) -> None:
    (key,) = brokers.create("orders-1", queues=1)
    query = Query(brokers, subscribePattern="orders-.*")
    del query.given["subscribe"]
    run = query.start()
    run.drain()
    (more,) = brokers.create("orders-2", queues=1)
    (other,) = brokers.create("bills", queues=1)
    for each in (key, more, other):
        brokers.send(each, 1)

    assert sorted(run.drain()) == rows(key, 0) + rows(more, 0)


@pytest.mark.parametrize("start", ["earliest", "latest"])
def test_a_pattern_that_matches_no_topic_at_first_loses_no_message_of_a_later_one(
    brokers: MemoryBrokers, start: str
) -> None:
    """The first batch ends without an offset, which is no start that is still to be resolved."""
    query = Query(brokers, subscribePattern="orders-.*", startingOffsets=start)
    del query.given["subscribe"]
    assert query.once() == []
    (key,) = brokers.create("orders-1", queues=1)
    brokers.send(key, 7)

    assert query.once() == rows(key, *range(7))
    assert query.start().trigger() is None


def test_a_query_goes_on_from_a_first_end_without_its_start(brokers: MemoryBrokers) -> None:
    """Older versions wrote offsets alone, none at all where no topic matched."""
    key = one_queue(brokers, 3)
    query = Query(brokers, startingOffsets="latest")
    for end, found in (("{}", (0, 1, 2)), ('{"t": {"broker-a": {"0": 2}}}', (2,))):
        query.checkpoint = Checkpoint([end], done=1)
        assert query.once() == rows(key, *found)


def test_a_queue_that_is_gone_for_good_fails_the_query(brokers: MemoryBrokers) -> None:
    _, key = brokers.create("t", queues=2)
    brokers.send(key, 2)
    query = Query(brokers)
    query.once()
    del brokers.held[key]

    with pytest.raises(DataLossError, match=r"queue 1 of broker-a: no longer readable.*offset 2"):
        query.once()


def test_a_deleted_topic_is_dropped_where_loss_is_no_failure(
    brokers: MemoryBrokers, caplog: pytest.LogCaptureFixture
) -> None:
    brokers.create("t", queues=1)
    (other,) = brokers.create("u", queues=1)
    query = Query(brokers, subscribe="t,u", failOnDataLoss="false")
    run = query.start()
    run.drain()
    brokers.delete("t")
    brokers.send(other, 2)
    with caplog.at_level(logging.WARNING):
        assert run.drain() == rows(other, 0, 1)

    assert "topic t, queue 0 of broker-a: no longer readable" in caplog.text
    assert query.checkpoint.ends[-1].endswith('"u": {"broker-a": {"0": 2}}}')
    assert '"t"' not in query.checkpoint.ends[-1]
    (again,) = brokers.create("t", queues=1)
    brokers.send(again, 1)
    assert run.drain() == rows(again, 0)


def test_a_query_goes_on_without_any_topic_left(brokers: MemoryBrokers) -> None:
    brokers.create("t", queues=1)
    query = Query(brokers, failOnDataLoss="false")
    run = query.start()
    run.drain()
    brokers.delete("t")

    assert run.drain() == []
    (again,) = brokers.create("t", queues=1)
    brokers.send(again, 2)
    assert run.drain() == rows(again, 0, 1)


# --- brokers that are away -----------------------------------------------------------------------


class TwoBrokers:
    """A topic on two brokers, and a query that has read all of it."""

    def __init__(self, brokers: MemoryBrokers, **options: Any) -> None:
        self.brokers = brokers
        (self.first,) = brokers.create("t", queues=1)
        (self.second,) = brokers.create("t", queues=1, broker="broker-b")
        brokers.send(self.first, 2)
        brokers.send(self.second, 3)
        self.query = Query(brokers, **options)
        self.run = self.query.start()
        self.run.drain()

    def come_back(self) -> None:
        """Let broker-b respond, and the time pass until it is asked again."""
        self.brokers.away.clear()
        self.query.clock.advance(1_000)


def newest(run: StreamProtocol) -> dict[str, Any]:
    """The newest offset in the progress of the last batch."""
    document = run.reader.reportLatestOffset()
    assert document is not None
    return document


@pytest.mark.parametrize("fail", ["true", "false"])
def test_a_broker_that_is_away_holds_its_queues_and_the_others_go_on(
    brokers: MemoryBrokers, fail: str, caplog: pytest.LogCaptureFixture
) -> None:
    two = TwoBrokers(brokers, failOnDataLoss=fail)
    brokers.send(two.second, 4)
    brokers.away.add("broker-b")
    with caplog.at_level(logging.WARNING):
        for offset in (2, 3, 4):
            brokers.send(two.first, 1)
            assert two.run.drain() == rows(two.first, offset)
        two.come_back()
        assert two.run.drain() == rows(two.second, *range(3, 7))

    assert caplog.text.count("a broker is away, its queues keep their offsets broker=broker-b") == 1
    assert caplog.text.count("a broker is there again broker=broker-b queues=1") == 1


def test_an_idle_query_has_a_batch_when_a_broker_goes_away_and_when_it_comes_back(
    brokers: MemoryBrokers,
) -> None:
    """Spark has no progress without a batch."""
    two = TwoBrokers(brokers)
    brokers.away.add("broker-b")
    since = {"t": {"broker-b": {"0": two.query.clock.now_ms()}}}

    assert two.run.trigger() == []
    assert two.run.trigger() is None
    two.query.clock.advance(60_000)
    assert two.run.trigger() is None
    assert two.query.checkpoint.end(-1)["$away"] == since
    two.come_back()
    assert two.run.trigger() == []
    assert "$away" not in two.query.checkpoint.end(-1)
    assert two.run.trigger() is None


def test_a_restarted_query_knows_since_when_a_broker_is_away(brokers: MemoryBrokers) -> None:
    two = TwoBrokers(brokers)
    brokers.away.add("broker-b")
    two.run.trigger()
    since = two.query.checkpoint.end(-1)["$away"]
    two.query.clock.advance(60_000)
    brokers.send(two.first, 1)

    assert two.query.once() == rows(two.first, 2)
    assert two.query.checkpoint.end(-1)["$away"] == since


def test_a_query_ends_when_a_broker_is_away_for_longer_than_its_option_says(
    brokers: MemoryBrokers,
) -> None:
    two = TwoBrokers(brokers, brokerAway_failAfterMs=60_000)
    brokers.away.add("broker-b")
    assert two.run.trigger() == []
    two.query.clock.advance(59_999)
    assert two.run.trigger() is None
    two.query.clock.advance(1)

    text = "queue 0 of broker-b: its broker has been away for 60000 ms, expected less than .*=60000"
    with pytest.raises(UnreachableError, match=text):
        two.run.trigger()
    with pytest.raises(UnreachableError, match=text):
        two.query.once()


@pytest.mark.parametrize("now", [True, False])
def test_a_query_ends_at_once_if_its_option_is_zero(brokers: MemoryBrokers, now: bool) -> None:
    two = TwoBrokers(brokers, brokerAway_failAfterMs=0)
    brokers.away.add("broker-b")

    with pytest.raises(UnreachableError, match=r"queue 0 of broker-b.*not registered now"):
        two.query.once(available_now=now)


@pytest.mark.parametrize(
    ("options", "retries"),
    [
        ({}, [(3.0, 10)]),
        ({"brokerAway_failAfterMs": 0}, []),
        ({"brokerAway_afterMs": 9}, [(0.009, 10)]),
    ],
)
def test_a_stream_gives_a_broker_up_soon_if_it_goes_on_without_it(
    brokers: MemoryBrokers, options: dict[str, Any], retries: list[tuple[float, int]]
) -> None:
    two = TwoBrokers(brokers, **options)
    brokers.retries.clear()
    brokers.send(two.first, 1)
    two.run.trigger()

    assert set(brokers.retries) == set(retries)


@pytest.mark.parametrize("fails", [True, False])
def test_a_run_with_available_now_may_begin_without_a_broker(
    brokers: MemoryBrokers, caplog: pytest.LogCaptureFixture, fails: bool
) -> None:
    """The broker is back before the first batch, too late for the end of the run."""
    two = TwoBrokers(brokers, **{"brokerAway_failAfterMs": 0} if fails else {})
    for key in (two.first, two.second):
        brokers.send(key, 1)
    brokers.before["bounds"] = lambda: brokers.away.add("broker-b")
    if fails:
        with pytest.raises(UnreachableError, match="queue 0 of broker-b"):
            two.query.start(available_now=True)
        return
    with caplog.at_level(logging.WARNING):
        run = two.query.start(available_now=True)
    assert "this run reads nothing of it broker=broker-b queues=1" in caplog.text
    brokers.away.clear()
    assert run.drain() == rows(two.first, 2)
    assert two.query.once(available_now=True) == rows(two.second, 3)


@pytest.mark.parametrize(
    ("request_", "happens"),
    [
        *(("bounds", each) for each in ("nothing", "truncate", "create again")),
        *(("store_times", each) for each in ("nothing", "truncate", "create again")),
        ("at_time", "truncate"),
    ],
)
def test_a_broker_that_goes_away_while_a_batch_is_planned_holds_its_queues(
    brokers: MemoryBrokers, request_: str, happens: str
) -> None:
    two = TwoBrokers(brokers, failOnDataLoss="false")
    brokers.tells_newest = False
    if happens == "truncate":
        brokers.truncate(two.second, 2)
    elif happens == "create again":
        brokers.make_anew(two.second)
    brokers.send(two.first, 2)
    brokers.send(two.second, 2)
    brokers.before[request_] = lambda: brokers.away.add("broker-b")
    assert two.run.drain() == rows(two.first, 2, 3)
    assert request_ not in brokers.before
    two.come_back()

    again = {"nothing": (3, 4), "truncate": (2, 3), "create again": (0, 1)}
    assert two.run.drain() == rows(two.second, *again[happens])


def test_a_planned_batch_keeps_the_range_of_a_broker_that_is_away(brokers: MemoryBrokers) -> None:
    """The range is in the checkpoint: the task waits for the broker."""
    two = TwoBrokers(brokers)
    brokers.send(two.first, 1)
    brokers.send(two.second, 1)
    two.query.fail_a_batch()
    brokers.away.add("broker-b")
    reader = two.query.reader()
    checkpoint = two.query.checkpoint
    parts = reader.partitions(checkpoint.end(-2), checkpoint.end(-1))

    assert [part.value for part in parts] == [
        QueueRange(two.first, 2, 3),
        QueueRange(two.second, 3, 4),
    ]
    brokers.away.clear()
    assert sorted(two.query.once()) == sorted(rows(two.first, 2) + rows(two.second, 3))


def test_a_planned_batch_needs_no_broker_of_which_it_reads_nothing(brokers: MemoryBrokers) -> None:
    two = TwoBrokers(brokers)
    brokers.send(two.first, 1)
    two.query.fail_a_batch()
    brokers.away.add("broker-b")

    assert two.query.once() == rows(two.first, 2)


@pytest.mark.parametrize(
    ("options", "waits_s"), [({}, math.inf), ({"brokerAway_failAfterMs": 60_000}, 60.0)]
)
def test_a_task_of_a_stream_waits_for_a_broker_as_long_as_the_stream(
    brokers: MemoryBrokers, options: dict[str, Any], waits_s: float
) -> None:
    one_queue(brokers, 3)
    reader, part = Query(brokers, **options).task()
    list(reader.read(part))

    assert brokers.waits_s == [waits_s]


def test_a_query_goes_on_after_no_name_server_responded(brokers: MemoryBrokers) -> None:
    two = TwoBrokers(brokers)

    def fail() -> None:
        raise UnreachableError("no name server responds")

    brokers.send(two.first, 1)
    brokers.before["queues"] = fail
    assert two.run.trigger() == []
    assert set(two.query.checkpoint.end(-1)["$away"]["t"]) == {"broker-a", "broker-b"}
    two.come_back()
    assert two.run.drain() == rows(two.first, 2)


def test_a_new_query_needs_all_brokers(brokers: MemoryBrokers) -> None:
    """Its start is not resolved yet; and a wrong address must not look like an outage."""
    brokers.create("t", queues=1)
    brokers.create("t", queues=1, broker="broker-b")
    brokers.before["bounds"] = lambda: brokers.away.add("broker-b")

    with pytest.raises(UnreachableError, match="broker-b"):
        Query(brokers).once()


def test_a_topic_deleted_on_a_broker_that_is_there_is_a_loss_while_another_is_away(
    brokers: MemoryBrokers,
) -> None:
    two = TwoBrokers(brokers, failOnDataLoss="false")
    brokers.create("t", queues=2)  # so that the topic is still there
    brokers.away.add("broker-b")
    brokers.send(two.first, 1)
    del brokers.held[two.first]
    two.run.drain()

    end = two.query.checkpoint.end(-1)
    assert end["t"] == {"broker-a": {"1": 0}, "broker-b": {"0": 3}}
    two.come_back()
    del brokers.held[two.second]
    two.run.drain()
    assert two.query.checkpoint.end(-1)["t"] == {"broker-a": {"1": 0}}


def test_a_broker_that_does_not_come_back_is_left_by_assigning_the_other_queues(
    brokers: MemoryBrokers,
) -> None:
    two = TwoBrokers(brokers)
    brokers.away.add("broker-b")
    two.run.trigger()
    del two.query.given["subscribe"]
    two.query.given["assign"] = '{"t": {"broker-a": [0]}}'
    brokers.send(two.first, 1)
    assert two.query.once() == rows(two.first, 2)
    del two.query.given["assign"]
    two.query.given["subscribe"] = "t"

    assert two.query.once() == []
    assert two.query.checkpoint.end(-1)["t"] == {"broker-a": {"0": 3}}
    assert "$away" not in two.query.checkpoint.end(-1)


def test_offsets_of_a_broker_that_is_away_are_not_committed(
    brokers: MemoryBrokers, caplog: pytest.LogCaptureFixture
) -> None:
    two = TwoBrokers(brokers, rocketmq_group="g", commitToGroup="true")
    brokers.away.add("broker-b")
    for _ in range(2):
        brokers.send(two.first, 1)
        two.run.drain()

    assert brokers.groups["g", two.first] == 3
    assert "cannot commit" not in caplog.text


def test_the_progress_has_lag_and_losses(brokers: MemoryBrokers) -> None:
    two = TwoBrokers(brokers, maxOffsetsPerTrigger=2, failOnDataLoss="false")
    brokers.send(two.first, 5)
    brokers.expire(two.first, 4)
    third_ms = brokers.held[two.first].records[2][2]
    two.run.trigger()
    brokers.away.add("broker-b")

    assert newest(two.run) == {
        "$lost": {"t": {"broker-a": {"0": 2}}},
        "$next": {"t": {"broker-a": {"0": third_ms}}},
        "t": {"broker-a": {"0": 7}, "broker-b": {"0": 3}},
    }
    brokers.send(two.second, 9)
    two.run.drain()
    assert newest(two.run) == {
        "$lost": {"t": {"broker-a": {"0": 2}}},
        "t": {"broker-a": {"0": 7}, "broker-b": {"0": 3}},
    }


def test_the_lag_of_a_broker_that_is_away_is_the_last_known(brokers: MemoryBrokers) -> None:
    two = TwoBrokers(brokers, maxOffsetsPerTrigger=2)
    brokers.send(two.second, 5)
    two.run.trigger()
    brokers.send(two.second, 5)
    brokers.away.add("broker-b")
    two.run.trigger()

    next_ms = brokers.held[two.second].records[5][2]
    assert newest(two.run) == {
        "$next": {"t": {"broker-b": {"0": next_ms}}},
        "t": {"broker-a": {"0": 2}, "broker-b": {"0": 8}},
    }
    assert two.query.checkpoint.end(-1)["t"]["broker-b"] == {"0": 5}


@pytest.mark.parametrize("now", [False, True])
@pytest.mark.parametrize("fail", ["true", "false"])
def test_queues_that_are_no_longer_subscribed_are_dropped_from_the_next_batch_on(
    brokers: MemoryBrokers, caplog: pytest.LogCaptureFixture, fail: str, now: bool
) -> None:
    """Not subscribing any more is a choice and no loss; every trigger has one rule."""
    (old,) = brokers.create("t", queues=1)
    (new,) = brokers.create("u", queues=1)
    brokers.send(old, 2)
    query = Query(brokers, failOnDataLoss=fail)
    query.once()
    brokers.send(old, 3)
    brokers.send(new, 1)
    query.given["subscribe"] = "u"
    with caplog.at_level(logging.WARNING):
        found = query.once(available_now=now)
        brokers.send(old, 1)
        brokers.send(new, 1)
        found += query.once(available_now=now)

    assert found == rows(new, 0, 1)
    text = "no longer subscribed, it is not read from this batch on: topic t, queue 0 of broker-a"
    assert caplog.text.count(f"{text}, read up to offset 2") == 1
    query.given["subscribe"] = "t,u"
    assert query.once(available_now=now) == rows(old, *range(6)), "subscribed again, it is new"


@pytest.mark.parametrize(
    "choice",
    [
        {"subscribe": "u"},
        {"subscribePattern": "[u-z]"},
        {"assign": '{"t": {"broker-a": [1]}, "u": {"broker-a": [0]}}'},
    ],
)
def test_a_batch_is_repeated_with_the_queues_that_it_was_planned_with(
    brokers: MemoryBrokers, choice: dict[str, str]
) -> None:
    (old,) = brokers.create("t", queues=1)
    (new,) = brokers.create("u", queues=1)
    query = Query(brokers)
    query.once()
    brokers.send(old, 2)
    query.fail_a_batch()
    brokers.create("t", queues=2)
    del query.given["subscribe"]
    query.given |= choice
    brokers.send(old, 1)
    brokers.send(new, 1)

    assert query.once() == rows(old, 0, 1) + rows(new, 0)


def test_a_topic_that_a_pattern_chooses_and_that_is_gone_is_a_loss(brokers: MemoryBrokers) -> None:
    brokers.create("t", queues=1)
    query = Query(brokers, subscribePattern="[t-v]")
    del query.given["subscribe"]
    query.once()
    brokers.delete("t")

    with pytest.raises(DataLossError, match="topic t, queue 0 of broker-a: no longer readable"):
        query.once()


# --- messages that are not there any more --------------------------------------------------------


def test_a_new_queue_whose_first_messages_have_expired_fails_the_query(
    brokers: MemoryBrokers, caplog: pytest.LogCaptureFixture
) -> None:
    """They were not read: as with a new partition of Spark's Kafka source."""
    _, query = caught_up(brokers, 2)
    _, new = brokers.create("t", queues=2)
    brokers.send(new, 9)
    brokers.expire(new, 7)

    text = "queue 1 of broker-a: a new queue, offsets 0 to 7 have expired; the queue has 7 to 9"
    with pytest.raises(DataLossError, match=text):
        query.once()
    query.given["failOnDataLoss"] = "false"
    with caplog.at_level(logging.WARNING):
        assert query.once() == rows(new, 7, 8)
    assert caplog.text.count(text) == 1


def test_a_batch_of_a_new_queue_whose_messages_expire_before_it_is_repeated_fails(
    brokers: MemoryBrokers,
) -> None:
    _, query = caught_up(brokers, 2)
    _, new = brokers.create("t", queues=2)
    brokers.send(new, 9)
    query.fail_a_batch()
    brokers.expire(new, 4)

    with pytest.raises(DataLossError, match="queue 1 of broker-a: offsets from 0 have expired"):
        query.once()


def lose_last(brokers: MemoryBrokers, key: QueueKey) -> None:
    brokers.truncate(key, brokers.held[key].max - 1)


def create_again(brokers: MemoryBrokers, key: QueueKey) -> None:
    brokers.make_anew(key)


@pytest.fixture(params=[True, False], ids=["statistics", "pulls"])
def telling(brokers: MemoryBrokers, request: pytest.FixtureRequest) -> MemoryBrokers:
    """Brokers whose statistics say when the newest message was stored, or not."""
    brokers.tells_newest = request.param
    return brokers


@pytest.mark.parametrize("sent", [0, 1, 5])
@pytest.mark.parametrize("limit", [{}, {"maxOffsetsPerTrigger": 3}])
def test_one_lost_message_makes_no_duplicates(
    telling: MemoryBrokers, caplog: pytest.LogCaptureFixture, sent: int, limit: dict[str, Any]
) -> None:
    """The broker was killed before a flush, and goes on with the offset of the lost message."""
    key, query = caught_up(telling, 10, failOnDataLoss="false", **limit)
    lose_last(telling, key)
    telling.send(key, sent)
    with caplog.at_level(logging.WARNING):
        assert query.once() == rows(key, *range(9, 9 + sent))
    telling.send(key, 2)

    assert query.once() == rows(key, 9 + sent, 10 + sent)
    assert caplog.text.count("lost the end of its log, with the messages at offsets 9 to 10") == 1


@pytest.mark.parametrize("sent", [0, 1, 5])
def test_a_lost_message_fails_the_query(telling: MemoryBrokers, sent: int) -> None:
    key, query = caught_up(telling, 10)
    lose_last(telling, key)
    telling.send(key, sent)

    text = f"at offsets 9 to 10; the query is at offset 10, the queue has 0 to {9 + sent}"
    with pytest.raises(DataLossError, match=f"queue 0 of broker-a: the broker lost .*{text}"):
        query.once()


@pytest.mark.parametrize("sent", [3, 10, 12, 30])
def test_a_topic_created_again_is_recognized_however_many_messages_it_has(
    telling: MemoryBrokers, sent: int
) -> None:
    key, query = caught_up(telling, 10)
    create_again(telling, key)
    telling.send(key, sent)

    text = f"queue 0 of broker-a: the topic was created again.* has 0 to {sent} and is read from 0"
    with pytest.raises(DataLossError, match=text):
        query.once()
    query.given["failOnDataLoss"] = "false"
    assert query.once() == rows(key, *range(sent))
    assert query.once() == []


def test_a_topic_created_again_under_a_running_query_is_recognized(
    telling: MemoryBrokers,
) -> None:
    key = one_queue(telling, 10)
    run = Query(telling, failOnDataLoss="false", minOffsetsPerTrigger=100).start()
    run.drain()
    create_again(telling, key)
    telling.send(key, 12)

    assert run.drain() == rows(key, *range(12)), "a loss is not held back"


@pytest.mark.parametrize(
    ("happens", "again", "then"),
    [(lose_last, range(10, 13), range(13, 15)), (create_again, (), range(30))],
)
def test_a_batch_is_repeated_with_the_messages_that_are_left_of_it(
    telling: MemoryBrokers, happens: Any, again: Any, then: Any
) -> None:
    """The queue has messages at all offsets of the batch, but others than were planned."""
    key, query = caught_up(telling, 10)
    telling.send(key, 4)
    query.fail_a_batch()
    happens(telling, key)
    telling.send(key, 2 if happens is lose_last else 30)

    with pytest.raises(DataLossError, match="the query is at offset 14"):
        query.once()
    query.given["failOnDataLoss"] = "false"
    run = query.start()
    assert run.trigger() == rows(key, *again)
    assert run.drain() == rows(key, *then)


def test_a_checkpoint_of_an_older_version_gets_store_times_with_its_next_batch(
    telling: MemoryBrokers,
) -> None:
    key, query = caught_up(telling, 10)
    forget_additions(query.checkpoint)
    telling.send(key, 2)
    assert query.once() == rows(key, 10, 11)
    create_again(telling, key)
    telling.send(key, 30)

    with pytest.raises(DataLossError, match="created again"):
        query.once()


def test_store_times_are_kept_for_queues_without_new_messages(telling: MemoryBrokers) -> None:
    first, second = telling.create("t")
    telling.send(first, 5)
    telling.send(second, 5)
    query = Query(telling)
    query.once()
    telling.send(second, 1)
    telling.expire(first, 5)
    query.once()
    create_again(telling, first)
    telling.send(first, 6)

    with pytest.raises(DataLossError, match="queue 0 of broker-a: the topic was created again"):
        query.once()


def test_messages_are_compared_on_behalf_of_the_group_that_was_named(
    brokers: MemoryBrokers,
) -> None:
    brokers.tells_newest = False
    caught_up(brokers, 3, rocketmq_group="g")

    assert set(brokers.pulled_by) == {"g"}


def test_an_idle_queue_is_not_pulled(brokers: MemoryBrokers) -> None:
    _, query = caught_up(brokers, 3)
    run = query.start()
    brokers.asked.clear()
    run.trigger()

    assert brokers.asked["store_times"] == 0


def test_expired_messages_fail_the_query_by_queue_and_range(brokers: MemoryBrokers) -> None:
    key, query = caught_up(brokers, 2)
    brokers.send(key, 8)
    brokers.expire(key, 5)

    with pytest.raises(DataLossError, match=r"queue 0 of broker-a: offsets from 2 .* 5 to 10"):
        query.once()


def test_expired_messages_are_passed_over_where_loss_is_no_failure(
    brokers: MemoryBrokers, caplog: pytest.LogCaptureFixture
) -> None:
    key, query = caught_up(brokers, 2, failOnDataLoss="false")
    brokers.send(key, 8)
    brokers.expire(key, 5)
    with caplog.at_level(logging.WARNING):
        assert query.once() == rows(key, *range(5, 10))

    assert caplog.text.count("offsets from 2 have expired") == 1


def test_a_batch_whose_messages_expire_before_it_is_repeated_fails(brokers: MemoryBrokers) -> None:
    key, query = caught_up(brokers, 2)
    brokers.send(key, 4)
    query.fail_a_batch()
    brokers.expire(key, 4)

    with pytest.raises(DataLossError, match="offsets from 2"):
        query.once()
    query.given["failOnDataLoss"] = "false"
    assert query.once() == rows(key, 4, 5)


def test_a_topic_made_anew_fails_the_query(brokers: MemoryBrokers) -> None:
    key, query = caught_up(brokers, 10)
    brokers.make_anew(key)
    brokers.send(key, 3)

    text = r"created again.*; the query is at offset 10, the queue has 0 to 3 and is read from 0"
    with pytest.raises(DataLossError, match=text):
        query.once()


@pytest.mark.parametrize("fail", ["true", "false"])
@pytest.mark.parametrize("held", [Bounds(0, 9, master=False), Bounds(10, 10, master=False)])
def test_a_replica_that_has_less_is_no_loss_while_the_master_is_silent(
    brokers: MemoryBrokers, fail: str, held: Bounds
) -> None:
    """A replica that lags looks like a topic made anew, one that keeps less like an expiry."""
    key, query = caught_up(brokers, 9, failOnDataLoss=fail)
    brokers.send(key, 1)
    query.once()
    brokers.send(key, 2)
    brokers.replicas[key] = held

    assert query.once() == []
    del brokers.replicas[key]
    assert query.once() == rows(key, 10, 11)


@pytest.mark.parametrize("fail", ["true", "false"])
@pytest.mark.parametrize("held", [Bounds(0, 2, master=False), Bounds(7, 9, master=False)])
def test_a_batch_that_is_repeated_against_a_replica_keeps_its_range(
    brokers: MemoryBrokers, fail: str, held: Bounds
) -> None:
    key, query = caught_up(brokers, 5, failOnDataLoss=fail)
    brokers.send(key, 3)
    query.fail_a_batch()
    brokers.replicas[key] = held

    assert query.start().trigger() == rows(key, 5, 6, 7)


@pytest.mark.parametrize("start", ["earliest", '{"t":{"broker-a":{"0":-2}}}', "time"])
def test_a_stream_begins_at_the_oldest_message_of_the_master_not_of_a_replica(
    brokers: MemoryBrokers, start: str
) -> None:
    """A replica may keep less: what the master has before it would be skipped for good."""
    key = one_queue(brokers, 9, time_ms=1_000)
    query = Query(brokers, startingOffsets=start)
    if start == "time":
        query = Query(brokers, startingTimestamp=500)
    brokers.replicas[key] = Bounds(6, 9, master=False)

    with pytest.raises(UnreachableError, match="queue 0 of broker-a: the master of broker-a"):
        query.once()
    assert not query.checkpoint.ends
    del brokers.replicas[key]
    assert query.once() == rows(key, *range(9))


@pytest.mark.parametrize(
    "start", [{"startingTimestamp": 1_005}, {"startingOffsets": "group", "rocketmq_group": "g"}]
)
def test_a_stream_begins_where_the_master_says_a_time_or_a_group_is(
    brokers: MemoryBrokers, start: dict[str, Any]
) -> None:
    """A replica may keep less, lag behind, or have none of the group's offsets yet."""
    key = one_queue(brokers, 5, time_ms=1_000)
    brokers.send(key, 4, time_ms=1_010)
    brokers.groups["g", key] = 5
    query = Query(brokers, **start)
    brokers.replicas[key] = Bounds(0, 3, master=False)

    with pytest.raises(UnreachableError, match="queue 0 of broker-a: the master of broker-a"):
        query.once()
    assert not query.checkpoint.ends
    del brokers.replicas[key]
    assert query.once() == rows(key, *range(5, 9))


def test_a_stream_that_begins_at_no_oldest_message_needs_no_master(
    brokers: MemoryBrokers,
) -> None:
    key = one_queue(brokers, 9)
    brokers.replicas[key] = Bounds(6, 9, master=False)
    assert Query(brokers, startingOffsets="latest").once() == []
    assert Query(brokers, startingOffsets='{"t":{"broker-a":{"0":7}}}').once() == rows(key, 7, 8)


def test_a_new_queue_begins_at_the_oldest_message_of_the_master_not_of_a_replica(
    brokers: MemoryBrokers,
) -> None:
    _, query = caught_up(brokers, 2)
    _, new = brokers.create("t", queues=2)
    brokers.send(new, 9)
    brokers.replicas[new] = Bounds(6, 9, master=False)

    assert query.once() == [], "the queue waits for its master"
    del brokers.replicas[new]
    assert query.once() == rows(new, *range(9))


def test_a_batch_of_a_new_queue_that_is_repeated_begins_where_it_was_planned(
    brokers: MemoryBrokers,
) -> None:
    _, query = caught_up(brokers, 2)
    _, new = brokers.create("t", queues=2)
    brokers.send(new, 9)
    query.fail_a_batch()
    brokers.replicas[new] = Bounds(6, 9, master=False)

    assert query.once() == rows(new, *range(9))


def test_a_batch_of_a_new_queue_of_an_older_version_begins_at_the_master_s_oldest_message(
    brokers: MemoryBrokers,
) -> None:
    _, query = caught_up(brokers, 2)
    _, new = brokers.create("t", queues=2)
    brokers.send(new, 9)
    query.fail_a_batch()
    forget_additions(query.checkpoint)
    brokers.replicas[new] = Bounds(6, 9, master=False)

    with pytest.raises(UnreachableError, match="queue 1 of broker-a: the master of broker-a"):
        query.once()
    del brokers.replicas[new]
    assert query.once() == rows(new, *range(9))


@pytest.mark.parametrize("fail", ["true", "false"])
@pytest.mark.parametrize(
    "error", [GoneError("t: gone for good: no permission"), DataLossError("t: have expired")]
)
def test_messages_that_a_broker_denies_and_the_master_has_fail_the_task(
    brokers: MemoryBrokers, fail: str, error: Exception
) -> None:
    """Nothing of the range may be left out: the task is tried again."""
    key = one_queue(brokers, 5)
    reader, part = Query(brokers, failOnDataLoss=fail).task()
    brokers.denied = error

    with pytest.raises(RangeError, match=f"not lost, the queue has offsets 0 to 5.*{error}"):
        list(reader.read(part))
    assert [row for batch in reader.read(part) for row in rows_of(batch)] == rows(key, *range(5))


def test_a_topic_made_anew_is_read_once_where_loss_is_no_failure(brokers: MemoryBrokers) -> None:
    key, query = caught_up(brokers, 10, failOnDataLoss="false", maxOffsetsPerTrigger=2)
    brokers.make_anew(key)
    brokers.send(key, 5)
    run = query.start()

    assert run.trigger() == rows(key, 0, 1)
    assert run.drain() == rows(key, 2, 3, 4)
    brokers.send(key, 1)
    assert query.once() == rows(key, 5)


def test_a_topic_made_anew_is_read_again_if_its_first_batch_fails(brokers: MemoryBrokers) -> None:
    key, query = caught_up(brokers, 10, failOnDataLoss="false")
    brokers.make_anew(key)
    brokers.send(key, 5)
    query.fail_a_batch()

    assert query.once() == rows(key, *range(5))


def test_a_topic_made_anew_before_a_batch_is_repeated_is_read_once(
    brokers: MemoryBrokers,
) -> None:
    """What was planned of the old topic is lost; of the new one nothing is read twice."""
    key, query = caught_up(brokers, 10, failOnDataLoss="false")
    brokers.send(key, 5)
    query.fail_a_batch()
    brokers.make_anew(key)
    brokers.send(key, 3)

    assert query.once() == rows(key, 0, 1, 2)
    brokers.send(key, 1)
    assert query.once() == rows(key, 3)


def test_a_tail_that_was_cut_off_fails_a_repeated_batch(brokers: MemoryBrokers) -> None:
    key = one_queue(brokers, 5)
    query = Query(brokers)
    query.fail_a_batch()
    brokers.truncate(key, 3)

    with pytest.raises(DataLossError, match=r"lost the end of its log, .* at offsets 3 to 5"):
        query.start().trigger()
    query.given["failOnDataLoss"] = "false"
    assert query.start().trigger() == rows(key, 0, 1, 2)


def test_a_tail_that_was_cut_off_fails_a_repeated_batch_of_an_older_version(
    brokers: MemoryBrokers,
) -> None:
    key = one_queue(brokers, 5)
    query = Query(brokers)
    query.fail_a_batch()
    document = json.loads(query.checkpoint.ends[-1])
    del document["$stored"]
    query.checkpoint.ends[-1] = json.dumps(document)
    brokers.truncate(key, 3)

    with pytest.raises(DataLossError, match=r"offsets 0 to 5: the queue ends at 3"):
        query.start().trigger()
    query.given["failOnDataLoss"] = "false"
    assert query.start().trigger() == rows(key, 0, 1, 2)


@pytest.mark.parametrize("fail", [True, False])
def test_messages_that_expire_under_a_task_fail_it_or_are_passed_over(
    brokers: MemoryBrokers, fail: bool
) -> None:
    key = one_queue(brokers, 9)
    reader, part = Query(brokers, failOnDataLoss=str(fail)).task()
    brokers.expire(key, 4)

    if fail:
        with pytest.raises(DataLossError, match="offsets 0 to 9"):
            list(reader.read(part))
    else:
        found = [row for batch in reader.read(part) for row in rows_of(batch)]
        assert found == rows(key, *range(4, 9))


@pytest.mark.parametrize("fail", [True, False])
def test_a_topic_that_is_deleted_under_a_task_fails_it_or_ends_it(
    brokers: MemoryBrokers, fail: bool
) -> None:
    one_queue(brokers, 9)
    reader, part = Query(brokers, failOnDataLoss=str(fail)).task()
    brokers.delete("t")

    if fail:
        with pytest.raises(DataLossError, match="queue 0 of broker-a: no longer readable"):
            list(reader.read(part))
    else:
        assert list(reader.read(part)) == []


# --- the rest ------------------------------------------------------------------------------------


def test_finished_batches_are_committed_to_the_group_one_late(brokers: MemoryBrokers) -> None:
    key = one_queue(brokers, 2)
    query = Query(brokers, rocketmq_group="g", commitToGroup="true")
    run = query.start()
    run.trigger()
    assert ("g", key) not in brokers.groups
    brokers.send(key, 3)
    run.trigger()

    assert brokers.groups["g", key] == 2


def test_a_commit_to_the_group_that_fails_is_only_logged(
    brokers: MemoryBrokers, caplog: pytest.LogCaptureFixture
) -> None:
    (key,) = brokers.create("t", queues=1)
    query = Query(brokers, rocketmq_group="g", commitToGroup="true")
    brokers.away.add("broker-a")
    with caplog.at_level(logging.WARNING):
        query.reader().commit({"t": {"broker-a": {"0": 2}}})

    assert "group=g" in caplog.text
    assert ("g", key) not in brokers.groups


def test_an_ended_query_has_committed_nothing_that_was_not_asked_for(
    brokers: MemoryBrokers,
) -> None:
    key, query = caught_up(brokers, 2, rocketmq_group="g")
    brokers.send(key, 2)
    query.once()

    assert brokers.groups == {}


def test_a_trigger_asks_for_bounds_once(brokers: MemoryBrokers) -> None:
    """Each trigger of a live query waits for this; a batch with news asks no more."""
    (key,) = brokers.create("t", queues=1)
    query = Query(brokers)
    run = query.start()
    run.drain()
    brokers.asked.clear()
    run.trigger()
    brokers.send(key, 1)
    run.trigger()

    assert brokers.asked["bounds"] == 2


def test_the_newest_offsets_are_reported_beyond_the_limit(brokers: MemoryBrokers) -> None:
    one_queue(brokers, 9)
    run = Query(brokers, maxOffsetsPerTrigger=2).start()
    assert run.reader.reportLatestOffset() is None
    run.trigger()

    assert newest(run)["t"] == {"broker-a": {"0": 9}}


def test_a_reader_travels_to_workers_with_what_it_remembers(brokers: MemoryBrokers) -> None:
    one_queue(brokers, 2)
    options = parse_options(TopicReadOptions, {"nameServer": "n:1", "subscribe": "t"})
    reader = TopicStreamReader(options, COLUMNS, len)  # type: ignore[arg-type]

    assert pickle.loads(pickle.dumps(reader)).initialOffset() == {"$start": "latest"}


def test_spark_s_own_part_has_no_rows(brokers: MemoryBrokers) -> None:
    assert list(Query(brokers).reader().read(None)) == []  # type: ignore[arg-type]


def test_a_checkpoint_of_something_else_is_refused(brokers: MemoryBrokers) -> None:
    brokers.create("t", queues=1)
    with pytest.raises(SourceError, match="an offset of this stream, t: expected an object"):
        Query(brokers).reader().latestOffset({"t": 5}, ReadAllAvailable())


def test_a_name_of_a_queue_that_is_not_read_is_refused(brokers: MemoryBrokers) -> None:
    brokers.create("t", queues=1)
    query = Query(brokers, startingOffsets='{"t":{"broker-a":{"7":0}}}')

    with pytest.raises(OptionError, match="startingOffsets names topic t, queue 7 of broker-a"):
        query.once()


SPARKS = ("4.1", "4.2 and newer")
STARTS = st.sampled_from(["earliest", "latest"])
LIMITS = st.fixed_dictionaries(
    {},
    optional={
        "maxOffsetsPerTrigger": st.integers(1, 9),
        "maxBytesPerTrigger": st.integers(1, 2_000),
        "maxTimePerTrigger": st.sampled_from(["1ms", "5ms"]),
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

    def __init__(self, start: str, limits: dict[str, Any], spark: str, **options: str) -> None:
        self.spark = spark
        self.brokers = MemoryBrokers()
        self.keys = self.brokers.create("t", queues=1)
        self.brokers.send(self.keys[0], 3)
        given = {"nameServer": "n:1", "subscribe": "t", "startingOffsets": start}
        given |= options | {name: str(value) for name, value in limits.items()}
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

        if self.spark == "4.1":  # AvailableNow is unknown to its readers
            return OldStreamProtocol(reader, self.checkpoint)
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


LOSSES = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.just(0), st.integers(1, 7)),
        st.tuples(st.just("trigger"), st.booleans(), st.none()),
        st.tuples(st.just("restart"), st.booleans(), st.none()),
        st.tuples(st.just("truncate"), st.integers(1, 5), st.none()),
        st.tuples(st.just("expire"), st.integers(1, 5), st.none()),
        st.tuples(st.just("create again"), st.integers(0, 9), st.none()),
    ),
    max_size=25,
)


@pytest.mark.parametrize("spark", SPARKS)
@given(limits=LIMITS, tells=st.booleans(), events=LOSSES)
def test_every_message_that_is_left_is_read_once_whatever_is_lost(
    spark: str, limits: dict[str, Any], tells: bool, events: list[tuple[str, Any, Any]]
) -> None:
    """Each message has a store time of its own, by which the test knows it."""
    story = Story("earliest", limits, spark, failOnDataLoss="false")
    brokers, (key,) = story.brokers, story.keys
    brokers.tells_newest = tells
    read: list[int] = []

    def take() -> None:
        queue = brokers.held[key]
        read.extend(queue.records[offset - queue.min][2] for _, _, offset in story.rows)
        story.rows.clear()

    for what, first, second in events:
        queue = brokers.held[key]
        if what == "truncate":
            brokers.truncate(key, max(queue.max - first, queue.min + 1))
        elif what == "expire":
            brokers.expire(key, max(queue.min, min(queue.min + first, queue.max - 1)))
        elif what == "create again":
            create_again(brokers, key)
            brokers.send(key, first)
        else:
            story.happen((what, first, second))
        take()
    story.run = story.begin()
    story.rows += story.run.drain(200)
    take()

    assert len(read) == len(set(read)), "a message was read twice"
    assert {time_ms for _, _, time_ms in brokers.held[key].records} <= set(read)


@pytest.mark.parametrize("spark", SPARKS)
@given(start=STARTS, limits=LIMITS, events=EVENTS)
def test_every_message_is_in_one_batch(
    spark: str, start: str, limits: dict[str, Any], events: list[tuple[str, Any, Any]]
) -> None:
    story = Story(start, limits, spark)

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
