"""Dead letters of a group: stored without waiting for retries, and read."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable

from cometmq.client import AdminClient, Message, PullConsumer, StoredMessage
from cometmq.client._sending.sender import InnerProducer
from cometmq.model import property_names as names
from cometmq.model.errors import CometError
from cometmq.model.topic import dlq_topic
from support.checks.waiting import WAIT_S, until


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


async def give_up(
    admin: AdminClient, group: str, topic: str | None, bodies: Iterable[bytes], **properties: str
) -> None:
    """Store a dead letter for each body; the dead-letter topic must exist."""
    origin = {} if topic is None else {names.RETRY_TOPIC: topic}
    own = {names.ORIGIN_MESSAGE_ID: "0A", **origin, **properties}
    before, bodies = await _count(admin, group), list(bodies)
    for body in bodies:
        letter = Message(dlq_topic(group), body, tags="red", keys=["k1"], properties=own)
        await InnerProducer.of(admin._instance).send(letter, timeout=10)

    async def are_there() -> bool:
        return await _count(admin, group) == before + len(bodies)

    await until(are_there, timeout=60)  # brokers show them a little later


async def _count(admin: AdminClient, group: str) -> int:
    [found] = await admin.dead_letter_counts([group])
    return found.letters
