"""Unique keys of written rows: the same for the same row in any order, and of no other row."""

from __future__ import annotations

import itertools
import logging
from collections import Counter
from collections.abc import Sequence

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.spark.sink import Origin, RowIds
from support.wire.unique_ids import decode_unique_id, unique_id_time_ms

ORIGIN = Origin("job", 7, 3)


def ids_of(
    rows: Sequence[bytes], origin: Origin = ORIGIN, *, at_once: int = 1_000, **limits: int
) -> list[str]:
    """The keys of the rows of a task, which come some at a time."""
    keys = RowIds(origin, **limits)
    return [
        key.as_py().decode()
        for start in range(0, len(rows), at_once)
        for key in keys.of(pa.array(rows[start : start + at_once], pa.binary()))
    ]


def test_a_key_stays_the_same_from_release_to_release() -> None:
    """A stream that is restarted by a newer version must find its own keys again."""
    assert ids_of([b"row", b"row"]) == [
        "48613129229EFF346E4C000000001523",
        "49A75C9AFC327E0392AD00000000C460",
    ]


def test_every_part_of_the_origin_counts() -> None:
    parts = itertools.product(("a", "b"), (0, 1, 11), (0, 1, 11))
    keys = [key for part in parts for key in ids_of([b"1", b"2"], Origin(*part))]
    assert len(set(keys)) == len(keys)


ROWS = st.lists(st.sampled_from([b"", b"a", b"b", b"ab", b"c" * 40]), max_size=60)


@given(rows=ROWS, data=st.data())
def test_a_task_that_is_tried_again_in_another_order_gives_each_row_its_own_keys(
    rows: list[bytes], data: st.DataObject
) -> None:
    """Also where it stopped half way, and gets its rows in batches of another size."""
    sizes = st.integers(1, 20)
    again = data.draw(st.permutations(rows))
    first = list(zip(rows, ids_of(rows, at_once=data.draw(sizes)), strict=True))
    second = list(zip(again, ids_of(again, at_once=data.draw(sizes)), strict=True))

    assert Counter(first) == Counter(second)
    assert len({key for _, key in first}) == len(rows)
    sent = first[: data.draw(st.integers(0, len(rows)))] + second
    survivors = {key: row for row, key in sent}
    assert Counter(survivors.values()) == Counter(rows), "deduplication lost rows, or kept repeats"


def test_equal_rows_far_apart_have_ids_of_their_own() -> None:
    rows = [b"%d" % (number % 5_000) for number in range(20_000)]
    keys = ids_of(rows, at_once=700)
    assert len(set(keys)) == len(keys)
    assert sorted(keys) == sorted(ids_of(rows[::-1], at_once=900))


def test_beyond_what_is_remembered_no_row_gets_the_key_of_another(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rows = [b"%d" % number for number in range(100)] * 2
    with caplog.at_level(logging.WARNING):
        first = ids_of(rows, at_once=10, distinct_max=50)
    assert caplog.text.count("more than 50 distinct rows") == 1
    second = ids_of(rows[::-1], at_once=10, distinct_max=50)[::-1]
    assert len(set(first)) == len(rows)
    assert first == ids_of(rows, at_once=10, distinct_max=50)
    rows_of: dict[str, set[bytes]] = {}
    for keys in (first, second):
        for row, key in zip(rows, keys, strict=True):
            rows_of.setdefault(key, set()).add(row)
    assert all(len(met) == 1 for met in rows_of.values())


def test_a_slice_of_contents_has_the_ids_of_its_rows() -> None:
    whole = pa.array([b"0", b"1", b"2", b"3"], pa.binary())
    assert RowIds(ORIGIN).of(whole.slice(1, 2)).to_pylist() == [
        key.encode() for key in ids_of([b"1", b"2"])
    ]


def test_no_rows_have_no_keys() -> None:
    assert ids_of([]) == []
    assert len(RowIds(ORIGIN).of(pa.array([], pa.binary()))) == 0


def test_a_key_reads_as_an_id_from_the_beginning_of_the_month() -> None:
    """Tools search from an id's time on; an earlier one than the message's finds it."""
    (key,) = ids_of([b"row"])
    assert decode_unique_id(key).month_ms == 0
    now_ms = 1_700_000_000_000
    assert now_ms - 32 * 86_400_000 < unique_id_time_ms(key, now_ms=now_ms) < now_ms
