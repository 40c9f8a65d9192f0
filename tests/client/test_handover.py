"""Queues that pass from one living member to another: which messages are handled twice."""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from cometmq.client import (
    AdminClient,
    Message,
    Producer,
    PullConsumer,
    PushConsumer,
    StartFrom,
    StoredMessage,
)
from support.checks.waiting import until

TOPICS, QUEUES = 20, 4
PAUSE_S = 0.05
"""The pause of the sender after each message of every topic."""


class Calls:
    """The handler calls of all members of a group, by message."""

    def __init__(self) -> None:
        self.of: dict[tuple[str, int, int], list[list[float]]] = defaultdict(list)
        self.count = 0

    def begin(self, message: StoredMessage) -> list[float]:
        call = [asyncio.get_running_loop().time()]
        self.of[message.topic, message.queue_id, message.queue_offset].append(call)
        self.count += 1
        return call

    async def __call__(self, message: StoredMessage) -> None:
        """Handle a message."""
        call = self.begin(message)
        await asyncio.sleep(0.001)
        call.append(asyncio.get_running_loop().time())

    def repeated(self) -> list[tuple[str, int, int]]:
        """Messages whose handling began again after it had ended."""
        return [
            place
            for place, calls in self.of.items()
            if any(len(one) > 1 and one[1] <= two[0] for one, two in itertools.pairwise(calls))
        ]


Member = Callable[..., Any]


@asynccontextmanager
async def pushing(name_servers: str, calls: Calls, **options: Any) -> AsyncIterator[PushConsumer]:
    async with PushConsumer(name_servers, handler=calls, **options) as consumer:
        yield consumer


@asynccontextmanager
async def pulling(name_servers: str, calls: Calls, **options: Any) -> AsyncIterator[PullConsumer]:
    leaving = asyncio.Event()

    async def read() -> None:
        while not leaving.is_set():
            for message in await consumer.poll(0.05):
                await calls(message)
        await consumer.commit()

    async with PullConsumer(name_servers, **options) as consumer:
        reading = asyncio.create_task(read())
        yield consumer
        leaving.set()
        await reading


@pytest.mark.long_elsewhere
@pytest.mark.parametrize("member", [pushing, pulling])
async def test_a_rolling_restart_repeats_no_message_whose_handler_has_ended(
    name_servers: str, producer: Producer, group: str, member: Member
) -> None:
    topics = [f"roll-{uuid.uuid4().hex}-{number}" for number in range(TOPICS)]
    calls, sent, stopping = Calls(), 0, asyncio.Event()

    async def load() -> None:
        nonlocal sent
        while not stopping.is_set():
            await asyncio.gather(*(producer.send(Message(topic, b"x")) for topic in topics))
            sent += len(topics)
            await asyncio.sleep(PAUSE_S)

    def one(name: str) -> Any:
        return member(
            name_servers,
            calls,
            group=group,
            subscriptions=dict.fromkeys(topics, "*"),
            start_from=StartFrom.FIRST,
            instance_name=name,
        )

    def are_shared(*members: Any) -> Callable[[], bool]:
        return lambda: all(len(each.queues()) == TOPICS * QUEUES // 2 for each in members)

    async with AdminClient(name_servers) as admin:
        for topic in topics:
            await admin.create_topic(topic, queues=QUEUES)
    sending = asyncio.create_task(load())
    async with one("stays") as stays:
        async with one("leaves") as leaves:
            await until(are_shared(stays, leaves))
            seen = calls.count
            await until(lambda: calls.count > seen + 100)
        async with one("joins") as joins:
            await until(are_shared(stays, joins))
            seen = calls.count
            await until(lambda: calls.count > seen + 100)
            stopping.set()
            await sending
            await until(lambda: len(calls.of) == sent)
    assert calls.repeated() == []
