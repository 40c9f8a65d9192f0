"""A stream of numbered messages through a cluster, and what a consumer sees of it.

A producer sends one number after the other until it is stored; a consumer notes what it gets. What
is in between may break in any way: in the end every number has arrived.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager

from cometmq.client import (
    AdminClient,
    Message,
    MessageQueue,
    Producer,
    PullConsumer,
    PushConsumer,
    StartFrom,
    StoredMessage,
)
from cometmq.client.settings import ClientSettings, ProducerSettings, PullSettings, PushSettings
from cometmq.model.errors import CometError
from support.checks.waiting import Changes

PACE_S = 0.005
CONTINUES_S = 300.0
QUICK_CLIENT = ClientSettings(call_timeout_ms=1_000, heartbeat_ms=1_000, route_refresh_ms=1_000)
"""Settings that make a client notice within a second or two what else takes half a minute."""
QUICK_PUSH = PushSettings(
    hold_ms=1_000,
    pull_timeout_ms=2_000,
    retry_ms=200,
    persist_ms=500,
    rebalance_ms=1_000,
    lock_ms=1_000,
    suspend_ms=100,
    stop_ms=2_000,
)
QUICK_PULL = PullSettings(hold_ms=1_000, response_margin_ms=1_000, retry_ms=200, auto_commit_ms=500)
KINDS = ("concurrent", "ordered", "pull")

Handler = Callable[[StoredMessage], Awaitable[None]]


class Stream(Changes):
    """Sends and notes; see `stream`."""

    def __init__(self, producer: Producer, topic: str) -> None:
        super().__init__()
        self._producer = producer
        self._topic = topic
        self.sent = 0
        """Numbers below this one are stored."""
        self.seen: Counter[int] = Counter()
        """How often each number arrived."""
        self.send_errors: list[CometError] = []
        self._stopped = False

    async def send(self) -> None:
        """Send numbers until told to stop; each until it is stored."""
        while not self._stopped:
            body = str(self.sent).encode()
            try:
                await self._producer.send(Message(topic=self._topic, body=body), timeout=1.0)
            except CometError as error:
                self.send_errors.append(error)
                await asyncio.sleep(0.05)
                continue
            self.sent += 1
            self.moved.set()
            await asyncio.sleep(PACE_S)

    def stop_sending(self) -> None:
        """Send nothing after the number that is on its way."""
        self._stopped = True

    async def take(self, message: StoredMessage) -> None:
        """Note a message; the handler of the consumer."""
        self.seen[int(message.body)] += 1
        self.moved.set()

    async def until(self, holds: Callable[[], object], *, timeout: float = CONTINUES_S) -> None:
        """Wait until a send or a message makes it so; fail after ``timeout`` seconds."""
        try:
            await super().until(holds, timeout=timeout)
        except TimeoutError:
            raise AssertionError(f"it did not go on within {timeout:g} s: {self}") from None

    async def goes_on(self, count: int = 20, timeout: float = CONTINUES_S) -> None:
        """Wait until numbers that are sent from now on have arrived."""
        first = self.sent + 1
        await self.until(lambda: all(self.seen[first + n] for n in range(count)), timeout=timeout)

    async def arrives_whole(self, timeout: float = CONTINUES_S) -> None:
        """Wait until all that was sent has arrived."""
        await self.until(lambda: not self.missing(), timeout=timeout)

    def missing(self) -> list[int]:
        """The stored numbers that have not arrived."""
        return [number for number in range(self.sent) if not self.seen[number]]

    def __str__(self) -> str:
        missing = self.missing()
        return (
            f"{self.sent} sent, {len(self.seen)} arrived, missing {missing[:5]}, "
            f"last error {self.send_errors[-1:]}"
        )


@asynccontextmanager
async def stream(
    name_servers: str, topic: str, group: str, kind: str = "concurrent"
) -> AsyncIterator[Stream]:
    """Send through one client and consume through another; both are quick to notice things."""
    async with Producer(
        name_servers,
        group=f"{group}-p",
        settings=ProducerSettings(retries=0),
        client=QUICK_CLIENT,
    ) as producer:
        running = Stream(producer, topic)
        async with consuming(name_servers, topic, group, kind, running.take):
            sending = asyncio.create_task(running.send(), name="stream")
            try:
                yield running
                running.stop_sending()
                await sending
                await running.arrives_whole()
            finally:
                sending.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await sending


@asynccontextmanager
async def consuming(
    name_servers: str, topic: str, group: str, kind: str, handler: Handler
) -> AsyncIterator[PushConsumer | PullConsumer]:
    """Run a consumer of one of the `KINDS`."""
    if kind != "pull":
        async with PushConsumer(
            name_servers,
            group=group,
            handler=handler,
            ordered=kind == "ordered",
            subscriptions={topic: "*"},
            start_from=StartFrom.FIRST,
            settings=QUICK_PUSH,
            client=QUICK_CLIENT,
        ) as pushing:
            yield pushing
        return
    async with PullConsumer(
        name_servers,
        group=group,
        start_from=StartFrom.FIRST,
        settings=QUICK_PULL,
        client=QUICK_CLIENT,
    ) as pulling:
        await pulling.assign(await _queues(pulling, topic))
        reading = asyncio.create_task(_read(pulling, handler), name="reading")
        try:
            yield pulling
        finally:
            reading.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await reading


async def _queues(consumer: PullConsumer, topic: str) -> list[MessageQueue]:
    """Ask until a name server answers in time: a quick client does not wait for long."""
    async with asyncio.timeout(CONTINUES_S):
        while True:
            with contextlib.suppress(CometError):
                return await consumer.fetch_queues(topic)
            await asyncio.sleep(0.05)


async def _read(consumer: PullConsumer, handler: Handler) -> None:
    async for message in consumer:
        await handler(message)


class Streams:
    """One stream for each way of consuming, all through the same faults; see `all_kinds`."""

    def __init__(self, of_kind: dict[str, Stream]) -> None:
        self.of_kind = of_kind

    async def goes_on(self, count: int = 20) -> None:
        """Wait until each has brought so many messages that are sent from now on."""
        await self._each("goes on", lambda running: running.goes_on(count))

    async def rest(self) -> None:
        """Send nothing more, and wait until everything has arrived."""
        for running in self.of_kind.values():
            running.stop_sending()
        await self._each("arrives", Stream.arrives_whole)

    async def meets_errors(self, count: int, timeout: float = 120.0) -> None:
        """Wait until each sender has met so many errors more."""
        before = {kind: len(running.send_errors) for kind, running in self.of_kind.items()}
        async with asyncio.timeout(timeout):
            while any(
                len(running.send_errors) < before[kind] + count
                for kind, running in self.of_kind.items()
            ):
                await asyncio.sleep(0.02)

    async def _each(self, what: str, act: Callable[[Stream], Awaitable[None]]) -> None:
        async def named(kind: str, running: Stream) -> None:
            try:
                await act(running)
            except AssertionError as error:
                raise AssertionError(f"{what}, {kind}: {error}") from None

        await asyncio.gather(*(named(kind, running) for kind, running in self.of_kind.items()))


@asynccontextmanager
async def all_kinds(name_servers: str, group: str) -> AsyncIterator[Streams]:
    """Run a stream of each of the `KINDS`, on topics of their own."""
    async with AsyncExitStack() as stack:
        running = {}
        async with AdminClient(name_servers) as admin:
            for kind in KINDS:
                (queue, *_) = await admin.create_topic(f"{group}-{kind}", queues=4)
                of_kind = stream(name_servers, queue.topic, f"{group}-{kind}-g", kind)
                running[kind] = await stack.enter_async_context(of_kind)
        yield Streams(running)
