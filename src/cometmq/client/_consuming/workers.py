"""Tasks that work off what waits: as many as are needed, up to a number that can be changed.

A worker ends when nothing waits. Work that never waits for anything is done by one worker, which
lets the loop breathe every few milliseconds.

Source: ours; in RocketMQ this is a pool of threads.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import Generic, TypeVar

from cometmq.remoting.tasks import Supervisor, is_call_failure

log = logging.getLogger(__name__)

T = TypeVar("T")

SLICE_S = 0.005
"""How long work that never waits may keep the loop to itself."""
CANCEL_S = 1.0
"""Time for workers that are cancelled to end."""


class Workers(Generic[T]):
    """Works off items in the order they came.

    Args:
        work: does one item; what it raises is logged.
        count: how many items are done at a time.
        owner: for the log.
    """

    def __init__(self, work: Callable[[T], Awaitable[None]], count: int, *, owner: str) -> None:
        self._work_on = work
        self._limit = count
        self._waiting: deque[T] = deque()
        self._tasks = Supervisor(owner)
        self._active = 0
        self._calling = False
        self._resting = False
        self._slice_end = 0.0
        self._stopping = False

    def add(self, items: Iterable[T]) -> None:
        """Have items done; never blocks."""
        self._waiting.extend(items)
        self._call()

    def resize(self, count: int) -> None:
        """Do this many items at a time from now on; those that are being done go on."""
        self._limit = count
        self._call()

    async def stop(self, *, grace_s: float) -> int:
        """Begin no further item, wait for those being done, then cancel what still runs.

        Returns:
            How many were cancelled.
        """
        self._stopping = True
        self._waiting.clear()
        if grace_s > 0:
            await self._tasks.drain(grace_s)
        left = len(self._tasks)
        if left:
            await self._tasks.cancel(CANCEL_S)
        return left

    def _call(self) -> None:
        if self._waiting and self._active < self._limit and not self._calling:
            self._calling = True
            asyncio.get_running_loop().call_soon(self._add_worker)

    def _add_worker(self) -> None:
        """Start one more worker; those before it have had a turn by now and left work over."""
        self._calling = False
        if self._waiting and self._active < self._limit and not self._stopping:
            self._active += 1
            self._tasks.spawn(self._work(), "worker")
            self._call()

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._waiting and self._active <= self._limit:
                item = self._waiting.popleft()
                try:
                    await self._work_on(item)
                except BaseException as error:
                    if not is_call_failure(error):
                        raise
                    log.exception("worker failed, item dropped")
                if loop.time() > self._slice_end:
                    await self._rest(loop)
        finally:
            self._active -= 1

    async def _rest(self, loop: asyncio.AbstractEventLoop) -> None:
        """Let everybody else have a turn; all workers rest until the loop begins a new one."""
        if not self._resting:
            self._resting = True
            loop.call_soon(self._begin_slice, loop)
        await asyncio.sleep(0)

    def _begin_slice(self, loop: asyncio.AbstractEventLoop) -> None:
        self._resting = False
        self._slice_end = loop.time() + SLICE_S
