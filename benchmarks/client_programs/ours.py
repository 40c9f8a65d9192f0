"""Our client under load, for ../client.py: prints one line of JSON with what it did.

Arguments: the name server, the work (a key of ``WORKS``), the topic, seconds, how many sends are in
flight, the event loop (uvloop or asyncio), and seconds of warm-up.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from meter import Meter

from cometmq.client import (
    ConsumeContext,
    Message,
    Producer,
    PushConsumer,
    SendReceipt,
    StartFrom,
    StoredMessage,
)
from cometmq.protocol.lazy_record import decode_lazily
from cometmq.protocol.record import encode_record

sys.path.append(str(Path(__file__).resolve().parent.parent))

from machine import anonymous_mib
from timing import measure

BODY = b"x" * 128
BATCH_MAX = 32
MANY = 1000
START_S_MAX = 300.0
SETTLE_S = 10.0


@dataclass(frozen=True)
class Task:
    """What the arguments ask for."""

    name_servers: str
    topic: str
    seconds: float
    window: int
    warm_s: float

    def meter(self) -> Meter:
        """What counts the messages."""
        return Meter(self.seconds, self.warm_s)

    def producer(self) -> Producer:
        """A producer at its defaults."""
        return Producer(self.name_servers, group="bench-senders")

    def consumer(self, **handler: Any) -> PushConsumer:
        """A consumer in a group of its own, from the first message on."""
        return PushConsumer(
            self.name_servers,
            group=f"bench-{uuid.uuid4().hex}",
            subscriptions={self.topic: "*"},
            start_from=StartFrom.FIRST,
            **handler,
        )


async def send(task: Task) -> dict[str, float]:
    """Sends that are not awaited: each response begins the next send."""
    meter, topic = task.meter(), task.topic
    async with task.producer() as producer:
        await producer.send(Message(topic=topic, body=BODY))

        def begin() -> None:
            producer.send_nowait(Message(topic=topic, body=BODY)).add_done_callback(done)

        def done(future: asyncio.Future[SendReceipt]) -> None:
            meter.count += 1
            meter.errors += future.exception() is not None
            if not meter.over:
                begin()

        for _ in range(task.window):
            begin()
        return await asyncio.to_thread(meter.run)


async def awaited(task: Task) -> dict[str, float]:
    """Sends that are awaited by as many tasks as sends are in flight."""
    meter, topic = task.meter(), task.topic
    async with task.producer() as producer:

        async def sends() -> None:
            while not meter.over:
                await producer.send(Message(topic=topic, body=BODY))
                meter.count += 1

        async with asyncio.TaskGroup() as group:
            for _ in range(task.window):
                group.create_task(sends())
            return await asyncio.to_thread(meter.run)


async def handler(task: Task) -> dict[str, float]:
    """A backlog through a handler of single messages."""
    meter = task.meter()

    async def handle(message: StoredMessage) -> None:
        _check(message)
        meter.count += 1

    async with task.consumer(handler=handle):
        return await asyncio.to_thread(meter.run)


async def consume(task: Task) -> dict[str, float]:
    """A backlog through a handler of batches."""
    meter = task.meter()

    async def handle(messages: Sequence[StoredMessage], context: ConsumeContext) -> None:
        for message in messages:
            _check(message)
        meter.count += len(messages)

    async with task.consumer(batch_handler=handle, batch_max=BATCH_MAX):
        return await asyncio.to_thread(meter.run)


def _check(message: StoredMessage) -> None:
    if len(message.body) != len(BODY):
        raise ValueError(f"a body of {len(message.body)} bytes, expected {len(BODY)}")


async def idle(task: Task) -> dict[str, float]:
    """A consumer that gets nothing."""

    async def handle(message: StoredMessage) -> None:
        """Nothing comes."""

    async with task.consumer(handler=handle):
        return await _at_rest(task.seconds)


async def many(task: Task) -> dict[str, float]:
    """Consumers of many groups, started together; they are started when each got a message."""
    waiting = set(range(MANY))
    started = asyncio.Event()

    def handler_of(number: int) -> Callable[[StoredMessage], Any]:
        async def handle(message: StoredMessage) -> None:
            waiting.discard(number)
            if not waiting:
                started.set()

        return handle

    began = time.perf_counter()
    async with AsyncExitStack() as stack:
        consumers = [task.consumer(handler=handler_of(number)) for number in range(MANY)]
        async with asyncio.timeout(START_S_MAX):
            await asyncio.gather(*map(stack.enter_async_context, consumers))
            await started.wait()
        start_s = time.perf_counter() - began
        return await _at_rest(task.seconds) | {"start_s": start_s}


async def _at_rest(seconds: float) -> dict[str, float]:
    await asyncio.sleep(SETTLE_S)
    cpu = time.process_time()
    await asyncio.sleep(seconds)
    cpu = time.process_time() - cpu
    return {"seconds": seconds, "cpu_seconds": cpu, "mib": anonymous_mib([os.getpid()])}


async def decode(task: Task) -> dict[str, float]:
    """Lazy decoding of what a pull returns, without a server."""
    host = bytes((127, 0, 0, 1)) + (10911).to_bytes(4)
    record = encode_record(
        b"bench",
        BODY,
        b"KEYS\x01K00000000042\x02UNIQ_KEY\x017F000001000000000000000000000042\x02TAGS\x01A",
        queue_id=1,
        queue_offset=2,
        log_offset=3,
        born_time_ms=4,
        born_host=host,
        store_time_ms=5,
        store_host=host,
    )
    body = record * BATCH_MAX
    seconds = measure("decode", lambda: decode_lazily(body), per_call=BATCH_MAX).ns / 1e9
    return {"messages": 1, "seconds": seconds, "cpu_seconds": seconds}


WORKS = {work.__name__: work for work in (send, awaited, handler, consume, idle, many, decode)}


def main() -> None:
    name_servers, work, topic, seconds, window, loop, warm_s = sys.argv[1:]
    task = Task(name_servers, topic, float(seconds), int(window), float(warm_s))
    factory = None
    if loop == "uvloop":
        import uvloop

        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        print(json.dumps(runner.run(WORKS[work](task))))


main()
