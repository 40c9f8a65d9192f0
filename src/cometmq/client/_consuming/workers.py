"""A pool of tasks: as many as there is work for, up to a limit that can be changed.

A worker that finds nothing to do waits, so that a burst of messages costs no new tasks. Work that
never waits for anything is done by one worker, which yields to the loop every few milliseconds.

In RocketMQ this is a pool of threads.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from time import monotonic
from typing import Generic, TypeVar

from cometmq.remoting.tasks import Supervisor, outlives

log = logging.getLogger(__name__)

T = TypeVar("T")

SLICE_S = 0.005
"""How long work that never waits may occupy the loop, in seconds."""
CANCEL_S = 1.0
"""Time for workers that are cancelled to end."""


class Workers(Generic[T]):
    """Processes items in the order of their arrival.

    Args:
        work: does one item; what it raises is logged. Work that goes on for long rests when
            `slice_end` is reached.
        count: how many workers there are at most.
        owner: for the log.
        is_left: whether something of an item is left for further workers, who share it then; None
            if each item is for one worker.
        now: a steady clock, in seconds.
    """

    def __init__(
        self,
        work: Callable[[T], Awaitable[None]],
        count: int,
        *,
        owner: str,
        is_left: Callable[[T], bool] | None = None,
        now: Callable[[], float] = monotonic,
    ) -> None:
        self.waiting: deque[T] = deque()
        """Items that no worker has begun, and shared ones of which something may be left."""
        self.slice_end = 0.0
        """When all workers are to rest, in seconds of the clock."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._now = now
        self._work_on = work
        self._is_left = is_left
        self._limit = count
        self._tasks = Supervisor(owner)
        self._active = 0
        self._idle: list[asyncio.Future[None]] = []
        self._calling = False
        self._resting = False
        self._stopping = False

    def goes_on_after(self, error: BaseException) -> bool:
        """Return whether the worker that met this error goes on: only `stop` cancels workers."""
        return outlives(error, stopping=self._stopping)

    def __contains__(self, task: object) -> bool:
        return task in self._tasks

    def add(self, items: Iterable[T]) -> None:
        """Have items done; never blocks."""
        self.waiting.extend(items)
        if self._idle and not self._calling:  # it runs an iteration sooner than by `_add_worker`
            _wake(self._idle.pop())
        self._call()

    def resize(self, count: int) -> None:
        """Have this many workers from now on; each that is too many ends with its item."""
        self._limit = count
        self._wake_all()
        self._call()

    async def stop(self, *, grace_s: float) -> int:
        """Begin no further item, wait for those being done, then cancel what still runs.

        Returns:
            How many were cancelled.
        """
        self._stopping = True
        self.waiting.clear()
        self._wake_all()
        if grace_s > 0:
            await self._tasks.drain(grace_s)
        left = len(self._tasks)
        if left:
            await self._tasks.cancel(CANCEL_S)
        return left

    async def rest(self) -> None:
        """Yield to the other tasks of the loop, with all workers, until its next iteration."""
        if not self._resting:
            self._resting = True
            self.call_soon(self._begin_slice)
        await asyncio.sleep(0)

    def _begin_slice(self) -> None:
        self._resting = False
        self.slice_end = self._now() + SLICE_S

    def call_soon(self, act: Callable[[], None]) -> None:
        """Call something in the next iteration of the event loop."""
        self._event_loop().call_soon(act)

    def _call(self) -> None:
        if self.waiting and not self._calling and (self._idle or self._active < self._limit):
            self._calling = True
            self.call_soon(self._add_worker)

    def _add_worker(self) -> None:
        """Wake or start one more worker: the running ones have left work over."""
        self._calling = False
        if self._stopping or not self._has_work():
            return
        if self._idle:
            _wake(self._idle.pop())
        elif self._active < self._limit:
            self._active += 1
            self._tasks.spawn(self._work(), "worker")
        else:
            return
        self._call()

    def _event_loop(self) -> asyncio.AbstractEventLoop:
        """Return the running loop, which is always the same: asking for it takes a system call."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        return self._loop

    def _has_work(self) -> bool:
        """Whether there is work; drop shared items of which nothing is left."""
        is_left, waiting = self._is_left, self.waiting
        if is_left is not None:
            while waiting and not is_left(waiting[0]):
                waiting.popleft()
        return bool(waiting)

    def _wake_all(self) -> None:
        while self._idle:
            _wake(self._idle.pop())

    async def _work(self) -> None:
        try:
            self._begin_slice()  # the loop has just resumed this task
            while self._active <= self._limit and not self._stopping:
                if not self._has_work():
                    await self._wait()
                    self._begin_slice()
                    continue
                item = self.waiting.popleft() if self._is_left is None else self.waiting[0]
                try:
                    await self._work_on(item)
                except BaseException as error:
                    if not self.goes_on_after(error):
                        raise
                    log.exception("worker failed, item dropped")
                if self._now() > self.slice_end:
                    await self.rest()
        finally:
            self._active -= 1

    async def _wait(self) -> None:
        waiter: asyncio.Future[None] = self._event_loop().create_future()
        self._idle.append(waiter)
        try:
            await waiter
        finally:
            if waiter in self._idle:
                self._idle.remove(waiter)


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
