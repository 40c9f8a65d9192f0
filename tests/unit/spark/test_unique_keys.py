"""Unique keys of written rows: the same for the same row, and nobody else's."""

from __future__ import annotations

import itertools

from cometmq.protocol.message_id import decode_unique_id, unique_id_time_ms
from cometmq.spark.writing import Origin, unique_key, unique_keys
from cometmq.spark.writing.identity import ROWS_PER_PREFIX

ORIGIN = Origin("job", 7, 3)


def test_a_key_stays_the_same_from_release_to_release() -> None:
    """A stream that is restarted by a newer version must find its own keys again."""
    assert unique_key("job", 7, 3, 65_537) == "3750B54C773C27047D32000000000001"


def test_every_part_of_the_origin_counts() -> None:
    jobs, batches, partitions = ("a", "b"), (0, 1, 11), (0, 1, 11)
    rows = (0, 1, 2 * ROWS_PER_PREFIX, 2 * ROWS_PER_PREFIX + 1)
    keys = [unique_key(*parts) for parts in itertools.product(jobs, batches, partitions, rows)]
    assert len(set(keys)) == len(keys)


def test_keys_of_many_rows_are_those_of_each_when_the_prefix_changes_among_them() -> None:
    first, count = ROWS_PER_PREFIX - 2, ROWS_PER_PREFIX + 5
    keys = unique_keys(ORIGIN, first, count)
    assert [key.as_py().decode() for key in keys] == [
        unique_key(*ORIGIN, row) for row in range(first, first + count)
    ]


def test_no_rows_have_no_keys() -> None:
    assert len(unique_keys(ORIGIN, 5, 0)) == 0


def test_a_key_reads_as_an_id_from_the_beginning_of_the_month() -> None:
    """Tools search from an id's time on; an earlier one than the message's finds it."""
    key = unique_key(*ORIGIN, 9)
    assert decode_unique_id(key).month_ms == 0
    now_ms = 1_700_000_000_000
    assert now_ms - 32 * 86_400_000 < unique_id_time_ms(key, now_ms=now_ms) < now_ms
