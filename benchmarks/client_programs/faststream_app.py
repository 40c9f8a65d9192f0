"""A FastStream application on one system: it publishes, consumes or answers, and says how fast.

``python faststream_app.py SYSTEM ADDRESS LOAD COUNT`` prints a line of JSON. The load ``pipeline``
needs no server. Every handler is the same; subscribers acknowledge after their handler.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from typing import Any

from faststream._internal.endpoint.subscriber import SubscriberUsecase
from faststream.message import StreamMessage, decode_message
from faststream.middlewares import AckPolicy
from pydantic import BaseModel

TOPIC, GROUP = "measured", "measuring"
PUBLISHING = 64
"""Publishes that run at a time."""
WARM = 1_000
"""Messages that are not measured."""
WAIT_S = 120.0
PROPERTIES = {"content-type": "application/json", "correlation_id": "0" * 32}


class Order(BaseModel):
    """The payload: 100 bytes of JSON or a little more."""

    number: int
    customer: str = "c" * 40
    note: str = "n" * 30


class Counter:
    """The handler: counts, and notes when the messages after the first ones have come."""

    def __init__(self, count: int) -> None:
        self.seen = 0
        self.done = asyncio.Event()
        self.began = (0.0, 0.0)
        self._count = count

    async def __call__(self, order: Order) -> None:
        """Handle an order."""
        self.seen += 1
        if self.seen == min(WARM, self._count):
            self.began = time.monotonic(), time.process_time()
        if self.seen == self._count:
            self.done.set()

    def figures(self) -> dict[str, float]:
        """Rate and CPU of what came after the first messages."""
        count = self._count - WARM
        wall_s, cpu_s = time.monotonic() - self.began[0], time.process_time() - self.began[1]
        return {"per second": count / wall_s, "client us": cpu_s / count * 1e6}


class Clock:
    """The handler: notes how long after its publish each message comes."""

    def __init__(self, count: int) -> None:
        self.sent = [0.0] * count
        """When each was published, or was to be."""
        self.came = asyncio.Event()
        self.done = asyncio.Event()
        self._waits: dict[int, float] = {}

    async def __call__(self, order: Order) -> None:
        """Handle an order."""
        self._waits.setdefault(order.number, time.perf_counter() - self.sent[order.number])
        self.came.set()
        if len(self._waits) == len(self.sent):
            self.done.set()

    def figures(self) -> dict[str, float]:
        """Median and 99th percentile, without the first messages."""
        waits = sorted(self._waits[number] * 1e3 for number in range(WARM, len(self.sent)))
        return {"p50 ms": waits[len(waits) // 2], "p99 ms": waits[len(waits) * 99 // 100]}


Handler = Counter | Clock
Made = tuple[Any, Callable[..., Awaitable[object]]]
"""A broker, and how it publishes an order."""


def comet(address: str, handler: Handler | None, more: dict[str, Any]) -> Made:
    """Return ours, or RocketMQ."""
    from cometmq.faststream import RocketBroker

    broker = RocketBroker(address, logger=None, topic_queues=4)
    if handler is not None:
        broker.subscriber(TOPIC, group=GROUP, **more)(handler.__call__)
    return broker, lambda order: broker.publish(order, TOPIC)


def nats(address: str, handler: Handler | None, more: dict[str, Any]) -> Made:
    """Return NATS JetStream."""
    from faststream.nats import JStream, NatsBroker

    broker, stream = NatsBroker(f"nats://{address}", logger=None), JStream("measured")
    if handler is not None:
        broker.subscriber(
            TOPIC, stream=stream, durable=GROUP, deliver_policy="all", pending_msgs_limit=65_536,
            ack_policy=AckPolicy.NACK_ON_ERROR, **more,
        )(handler.__call__)  # fmt: skip
    return broker, lambda order: broker.publish(order, TOPIC, stream="measured", timeout=30.0)


def kafka(address: str, handler: Handler | None, more: dict[str, Any]) -> Made:
    """Return Kafka."""
    from faststream.kafka import KafkaBroker

    broker = KafkaBroker(address, logger=None, acks="all")
    if handler is not None:
        options = {"ack_policy": AckPolicy.NACK_ON_ERROR, **more}
        broker.subscriber(TOPIC, group_id=GROUP, auto_offset_reset="earliest", **options)(
            handler.__call__
        )
    return broker, lambda order: broker.publish(order, TOPIC)


SYSTEMS: dict[str, Callable[..., Made]] = {
    "cometmq": comet,
    "rocketmq-5.3.3": comet,
    "nats": nats,
    "kafka": kafka,
}


FASTEST = {"kafka": {"ack_policy": AckPolicy.ACK_FIRST}}
"""For latencies Kafka commits on its own, before the handler: a commit for each message takes 7 ms.
"""


async def publish(make: Callable[..., Made], address: str, count: int) -> dict[str, float]:
    """Publish, some at a time; each waits for its acknowledgement."""
    broker, send = make(address, None, {})
    async with broker:
        numbers = iter(range(count + WARM))

        async def publish_some(last: int) -> None:
            for number in numbers:
                await send(Order(number=number))
                if number >= last:
                    return

        async def publish_all(last: int) -> None:
            async with asyncio.TaskGroup() as group:
                for _ in range(PUBLISHING):
                    group.create_task(publish_some(last))

        await publish_all(WARM - PUBLISHING)
        began = time.monotonic(), time.process_time()
        await publish_all(count + WARM)
        wall_s, cpu_s = time.monotonic() - began[0], time.process_time() - began[1]
    return {"per second": count / wall_s, "client us": cpu_s / count * 1e6}


async def consume(
    make: Callable[..., Made], address: str, count: int, more: dict[str, Any]
) -> dict[str, float]:
    """Consume what was published before."""
    handler = Counter(count)
    broker, _ = make(address, handler, more)
    async with broker:
        await broker.start()
        await asyncio.wait_for(handler.done.wait(), WAIT_S)
        return handler.figures()


async def latency(make: Callable[..., Made], address: str, count: int) -> dict[str, float]:
    """Publish one message after the other, each when the handler has the one before."""
    clock = Clock(count)
    broker, send = make(address, clock, FASTEST.get(make.__name__, {}))
    async with broker:
        await broker.start()
        for number in range(count):
            clock.came.clear()
            clock.sent[number] = time.perf_counter()
            await send(Order(number=number))
            await asyncio.wait_for(clock.came.wait(), WAIT_S)
    return clock.figures()


async def steady(
    make: Callable[..., Made], address: str, count: int, per_second: int
) -> dict[str, float]:
    """Publish at a rate, whatever the answers take, as the users of a web application do."""
    clock = Clock(count)
    broker, send = make(address, clock, FASTEST.get(make.__name__, {}))
    async with broker:
        await broker.start()
        await send(Order(number=0))  # a group that is new has its place now
        began = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for number in range(1, count):
                due = began + number / per_second
                await asyncio.sleep(max(0.0, due - time.perf_counter()))
                clock.sent[number] = time.perf_counter()
                group.create_task(send(Order(number=number)))
        await asyncio.wait_for(clock.done.wait(), WAIT_S)
    return clock.figures()


async def pipeline(kind: str, count: int) -> dict[str, float]:
    """Give messages that are in memory to a subscriber, without a server."""
    handler = Counter(count)
    body = Order(number=1).model_dump_json().encode()
    sub, consume_one = (own_pipeline if kind == "cometmq" else floor)(handler, body)
    await SubscriberUsecase.start(sub)
    if kind == "cometmq":  # as when it starts with a server
        sub._names, sub.lock = {"topic": sub.topic, "group": sub.group}, nullcontext()
    sub._post_start()
    for _ in range(count):
        await consume_one()
    return handler.figures()


def own_pipeline(handler: Counter, body: bytes) -> tuple[Any, Callable[[], Awaitable[object]]]:
    """Return ours, from the message that a push consumer hands over to its end."""
    from cometmq.client import Message, StoredMessage
    from cometmq.faststream import RocketBroker

    broker = RocketBroker(logger=None)
    broker._setup_logger()
    sub: Any = broker.subscriber(TOPIC)
    sub(handler.__call__)
    raw = StoredMessage.of(Message(topic=TOPIC, body=body, properties=PROPERTIES))
    return sub, lambda: sub._on_message(raw)


def floor(handler: Counter, body: bytes) -> tuple[Any, Callable[[], Awaitable[object]]]:
    """Return FastStream's own: its acknowledging pipeline with a parser that only fills in."""
    from faststream.nats import JStream, NatsBroker

    async def parse(raw: object) -> StreamMessage[Any]:
        return StreamMessage(
            raw_message=raw,
            body=body,
            headers=PROPERTIES,
            content_type=PROPERTIES["content-type"],
            correlation_id=PROPERTIES["correlation_id"],
            message_id="0" * 32,
        )

    async def decode(message: StreamMessage[Any]) -> Any:
        return decode_message(message)

    broker = NatsBroker(logger=None)
    broker._setup_logger()
    stream, policy = JStream("measured"), AckPolicy.NACK_ON_ERROR
    sub: Any = broker.subscriber(
        TOPIC, stream=stream, ack_policy=policy, parser=parse, decoder=decode
    )
    sub(handler.__call__)
    raw = object()
    return sub, lambda: sub.consume(raw)


def main() -> None:
    """Run one load."""
    system, address, load, count = *sys.argv[1:4], int(sys.argv[4])
    if load == "pipeline":
        work = pipeline(system, count)
    elif load == "publish":
        work = publish(SYSTEMS[system], address, count)
    elif load == "latency":
        work = latency(SYSTEMS[system], address, count)
    elif load.startswith("steady:"):
        work = steady(SYSTEMS[system], address, count, int(load.partition(":")[2]))
    else:
        more = json.loads(load.partition(":")[2] or "{}")
        if "ack_policy" in more:
            more["ack_policy"] = AckPolicy[more["ack_policy"]]
        work = consume(SYSTEMS[system], address, count, more)
    print(json.dumps(asyncio.run(work)))


if __name__ == "__main__":
    main()
