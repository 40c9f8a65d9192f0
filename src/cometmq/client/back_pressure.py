"""Permits for messages, and for bytes of their bodies, that may be on their way at a time.

Source: DefaultMQProducerImpl.executeAsyncMessageSend, RocketMQ 5.3.
"""

from __future__ import annotations

import asyncio
from collections import deque

UNLIMITED = 1 << 62


class BackPressure:
    """Counts what is on its way. A message larger than all bytes goes when nothing else does.

    Args:
        messages_max: messages at a time.
        bytes_max: bytes at a time.
    """

    def __init__(self, messages_max: int, bytes_max: int = UNLIMITED) -> None:
        self._messages_max = messages_max
        self._bytes_max = bytes_max
        self.messages = 0
        """How many are on their way."""
        self.size_bytes = 0
        """How large they are together."""
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    def take(self, size: int) -> bool:
        """Take the permits for one message of ``size`` bytes, or none; False when too few are left.

        Nobody is passed by: while others wait, the answer is False.
        """
        if self._waiting or not self._fits(size):
            return False
        self._charge(size)
        return True

    async def wait(self, size: int, timeout: float) -> bool:
        """Take the permits for one message as soon as they are there; False when time runs out.

        Those who wait get theirs in the order in which they came.
        """
        if self.take(size):
            return True
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = (size, turn)
        self._waiting.append(entry)
        try:
            async with asyncio.timeout(timeout):
                await turn
        except TimeoutError:
            return self._left(entry)
        except asyncio.CancelledError:
            if self._left(entry):
                self.give_back(size)
            raise
        return True

    def give_back(self, size: int) -> None:
        """Return the permits of one message, and hand them to who waits longest."""
        self.messages -= 1
        self.size_bytes -= size
        while self._waiting and self._fits(self._waiting[0][0]):
            next_size, turn = self._waiting.popleft()
            if not turn.done():
                self._charge(next_size)
                turn.set_result(None)

    def _left(self, entry: tuple[int, asyncio.Future[None]]) -> bool:
        """Stop waiting; True if the permits had come at that very moment."""
        if entry in self._waiting:
            self._waiting.remove(entry)
            if self._waiting and self._fits(self._waiting[0][0]):
                self._hand_on()
            return False
        return entry[1].done() and not entry[1].cancelled()

    def _hand_on(self) -> None:
        self._charge(0)
        self.give_back(0)

    def _fits(self, size: int) -> bool:
        if not self.messages:
            return True
        return self.messages < self._messages_max and self.size_bytes + size <= self._bytes_max

    def _charge(self, size: int) -> None:
        self.messages += 1
        self.size_bytes += size
