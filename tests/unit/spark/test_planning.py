"""Plans: every offset is in exactly one part, and shares are in proportion."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.spark.offsets import QueueKey, QueueRange
from cometmq.spark.planning import limit, split


def queue(number: int, start: int, end: int) -> QueueRange:
    return QueueRange(QueueKey("t", "broker-a", number), start, end)


RANGES = st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 200)), max_size=8).map(
    lambda pairs: [queue(i, start, start + size) for i, (start, size) in enumerate(pairs)]
)
COUNTS = st.none() | st.integers(1, 40)


@given(ranges=RANGES, min_partitions=COUNTS, max_records=COUNTS)
def test_parts_cover_every_offset_once(
    ranges: list[QueueRange], min_partitions: int | None, max_records: int | None
) -> None:
    parts = split(ranges, min_partitions=min_partitions, max_records=max_records)

    for each in ranges:
        place = each.start
        for part in sorted(part for part in parts if part.key == each.key):
            assert (part.start, part.size > 0) == (place, True)
            place = part.end
        assert place == each.end or not each.size
    assert [part.size for part in parts] == sorted((part.size for part in parts), reverse=True)
    if max_records is not None:
        assert all(part.size <= max_records for part in parts)
    if min_partitions is not None:
        assert len(parts) >= min(min_partitions, sum(each.size for each in ranges))


def test_empty_ranges_are_left_out() -> None:
    assert split([queue(0, 5, 5)], min_partitions=3, max_records=1) == []


def test_one_range_is_one_part_if_nobody_asks_for_more() -> None:
    ranges = [queue(0, 0, 10), queue(1, 0, 1000)]

    assert split(ranges, min_partitions=None, max_records=None) == ranges[::-1]
    assert split(ranges, min_partitions=2, max_records=None) == ranges[::-1]


def test_large_ranges_are_cut_and_small_ones_stay_whole() -> None:
    ranges = [queue(0, 0, 10), queue(1, 0, 990)]

    parts = split(ranges, min_partitions=4, max_records=None)

    assert [part.size for part in parts] == [330, 330, 330, 10]


@given(ranges=RANGES, most=st.integers(1, 900))
def test_a_limit_is_kept_and_nobody_is_left_out(ranges: list[QueueRange], most: int) -> None:
    shorter = limit(ranges, most)

    total, waiting = sum(each.size for each in ranges), sum(bool(each.size) for each in ranges)
    taken = sum(each.size for each in shorter)
    assert taken <= max(most, waiting) + waiting
    assert (taken == total) if total <= most else (taken >= most - waiting)
    for before, after in zip(ranges, shorter, strict=True):
        assert (after.key, after.start) == (before.key, before.start)
        assert (after.size >= 1) == (before.size >= 1)
        assert after.size <= before.size


@pytest.mark.parametrize(("most", "sizes"), [(10, [9, 1]), (50, [45, 5]), (1, [1, 1])])
def test_shares_are_in_proportion(most: int, sizes: list[int]) -> None:
    ranges = [queue(0, 100, 190), queue(1, 7, 17)]

    assert [each.size for each in limit(ranges, most)] == sizes
