"""Limits on the messages, and the bytes of their bodies, that are in flight at a time.

Tasks that were refused wait in a queue. When there is room, the first of them is woken and gets an
offer: one `take` that may pass those who still wait. An offer holds no permits. The next `take`
uses it, whichever task calls, because a woken task may yield, or try again in another task. An
unused offer expires, and the next task is woken.

Source: DefaultMQProducerImpl.executeAsyncMessageSend, RocketMQ 5.3.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque

UNLIMITED = 1 << 62
OFFER_S = 0.05
"""How long the next task is not woken while a woken one may still retry."""


class BackPressure:
    """Counts what is in flight. A message larger than all bytes goes when nothing else does.

    Args:
        messages_max: messages at a time.
        bytes_max: bytes at a time.
    """

    def __init__(self, messages_max: int, bytes_max: int = UNLIMITED) -> None:
        self._messages_max = messages_max
        self._bytes_max = bytes_max
        self.messages = 0
        """How many are in flight."""
        self.size_bytes = 0
        """How large they are together."""
        self._refused = 0
        """Size of the largest message that was refused and not waited for."""
        self._waiting: OrderedDict[asyncio.Future[None], int] = OrderedDict()
        """The sizes for which tasks wait, in the order in which they came."""
        self._woken = 0
        """Tasks that were woken and do not run yet; until then, others may not take their room."""
        self._offers: deque[tuple[float, int]] = deque()
        """When the offers to woken tasks expire, and their sizes."""
        self._offered_bytes = 0
        """Sizes of the offers and of the woken tasks together."""
        self._expiry: asyncio.TimerHandle | None = None

    def take(self, size: int) -> bool:
        """Take the permits for one message of ``size`` bytes, or none; False when too few are left.

        While others wait, only a task with an offer gets permits, so that small messages do not
        pass large ones for good.
        """
        others_wait = (self._waiting or self._woken) and not self._offers
        if others_wait or not self._fits(size, self.messages, self.size_bytes):
            self._refused = max(self._refused, size)
            return False
        if self._offers:
            self._offered_bytes -= self._offers.popleft()[1]
        self.messages += 1
        self.size_bytes += size
        return True

    async def drain(self, timeout: float) -> bool:
        """Wait until there is room for what was refused; False when time runs out.

        Takes no permits: the caller tries again. Tasks are woken in the order in which they came.
        """
        size, self._refused = max(self._refused, 1), 0
        others_wait = self._waiting or self._woken
        if not others_wait and self._fits(size, self.messages, self.size_bytes):
            return True
        loop = asyncio.get_running_loop()
        room: asyncio.Future[None] = loop.create_future()
        self._waiting[room] = size
        try:
            async with asyncio.timeout(timeout):
                await room
            self._offers.append((loop.time() + OFFER_S, size))
            self._offered_bytes += size
            if self._expiry is None:
                self._expiry = loop.call_later(OFFER_S, self._expire, loop)
        except TimeoutError:
            self._refused = max(self._refused, size)
            return False
        finally:
            if self._waiting.pop(room, None) is None:
                self._woken -= 1
                self._offered_bytes -= size
            self._wake()
        return True

    def give_back(self, size: int) -> None:
        """Return the permits of one message, and wake the tasks for which there is room now."""
        self.messages -= 1
        self.size_bytes -= size
        self._wake()

    def _expire(self, loop: asyncio.AbstractEventLoop) -> None:
        """End the offers that were not used in time, and wake the next tasks instead."""
        now = loop.time()
        while self._offers and self._offers[0][0] <= now:
            self._offered_bytes -= self._offers.popleft()[1]
        self._expiry = None
        if self._offers:
            self._expiry = loop.call_at(self._offers[0][0], self._expire, loop)
        self._wake()

    def _wake(self) -> None:
        """Wake tasks in order, while there is room beside what is in flight and what is offered."""
        while self._waiting:
            room, size = next(iter(self._waiting.items()))
            messages = self.messages + self._woken + len(self._offers)
            if not self._fits(size, messages, self.size_bytes + self._offered_bytes):
                return
            del self._waiting[room]
            if not room.done():
                room.set_result(None)
            self._woken += 1
            self._offered_bytes += size

    def _fits(self, size: int, messages: int, size_bytes: int) -> bool:
        """Whether a message has room beside this many messages of this many bytes."""
        if not messages:
            return True
        return messages < self._messages_max and size_bytes + size <= self._bytes_max
