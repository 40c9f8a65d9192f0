"""Rates, latencies and the totals of days."""

from __future__ import annotations

from datetime import UTC, date, datetime

import pytest

from cometmq.broker.stats.counters import BrokerStats
from cometmq.broker.stats.throughput import Throughput
from support.checks.manual_clock import ManualClock

BUCKETS = 13


def utc_day(time_ms: int) -> date:
    return datetime.fromtimestamp(time_ms / 1000, UTC).date()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def stats(clock: ManualClock) -> BrokerStats:
    return BrokerStats("C", clock=clock, is_system_topic=lambda topic: False)


@pytest.fixture
def throughput(stats: BrokerStats, clock: ManualClock) -> Throughput:
    return Throughput(stats, clock=clock, day_of=utc_day)


def seconds_pass(throughput: Throughput, clock: ManualClock, count: int) -> None:
    for _ in range(count):
        clock.advance(1000)
        throughput.sample()


def test_a_rate_is_told_from_the_start(throughput: Throughput) -> None:
    assert throughput.rates(lambda sample: sample.put) == "0.0 "


@pytest.mark.parametrize(
    ("count", "seconds", "rates"), [(6, 3, "2.0 "), (600, 600, "0.0 0.0 1.0 ")]
)
def test_a_rate_is_shown_as_soon_as_there_are_enough_seconds_for_it(
    throughput: Throughput,
    stats: BrokerStats,
    clock: ManualClock,
    count: int,
    seconds: int,
    rates: str,
) -> None:
    seconds_pass(throughput, clock, 1)
    stats.put("T", 0, count, 0)
    seconds_pass(throughput, clock, seconds)

    assert throughput.rates(lambda sample: sample.put) == rates


def test_reads_are_counted_with_and_without_messages(
    throughput: Throughput, stats: BrokerStats, clock: ManualClock
) -> None:
    seconds_pass(throughput, clock, 1)
    for _ in range(10):
        stats.got("G", "T", 0, 3, 30)
    stats.missed()
    seconds_pass(throughput, clock, 10)

    assert throughput.rates(lambda sample: sample.found) == "1.0 "
    assert throughput.rates(lambda sample: sample.missed) == "0.1 "
    assert throughput.rates(lambda sample: sample.found + sample.missed) == "1.1 "
    assert throughput.rates(lambda sample: sample.transferred) == "3.0 "


def test_every_latency_falls_into_one_bucket(throughput: Throughput) -> None:
    for took_ms in (0, 1, 9, 10, 199, 200, 999, 4999, 9999, 10_000, 60_000):
        throughput.put_took(took_ms)

    assert throughput.put_distribution() == (
        "[<=0ms]:1 [0~10ms]:2 [10~50ms]:1 [50~100ms]:0 [100~200ms]:1 [200~500ms]:1 [500ms~1s]:1"
        " [1~2s]:0 [2~3s]:0 [3~4s]:0 [4~5s]:1 [5~10s]:1 [10s~]:2 "
    )
    assert throughput.put_ms_max == 60_000


def test_messages_without_a_latency_were_quick(
    throughput: Throughput, stats: BrokerStats, clock: ManualClock
) -> None:
    stats.put("T", 0, 99, 0)
    throughput.put_took(20)
    stats.put("T", 0, 1, 0)

    assert throughput.put_distribution().startswith("[<=0ms]:99 [0~10ms]:0 [10~50ms]:1 ")
    assert (throughput.put_percentile(0.99), throughput.put_percentile(0.999)) == (0.0, 20.0)

    seconds_pass(throughput, clock, 60)
    stats.put("T", 0, 5, 0)
    assert throughput.put_distribution().startswith("[<=0ms]:99 [0~10ms]:0 [10~50ms]:1 ")
    seconds_pass(throughput, clock, 60)
    assert throughput.put_distribution().startswith("[<=0ms]:5 [0~10ms]:0 ")


def test_clock_going_backwards_counts_as_no_time(throughput: Throughput) -> None:
    throughput.put_took(-5)

    assert throughput.put_distribution().startswith("[<=0ms]:1 ")
    assert throughput.put_ms_max == 0


def test_percentile_is_the_slowest_of_the_fastest_part(throughput: Throughput) -> None:
    for took_ms in range(1, 101):
        throughput.put_took(took_ms)

    assert throughput.put_percentile(0.99) == 99.0
    assert throughput.put_percentile(0.999) == 100.0


def test_percentile_of_nothing_is_zero(throughput: Throughput) -> None:
    assert throughput.put_percentile(0.99) == 0.0


def test_latencies_of_the_finished_minute_are_told(
    throughput: Throughput, clock: ManualClock
) -> None:
    throughput.put_took(5)
    seconds_pass(throughput, clock, 60)
    throughput.put_took(500)

    assert "[0~10ms]:1 " in throughput.put_distribution()
    assert "[500ms~1s]:0 " in throughput.put_distribution()


def test_midnight_moves_the_totals_one_day_back(
    throughput: Throughput, stats: BrokerStats, clock: ManualClock
) -> None:
    stats.put("T", 0, 5, 0)
    clock.advance(86_400_000)
    throughput.sample()
    stats.put("T", 0, 2, 0)
    stats.got("G", "T", 0, 1, 0)

    assert throughput.puts_of_days() == (0, 5, 7)
    assert throughput.gets_of_days() == (0, 0, 1)

    clock.advance(86_400_000)
    throughput.sample()

    assert throughput.puts_of_days() == (5, 7, 7)
    assert throughput.gets_of_days() == (0, 1, 1)
