"""Our client under load, for ../client.py: prints one line of JSON with what it did.

Arguments: the name server, what to do (send, consume, idle), the topic, seconds, how many sends are
in flight, and the event loop (uvloop or asyncio).
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
import uuid
from collections.abc import Sequence

from cometmq.client import (
    ConsumeContext,
    Message,
    Producer,
    PushConsumer,
    SendReceipt,
    StartFrom,
    StoredMessage,
)

BODY = b"x" * 128
START_S = 60.0


class Meter:
    """Counts from the end of the warm-up on, for so many seconds."""

    def __init__(self, seconds: float, warm_s: float) -> None:
        self._seconds = seconds
        self._warm_s = warm_s
        self.count = 0
        self._began: float | None = None
        self._before = (0.0, 0.0, 0)
        self.figures: dict[str, float] | None = None

    @property
    def over(self) -> bool:
        """Whether the time is up."""
        return self.figures is not None

    def add(self, count: int) -> None:
        """Count messages."""
        self.count += count
        now = time.perf_counter()
        if self._began is None:
            self._began = now + self._warm_s
        if now < self._began or self.over:
            return
        if not self._before[0]:
            self._before = (now, time.process_time(), self.count)
        elif now - self._before[0] >= self._seconds:
            wall, cpu, count = self._before
            self.figures = {
                "messages": self.count - count,
                "seconds": now - wall,
                "cpu_seconds": time.process_time() - cpu,
            }


async def send(
    name_servers: str, topic: str, seconds: float, warm_s: float, window: int
) -> dict[str, float]:
    meter = Meter(seconds, warm_s)
    ended = asyncio.Event()
    errors = 0

    async with Producer(name_servers, group="bench-senders") as producer:
        await producer.send(Message(topic=topic, body=BODY))

        def begin() -> None:
            producer.send_nowait(Message(topic=topic, body=BODY)).add_done_callback(done)

        def done(future: asyncio.Future[SendReceipt]) -> None:
            nonlocal errors
            if future.exception() is not None:
                errors += 1
            meter.add(1)
            if meter.over:
                ended.set()
            else:
                begin()

        for _ in range(window):
            begin()
        await ended.wait()
    assert meter.figures is not None
    return {**meter.figures, "errors": errors}


async def consume(name_servers: str, topic: str, seconds: float, warm_s: float) -> dict[str, float]:
    meter = Meter(seconds, warm_s)
    ended = asyncio.Event()

    async def handler(messages: Sequence[StoredMessage], context: ConsumeContext) -> None:
        for message in messages:
            if len(message.body) != len(BODY):
                raise ValueError("a body of another size")
        meter.add(len(messages))
        if meter.over:
            ended.set()

    consumer = PushConsumer(
        name_servers,
        group=f"bench-{uuid.uuid4().hex}",
        batch_handler=handler,
        subscriptions={topic: "*"},
        start_from=StartFrom.FIRST,
        batch_max=32,
    )
    async with consumer, asyncio.timeout(START_S + warm_s + seconds):
        await ended.wait()
    assert meter.figures is not None
    return meter.figures


async def idle(name_servers: str, topic: str, seconds: float, warm_s: float) -> dict[str, float]:
    async def handler(message: StoredMessage) -> None:
        """Nothing comes."""

    async with PushConsumer(
        name_servers,
        group=f"bench-{uuid.uuid4().hex}",
        handler=handler,
        subscriptions={topic: "*"},
    ):
        await asyncio.sleep(5.0)
        before = time.process_time()
        await asyncio.sleep(seconds)
        return {"messages": 0, "seconds": seconds, "cpu_seconds": time.process_time() - before}


def main() -> None:
    name_servers, what, topic, seconds, window, loop, warm_s = sys.argv[1:]
    if what == "send":
        work = send(name_servers, topic, float(seconds), float(warm_s), int(window))
    else:
        program = {"consume": consume, "idle": idle}[what]
        work = program(name_servers, topic, float(seconds), float(warm_s))
    factory = None
    if loop == "uvloop":
        import uvloop

        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        print(json.dumps(runner.run(work)))


main()
