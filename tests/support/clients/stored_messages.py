"""Reads stored messages, and waits until they can be read."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from cometmq.client import AdminClient, MessageQueue, PullConsumer, StartFrom, StoredMessage

WAIT_S = 120.0


async def read_all(
    name_servers: str, queues: Sequence[MessageQueue], count: int, *, within_s: float = WAIT_S
) -> list[StoredMessage]:
    """Read so many messages of these queues, from their beginning; fails when they do not come."""
    return await read_until(name_servers, queues, lambda got: len(got) >= count, within_s=within_s)


async def read_until(
    name_servers: str,
    queues: Sequence[MessageQueue],
    enough: Callable[[list[StoredMessage]], bool],
    *,
    within_s: float = WAIT_S,
) -> list[StoredMessage]:
    """Read messages of these queues, from their beginning, until there are enough."""
    got: list[StoredMessage] = []
    async with PullConsumer(name_servers, group="readers", start_from=StartFrom.FIRST) as consumer:
        await consumer.assign(queues)
        async with asyncio.timeout(within_s):
            while not enough(got):
                got += await consumer.poll(1.0)
    return got


async def until_queued(admin: AdminClient, topic: str, count: int) -> None:
    """Wait until the queues of a topic hold so many messages.

    RocketMQ appends to a queue after it acknowledged the send. Until then the queue looks empty,
    to pulls and to requests for its offsets.
    """
    async with asyncio.timeout(WAIT_S):
        while sum(ends.max_offset for ends in (await admin.queue_bounds(topic)).values()) < count:
            await asyncio.sleep(0.05)
