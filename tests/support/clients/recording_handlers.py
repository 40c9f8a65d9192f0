"""Handlers that record the messages that they get, and waits for these messages."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from cometmq.model.message import StoredMessage
from support.checks.waiting import WAIT_S, Changes


class Seen(Changes):
    """A handler: every message it is called with is kept, with the time it came."""

    def __init__(self) -> None:
        self.messages: list[StoredMessage] = []
        self.times: list[float] = []
        super().__init__()

    async def __call__(self, message: StoredMessage) -> None:
        """Handle a message."""
        self.add(message)

    def add(self, *messages: StoredMessage) -> None:
        """Keep messages."""
        self.messages.extend(messages)
        self.times.extend([time.monotonic()] * len(messages))
        self.moved.set()

    @property
    def bodies(self) -> list[bytes]:
        """The bodies in the order they came."""
        return [message.body for message in self.messages]

    @property
    def offsets(self) -> list[int]:
        """The queue offsets in the order the messages came."""
        return [message.queue_offset for message in self.messages]

    async def count(self, number: int, *, timeout: float = WAIT_S) -> None:
        """Wait until so many messages came."""
        await self.until(lambda: len(self.messages) >= number, timeout=timeout)


class Waits(Seen):
    """A handler that returns a result, or raises an error, when the test lets it."""

    def __init__(self, result: Any = None) -> None:
        super().__init__()
        self.may_end = asyncio.Event()
        self.ended = self.cancelled = False
        self._result = result

    async def __call__(self, message: StoredMessage) -> Any:
        """Handle a message."""
        self.add(message)
        try:
            await self.may_end.wait()
        except asyncio.CancelledError:
            self.cancelled = True
            raise
        self.ended = True
        if isinstance(self._result, Exception):
            raise self._result
        return self._result


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
