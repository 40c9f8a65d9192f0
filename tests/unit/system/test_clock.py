"""Clocks: the machine's, and one that a test moves."""

from __future__ import annotations

import time

import pytest

from cometmq.system.clock import Clock
from support.checks.manual_clock import ManualClock


def test_seconds_since_the_boot_are_not_fewer_than_the_monotonic_ones() -> None:
    clock = Clock()
    before = clock.monotonic()
    assert clock.since_boot() >= before


def test_the_machines_clock_tells_its_time() -> None:
    before = time.time_ns() // 10**6
    met = Clock().now_ms()
    assert before <= met <= time.time_ns() // 10**6


def test_the_machines_monotonic_clock_never_goes_back() -> None:
    clock = Clock()
    times = [clock.monotonic() for _ in range(1000)]
    assert times == sorted(times)


def test_a_manual_clock_stands_still_until_it_is_moved() -> None:
    clock = ManualClock(5)
    assert (clock.now_ms(), clock.monotonic()) == (5, 0)
    clock.advance(1500)
    assert (clock.now_ms(), clock.monotonic()) == (1505, 1.5)


def test_setting_the_wall_clock_leaves_the_monotonic_one() -> None:
    clock = ManualClock(5000)
    clock.advance(1000)
    clock.set_wall(7)
    assert (clock.now_ms(), clock.monotonic()) == (7, 1)


def test_time_does_not_go_back() -> None:
    with pytest.raises(ValueError, match="-1 ms"):
        ManualClock().advance(-1)
