"""The rate of sends: when batches may leave, and how large they are."""

from __future__ import annotations

import pytest

from cometmq.spark.sink.rate_limit import RateLimit


def test_without_a_limit_every_batch_leaves_at_once() -> None:
    rate = RateLimit(0, 0)
    assert [rate.start_of(1_000, 1 << 20, 5.0) for _ in range(3)] == [5.0] * 3
    assert rate.rows_max > 1 << 30
    assert rate.bytes_max > 1 << 30


def test_the_slower_of_both_limits_decides() -> None:
    rate = RateLimit(rows_per_s=10, bytes_per_s=100)
    starts = [rate.start_of(rows, size, 0.0) for rows, size in ((10, 1), (1, 300), (1, 1))]
    assert starts == pytest.approx([0.0, 1.0, 4.0])


def test_unused_time_is_not_saved_up() -> None:
    rate = RateLimit(rows_per_s=10, bytes_per_s=0)
    assert rate.start_of(10, 1, 0.0) == 0.0
    assert rate.start_of(10, 1, 60.0) == 60.0
    assert rate.start_of(10, 1, 60.0) == pytest.approx(61.0)


def test_a_batch_has_at_most_a_tenth_of_a_second_and_at_least_one_row() -> None:
    assert (RateLimit(1_000, 0).rows_max, RateLimit(3, 0).rows_max) == (100, 1)
    assert RateLimit(0, 1 << 20).bytes_max == (1 << 20) // 10
