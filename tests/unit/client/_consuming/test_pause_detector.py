"""A process that stood still notices it, by either of its clocks, before it acts on old state."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from cometmq.client._consuming.pause_detector import PAUSE_S, TICK_S, PauseDetector

pytestmark = pytest.mark.usefixtures("virtual_time")


class Process:
    """A process whose clocks a test moves."""

    def __init__(self) -> None:
        self.stopped_s = self.suspended_s = 0.0
        self.pauses: list[float] = []
        loop = asyncio.get_running_loop()
        self.detector = PauseDetector(
            self.pauses.append,
            steady_s=lambda: loop.time() + self.stopped_s,
            wall_ms=lambda: round(1000 * (loop.time() + self.stopped_s + self.suspended_s)),
        )
        self.detector.start()


@pytest.fixture
async def process() -> AsyncIterator[Process]:
    made = Process()
    yield made
    made.detector.stop()


async def test_a_process_that_runs_has_no_pauses(process: Process) -> None:
    await asyncio.sleep(600)
    process.detector.check()

    assert process.pauses == []


async def test_a_process_that_was_stopped_notices_it_once(process: Process) -> None:
    process.stopped_s += 144

    process.detector.check()
    assert process.pauses == [pytest.approx(144, abs=TICK_S)]
    await asyncio.sleep(600)
    assert len(process.pauses) == 1


async def test_a_machine_that_was_suspended_notices_it_at_the_next_tick(process: Process) -> None:
    """Its steady clock stood still."""
    process.suspended_s += 144
    await asyncio.sleep(2 * TICK_S)

    assert process.pauses == [pytest.approx(144, abs=2 * TICK_S)]


async def test_a_short_pause_is_none(process: Process) -> None:
    process.stopped_s += PAUSE_S - TICK_S
    process.detector.check()
    await asyncio.sleep(2 * TICK_S)

    assert process.pauses == []


async def test_nothing_is_noticed_after_the_end(process: Process) -> None:
    process.detector.stop()
    process.stopped_s += 144
    process.detector.check()
    await asyncio.sleep(2 * TICK_S)

    assert process.pauses == []
