"""A queue of which each iteration of the event loop takes a few items: others are served between.

Thousands of peers may connect, or end their connections, at the same time.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

T = TypeVar("T")


class PacedQueue(Generic[T]):
    """Items that wait for an iteration of the event loop, in their order.

    Args:
        act: called with each item. What it raises is logged by the event loop.
        per_iteration: items that one iteration takes.
    """

    def __init__(self, act: Callable[[T], object], per_iteration: int) -> None:
        self._act = act
        self._per_iteration = per_iteration
        self.waiting: deque[T] = deque()
        self._scheduled = False

    def add(self, items: Iterable[T]) -> None:
        """Add items; the first ones are taken in the next iteration."""
        self.waiting.extend(items)
        self._schedule()

    def _schedule(self) -> None:
        if self.waiting and not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._take)

    def _take(self) -> None:
        try:
            for _ in range(min(self._per_iteration, len(self.waiting))):
                self._act(self.waiting.popleft())
        finally:
            self._scheduled = False
            self._schedule()
