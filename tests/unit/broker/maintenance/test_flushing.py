"""Flushing the log and the queues: intervals, thoroughness, and the checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest

from cometmq.broker.maintenance.flushing import Flusher, FlushPace, flush_pace
from cometmq.store import StoreSettings
from support.checks.manual_clock import ManualClock


class RecordingDisk:
    """A store that only notes what it was told to bring to the disk."""

    def __init__(self, unsynced_queues: int = 1000) -> None:
        self.unsynced_queues = unsynced_queues
        self.done: list[tuple[str, int]] = []

    def flush(self, least_pages: int = 0) -> None:
        self.done.append(("log", least_pages))

    def flush_queues(self, least_pages: int = 0, *, with_index: bool = True) -> None:
        self.done.append(("queues and index" if with_index else "queues", least_pages))

    def write_checkpoint(self) -> None:
        self.done.append(("checkpoint", 0))


@pytest.fixture
def disk() -> RecordingDisk:
    return RecordingDisk()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def flusher(disk: RecordingDisk, clock: ManualClock) -> Flusher:
    return Flusher(disk, FlushPace, clock=clock)


def test_the_log_is_flushed_thoroughly_every_ten_seconds(
    flusher: Flusher, disk: RecordingDisk, clock: ManualClock
) -> None:
    for elapsed_ms in (500, 9_000, 500, 500, 9_500):
        clock.advance(elapsed_ms)
        flusher.flush_log()

    assert disk.done == [("log", 4), ("log", 4), ("log", 0), ("log", 4), ("log", 0)]


def test_the_checkpoint_follows_a_thorough_flush_of_the_queues(
    flusher: Flusher, disk: RecordingDisk, clock: ManualClock
) -> None:
    for elapsed_ms in (1000, 58_999, 1, 1000):
        clock.advance(elapsed_ms)
        flusher.flush_queues()

    assert disk.done == [
        ("queues", 2),
        ("queues", 2),
        ("queues and index", 0),
        ("checkpoint", 0),
        ("queues", 2),
    ]


def test_few_queues_are_flushed_completely_every_five_seconds(clock: ManualClock) -> None:
    disk = RecordingDisk(unsynced_queues=64)
    flusher = Flusher(disk, FlushPace, clock=clock)
    for elapsed_ms in (4_999, 1, 4_999):
        clock.advance(elapsed_ms)
        flusher.flush_queues()
    disk.unsynced_queues = 65
    clock.advance(1)
    flusher.flush_queues()

    assert disk.done == [
        ("queues", 2),
        ("queues", 0),
        ("checkpoint", 0),
        ("queues", 2),
        ("queues", 2),
    ]


def test_a_failed_thorough_flush_is_due_again(clock: ManualClock) -> None:
    class FailingOnce(RecordingDisk):
        def flush_queues(self, least_pages: int = 0, *, with_index: bool = True) -> None:
            super().flush_queues(least_pages, with_index=with_index)
            if len(self.done) == 1:
                raise OSError("disk")

    disk = FailingOnce()
    flusher = Flusher(disk, FlushPace, clock=clock)
    clock.advance(60_000)
    with pytest.raises(OSError, match="disk"):
        flusher.flush_queues()
    flusher.flush_queues()

    assert disk.done == [("queues and index", 0), ("queues and index", 0), ("checkpoint", 0)]


def test_intervals_follow_the_settings(disk: RecordingDisk, clock: ManualClock) -> None:
    pace = FlushPace(log_interval_ms=600)
    log, queues = Flusher(disk, lambda: pace, clock=clock).jobs()

    assert (log.interval_s(), queues.interval_s()) == (0.6, 1.0)
    assert log.blocking
    assert queues.blocking


@pytest.mark.parametrize(("flush_disk_type", "pages"), [("SYNC_FLUSH", 0), ("ASYNC_FLUSH", 4)])
def test_only_asynchronous_flush_lets_pages_of_the_log_wait(
    flush_disk_type: str, pages: int, disk: RecordingDisk, clock: ManualClock
) -> None:
    settings = StoreSettings(root=Path(), flush_disk_type=flush_disk_type)
    Flusher(disk, lambda: flush_pace(settings), clock=clock).flush_log()

    assert disk.done == [("log", pages)]
