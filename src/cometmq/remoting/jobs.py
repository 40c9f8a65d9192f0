"""Jobs: work that a server repeats at intervals.

Every job is a supervised task with a name. Its interval runs from the end of one run to the start
of the next, so two runs of one job never overlap. A failure is logged; the next run follows. A job
that waits for the disk has its own thread, so it delays no other; a run there that exceeds its
limit is logged.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import msgspec

from cometmq.remoting import Supervisor

log = logging.getLogger(__name__)

RUN_S_MAX: Final = 30.0
"""A run in a thread that takes longer is reported."""


class Job(msgspec.Struct, frozen=True):
    """Work that is repeated at an interval.

    Args:
        name: of the task.
        interval_s: returns the seconds between two runs.
        run: does the work, as a plain or a coroutine function; it is quick unless ``blocking``.
        first_s: seconds until the first run, by default one interval.
        blocking: whether a run waits for the disk and needs a thread.
        limit_s: seconds after which a blocking run is reported.
    """

    name: str
    interval_s: Callable[[], float]
    run: Callable[[], object]
    first_s: float | None = None
    blocking: bool = False
    limit_s: float = RUN_S_MAX


class JobRunner:
    """Runs the jobs from :meth:`start` to :meth:`stop`.

    Args:
        jobs: the jobs; their names differ.
    """

    def __init__(self, jobs: Iterable[Job]) -> None:
        self._jobs = {job.name: job for job in jobs}
        self._supervisor = Supervisor("jobs")
        self._threads: ThreadPoolExecutor | None = None

    @property
    def names(self) -> list[str]:
        """The names of the jobs."""
        return list(self._jobs)

    def start(self) -> None:
        """Start the jobs; the event loop must be running."""
        blocking = sum(job.blocking for job in self._jobs.values())
        self._threads = ThreadPoolExecutor(max(1, blocking), thread_name_prefix="job")
        for job in self._jobs.values():
            self._supervisor.spawn(self._repeat(job), job.name)

    async def stop(self, timeout_s: float = 5.0) -> None:
        """Start no further run, and wait for runs in threads, up to ``timeout_s`` seconds."""
        await self._supervisor.cancel(timeout_s)
        if self._threads is not None:
            thread, self._threads = self._threads, None
            thread.shutdown(wait=False, cancel_futures=True)
            idle = asyncio.get_running_loop().run_in_executor(None, thread.shutdown)
            _, late = await asyncio.wait([idle], timeout=timeout_s)
            if late:
                log.error("the threads of jobs did not end timeout_s=%s", timeout_s)

    async def _repeat(self, job: Job) -> None:
        delay_s = job.interval_s() if job.first_s is None else job.first_s
        while True:
            await asyncio.sleep(delay_s)
            try:
                await self._run(job)
            except Exception:
                log.exception("job failed, retrying at its next run job=%s", job.name)
            delay_s = job.interval_s()

    async def _run(self, job: Job) -> None:
        if not job.blocking:
            result = job.run()
            if isinstance(result, Awaitable):
                await result
            return
        assert self._threads is not None
        run = asyncio.get_running_loop().run_in_executor(self._threads, job.run)
        _, late = await asyncio.wait([run], timeout=job.limit_s)
        if late:
            log.error("job exceeds its time limit job=%s limit_s=%s", job.name, job.limit_s)
        await run


def every(
    interval_s: float, run: Callable[[], object], name: str, *, first_s: float | None = None
) -> Job:
    """Return a quick job with a fixed interval."""
    return Job(name, lambda: interval_s, run, first_s=first_s)
