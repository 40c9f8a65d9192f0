"""Jobs by the clock: runs, failures, and the thread of blocking ones."""

from __future__ import annotations

import asyncio
import logging
import threading

import pytest

from cometmq.remoting.jobs import Job, JobRunner, every


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
