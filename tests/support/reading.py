"""Reads what was stored, for tests of sending."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from cometmq.client import MessageQueue, PullConsumer, StartFrom, StoredMessage


async def read_all(
    name_servers: str, queues: Sequence[MessageQueue], count: int, *, within_s: float = 120.0
) -> list[StoredMessage]:
    """Read so many messages of these queues, from their beginning; fails when they do not come."""
    return await read_until(name_servers, queues, lambda got: len(got) >= count, within_s=within_s)


async def read_until(
    name_servers: str,
    queues: Sequence[MessageQueue],
    enough: Callable[[list[StoredMessage]], bool],
    *,
    within_s: float = 120.0,
) -> list[StoredMessage]:
    """Read messages of these queues, from their beginning, until there are enough."""
    got: list[StoredMessage] = []
    async with PullConsumer(name_servers, group="readers", start_from=StartFrom.FIRST) as consumer:
        await consumer.assign(queues)
        async with asyncio.timeout(within_s):
            while not enough(got):
                got += await consumer.poll(1.0)
    return got
