"""Group commit: sends wait until their bytes are on disk, and one fdatasync serves all of them.

Sends that arrive during a sync share the next one. A thread syncs, so the event loop does not wait.
After a failed sync no send is acknowledged: every waiting send gets the error, and the store
refuses further ones.

Codes and the time limit are those of RocketMQ's GroupCommitService.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import threading
from collections.abc import Callable
from queue import SimpleQueue

from cometmq.model.errors import StoreError
from cometmq.store import MessageStore

log = logging.getLogger(__name__)


STOP_S = 2.0
"""How long :meth:`GroupCommit.stop` waits for the last sync."""


Outcome = Callable[[bool, StoreError | None], None]
"""Called once: with whether the bytes are on disk, and with the error of the sync, if any."""


class GroupCommit:
    """Acknowledges sends once their bytes are on disk.

    Args:
        store: what to sync.
        timeout_s: a send that waits longer gets the outcome that its bytes may not be on disk.
    """

    def __init__(self, store: MessageStore, *, timeout_s: float = 5.0) -> None:
        self._store = store
        self._timeout_s = timeout_s
        self._waiting: list[tuple[int, float, Outcome]] = []
        self._syncing: list[tuple[int, float, Outcome]] = []
        self._scheduled = False
        self._running = False
        self._is_stopped = False
        self._requests: SimpleQueue[bool] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._overdue: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._waiting) + len(self._syncing)

    def start(self) -> None:
        """Start the syncing thread; outcomes are called on the running loop."""
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._run, name="cometmq-sync", daemon=True)
        self._thread.start()

    async def stop(self, timeout_s: float = STOP_S) -> None:
        """Sync for the waiting sends, then end the thread.

        Sends that still wait after ``timeout_s`` seconds, and later ones, get an error.
        """
        if self._loop is None or self._is_stopped:
            return
        if len(self):
            done = self._loop.create_future()
            self.wait(0, functools.partial(_set_done, done))
            await asyncio.wait([done], timeout=timeout_s)
        self._is_stopped = True
        if self._overdue is not None:
            self._overdue.cancel()
        late = [*self._syncing, *self._waiting]
        self._syncing, self._waiting = [], []
        _report(late, 0, _stopped())
        self._requests.put(False)
        if self._thread is not None and not self._running:
            self._thread.join(timeout_s)

    def end_all(self) -> None:
        """End all waits with the outcome that the bytes may not be on disk."""
        late = [*self._syncing, *self._waiting]
        self._syncing, self._waiting = [], []
        _report(late, 0, None)

    def oldest_age_s(self) -> float:
        """Return how long the oldest waiting send has waited."""
        oldest = self._syncing or self._waiting
        if not oldest or self._loop is None:
            return 0.0
        return self._loop.time() - (oldest[0][1] - self._timeout_s)

    def wait(self, log_offset_end: int, on_outcome: Outcome) -> None:
        """Call ``on_outcome`` once all bytes before ``log_offset_end`` are on disk or cannot be."""
        loop = self._loop
        assert loop is not None, "not started"
        if self._is_stopped:
            on_outcome(False, _stopped())
            return
        self._waiting.append((log_offset_end, loop.time() + self._timeout_s, on_outcome))
        if not self._scheduled and not self._running:
            self._scheduled = True
            loop.call_soon(self._begin)

    async def sync_error(self, log_offset_end: int) -> StoreError | None:
        """Wait for the disk; return why bytes before an offset are not on it, None if they are."""
        done: asyncio.Future[StoreError | None] = asyncio.get_running_loop().create_future()

        def on_outcome(is_synced: bool, error: StoreError | None) -> None:
            if not done.done():
                done.set_result(
                    None if is_synced else error or StoreError("the disk takes too long")
                )

        self.wait(log_offset_end, on_outcome)
        return await done

    def request_sync(self) -> None:
        """Request a sync for messages whose senders do not wait for it."""
        self.wait(0, _ignore_outcome)

    def _begin(self) -> None:
        self._scheduled = False
        if self._is_stopped:
            return
        self._running = True
        self._syncing, self._waiting = self._waiting, self._syncing
        if self._overdue is None:
            self._expire_overdue()
        self._requests.put(True)

    def _run(self) -> None:
        """Run the thread: one sync for each request of the loop."""
        assert self._loop is not None
        while self._requests.get():
            flushed, error = 0, None
            try:
                flushed = self._store.flush()
            except StoreError as problem:
                error = problem
            except Exception as problem:  # else all sends would wait for a thread that has ended
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
        _report(done, flushed, error)

    def _expire_overdue(self) -> None:
        """End the waits of overdue sends; once a second."""
        assert self._loop is not None
        now = self._loop.time()
        self._syncing = self._without_overdue(self._syncing, now)
        self._waiting = self._without_overdue(self._waiting, now)
        more = self._running or self._waiting
        self._overdue = self._loop.call_later(1.0, self._expire_overdue) if more else None

    @staticmethod
    def _without_overdue(
        sends: list[tuple[int, float, Outcome]], now: float
    ) -> list[tuple[int, float, Outcome]]:
        if not sends or sends[0][1] > now:
            return sends
        _report([send for send in sends if send[1] <= now], 0, None)
        return [send for send in sends if send[1] > now]


def _report(
    sends: list[tuple[int, float, Outcome]], flushed: int, error: StoreError | None
) -> None:
    for log_offset_end, _, on_outcome in sends:
        # An error of one send must not stop the responses to the others.
        try:
            on_outcome(error is None and flushed >= log_offset_end, error)
        except Exception:
            log.exception("cannot complete a send after its sync")


def _stopped() -> StoreError:
    return StoreError("the broker has stopped")


def _set_done(done: asyncio.Future[None], _synced: bool, _error: StoreError | None) -> None:
    """Outcome that ends the wait of :meth:`GroupCommit.stop`."""
    if not done.done():
        done.set_result(None)


def _ignore_outcome(_synced: bool, _error: StoreError | None) -> None:
    """Outcome of a sync that no send waits for."""
