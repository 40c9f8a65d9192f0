"""Jobs by the clock: runs, failures, the thread, and the pace of flushing."""

from __future__ import annotations

import asyncio
import logging
import threading
from pathlib import Path

import pytest

from cometmq.broker.maintenance.flushing import Flusher, FlushPace, flush_pace
from cometmq.remoting.jobs import Job, JobRunner, every
from cometmq.store import StoreSettings
from cometmq.system.clock import ManualClock


class Runs:
    """Counts runs and lets a test await them."""

    def __init__(self) -> None:
        self.count = 0
        self.threads: set[int] = set()
        self._loop = asyncio.get_running_loop()
        self._three = asyncio.Event()

    def run(self) -> None:
        self.count += 1
        self.threads.add(threading.get_ident())
        if self.count >= 3:
            self._loop.call_soon_threadsafe(self._three.set)

    def failing_run(self) -> None:
        self.run()
        raise ValueError("no luck")

    async def three(self) -> None:
        async with asyncio.timeout(60):
            await self._three.wait()


async def run(job: Job, runs: Runs) -> None:
    housekeeping = JobRunner([job])
    housekeeping.start()
    await runs.three()
    await housekeeping.stop()


async def test_quick_jobs_run_in_the_loop() -> None:
    runs = Runs()
    await run(every(0.001, runs.run, "count"), runs)

    assert runs.threads == {threading.get_ident()}


async def test_blocking_jobs_run_in_one_other_thread() -> None:
    runs = Runs()
    await run(Job("count", lambda: 0.001, runs.run, blocking=True), runs)

    assert len(runs.threads) == 1
    assert threading.get_ident() not in runs.threads


@pytest.mark.parametrize("blocking", [False, True])
async def test_a_failed_run_is_logged_and_the_next_one_follows(
    blocking: bool, caplog: pytest.LogCaptureFixture
) -> None:
    runs = Runs()
    await run(Job("count", lambda: 0.001, runs.failing_run, blocking=blocking), runs)

    assert "job failed, retrying at its next run job=count" in caplog.text
    assert "no luck" in caplog.text


@pytest.mark.usefixtures("virtual_time")
async def test_no_run_starts_after_the_stop() -> None:
    runs = Runs()
    await run(every(0.001, runs.run, "count"), runs)
    count = runs.count
    await asyncio.sleep(60)

    assert runs.count == count


class Reports(logging.Handler):
    """Lets a test await the first report of the housekeeping."""

    def __init__(self) -> None:
        super().__init__()
        self.first: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def emit(self, record: logging.LogRecord) -> None:
        if not self.first.done():
            self.first.set_result(record.getMessage())


async def test_a_slow_turn_is_reported_and_not_started_twice() -> None:
    started, release, running = asyncio.Event(), threading.Event(), []
    loop = asyncio.get_running_loop()

    def slow() -> None:
        running.append(1)
        loop.call_soon_threadsafe(started.set)
        release.wait(10)

    job = Job("slow", lambda: 0.001, slow, blocking=True, limit_s=0.01)
    reports = Reports()
    housekeeping_log = logging.getLogger("cometmq.remoting.jobs")
    housekeeping_log.addHandler(reports)
    housekeeping = JobRunner([job])
    housekeeping.start()
    async with asyncio.timeout(60):
        await started.wait()
        report = await reports.first
    housekeeping_log.removeHandler(reports)
    count = len(running)
    release.set()
    await housekeeping.stop()

    assert report == "job exceeds its time limit job=slow limit_s=0.01"
    assert count == 1


async def test_stop_waits_for_the_run_in_the_thread() -> None:
    started, release = asyncio.Event(), threading.Event()
    loop, ended = asyncio.get_running_loop(), []

    def run() -> None:
        loop.call_soon_threadsafe(started.set)
        release.wait(10)
        ended.append(True)

    housekeeping = JobRunner([Job("slow", lambda: 0.0, run, blocking=True)])
    housekeeping.start()
    async with asyncio.timeout(60):
        await started.wait()
    stopping = asyncio.ensure_future(housekeeping.stop())
    release.set()
    await stopping

    assert ended == [True]


async def test_the_interval_is_asked_anew_each_time() -> None:
    runs, intervals = Runs(), iter([0.0, 0.001, 0.0, 60.0, 60.0])
    await run(Job("count", lambda: next(intervals), runs.run), runs)

    assert runs.count == 3


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
