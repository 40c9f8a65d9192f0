"""Flushes the store at intervals.

With synchronous flush sends have their own syncs; the interval is for appends that no sender waits
for, and nothing may wait longer than one.

Source: FlushRealTimeService and FlushConsumeQueueService, RocketMQ 5.3 (intervals and thresholds).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from cometmq.broker.jobs import Job
from cometmq.store import StoreSettings
from cometmq.system.clock import Clock


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


def flush_pace(stored: StoreSettings) -> FlushPace:
    """The pace that the settings give; with synchronous flush no page waits for others."""
    return FlushPace(
        log_interval_ms=stored.flush_interval_ms,
        log_least_pages=0 if stored.sync_flush else stored.flush_least_pages,
        log_thorough_ms=stored.flush_thorough_interval_ms,
        queue_interval_ms=stored.flush_queue_interval_ms,
        queue_least_pages=stored.flush_queue_least_pages,
        queue_thorough_ms=stored.flush_queue_thorough_interval_ms,
    )
