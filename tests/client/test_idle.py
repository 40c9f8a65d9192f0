"""A consumer without messages takes hardly any processor time and sends few requests."""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter

import pytest

from cometmq.client import AdminClient, ClientInstance, PushConsumer, StoredMessage
from cometmq.client.hooks import OutgoingCall
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.command import Command
from support.runner.tiers import rounds

pytestmark = pytest.mark.long_elsewhere

QUEUES = 64
SETTLE_S = 1.0
HOLD_MS = 3_000
WATCH_S = 4.0
"""One round of held pulls, and some more."""
RENEWED_S = 60.0
"""An offset that does not change is committed again every twelfth time, every minute by default."""
OTHERS = 10
"""Requests for routes, members and locks, and heartbeats, with one more a second."""


class Requests:
    """An RPC hook that counts the requests of each code."""

    def __init__(self) -> None:
        self.sent: Counter[int] = Counter()

    def before_request(self, address: str, call: OutgoingCall) -> None:
        self.sent[call.code] += 1

    def after_response(self, address: str, call: OutgoingCall, response: Command) -> None:
        """Nothing is looked at."""


async def test_an_idle_consumer_of_64_queues_has_one_held_pull_for_each_and_little_else(
    name_servers: str, group: str
) -> None:
    async with AdminClient(name_servers) as admin:
        topic = f"t-{uuid.uuid4().hex}"
        await admin.create_topic(topic, queues=QUEUES)

    async def handler(message: StoredMessage) -> None:
        raise AssertionError("there is no message")

    watch_s = rounds(test=1, long=8) * WATCH_S
    requests = Requests()
    async with (
        ClientInstance(name_servers, hooks=[requests]) as instance,
        PushConsumer(
            instance=instance,
            group=group,
            handler=handler,
            subscriptions={topic: "*"},
            hold_ms=HOLD_MS,
        ) as consumer,
    ):
        async with asyncio.timeout(120):
            while len([q for q in consumer.queues() if q.topic == topic]) < QUEUES:
                await asyncio.sleep(0.1)
        await asyncio.sleep(SETTLE_S)
        requests.sent.clear()
        began = asyncio.get_running_loop().time()
        await asyncio.sleep(watch_s)
        sent = requests.sent.copy()
        elapsed_s = asyncio.get_running_loop().time() - began

    rounds_of_holds = 2 + elapsed_s * 1000 / HOLD_MS
    queues = QUEUES + 1  # with that of the retry topic
    assert 0 < sent.pop(RequestCode.PULL_MESSAGE) <= queues * rounds_of_holds
    commits = queues * (1 + elapsed_s // RENEWED_S)
    assert sent.pop(RequestCode.UPDATE_CONSUMER_OFFSET, 0) <= commits
    assert sent.total() <= OTHERS + elapsed_s, sent
