"""The queue of a row: the named one, the one of its key, or any."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from cometmq.client._sending.queue_picker import KeySelector
from cometmq.model.message import Message
from cometmq.model.queue import MessageQueue
from cometmq.spark.errors import RowError
from cometmq.spark.sink import Origin
from cometmq.spark.sink.message_batches import (
    BatchBuffer,
    MessageBatch,
    RowGroup,
    grouped,
    message_batches,
)
from cometmq.spark.sink.rows import Rows

ORIGIN = Origin("job", 0, 0)


def queues_of(topic: str) -> Sequence[MessageQueue]:
    return [MessageQueue(topic, broker, number) for broker in ("a", "b") for number in range(3)]


def groups(
    option: str = "t", /, *, delayed: Sequence[int] = (), **columns: list[Any]
) -> list[RowGroup]:
    count = len(next(iter(columns.values())))
    arrays = {"body": pa.array([b"x"] * count)} | {
        name: pa.array(values, pa.int32() if name == "queue_id" else pa.string())
        for name, values in columns.items()
    }
    late = np.zeros(count, bool)
    late[list(delayed)] = True
    return list(grouped(Rows(pa.record_batch(arrays), ORIGIN, 0), late, option, queues_of))


def where(found: list[RowGroup]) -> dict[str, list[int]]:
    return {str(group.queue): group.rows.tolist() for group in found}


def test_rows_that_name_nothing_go_anywhere_together() -> None:
    (group,) = groups(tags=["x", "y"])
    assert (group.topic, group.queue, group.rows.tolist()) == ("t", None, [0, 1])


def test_rows_of_one_key_go_where_other_producers_send_it_in_their_order() -> None:
    keys = ["k1", "k2", "k1", "k3", None, "k2"]
    found = where(groups(sharding_key=keys))
    for key in ("k1", "k2", "k3"):
        queue = KeySelector(key)(queues_of("t"), Message(topic="t", body=b""))
        rows = [row for row, own in enumerate(keys) if own == key]
        assert [row for row in found[str(queue)] if row in rows] == rows
    assert found["None"] == [4]


def test_rows_that_name_a_queue_go_there_whatever_their_key_says() -> None:
    found = groups(
        queue_id=[2, None, 0], broker_name=["b", None, "a"], sharding_key=["k", None, None]
    )
    assert where(found) == {"t@b:2": [0], "None": [1], "t@a:0": [2]}


def test_each_topic_has_its_own_groups() -> None:
    found = groups("", topic=["x", "y", "x"])
    assert [(group.topic, group.rows.tolist()) for group in found] == [("x", [0, 2]), ("y", [1])]


def test_the_option_wins_over_the_column() -> None:
    (group,) = groups("orders", topic=["x", "y"])
    assert group.topic == "orders"


def test_delayed_rows_and_those_of_retry_topics_are_single_messages() -> None:
    assert [
        (group.rows.tolist(), group.single) for group in groups(tags=["x"] * 3, delayed=[1])
    ] == [
        ([0, 2], False),
        ([1], True),
    ]
    assert all(group.single for group in groups("%RETRY%g", tags=["x"] * 2))


@pytest.mark.parametrize(
    ("columns", "why"),
    [
        ({"topic": ["t", None]}, "row 1 .*: topic is null"),
        ({"topic": ["t", "a b"]}, "row 1 .*a b"),
        ({"topic": ["t", "SCHEDULE_TOPIC_XXXX"]}, "row 1 .*is a system topic"),
        ({"topic": [None, None]}, "row 0 .*: topic is null"),
        ({"topic": ["t"] * 2, "queue_id": [None, 1]}, "row 1 .*queue 1 of topic t is on a, b"),
        (
            {"topic": ["t"] * 2, "queue_id": [0, 7], "broker_name": ["a", "a"]},
            "row 1 .*topic t has no queue 7 of a",
        ),
        ({"topic": ["t"] * 2, "queue_id": [-1, 0]}, "row 0 .*no queue -1"),
        ({"topic": ["t"] * 2, "sharding_key": ["k", " "]}, "row 1 .*sharding_key is blank"),
    ],
)
def test_a_row_that_cannot_go_anywhere_is_named(columns: dict[str, Any], why: str) -> None:
    with pytest.raises(RowError, match=why):
        groups("", **columns)


def test_no_rows_make_no_groups() -> None:
    assert groups(tags=[]) == []


def test_batches_keep_the_order_and_the_size_limit() -> None:
    items = pa.array([bytes([row]) * (1 + row % 5) for row in range(50)], pa.binary())
    rows = np.arange(1, 50, 2)
    batches = list(message_batches(RowGroup("t", None, rows, False), items, 100, 10, 99))
    assert b"".join(batch.data for batch in batches) == b"".join(
        items[int(row)].as_py() for row in rows
    )
    assert all(len(batch.data) <= 10 for batch in batches)
    assert sum(batch.messages for batch in batches) == len(rows)
    assert (batches[0].first_row, batches[-1].last_row) == (101, 149)
    neighbours = itertools.pairwise(batches)
    assert all(len(one.data) + len(two.data) > 10 for one, two in neighbours), "two would fit"


def test_a_row_larger_than_a_batch_is_sent_as_a_single_message() -> None:
    items = pa.array([b"a", b"b" * 99, b"c"], pa.binary())
    batches = message_batches(RowGroup("t", None, np.arange(3), False), items, 0, 10, 99)
    found = [(batch.data, batch.single) for batch in batches]
    assert found == [(b"a", False), (b"b" * 99, True), (b"c", False)]


def test_rows_that_need_requests_of_their_own_make_a_batch_each() -> None:
    items = pa.array([b"a", b"b"], pa.binary())
    batches = list(message_batches(RowGroup("t", None, np.arange(2), True), items, 0, 10, 99))
    assert [(batch.data, batch.single) for batch in batches] == [(b"a", True), (b"b", True)]


def test_small_batches_of_a_queue_are_joined_until_they_fill_a_request() -> None:
    queue = MessageQueue("t", "a", 0)
    buffer = BatchBuffer(batch_bytes=10, batch_rows=99, total_bytes=100)
    batches = [MessageBatch("t", queue, b"x" * 4, 1, row, row) for row in range(3)]
    assert [buffer.add(batch) for batch in batches[:2]] == [[], []]
    assert buffer.add(batches[2]) == [MessageBatch("t", queue, b"x" * 8, 2, 0, 1)]
    assert buffer.flush() == [batches[2]]
    assert buffer.flush() == []


def test_a_single_message_leaves_after_the_batches_before_it() -> None:
    buffer = BatchBuffer(batch_bytes=10, batch_rows=99, total_bytes=100)
    one, single = (
        MessageBatch("t", None, b"a", 1, 0, 0),
        MessageBatch("t", None, b"b", 1, 1, 1, True),
    )
    assert buffer.add(one) == []
    assert buffer.add(single) == [one, single]
    assert buffer.flush() == []


def test_all_buffered_batches_leave_when_they_reach_the_total_limit() -> None:
    buffer = BatchBuffer(batch_bytes=10, batch_rows=99, total_bytes=10)
    batches = [
        MessageBatch("t", MessageQueue("t", "a", number), b"x" * 6, 1, number, number)
        for number in range(2)
    ]
    assert buffer.add(batches[0]) == []
    assert buffer.add(batches[1]) == batches
    assert buffer.add(batches[0]) == [], "the limit counts from zero again"


def test_batches_have_a_limit_of_messages() -> None:
    items = pa.array([b"x"] * 7, pa.binary())
    batches = list(message_batches(RowGroup("t", None, np.arange(7), False), items, 0, 99, 3))
    assert [batch.messages for batch in batches] == [3, 3, 1]
    buffer = BatchBuffer(batch_bytes=99, batch_rows=4, total_bytes=99)
    assert [batch.messages for each in batches for batch in buffer.add(each)] == [3]
    assert [batch.messages for batch in buffer.flush()] == [4]
