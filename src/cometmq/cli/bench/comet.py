"""Loads of CometMQ and RocketMQ, by the public client."""

from __future__ import annotations

import asyncio
import random
import time
import uuid
from collections.abc import Mapping

import msgspec

from cometmq.cli.bench.meter import (
    Beside,
    Consumed,
    Load,
    Meter,
    Pace,
    Work,
    age_s,
    body_of,
    until_over,
)
from cometmq.client import (
    AdminClient,
    LocalState,
    Message,
    Producer,
    PushConsumer,
    SimpleConsumer,
    StartFrom,
    StoredMessage,
    TransactionProducer,
)
from cometmq.model.errors import ConfigError

GROUP = "cometmq-bench"
INVISIBLE_S = 60.0
RECEIVE_MAX = 32


def _sender(servers: str) -> Producer:
    return Producer(servers, group=f"{GROUP}-senders")


async def _prepare(servers: str, load: Load) -> None:
    """Create the topic if there is none, and fill it."""
    async with AdminClient(servers) as admin:
        if load.topic not in await admin.topics():
            await admin.create_topic(load.topic, queues=load.queues)
    if load.fill:
        async with _sender(servers) as producer:
            for _ in range(load.fill):
                await producer.send_soon(Message(load.topic, body_of(load.size)))
            await producer.flush()


async def producer(servers: str, load: Load, meter: Meter) -> None:
    """Sends; each counts when it is acknowledged."""
    await _prepare(servers, load)
    pace = Pace(load.rate)
    async with _sender(servers) as client:

        async def send() -> None:
            began = await pace.begin()
            await client.send(Message(load.topic, body_of(load.size)))
            meter.done(time.perf_counter() - began)

        await until_over(meter, send, load.in_flight)


async def batch(servers: str, load: Load, meter: Meter) -> None:
    """Batches; each message counts when its batch is acknowledged."""
    await _prepare(servers, load)
    pace = Pace(load.rate / load.batch)
    async with _sender(servers) as client:

        async def send() -> None:
            began = await pace.begin()
            messages = [Message(load.topic, body_of(load.size)) for _ in range(load.batch)]
            await client.send_batch(messages)
            meter.done(time.perf_counter() - began, load.batch)

        await until_over(meter, send, load.in_flight)


def _start(load: Load) -> StartFrom:
    return StartFrom.LAST if load.rate else StartFrom.FIRST


async def _send_beside(servers: str, load: Load, meter: Meter) -> None:
    """Send at the rate of the load while it consumes; without a rate there is a backlog."""
    if load.rate:
        await producer(servers, load.without_fill(), Beside(meter))
    else:
        await meter.over.wait()


async def consumer(servers: str, load: Load, meter: Meter) -> None:
    """Consumes what there is, or with a rate what comes; a duration is the age of a message."""
    await _prepare(servers, load)

    consumed = Consumed(load, meter)

    async def handle(message: StoredMessage) -> None:
        consumed.add(message.body)

    async with PushConsumer(
        servers, group=f"{GROUP}-{uuid.uuid4().hex}", subscriptions={load.topic: "*"},
        start_from=_start(load), handler=handle,
    ) as client:  # fmt: skip
        if load.rate:
            await client.skip_backlog()
        await _send_beside(servers, load, meter)


async def pop(servers: str, load: Load, meter: Meter) -> None:
    """Receives by pop, and acknowledges; a message counts when it is acknowledged.

    A new group begins with the backlog of a young topic. With a rate, the topic is a new one.
    """
    own = msgspec.structs.replace(load, topic=f"{load.topic}-{uuid.uuid4().hex[:8]}")
    if not load.rate:
        await _pop(servers, load, meter)
        return
    try:
        await _pop(servers, own, meter)
    finally:
        async with AdminClient(servers) as admin:
            await admin.delete_topic(own.topic)


async def _pop(servers: str, load: Load, meter: Meter) -> None:
    await _prepare(servers, load)
    consumed = Consumed(load, meter)
    async with SimpleConsumer(
        servers, group=f"{GROUP}-{uuid.uuid4().hex}", subscriptions={load.topic: "*"},
        start_from=_start(load),
    ) as client:  # fmt: skip

        async def receive() -> None:
            messages = await client.receive(RECEIVE_MAX, invisible=INVISIBLE_S, wait=1.0)
            if messages:
                await client.ack(*messages)
            for message in messages:
                consumed.add(message.body)

        async with asyncio.TaskGroup() as group:
            group.create_task(_send_beside(servers, load, meter))
            group.create_task(until_over(meter, receive, load.in_flight))


async def delay(servers: str, load: Load, meter: Meter) -> None:
    """Sends timer messages and consumes them; a duration is how late one is delivered."""
    if not load.rate:
        raise ConfigError("a load of delayed messages needs --rate: expected messages a second")
    await _prepare(servers, load)

    async def handle(message: StoredMessage) -> None:
        meter.done(max(age_s(message.body) - load.delay_s, 0.0))

    pace = Pace(load.rate)
    group = f"{GROUP}-{uuid.uuid4().hex}"
    async with (
        _sender(servers) as client,
        PushConsumer(
            servers, group=group, subscriptions={load.topic: "*"}, handler=handle,
            start_from=StartFrom.LAST,
        ),
    ):  # fmt: skip

        async def send() -> None:
            await pace.begin()
            await client.send(Message(load.topic, body_of(load.size), delay=load.delay_s))

        await until_over(meter, send, load.in_flight)


class _Transactions:
    """Decides the transactions of a load."""

    def __init__(self, load: Load) -> None:
        self._rollback = load.rollback

    async def execute(self, message: Message, argument: object) -> LocalState:
        """Commit, or roll a part of them back."""
        return LocalState.ROLLBACK if random.random() < self._rollback else LocalState.COMMIT

    async def check(self, message: StoredMessage) -> LocalState:
        """Commit what the broker asks for."""
        return LocalState.COMMIT


async def transaction(servers: str, load: Load, meter: Meter) -> None:
    """Sends messages in transactions; each counts when its transaction has ended."""
    await _prepare(servers, load)
    pace = Pace(load.rate)
    async with TransactionProducer(
        servers, group=f"{GROUP}-transactions", listener=_Transactions(load)
    ) as client:

        async def send() -> None:
            began = await pace.begin()
            await client.send_in_transaction(Message(load.topic, body_of(load.size)), None)
            meter.done(time.perf_counter() - began)

        await until_over(meter, send, load.in_flight)


WORKS: Mapping[str, Work] = {
    work.__name__: work for work in (producer, consumer, batch, delay, transaction, pop)
}


async def version(servers: str) -> str:
    """Return the versions of the brokers."""
    async with AdminClient(servers) as admin:
        brokers = (await admin.cluster_info()).registered()
        found = await admin.broker_runtime_info(brokers[0].address) if brokers else {}
    return found.get("brokerVersionDesc", "unknown")
