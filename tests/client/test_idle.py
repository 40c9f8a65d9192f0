"""A consumer that has nothing to do does next to nothing."""

from __future__ import annotations

import asyncio
import time
import uuid

import pytest

from cometmq.client import AdminClient, PushConsumer, StoredMessage
from support.tiers import rounds

pytestmark = pytest.mark.long_elsewhere

QUEUES = 64
SETTLE_S = 1.0
HOLD_MS = 8_000
"""About half of what consumers ask for unless told otherwise: twice the work."""
WATCH_S = 9.0
"""One round of held pulls, and some more."""
CORE_PERCENT_MAX = 1.0


async def test_an_idle_consumer_of_64_queues_takes_at_most_one_percent_of_a_core(
    name_servers: str, group: str
) -> None:
    async with AdminClient(name_servers) as admin:
        topic = f"t-{uuid.uuid4().hex}"
        await admin.create_topic(topic, queues=QUEUES)

    async def handler(message: StoredMessage) -> None:
        raise AssertionError("there is no message")

    watch_s = rounds(test=1, long=8) * WATCH_S
    async with PushConsumer(
        name_servers,
        group=group,
        handler=handler,
        subscriptions={topic: "*"},
        hold_ms=HOLD_MS,
    ) as consumer:
        async with asyncio.timeout(20):
            while len([q for q in consumer.queues() if q.topic == topic]) < QUEUES:
                await asyncio.sleep(0.1)
        await asyncio.sleep(SETTLE_S)
        before = time.process_time()
        await asyncio.sleep(watch_s)
        used = time.process_time() - before

    assert 100 * used / watch_s <= CORE_PERCENT_MAX
