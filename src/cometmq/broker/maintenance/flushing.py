"""Flushes the store at intervals.

With synchronous flush sends have their own syncs; the interval is for appends that no sender waits
for.

Source: FlushRealTimeService and FlushConsumeQueueService, RocketMQ 5.3 (intervals and thresholds).
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from cometmq.remoting.jobs import Job
from cometmq.store import MessageStore, StoreSettings
from cometmq.system.clock import Clock

FEW_QUEUES = 64
FEW_QUEUES_S = 5.0


class FlushPace(msgspec.Struct, frozen=True):
    """How often and how thoroughly to flush."""

    log_interval_ms: int = 500
    log_least_pages: int = 4
    log_thorough_ms: int = 10_000
    queue_interval_ms: int = 1000
    queue_least_pages: int = 2
    queue_thorough_ms: int = 60_000


class Flusher:
    """Flushes at intervals: often what has grown, now and then everything.

    A power cut makes the next start read the log from the last complete flush of the queues on. So
    a complete flush also comes earlier if few queues need it.

    Args:
        store: what to flush.
        pace: returns the current pace.
        clock: measures the intervals.
    """

    def __init__(self, store: MessageStore, pace: Callable[[], FlushPace], *, clock: Clock) -> None:
        self._store = store
        self._pace = pace
        self._clock = clock
        self._log_thorough_s = clock.monotonic()
        self._queues_thorough_s = clock.monotonic()
        self._queues_complete_s = clock.monotonic()

    def flush_log(self) -> None:
        """One run for the commit log."""
        pace, now_s = self._pace(), self._clock.monotonic()
        thorough = (now_s - self._log_thorough_s) * 1000 >= pace.log_thorough_ms
        self._store.flush(0 if thorough else pace.log_least_pages)
        if thorough:
            self._log_thorough_s = now_s

    def flush_queues(self) -> None:
        """One run for the consume queues; after a complete one the checkpoint is written."""
        pace, now_s = self._pace(), self._clock.monotonic()
        thorough = (now_s - self._queues_thorough_s) * 1000 >= pace.queue_thorough_ms
        few = self._store.unsynced_queues <= FEW_QUEUES
        complete = thorough or (few and now_s - self._queues_complete_s >= FEW_QUEUES_S)
        self._store.flush_queues(0 if complete else pace.queue_least_pages, with_index=thorough)
        if complete:
            self._store.write_checkpoint()
            self._queues_complete_s = now_s
        if thorough:
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


def flush_pace(stored: StoreSettings) -> FlushPace:
    """Return the pace of the settings; with synchronous flush no page waits for others."""
    return FlushPace(
        log_interval_ms=stored.flush_interval_ms,
        log_least_pages=0 if stored.sync_flush else stored.flush_least_pages,
        log_thorough_ms=stored.flush_thorough_interval_ms,
        queue_interval_ms=stored.flush_queue_interval_ms,
        queue_least_pages=stored.flush_queue_least_pages,
        queue_thorough_ms=stored.flush_queue_thorough_interval_ms,
    )
