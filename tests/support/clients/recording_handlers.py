"""Handlers that remember what they saw, and ways to wait for that."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from cometmq.model.message import StoredMessage

WAIT_S = 300.0


class Seen:
    """A handler: every message it is called with is kept, with the time it came."""

    def __init__(self) -> None:
        self.messages: list[StoredMessage] = []
        self.times: list[float] = []
        self._moved = asyncio.Event()

    async def __call__(self, message: StoredMessage) -> None:
        """Handle a message."""
        self.add(message)

    def add(self, *messages: StoredMessage) -> None:
        """Keep messages."""
        self.messages.extend(messages)
        self.times.extend([time.monotonic()] * len(messages))
        self._moved.set()

    @property
    def bodies(self) -> list[bytes]:
        """The bodies in the order they came."""
        return [message.body for message in self.messages]

    async def until(self, holds: Callable[[], bool], *, timeout: float = WAIT_S) -> None:
        """Wait until something is so, looking whenever a message comes."""
        async with asyncio.timeout(timeout):
            while not holds():
                self._moved.clear()
                await self._moved.wait()

    async def count(self, number: int, *, timeout: float = WAIT_S) -> None:
        """Wait until so many messages came."""
        await self.until(lambda: len(self.messages) >= number, timeout=timeout)


class FailsAtFirst(Seen):
    """A handler that raises an error at the first message, and handles those after it."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self._error = error

    async def __call__(self, message: StoredMessage) -> None:
        """Handle a message."""
        self.add(message)
        if len(self.messages) == 1:
            raise self._error


async def until(holds: Callable[[], bool], *, timeout: float = WAIT_S) -> None:
    """Wait until something is so that nobody tells of, looking a hundred times a second."""
    async with asyncio.timeout(timeout):
        while not holds():
            await asyncio.sleep(0.01)


async def until_answered(reached: Callable[[], Awaitable[bool]], *, timeout: float) -> None:
    """Ask again and again until the answer is yes."""
    async with asyncio.timeout(timeout):
        while not await reached():
            await asyncio.sleep(0.02)
