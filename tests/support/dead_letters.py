"""Reads what a group gave up."""

from __future__ import annotations

import asyncio
import contextlib

from cometmq.client import PullConsumer, StoredMessage
from cometmq.model.errors import CometError
from cometmq.model.topic import dlq_topic
from support.seen import WAIT_S


async def dead_letters(name_servers: str, group: str) -> list[StoredMessage]:
    """Read a group's dead letters once there are any."""
    found: list[StoredMessage] = []
    async with PullConsumer(name_servers, group="undertakers") as reader, asyncio.timeout(WAIT_S):
        while not found:
            await asyncio.sleep(0.1)
            with contextlib.suppress(CometError):
                [queue] = await reader.fetch_queues(dlq_topic(group))
                found = (await reader.pull(queue, 0)).messages
    return found
