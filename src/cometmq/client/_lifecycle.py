"""Objects that are started and closed, best by ``async with``.

Source: ours.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Self


class Lifecycle(ABC):
    """Starts when ``async with`` is entered and closes when it is left."""

    @abstractmethod
    async def start(self) -> None:
        """Make it ready for use."""

    @abstractmethod
    async def close(self) -> None:
        """Let go of everything; further calls do nothing."""

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()


class Starting:
    """Starts an object in a task of its own, which closing the object ends.

    Args:
        start: does the work.
        name: of the task.
    """

    def __init__(self, start: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
        self._start = start
        self._name = name
        self._task: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Start, or wait for the start that is under way.

        Raises:
            asyncio.CancelledError: the caller was cancelled, or the start was interrupted.
        """
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._start(), name=self._name)
        await asyncio.shield(self._task)

    @property
    def interrupted(self) -> bool:
        """Whether `interrupt` cancelled the last start."""
        return self._task is not None and bool(self._task.cancelling())

    async def interrupt(self) -> None:
        """Cancel a start that is under way, and wait for its end."""
        task = self._task
        if task is None or task.done():
            return
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled():
            task.exception()  # its caller may wait no longer


class Ending:
    """Ends an object in a task of its own: cancelling who waits for it does not stop it.

    Args:
        end: does the work; may run again once it is through.
        name: of the task.
    """

    def __init__(self, end: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
        self._end = end
        self._name = name
        self._task: asyncio.Task[None] | None = None

    async def reached(self) -> None:
        """Begin unless somebody did, and wait for the end."""
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._end(), name=self._name)
            _under_way.add(self._task)
            self._task.add_done_callback(_under_way.discard)
        await asyncio.shield(self._task)


_under_way: set[asyncio.Task[None]] = set()
"""Keeps the tasks alive whose objects nobody holds any more."""
