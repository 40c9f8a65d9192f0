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
from cometmq.spark.writing import Origin
from cometmq.spark.writing.destinations import Group, grouped
from cometmq.spark.writing.parcels import parcels_of
from cometmq.spark.writing.rows import Rows

ORIGIN = Origin("job", 0, 0)


def queues_of(topic: str) -> Sequence[MessageQueue]:
    return [MessageQueue(topic, broker, number) for broker in ("a", "b") for number in range(3)]


def groups(
    option: str = "t", /, *, delayed: Sequence[int] = (), **columns: list[Any]
) -> list[Group]:
    count = len(next(iter(columns.values())))
    arrays = {"body": pa.array([b"x"] * count)} | {
        name: pa.array(values, pa.int32() if name == "queue_id" else pa.string())
        for name, values in columns.items()
    }
    late = np.zeros(count, bool)
    late[list(delayed)] = True
    return list(grouped(Rows(pa.record_batch(arrays), ORIGIN, 0), late, option, queues_of))


def where(found: list[Group]) -> dict[str, list[int]]:
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


def test_delayed_rows_and_those_of_retry_topics_travel_alone() -> None:
    assert [
        (group.rows.tolist(), group.alone) for group in groups(tags=["x"] * 3, delayed=[1])
    ] == [
        ([0, 2], False),
        ([1], True),
    ]
    assert all(group.alone for group in groups("%RETRY%g", tags=["x"] * 2))


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


def test_parcels_keep_the_order_and_the_size() -> None:
    items = pa.array([bytes([row]) * (1 + row % 5) for row in range(50)], pa.binary())
    rows = np.arange(1, 50, 2)
    parcels = list(parcels_of(Group("t", None, rows, False), items, 100, 10))
    assert b"".join(parcel.data for parcel in parcels) == b"".join(
        items[int(row)].as_py() for row in rows
    )
    assert all(len(parcel.data) <= 10 for parcel in parcels)
    assert sum(parcel.messages for parcel in parcels) == len(rows)
    assert (parcels[0].first_row, parcels[-1].last_row) == (101, 149)
    neighbours = itertools.pairwise(parcels)
    assert all(len(one.data) + len(two.data) > 10 for one, two in neighbours), "two would fit"


def test_a_row_larger_than_a_parcel_travels_alone() -> None:
    items = pa.array([b"a", b"b" * 99, b"c"], pa.binary())
    parcels = parcels_of(Group("t", None, np.arange(3), False), items, 0, 10)
    found = [(parcel.data, parcel.alone) for parcel in parcels]
    assert found == [(b"a", False), (b"b" * 99, True), (b"c", False)]


def test_rows_that_travel_alone_make_a_parcel_each() -> None:
    items = pa.array([b"a", b"b"], pa.binary())
    parcels = list(parcels_of(Group("t", None, np.arange(2), True), items, 0, 10))
    assert [(parcel.data, parcel.alone) for parcel in parcels] == [(b"a", True), (b"b", True)]
