"""Finds the first message of a queue that was stored at or after a time.

Brokers before 5.0 name the message nearest in time instead, which may be an earlier one, or a later
one of several with the same time. So what a broker says is taken as a hint: the times stored around
it decide.

Source: getOffsetInQueueByTime, RocketMQ 4.9 and 5.3, for the responses of brokers.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from cometmq.client.filters import Filter
from cometmq.client.library import ClientConnection, Pull, PullResult
from cometmq.model.offsets import QueueOffset
from cometmq.model.queue import MessageQueue

READ_GROUP: Final = "TOOLS_CONSUMER"
"""A group that every broker knows; who reads on its behalf leaves no trace."""
PULL_S: Final = 10.0
HOLES_MAX: Final = 1_000
"""Answers without a message, one behind the other, after which a queue counts as empty there."""


class _Times:
    """The times at which a queue's messages were stored."""

    def __init__(self, connection: ClientConnection, address: str, queue: MessageQueue) -> None:
        self._connection = connection
        self._address = address
        self._queue = queue
        self._known: dict[int, int] = {}

    async def at(self, offset: int) -> int | None:
        """Give the time at an offset, or that of the next message; None behind the last one."""
        if offset not in self._known:
            await self._learn(offset)
        return self._known.get(offset)

    async def _learn(self, offset: int) -> None:
        place, position = offset, offset
        for _ in range(HOLES_MAX):
            found = await self._pull(position)
            for message in found.messages:
                while place <= message.queue_offset:
                    self._known[place] = message.store_time_ms
                    place += 1
            if found.messages or found.next_offset <= position:
                return
            position = found.next_offset

    async def _pull(self, offset: int) -> PullResult:
        pull = Pull(READ_GROUP, self._queue, Filter(), max_messages=2)
        return await self._connection.pull(self._address, pull, QueueOffset(offset), timeout=PULL_S)


async def first_at_or_after(
    connection: ClientConnection, address: str, queue: MessageQueue, time_ms: int
) -> int:
    """Give the offset of the first message stored at or after a time, the end if there is none.

    Raises:
        ResponseError: the broker refused.
        RemotingError: it did not answer.
    """
    low = await connection.min_offset(address, queue)
    high = await connection.max_offset(address, queue)
    hint = await connection.offset_at_time(address, queue, time_ms)
    times = _Times(connection, address, queue)

    async def early(offset: int) -> bool:
        time = await times.at(offset)
        return time is not None and time < time_ms

    return await _first_not(early, low, max(low, high), min(max(hint, low), max(low, high)))


async def _first_not(
    early: Callable[[int], Awaitable[bool]], low: int, high: int, hint: int
) -> int:
    """Give the first offset from ``low`` up to ``high`` that is not early, looking near ``hint``.

    The ones that are early come before all others.
    """
    step = 1
    if hint < high and await early(hint):
        low = hint + 1
        while low < high and await early(min(low + step, high) - 1):
            low = min(low + step, high)
            step *= 2
        high = min(low + step, high)
    else:
        high = hint
        while low < high and not await early(max(high - step, low)):
            high = max(high - step, low)
            step *= 2
        low = max(high - step, low)
    while low < high:
        middle = (low + high) // 2
        if await early(middle):
            low = middle + 1
        else:
            high = middle
    return low
