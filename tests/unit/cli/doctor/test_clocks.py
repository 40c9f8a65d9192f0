"""The time of a broker follows from its runtime information."""

from __future__ import annotations

import pytest

from cometmq.broker.stats.runtime_info import running_text
from cometmq.cli.doctor import clocks
from cometmq.cli.doctor.findings import Level

NOW_MS = 1_800_000_000_000
RAN_S = 200_000


def figures(ahead_ms: int) -> dict[str, str]:
    booted_ms = NOW_MS + ahead_ms - RAN_S * 1000
    return {"bootTimestamp": str(booted_ms), "runtime": running_text(RAN_S)}


@pytest.mark.parametrize(
    ("ahead_ms", "level"),
    [
        (0, Level.FINE),
        (999, Level.FINE),
        (-2_000, Level.FINE),
        (5_000, Level.WARNING),
        (-5_000, Level.WARNING),
        (3_600_000, Level.PROBLEM),
    ],
)
def test_a_clock_that_differs_is_found(ahead_ms: int, level: Level) -> None:
    offset = clocks.offset_of(figures(ahead_ms), NOW_MS - 10, NOW_MS + 10)

    assert offset is not None
    assert abs(offset.ms - ahead_ms) <= offset.error_ms
    assert clocks.judge("b", offset).level is level


@pytest.mark.parametrize(
    ("ahead_ms", "met"),
    [
        (-200, "0.2 s behind the clock of this host (± 0.5 s)"),
        (1_540, "1.5 s ahead of the clock of this host (± 0.5 s)"),
    ],
)
def test_the_finding_says_which_clock_is_behind(ahead_ms: int, met: str) -> None:
    assert clocks.judge("b", clocks.Offset(ahead_ms, 500)).met == met


def test_a_slow_response_makes_the_measurement_less_exact() -> None:
    offset = clocks.offset_of(figures(4_000), NOW_MS - 3_000, NOW_MS + 3_000)

    assert clocks.judge("b", offset).level is Level.FINE


@pytest.mark.parametrize(
    "table",
    [{}, {"runtime": running_text(1)}, {"bootTimestamp": "1", "runtime": "1 s"},
     {"bootTimestamp": "x", "runtime": running_text(1)}],
)  # fmt: skip
def test_a_broker_without_the_time_is_not_judged(table: dict[str, str]) -> None:
    assert clocks.offset_of(table, 0, 0) is None
    assert clocks.judge("b", None).level is Level.FINE
