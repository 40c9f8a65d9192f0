"""Group commit: sends wait until their bytes are on disk, and one fdatasync serves all of them.

While one sync runs, further sends gather; they share the next one. The syncing is done by a thread
of its own, off the event loop. After a failed sync nothing is acknowledged any more: every waiting
send is told why, and the store refuses further ones.

Source: ours; codes and the time limit are those of RocketMQ's GroupCommitService.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Protocol

from cometmq.model.errors import StoreError

log = logging.getLogger(__name__)


STOP_S = 2.0
"""How long :meth:`GroupCommit.stop` lets the last sync take."""


class SyncedStore(Protocol):
    """What group commit needs of the store."""

    def flush(self, least_pages: int = 0) -> int:
        """Sync and return the log offset up to which all bytes are on disk."""


Outcome = Callable[[bool, StoreError | None], None]
"""Told once: whether the bytes are on disk, and the error that made it impossible."""


class GroupCommit:
    """Acknowledges sends once their bytes are on disk.

    Args:
        store: what to sync.
        timeout_s: a send that waited this long is told that its bytes may not be on disk.
    """

    def __init__(self, store: SyncedStore, *, timeout_s: float = 5.0) -> None:
        self._store = store
        self._timeout_s = timeout_s
        self._waiting: list[tuple[int, float, Outcome]] = []
        self._syncing: list[tuple[int, float, Outcome]] = []
        self._scheduled = False
        self._running = False
        self._is_stopped = False
        self._wanted: SimpleQueue[bool] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._overdue: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._waiting) + len(self._syncing)

    def start(self) -> None:
        """Start the syncing thread; the running loop is where outcomes are told."""
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._run, name="cometmq-sync", daemon=True)
        self._thread.start()

    async def stop(self, timeout_s: float = STOP_S) -> None:
        """Let the waiting sends have their sync, then end the thread.

        Sends that still wait after ``timeout_s`` seconds are told so, as are those that come later.
        """
        if self._loop is None or self._is_stopped:
            return
        if len(self):
            turn = self._loop.create_future()
            self.wait(0, functools.partial(_wake, turn))
            await asyncio.wait([turn], timeout=timeout_s)
        self._is_stopped = True
        if self._overdue is not None:
            self._overdue.cancel()
        late = [*self._syncing, *self._waiting]
        self._syncing, self._waiting = [], []
        _tell(late, 0, _stopped())
        self._wanted.put(False)
        if self._thread is not None and not self._running:
            self._thread.join(timeout_s)

    def oldest_age_s(self) -> float:
        """For how long the oldest waiting send has waited."""
        oldest = self._syncing or self._waiting
        if not oldest or self._loop is None:
            return 0.0
        return self._loop.time() - (oldest[0][1] - self._timeout_s)

    def wait(self, log_offset_end: int, told: Outcome) -> None:
        """Tell ``told`` whether all bytes before ``log_offset_end`` are on disk, once known."""
        loop = self._loop
        assert loop is not None, "not started"
        if self._is_stopped:
            told(False, _stopped())
            return
        self._waiting.append((log_offset_end, loop.time() + self._timeout_s, told))
        if not self._scheduled and not self._running:
            self._scheduled = True
            loop.call_soon(self._begin)

    def kick(self) -> None:
        """Have a sync for messages whose senders do not wait for it."""
        self.wait(0, _nobody)

    def _begin(self) -> None:
        self._scheduled = False
        if self._is_stopped:
            return
        self._running = True
        self._syncing, self._waiting = self._waiting, self._syncing
        if self._overdue is None:
            self._watch()
        self._wanted.put(True)

    def _run(self) -> None:
        """The thread: one sync for each request of the loop."""
        assert self._loop is not None
        while self._wanted.get():
            flushed, error = 0, None
            try:
                flushed = self._store.flush()
            except StoreError as problem:
                error = problem
            except Exception as problem:  # else everybody would wait for a thread that is gone
                log.exception("unexpected error in a sync")
                error = StoreError(f"the sync failed: {type(problem).__name__}: {problem}")
            try:
                self._loop.call_soon_threadsafe(self._end, flushed, error)
            except RuntimeError:
                return

    def _end(self, flushed: int, error: StoreError | None) -> None:
        self._running = False
        done, self._syncing = self._syncing, []
        if self._waiting:
            self._begin()
        if error is not None:
            log.error("sync failed, refusing sends until restart: %s", error)
        _tell(done, flushed, error)

    def _watch(self) -> None:
        """Once a second: tell the sends that have waited for too long."""
        assert self._loop is not None
        now = self._loop.time()
        self._syncing = self._without_overdue(self._syncing, now)
        self._waiting = self._without_overdue(self._waiting, now)
        more = self._running or self._waiting
        self._overdue = self._loop.call_later(1.0, self._watch) if more else None

    @staticmethod
    def _without_overdue(
        sends: list[tuple[int, float, Outcome]], now: float
    ) -> list[tuple[int, float, Outcome]]:
        if not sends or sends[0][1] > now:
            return sends
        _tell([send for send in sends if send[1] <= now], 0, None)
        return [send for send in sends if send[1] > now]


def _tell(sends: list[tuple[int, float, Outcome]], flushed: int, error: StoreError | None) -> None:
    for log_offset_end, _, told in sends:
        # An edge: one send that cannot be told must not keep the others from their answers.
        try:
            told(error is None and flushed >= log_offset_end, error)
        except Exception:
            log.exception("cannot complete a send after its sync")


def _stopped() -> StoreError:
    return StoreError("the broker has stopped")


def _wake(turn: asyncio.Future[None], _synced: bool, _error: StoreError | None) -> None:
    """The outcome that ends the wait of :meth:`GroupCommit.stop`."""
    if not turn.done():
        turn.set_result(None)


def _nobody(_synced: bool, _error: StoreError | None) -> None:
    """The outcome of a sync that no send waits for."""
