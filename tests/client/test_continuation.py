"""The offset at which consumers continue: other members, a new queue, a topic created again."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from cometmq.client import (
    AdminClient,
    ClientInstance,
    Message,
    MessageQueue,
    Producer,
    PullConsumer,
    PushConsumer,
)
from cometmq.client.offsets import RemoteOffsetStore
from cometmq.model.offsets import QueueOffset
from support.checks.waiting import until
from support.clients.consumer_inputs import from_the_first
from support.clients.recording_handlers import Seen

SOON: dict[str, Any] = {"rebalance_ms": 1_000, "route_refresh_ms": 1_000, "hold_ms": 1_000}

pytestmark = pytest.mark.long_elsewhere


async def send(
    producer: Producer, topic: str, count: int, start: int = 0, *, queue: MessageQueue | None = None
) -> list[bytes]:
    bodies = [b"%d" % number for number in range(start, start + count)]
    await asyncio.gather(*(producer.send(Message(topic, body), queue=queue) for body in bodies))
    return bodies


async def started(consumer: PushConsumer | PullConsumer) -> None:
    """Wait until a consumer has its queues, unless its topic does not exist."""
    with suppress(TimeoutError):
        await consumer.ready(timeout=2.0)


async def commit(name_servers: str, group: str, queue: MessageQueue, offset: int) -> None:
    async with ClientInstance(name_servers) as instance:
        store = RemoteOffsetStore(instance, group)
        store.update(queue, QueueOffset(offset))
        assert await store.persist([queue]) == {}


@asynccontextmanager
async def pushing(name_servers: str, seen: Seen, **options: Any) -> AsyncIterator[None]:
    async with PushConsumer(name_servers, handler=seen, **SOON, **options) as consumer:
        await started(consumer)
        yield


@asynccontextmanager
async def pulling(name_servers: str, seen: Seen, **options: Any) -> AsyncIterator[None]:
    async def read() -> None:
        async for message in consumer:
            seen.add(message)

    async with PullConsumer(name_servers, **SOON, **options) as consumer:
        reading = asyncio.create_task(read())
        await started(consumer)
        yield
    await reading


Consumer = Callable[..., AbstractAsyncContextManager[None]]
both = pytest.mark.parametrize("consuming", [pushing, pulling])


async def test_members_with_short_heartbeats_consume_after_each_rebalance(
    name_servers: str, producer: Producer, topic: str, group: str
) -> None:
    """Each rebalance announces new versions, and a broker refuses pulls of those it lacks."""
    seen, settings = Seen(), {"heartbeat_v2": True, **SOON, **from_the_first(group, topic)}
    async with PushConsumer(name_servers, handler=seen, **settings) as one:
        await one.ready()
        bodies = await send(producer, topic, 20)
        await seen.count(20)
        async with PushConsumer(name_servers, handler=seen, instance_name="two", **settings) as two:
            await until(lambda: len(one.queues()) == len(two.queues()) == 2)
            bodies += await send(producer, topic, 20, 20)
            await seen.until(lambda: set(seen.bodies) == set(bodies))
        bodies += await send(producer, topic, 20, 40)
        await seen.until(lambda: set(seen.bodies) == set(bodies))


@both
async def test_a_broadcast_reaches_members_that_do_not_know_its_topic_yet(
    name_servers: str, producer: Producer, group: str, tmp_path: Path, consuming: Consumer
) -> None:
    topic, seen = f"late-{uuid.uuid4().hex}", Seen()
    options = {"group": group, "subscriptions": {topic: "*"}, "broadcast": True}
    async with (
        AdminClient(name_servers) as admin,
        consuming(name_servers, seen, offset_folder=str(tmp_path), **options),
    ):
        await admin.create_topic(topic, queues=4)
        bodies = await send(producer, topic, 12)
        await seen.count(12)
    assert sorted(seen.bodies) == sorted(bodies)


@both
async def test_a_broadcast_reaches_members_that_do_not_know_its_queue_yet(
    name_servers: str, topic: str, group: str, tmp_path: Path, consuming: Consumer
) -> None:
    seen = Seen()
    options = {"group": group, "subscriptions": {topic: "*"}, "broadcast": True}
    async with (
        AdminClient(name_servers) as admin,
        consuming(name_servers, seen, offset_folder=str(tmp_path), **options),
    ):
        queues = await admin.create_topic(topic, queues=6)
        async with Producer(name_servers, group="p") as producer:
            bodies = await send(producer, topic, 4, queue=queues[5])
        await seen.count(4)
    assert sorted(seen.bodies) == sorted(bodies)


@both
@pytest.mark.parametrize("count", [3, 30], ids=["fewer", "more"])
async def test_a_topic_that_is_made_again_is_consumed_from_its_first_message(
    name_servers: str,
    producer: Producer,
    group: str,
    consuming: Consumer,
    count: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Whether it then has fewer messages than the former topic had, or more."""
    topic, seen = f"again-{uuid.uuid4().hex}", Seen()
    async with AdminClient(name_servers) as admin:
        queues = await admin.create_topic(topic, queues=1)
        async with consuming(name_servers, seen, **from_the_first(group, topic)):
            await send(producer, topic, 10)
            await seen.count(10)
            await admin.delete_topic(topic)
            await until(lambda: "pull failed" in caplog.text)
            await admin.create_topic(topic, queues=1)
            bodies = await send(producer, topic, count, 100, queue=queues[0])
            await seen.until(lambda: set(seen.bodies) >= set(bodies))
    assert sorted(seen.bodies[10:]) == sorted(bodies)


@both
async def test_a_topic_that_was_made_again_meanwhile_is_consumed_if_it_has_fewer_messages(
    name_servers: str, producer: Producer, group: str, consuming: Consumer
) -> None:
    """RocketMQ 4.9 keeps the committed offset of a deleted topic; the others get it here."""
    topic, seen = f"again-{uuid.uuid4().hex}", Seen()
    async with AdminClient(name_servers) as admin:
        queues = await admin.create_topic(topic, queues=1)
        async with consuming(name_servers, seen, **from_the_first(group, topic)):
            await send(producer, topic, 10)
            await seen.count(10)
        await admin.delete_topic(topic)
        await admin.create_topic(topic, queues=1)
        await commit(name_servers, group, queues[0], 10)
        bodies = await send(producer, topic, 3, 100, queue=queues[0])
        async with consuming(name_servers, seen, **from_the_first(group, topic)):
            await seen.until(lambda: set(seen.bodies) >= set(bodies))
