# cython: annotation_typing=False
"""Limits on the sends that are in flight, and on the bytes of their bodies.

A send holds its room from the first attempt to the end of the last one. Sends that wait for room
get it in the order in which they came: a small message never passes a large one that waits, which
might otherwise wait without an end.

Source: DefaultMQProducerImpl.executeAsyncMessageSend, RocketMQ 5.3.
"""

from __future__ import annotations

import asyncio
from collections import deque

SWEEP_S = 0.05
"""How late the end of a wait may be noticed: one timer serves all that wait."""


class Generation:
    """Counts the sends in flight that started between two calls of `BackPressure.flush`."""

    __slots__ = ("ended", "in_flight")

    def __init__(self) -> None:
        self.in_flight = 0
        self.ended: asyncio.Future[None] | None = None
        """Done when none is left; None while sends may still join."""


class _Waiter:
    """A send that waits for room."""

    __slots__ = ("deadline_s", "room", "size")

    def __init__(self, room: asyncio.Future[Generation], size: int, deadline_s: float) -> None:
        self.room = room
        self.size = size
        self.deadline_s = deadline_s


class BackPressure:
    """Counts what is in flight. A message larger than all bytes goes when nothing else does.

    Args:
        messages_max: sends at a time.
        bytes_max: bytes at a time.
    """

    def __init__(self, messages_max: int, bytes_max: int) -> None:
        self._messages_max = messages_max
        self._bytes_max = bytes_max
        self.messages = 0
        """How many are in flight."""
        self.size_bytes = 0
        """How large they are together."""
        self._generation = Generation()
        self._past_generations: list[Generation] = []
        """Earlier generations with sends in flight."""
        self._waiting: deque[_Waiter] = deque()
        """The first one still waits; others may have given up."""
        self._gone = 0
        """How many of them have given up, at most."""
        self._sweep_at_s = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def try_acquire(self, size: int) -> Generation | None:
        """Take room for a send of ``size`` bytes; None if there is none, or if others wait for it.

        Returns:
            What `release` needs.
        """
        if self._waiting or not self._fits(size):
            return None
        return self._take(size)

    async def acquire(self, size: int, timeout: float) -> Generation:
        """Wait for room, and take it. Cancelling leaves the queue.

        Raises:
            TimeoutError: there was no room within ``timeout`` seconds.
        """
        generation = self.try_acquire(size)
        if generation is not None:
            return generation
        loop = asyncio.get_running_loop()
        waiter = _Waiter(loop.create_future(), size, loop.time() + timeout)
        self._waiting.append(waiter)
        self._sweep_by(loop, waiter.deadline_s)
        room = waiter.room
        try:
            return await room
        except asyncio.CancelledError:
            if room.done() and not room.cancelled() and room.exception() is None:
                self.release(size, room.result())  # the room and the cancellation came together
            else:
                self._grant()
                self._gone += 1
                if 2 * self._gone > len(self._waiting):
                    self._drop_gone()
            raise

    def release(self, size: int, generation: Generation) -> None:
        """Give the room of a send back, and let waiting sends have it."""
        self.messages -= 1
        self.size_bytes -= size
        generation.in_flight -= 1
        if not generation.in_flight and generation.ended is not None:
            self._past_generations.remove(generation)
            generation.ended.set_result(None)
        if self._waiting:
            self._grant()

    def resize(self, size: int, new_size: int) -> int:
        """Let the room of a send be of another size from now on, and return that."""
        self.size_bytes += new_size - size
        return new_size

    async def flush(self, timeout: float | None = None) -> int:
        """Wait until all that is in flight now has ended, for ``timeout`` seconds at most.

        Returns:
            How many have not.
        """
        if self._generation.in_flight:
            self._generation.ended = asyncio.get_running_loop().create_future()
            self._past_generations.append(self._generation)
            self._generation = Generation()
        past = list(self._past_generations)
        ends = [generation.ended for generation in past if generation.ended is not None]
        if ends:
            await asyncio.wait(ends, timeout=timeout)
        return sum(generation.in_flight for generation in past)

    def refuse_all(self, error: Exception) -> None:
        """End every wait for room with an error."""
        waiting, self._waiting = self._waiting, deque()
        for waiter in waiting:
            if not waiter.room.done():
                waiter.room.set_exception(error)

    def _fits(self, size: int) -> bool:
        if not self.messages:
            return True
        return self.messages < self._messages_max and self.size_bytes + size <= self._bytes_max

    def _take(self, size: int) -> Generation:
        self.messages += 1
        self.size_bytes += size
        generation = self._generation
        generation.in_flight += 1
        return generation

    def _grant(self) -> None:
        """Give room to waiting sends, in order, as far as it goes."""
        waiting = self._waiting
        while waiting:
            waiter = waiting[0]
            if not waiter.room.done():
                if not self._fits(waiter.size):
                    return
                waiter.room.set_result(self._take(waiter.size))
            waiting.popleft()

    def _drop_gone(self) -> None:
        """Remove sends that have given up, at any position."""
        self._waiting = deque([each for each in self._waiting if not each.room.done()])
        self._gone = 0

    def _sweep_by(self, loop: asyncio.AbstractEventLoop, deadline_s: float) -> None:
        if self._timer is not None:
            if self._sweep_at_s <= deadline_s:
                return
            self._timer.cancel()
        self._sweep_at_s = deadline_s
        self._timer = loop.call_at(deadline_s, self._sweep, loop)

    def _sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        """End the waits that have lasted long enough."""
        self._timer = None
        now_s = loop.time()
        next_s = float("inf")
        for waiter in self._waiting:
            if waiter.room.done():
                continue
            if waiter.deadline_s <= now_s:
                waiter.room.set_exception(TimeoutError())
            else:
                next_s = min(next_s, waiter.deadline_s)
        self._grant()
        self._drop_gone()
        if self._waiting:
            self._sweep_by(loop, max(next_s, now_s + SWEEP_S))
