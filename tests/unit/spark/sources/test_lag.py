"""The lag of streams, from the documents of Spark's progress."""

from __future__ import annotations

import json
from typing import Any

from cometmq.spark.offsets import QueueKey
from cometmq.spark.sources.lag import lag_of


def topics(**queues: int) -> str:
    return json.dumps({"t": {"broker-a": {name[1:]: offset for name, offset in queues.items()}}})


def queue(number: int) -> QueueKey:
    return QueueKey("t", "broker-a", number)


def test_messages_behind_are_counted_by_queue() -> None:
    lag = lag_of("q", 7, [(topics(q0=10, q1=5), topics(q0=4, q1=5))])

    assert lag is not None
    assert (lag.query, lag.batch, lag.messages, lag.bytes) == ("q", 7, 6, 0)
    assert lag.queues == {queue(0): 6, queue(1): 0}


def test_a_queue_that_no_batch_has_touched_is_behind_by_all_of_it() -> None:
    lag = lag_of("q", 0, [(topics(q0=10, q2=3), topics(q0=10))])

    assert lag is not None
    assert lag.queues == {queue(0): 0, queue(2): 3}


def test_a_first_batch_whose_end_says_where_it_began_has_a_lag() -> None:
    first = {"$from": json.loads(topics(q0=1)), **json.loads(topics(q0=4))}

    lag = lag_of("q", 0, [(topics(q0=10), json.dumps(first))])

    assert lag is not None
    assert lag.queues == {queue(0): 6}


def test_bytes_behind_are_counted_by_log() -> None:
    places = (json.dumps({"broker-a": {"phy": place}}) for place in (4096, 1024))

    lag = lag_of("q", 0, [tuple(places)])  # type: ignore[list-item]

    assert lag is not None
    assert (lag.logs, lag.bytes, lag.messages) == ({"broker-a": 3072}, 3072, 0)


def test_sources_of_others_are_passed_over() -> None:
    strange: list[tuple[Any, Any]] = [("5", "3"), (None, None), ("x", "{"), ({"logOffset": 1}, {})]

    assert lag_of("q", 0, strange) is None
    lag = lag_of("q", 0, [*strange, (topics(q0=2), topics(q0=1))])
    assert lag is not None
    assert lag.messages == 1


def test_a_query_that_has_not_ended_a_batch_has_no_lag_yet() -> None:
    assert lag_of("q", 0, [(topics(q0=2), None)]) is None


def test_the_progress_names_losses_times_and_brokers_that_are_away() -> None:
    offsets = json.loads(topics(q0=10, q1=5))
    figures = {"$lost": json.loads(topics(q0=7)), "$next": json.loads(topics(q1=4_000))}
    end = {"$away": json.loads(topics(q1=3_000)), **json.loads(topics(q0=10, q1=4))}

    lag = lag_of("q", 0, [(json.dumps(figures | offsets), json.dumps(end))])

    assert lag is not None
    assert (lag.lost, lag.next_ms, lag.away) == (
        {queue(0): 7},
        {queue(1): 4_000},
        {queue(1): 3_000},
    )
    assert (lag.messages, lag.seconds(9_500), lag.seconds(3_999)) == (1, 5.5, 0.0)


def test_a_query_that_has_read_all_has_no_lag_in_time() -> None:
    lag = lag_of("q", 0, [(topics(q0=10), topics(q0=10))])

    assert lag is not None
    assert lag.seconds(9_500) == 0.0
