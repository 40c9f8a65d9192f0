"""Memory stays flat however many messages pass through a consumer."""

from __future__ import annotations

import asyncio
import gc
import os
import weakref
from pathlib import Path

import pytest

from cometmq.client import (
    ClientInstance,
    Message,
    MessageQueue,
    Producer,
    PullConsumer,
    PushConsumer,
    StoredMessage,
)
from support.clients.consumer_inputs import from_the_first
from support.clients.stream import KINDS, consuming
from support.runner.tiers import rounds

pytestmark = pytest.mark.long_elsewhere

BACKLOG = rounds(test=1_000, long=20_000)
BODY = bytes(1024)
BATCH = 50
FLAT_BYTES = 4 * 1024 * 1024
"""Less than half of what ten times the smallest backlog would take up."""
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def resident_bytes() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_BYTES


@pytest.mark.parametrize("kind", KINDS)
async def test_memory_is_flat_over_ten_times_the_backlog(
    instance: ClientInstance,
    name_servers: str,
    queues: list[MessageQueue],
    group: str,
    kind: str,
) -> None:
    """The first backlog warms up: what is needed once is there then."""
    count = 0
    figures: list[int] = []
    moved = asyncio.Event()

    async def handler(message: StoredMessage) -> None:
        nonlocal count
        count += len(message.body) // len(BODY)
        if count in (BACKLOG, 11 * BACKLOG):
            figures.append(resident_bytes())
        moved.set()

    async with Producer(instance=instance, group=f"{group}-p") as producer:
        for number in range(11 * BACKLOG // BATCH):
            batch = [Message(topic=queues[0].topic, body=BODY) for _ in range(BATCH)]
            await producer.send_batch(batch, queue=queues[number % len(queues)])
    async with (
        asyncio.timeout(rounds(test=120, long=600)),
        consuming(name_servers, queues[0].topic, group, kind, handler),
    ):
        while count < 11 * BACKLOG:
            moved.clear()
            await moved.wait()

    assert count == 11 * BACKLOG
    assert figures[1] - figures[0] < FLAT_BYTES


async def test_a_producer_keeps_nothing_of_what_it_sent(
    instance: ClientInstance, queues: list[MessageQueue], group: str
) -> None:
    async with Producer(instance=instance, group=f"{group}-p") as producer:

        async def send(count: int) -> None:
            for _ in range(count // BATCH):
                message = Message(topic=queues[0].topic, body=BODY)
                await asyncio.gather(*(producer.send_nowait(message) for _ in range(BATCH)))

        await send(BACKLOG)
        before = resident_bytes()
        await send(10 * BACKLOG)

        assert resident_bytes() - before < FLAT_BYTES


async def ignore(message: StoredMessage) -> None:
    """Handle a message."""


@pytest.mark.parametrize("shares", [False, True], ids=["own instance", "shared instance"])
@pytest.mark.parametrize("kind", [Producer, PushConsumer, PullConsumer])
async def test_what_was_left_is_freed_in_a_task_that_goes_on(
    kind: type[Producer | PushConsumer | PullConsumer],
    shares: bool,
    name_servers: str,
    instance: ClientInstance,
    producer: Producer,
    topic: str,
    group: str,
) -> None:
    await producer.send(topic, b"x")
    where = {"instance": instance} if shares else {"name_servers": name_servers}

    async def used() -> weakref.ref[object]:
        """Use one, and leave it without a commit."""
        if kind is Producer:
            async with Producer(group=group, **where) as sender:
                await sender.send(topic, b"y")
                return weakref.ref(sender)
        options = {**from_the_first(group, topic), **where}
        if kind is PushConsumer:
            async with PushConsumer(handler=ignore, **options) as pushed:
                await pushed.ready()
                return weakref.ref(pushed)
        async with PullConsumer(auto_commit_ms=0, **options) as pulled:
            await anext(pulled)
            return weakref.ref(pulled)

    left = await used()
    await asyncio.sleep(0)  # the tasks of the close end
    gc.collect()
    assert left() is None
