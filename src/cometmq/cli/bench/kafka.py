"""Loads of Kafka, by aiokafka."""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from cometmq.cli.bench.meter import Beside, Consumed, Load, Meter, Pace, Work, body_of, until_over

FETCH_MS = 500


async def _prepare(servers: str, load: Load) -> None:
    """Create the topic if there is none, and fill it."""
    from aiokafka.admin import AIOKafkaAdminClient, NewTopic
    from aiokafka.errors import TopicAlreadyExistsError

    admin = AIOKafkaAdminClient(bootstrap_servers=servers)
    await admin.start()
    try:
        with contextlib.suppress(TopicAlreadyExistsError):
            await admin.create_topics([NewTopic(load.topic, load.queues, 1)])
    finally:
        await admin.close()
    if load.fill:
        async with _client(servers) as client:
            for _ in range(load.fill):
                await client.send(load.topic, body_of(load.size))
            await client.flush()


@asynccontextmanager
async def _client(servers: str, **options: Any) -> AsyncIterator[Any]:
    from aiokafka import AIOKafkaProducer

    client = AIOKafkaProducer(bootstrap_servers=servers, acks="all", **options)
    await client.start()
    try:
        yield client
    finally:
        await client.stop()


async def producer(servers: str, load: Load, meter: Meter) -> None:
    """Sends; each counts when it is acknowledged."""
    await _prepare(servers, load)
    pace = Pace(load.rate)
    async with _client(servers) as client:

        async def send() -> None:
            began = await pace.begin()
            await client.send_and_wait(load.topic, body_of(load.size))
            meter.done(time.perf_counter() - began)

        await until_over(meter, send, load.in_flight)


async def batch(servers: str, load: Load, meter: Meter) -> None:
    """Batches; each message counts when its batch is acknowledged."""
    await _prepare(servers, load)
    pace = Pace(load.rate / load.batch)
    async with _client(
        servers, max_batch_size=max(load.batch * (load.size + 128), 16_384)
    ) as client:
        partitions = sorted(await client.partitions_for(load.topic))
        turn = 0

        async def send() -> None:
            nonlocal turn
            began = await pace.begin()
            made = client.create_batch()
            for _ in range(load.batch):
                made.append(value=body_of(load.size), timestamp=None, key=None)
            made.close()
            turn += 1
            partition = partitions[turn % len(partitions)]
            await (await client.send_batch(made, load.topic, partition=partition))
            meter.done(time.perf_counter() - began, load.batch)

        await until_over(meter, send, load.in_flight)


async def consumer(servers: str, load: Load, meter: Meter) -> None:
    """Consumes what there is, or with a rate what comes; a duration is the age of a message."""
    from aiokafka import AIOKafkaConsumer

    await _prepare(servers, load)
    client = AIOKafkaConsumer(
        load.topic, bootstrap_servers=servers, group_id=f"cometmq-bench-{uuid.uuid4().hex}",
        auto_offset_reset="latest" if load.rate else "earliest",
    )  # fmt: skip
    await client.start()

    consumed = Consumed(load, meter)

    async def receive() -> None:
        for messages in (await client.getmany(timeout_ms=FETCH_MS)).values():
            for message in messages:
                consumed.add(message.value)

    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(until_over(meter, receive, 1))
            if load.rate:
                group.create_task(producer(servers, load.without_fill(), Beside(meter)))
    finally:
        await client.stop()


async def transaction(servers: str, load: Load, meter: Meter) -> None:
    """Sends messages in transactions, one at a time, as a producer of Kafka has them."""
    await _prepare(servers, load)
    pace = Pace(load.rate)
    async with _client(servers, transactional_id=f"cometmq-bench-{uuid.uuid4().hex}") as client:

        async def send() -> None:
            began = await pace.begin()
            async with client.transaction():
                await client.send_and_wait(load.topic, body_of(load.size))
            meter.done(time.perf_counter() - began)

        await until_over(meter, send, 1)


WORKS: Mapping[str, Work] = {
    work.__name__: work for work in (producer, consumer, batch, transaction)
}


async def version(servers: str) -> str:
    """Return the version of the client: Kafka's brokers do not tell theirs."""
    import aiokafka

    return f"aiokafka {aiokafka.__version__}"
