"""Waits until a condition holds: looks again and again, or whenever something changed."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable

WAIT_S = 300.0


async def until(
    holds: Callable[[], object] | Callable[[], Awaitable[object]],
    *,
    timeout: float = WAIT_S,
    pause_s: float = 0.01,
) -> None:
    """Wait until a function, or a coroutine function, returns something true.

    Raises:
        TimeoutError: it does not within ``timeout`` seconds.
    """
    async with asyncio.timeout(timeout):
        while not (await met if inspect.isawaitable(met := holds()) else met):
            await asyncio.sleep(pause_s)


def wait_until(holds: Callable[[], object], what: str = "", *, timeout: float = WAIT_S) -> None:
    """Wait the same way outside an event loop.

    Raises:
        AssertionError: the function returns nothing true within ``timeout`` seconds.
    """
    deadline = time.monotonic() + timeout
    while not holds():
        assert time.monotonic() < deadline, f"not within {timeout:g} s: {what or holds}"
        time.sleep(0.02)


class Changes:
    """Looks at a condition whenever something changed, without a pause."""

    def __init__(self) -> None:
        self.moved = asyncio.Event()

    async def until(self, holds: Callable[[], object], *, timeout: float = WAIT_S) -> None:
        """Wait until a function returns something true.

        Raises:
            TimeoutError: it does not within ``timeout`` seconds.
        """
        async with asyncio.timeout(timeout):
            while not holds():
                self.moved.clear()
                await self.moved.wait()
