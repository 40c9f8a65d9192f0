"""Limits of a micro-batch in bytes and in store time."""

from __future__ import annotations

import pytest

from cometmq.spark.brokers import Away
from cometmq.spark.compat import ReadAllAvailable, ReadMaxBytes, ReadMaxRows
from cometmq.spark.errors import OptionError, UnreachableError
from cometmq.spark.offsets import QueueKey, QueueRange
from cometmq.spark.options.parsing import parse_options
from cometmq.spark.options.topics import TopicReadOptions
from cometmq.spark.sources.batch_limits import ROWS_MAX, cut, read_limit
from support.spark.memory_brokers import MemoryBrokers


@pytest.fixture
def brokers() -> MemoryBrokers:
    return MemoryBrokers()


def options(**given: str) -> TopicReadOptions:
    return parse_options(TopicReadOptions, {"nameServer": "n:1", "subscribe": "t"} | given)


def sizes(
    brokers: MemoryBrokers, *keys: QueueKey, away: Away | None = None, **given: str
) -> list[int]:
    """How many messages of each queue a batch has; it begins at the oldest message."""
    bounds = brokers.bounds(keys)
    ranges = [QueueRange(key, bounds[key].min, bounds[key].max) for key in keys]
    found = cut(ranges, options(**given), brokers, "g", bounds, away)  # type: ignore[arg-type]
    assert [each.start for each in found] == [each.start for each in ranges]
    return [each.size for each in found]


def test_bytes_are_divided_by_the_size_of_what_each_queue_has(brokers: MemoryBrokers) -> None:
    large, small = brokers.create("t")
    brokers.send(large, 40, body=b"x" * 10_000)
    brokers.send(small, 40, body=b"x" * 10)

    assert sizes(brokers, large, small, maxBytesPerTrigger="100000") == [9, 9]
    assert sizes(brokers, large, small, maxBytesPerTrigger="1") == [1, 1]
    assert sizes(brokers, large, small, maxBytesPerTrigger="1000000") == [40, 40]


def test_a_batch_ends_before_the_first_message_after_the_time(brokers: MemoryBrokers) -> None:
    first, second = brokers.create("t")
    for minute in range(10):
        brokers.send(first, 2, time_ms=60_000 * minute)
    brokers.send(second, 3, time_ms=150_000)

    assert sizes(brokers, first, second, maxTimePerTrigger="2m") == [4, 0], "the newer queue waits"
    assert sizes(brokers, first, second, maxTimePerTrigger="3m") == [6, 3]
    assert sizes(brokers, first, second, maxTimePerTrigger="1ms") == [2, 0]
    brokers.asked.clear()
    assert sizes(brokers, first, second, maxTimePerTrigger="1h") == [20, 3]
    assert brokers.asked["at_time"] == 0, "the newest messages are known to be old enough"
    brokers.tells_newest = False
    assert sizes(brokers, first, second, maxTimePerTrigger="3m") == [6, 3]


def test_a_stream_goes_on_after_the_clock_of_a_broker_was_set_back(brokers: MemoryBrokers) -> None:
    (queue,) = brokers.create("t", queues=1)
    brokers.send(queue, 10, time_ms=7_200_000)
    for minute in range(10):
        brokers.send(queue, 1, time_ms=60_000 * minute)

    bounds = brokers.bounds([queue])
    found = cut(
        *([QueueRange(queue, 10, 20)], options(maxTimePerTrigger="2m"), brokers, "g", bounds, None)
    )  # type: ignore[arg-type]
    assert [each.size for each in found] == [1]


def test_all_limits_hold(brokers: MemoryBrokers) -> None:
    first, second = brokers.create("t")
    for minute in range(10):
        brokers.send(first, 4, time_ms=60_000 * minute, body=b"x" * 1_000)
    brokers.send(second, 8, time_ms=0, body=b"x" * 1_000)

    limits = {"maxTimePerTrigger": "2m", "maxOffsetsPerTrigger": "8", "maxBytesPerTrigger": "5000"}
    assert sizes(brokers, first, second, **limits) == [2, 2]
    del limits["maxBytesPerTrigger"]
    assert sizes(brokers, first, second, **limits) == [4, 4]


@pytest.mark.parametrize("request_", ["samples", "at_time"])
def test_a_broker_that_goes_away_meanwhile_has_no_part_of_the_batch(
    brokers: MemoryBrokers, request_: str
) -> None:
    (first,) = brokers.create("t", queues=1)
    (second,) = brokers.create("t", queues=1, broker="broker-b")
    for key in (first, second):
        brokers.send(key, 2, time_ms=1_000)
        brokers.send(key, 2, time_ms=90_000)
    away: Away = {}
    brokers.before[request_] = lambda: brokers.away.add("broker-b")

    assert sizes(brokers, first, second, away=away, maxTimePerTrigger="1m") == [2, 0]
    assert list(away) == [second]
    brokers.away.clear()
    brokers.before[request_] = lambda: brokers.away.add("broker-b")
    with pytest.raises(UnreachableError, match="broker-b"):
        sizes(brokers, first, second, maxTimePerTrigger="1m")


def test_spark_is_told_one_limit() -> None:
    assert read_limit(options()) == ReadAllAvailable()
    assert read_limit(options(maxBytesPerTrigger="7")) == ReadMaxBytes(7)
    assert read_limit(options(maxBytesPerTrigger="7", maxOffsetsPerTrigger="5")) == ReadMaxRows(5)
    assert read_limit(options(maxTimePerTrigger="1h")) == ReadMaxRows(ROWS_MAX)


@pytest.mark.parametrize("text", ["0s", "1 week"])
def test_a_time_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(OptionError, match="maxTimePerTrigger"):
        options(maxTimePerTrigger=text)
