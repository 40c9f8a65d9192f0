"""Runs blocking functions in threads, one run for all callers that wait at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from cometmq.model.errors import StoreError
from cometmq.remoting.slow_requests import spent_on

FAILURE_S: Final = 1.0
"""For this long further calls fail with the same error, before the next attempt."""


class SharedCall:
    """Runs a blocking function in a thread; callers at the same time share one run.

    Args:
        call: the function.
    """

    def __init__(self, call: Callable[[], object]) -> None:
        self._call = call
        self._running: asyncio.Future[object] | None = None
        self._failed_s = -FAILURE_S
        self._failure: StoreError | None = None

    async def __call__(self) -> object:
        """Wait for the end of a run.

        Raises:
            StoreError: of this run, or of one that failed less than a second ago.
        """
        if self._failure is not None:
            if asyncio.get_running_loop().time() < self._failed_s + FAILURE_S:
                raise self._failure
            self._failure = None
        if self._running is None:
            loop = asyncio.get_running_loop()
            self._running = asyncio.ensure_future(loop.run_in_executor(None, self._call))
            self._running.add_done_callback(self._ended)
        with spent_on("thread"):
            return await asyncio.shield(self._running)

    def _ended(self, run: asyncio.Future[object]) -> None:
        self._running = None
        failure = None if run.cancelled() else run.exception()
        if isinstance(failure, StoreError):
            self._failure, self._failed_s = failure, asyncio.get_running_loop().time()


class NextCall:
    """Runs a blocking function in a thread; callers before the start of a run share it.

    Args:
        call: the function.
    """

    def __init__(self, call: Callable[[], object]) -> None:
        self._call = call
        self._next: asyncio.Future[None] | None = None
        self._runner: asyncio.Task[None] | None = None

    async def __call__(self) -> None:
        """Wait for the end of a run that begins now or later."""
        if self._next is None:
            self._next = asyncio.get_running_loop().create_future()
        waiting = self._next
        if self._runner is None or self._runner.done():
            self._runner = asyncio.ensure_future(self._run())
        with spent_on("thread"):
            await asyncio.shield(waiting)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while self._next is not None:
            waiting, self._next = self._next, None
            try:
                await loop.run_in_executor(None, self._call)
            except Exception as problem:
                waiting.set_exception(problem)
                waiting.exception()  # marked as retrieved: perhaps no caller waits any more
            else:
                waiting.set_result(None)
