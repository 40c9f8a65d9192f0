"""Loads of NATS JetStream, by nats-py. The stream is named as the topic, with one subject."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from cometmq.cli.bench.meter import Beside, Consumed, Load, Meter, Pace, Work, body_of, until_over

FETCH_MAX = 256
FETCH_S = 0.5


@asynccontextmanager
async def _stream(servers: str, load: Load) -> AsyncIterator[Any]:
    """The stream of a load, which is created if there is none, and filled."""
    import nats

    connection = await nats.connect([f"nats://{each}" for each in servers.split(";")])
    try:
        stream = connection.jetstream(publish_async_max_pending=load.in_flight)
        await stream.add_stream(name=load.topic, subjects=[_subject(load)])
        for _ in range(load.fill):
            await stream.publish_async(_subject(load), body_of(load.size))
        await stream.publish_async_completed()
        yield stream
    finally:
        await connection.close()


def _subject(load: Load) -> str:
    return f"{load.topic}.all"


async def producer(servers: str, load: Load, meter: Meter) -> None:
    """Publishes; each message counts when it is acknowledged."""
    pace = Pace(load.rate)
    async with _stream(servers, load) as stream:

        async def send() -> None:
            began = await pace.begin()
            await stream.publish(_subject(load), body_of(load.size))
            meter.done(time.perf_counter() - began)

        await until_over(meter, send, load.in_flight)


async def consumer(servers: str, load: Load, meter: Meter) -> None:
    """Fetches what there is, or with a rate what comes, and acknowledges each message."""
    from nats.errors import TimeoutError as NoMessagesError
    from nats.js.api import ConsumerConfig, DeliverPolicy

    async with _stream(servers, load) as stream:
        policy = DeliverPolicy.NEW if load.rate else DeliverPolicy.ALL
        subscription = await stream.pull_subscribe(
            _subject(load), stream=load.topic, config=ConsumerConfig(deliver_policy=policy)
        )

        consumed = Consumed(load, meter)

        async def receive() -> None:
            try:
                messages = await subscription.fetch(FETCH_MAX, timeout=FETCH_S)
            except NoMessagesError:
                return
            for message in messages:
                await message.ack()
                consumed.add(message.data)

        async with asyncio.TaskGroup() as group:
            group.create_task(until_over(meter, receive, 1))
            if load.rate:
                group.create_task(producer(servers, load.without_fill(), Beside(meter)))


WORKS: Mapping[str, Work] = {work.__name__: work for work in (producer, consumer)}


async def version(servers: str) -> str:
    """Return the version of the server."""
    import nats

    connection = await nats.connect([f"nats://{each}" for each in servers.split(";")])
    try:
        return str(connection.connected_server_version).strip("<>")
    finally:
        await connection.close()
