"""The jobs a broker does by the clock: flushing, persisting, cleaning, counting, sweeping.

Every job is a task with a name. It waits its interval from the end of one turn to the start of
the next, so that no turn meets another one of the same job; a failure is logged and the next turn
comes. Jobs that wait for the disk run in one thread of their own, one after the other; a turn
there that takes longer than its limit is reported, and waited for without starting another.

Source: ours; intervals and thresholds are those of BrokerController and DefaultMessageStore.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final, Protocol

from cometmq.remoting import Supervisor
from cometmq.system.clock import Clock

log = logging.getLogger(__name__)

TURN_S_MAX: Final = 30.0
"""A turn in the thread that takes longer is reported."""


@dataclass(frozen=True)
class Job:
    """One thing to do again and again.

    Args:
        name: of the task.
        interval_s: seconds between two turns; asked anew each time.
        turn: does the work, as a plain or a coroutine function; it is quick unless ``blocking``.
        first_s: seconds until the first turn, by default one interval.
        blocking: whether a turn waits for the disk and belongs into the thread.
        limit_s: seconds after which a blocking turn is reported.
    """

    name: str
    interval_s: Callable[[], float]
    turn: Callable[[], object]
    first_s: float | None = None
    blocking: bool = False
    limit_s: float = TURN_S_MAX


class Housekeeping:
    """Runs the jobs from :meth:`start` to :meth:`stop`.

    Args:
        jobs: what to do; their names differ.
    """

    def __init__(self, jobs: Iterable[Job]) -> None:
        self._jobs = {job.name: job for job in jobs}
        self._supervisor = Supervisor("housekeeping")
        self._thread: ThreadPoolExecutor | None = None

    @property
    def names(self) -> list[str]:
        """The names of the jobs."""
        return list(self._jobs)

    def start(self) -> None:
        """Begin; the event loop must be running."""
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="housekeeping")
        for job in self._jobs.values():
            self._supervisor.spawn(self._repeat(job), job.name)

    async def stop(self, timeout_s: float = 5.0) -> None:
        """Start no further turn and wait a while for the one in the thread."""
        await self._supervisor.cancel(timeout_s)
        if self._thread is not None:
            thread, self._thread = self._thread, None
            thread.shutdown(wait=False, cancel_futures=True)
            idle = asyncio.get_running_loop().run_in_executor(None, thread.shutdown)
            _, late = await asyncio.wait([idle], timeout=timeout_s)
            if late:
                log.error("the housekeeping thread did not end timeout_s=%s", timeout_s)

    async def _repeat(self, job: Job) -> None:
        delay_s = job.interval_s() if job.first_s is None else job.first_s
        while True:
            await asyncio.sleep(delay_s)
            try:
                await self._turn(job)
            except Exception:
                log.exception("job failed, retrying at its next run job=%s", job.name)
            delay_s = job.interval_s()

    async def _turn(self, job: Job) -> None:
        if not job.blocking:
            result = job.turn()
            if isinstance(result, Awaitable):
                await result
            return
        assert self._thread is not None
        turn = asyncio.get_running_loop().run_in_executor(self._thread, job.turn)
        _, late = await asyncio.wait([turn], timeout=job.limit_s)
        if late:
            log.error("job exceeds its time limit job=%s limit_s=%s", job.name, job.limit_s)
        await turn


class FlushedStore(Protocol):
    """What the flush jobs need of a store."""

    def flush(self, least_pages: int = 0) -> object:
        """Bring the commit log to the disk, unless fewer pages wait."""

    def flush_queues(self, least_pages: int = 0) -> object:
        """Bring the consume queues to the disk, those with fewer pages left out."""

    def write_checkpoint(self) -> object:
        """Write down up to when everything is on the disk."""


@dataclass(frozen=True)
class FlushPace:
    """How often and how thoroughly to flush."""

    log_interval_ms: int = 500
    log_least_pages: int = 4
    log_thorough_ms: int = 10_000
    queue_interval_ms: int = 1000
    queue_least_pages: int = 2
    queue_thorough_ms: int = 60_000


class Flusher:
    """Flushes by the clock: often what has grown, now and then everything.

    Args:
        store: what to flush.
        pace: gives the pace as it is now.
        clock: tells when a thorough turn is due.
    """

    def __init__(self, store: FlushedStore, pace: Callable[[], FlushPace], *, clock: Clock) -> None:
        self._store = store
        self._pace = pace
        self._clock = clock
        self._log_thorough_s = clock.monotonic()
        self._queues_thorough_s = clock.monotonic()

    def flush_log(self) -> None:
        """One turn for the commit log."""
        pace, now_s = self._pace(), self._clock.monotonic()
        thorough = (now_s - self._log_thorough_s) * 1000 >= pace.log_thorough_ms
        self._store.flush(0 if thorough else pace.log_least_pages)
        if thorough:
            self._log_thorough_s = now_s

    def flush_queues(self) -> None:
        """One turn for the consume queues, and with a thorough one for the checkpoint."""
        pace, now_s = self._pace(), self._clock.monotonic()
        thorough = (now_s - self._queues_thorough_s) * 1000 >= pace.queue_thorough_ms
        self._store.flush_queues(0 if thorough else pace.queue_least_pages)
        if thorough:
            self._store.write_checkpoint()
            self._queues_thorough_s = now_s

    def jobs(self) -> list[Job]:
        """The two jobs."""
        return [
            Job(
                "flush-commit-log",
                lambda: self._pace().log_interval_ms / 1000,
                self.flush_log,
                blocking=True,
            ),
            Job(
                "flush-consume-queues",
                lambda: self._pace().queue_interval_ms / 1000,
                self.flush_queues,
                blocking=True,
            ),
        ]


def every(
    interval_s: float, turn: Callable[[], object], name: str, *, first_s: float | None = None
) -> Job:
    """A quick job with a fixed interval."""
    return Job(name, lambda: interval_s, turn, first_s=first_s)
