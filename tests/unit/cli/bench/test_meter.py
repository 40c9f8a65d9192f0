"""Durations in buckets, bodies with their time, and which messages of a load count."""

from __future__ import annotations

import random
import time

import pytest

from cometmq.cli.bench.meter import (
    MARK,
    SIZE_MIN,
    BenchError,
    Consumed,
    Durations,
    Load,
    Meter,
    age_s,
    body_of,
    work_of,
)
from cometmq.model.errors import ConfigError

LOAD = Load(
    kind="consumer", topic="t", seconds=1, warm_s=0, size=64, in_flight=1, batch=1, rate=0, fill=0,
    delay_s=1, queues=1, rollback=0,
)  # fmt: skip


def test_percentiles_are_right_to_one_and_a_half_percent() -> None:
    chance = random.Random(7)
    values = sorted(chance.lognormvariate(-6, 2) for _ in range(20_000))
    durations = Durations()
    for value in values:
        durations.add(value)
    for percent in (50, 90, 99, 99.9):
        exact = values[int(len(values) * percent / 100) - 1]
        assert durations.percentile_s(percent) == pytest.approx(exact, rel=0.015)
    assert durations.percentile_s(100) == values[-1] == durations.largest_s
    assert len(durations.counts) < 2_560


@pytest.mark.parametrize("seconds", [-1.0, 0.0, 1e-9, 1e9])
def test_a_duration_without_sense_is_counted_too(seconds: float) -> None:
    durations = Durations()
    durations.add(seconds)
    assert durations.total == 1
    assert durations.percentile_s(50) <= 2**40


def test_no_duration_has_no_percentiles() -> None:
    assert Durations().milliseconds() == {}
    assert Durations().percentile_s(99) == 0


def test_a_body_tells_its_age() -> None:
    assert len(body_of(128)) == 128
    assert len(body_of(SIZE_MIN)) == SIZE_MIN
    assert 0 <= age_s(body_of(64)) < 60
    for foreign in (b"", b"CQB1", b"x" * 64):
        with pytest.raises(BenchError, match="--topic names another"):
            age_s(foreign)


async def test_what_was_there_before_counts_without_a_rate_only() -> None:
    old = MARK + (time.time_ns() - 10**9).to_bytes(8)
    backlog, live = Meter(), Meter()
    of_backlog = Consumed(LOAD, backlog)
    of_live = Consumed(Load(**{**_fields(), "rate": 10.0}), live)
    for counted in (of_backlog, of_live):
        counted.add(old)
        counted.add(body_of(64))
    assert (backlog.count, backlog.durations.total) == (2, 0)
    assert (live.count, live.durations.total) == (1, 1)
    assert live.begun.is_set()


def _fields() -> dict[str, object]:
    return {name: getattr(LOAD, name) for name in LOAD.__struct_fields__}


def test_a_load_that_a_system_lacks_is_named() -> None:
    with pytest.raises(ConfigError, match="nats has no load 'pop': expected producer"):
        work_of("nats", {"producer": None}, "pop")  # type: ignore[dict-item]
