"""A producer and a group of two consumers, ours or Java's, and records of what they did.

All of them run on the machine of the clients.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import kit
import toolchain
from codes import Answer
from programs import JAVA_53, Client, CommandError
from wire import Connection

from cometmq.client import (
    CometError,
    Message,
    Producer,
    PushConsumer,
    SendStatus,
    StartFrom,
    StoredMessage,
)
from support.network.machines import BROKER_PORT, QUEUES, TOPIC, Machines, Place, Server

GROUP = "group"
MEMBERS = 2
LIMIT_S = 180.0
"""It ends what hangs."""
LOOK_S = 0.1
DIRECT_PAUSE_S = 0.05
DIRECT_TIMEOUT_S = 5.0

Send = Callable[[bytes], Awaitable[tuple[str, Place] | None]]
"""Sends a body, and returns status and place, or None if that failed."""


class Sent(NamedTuple):
    """An acknowledged message."""

    body: bytes
    began_s: float
    ended_s: float


class Delivery(NamedTuple):
    """A message that a member of the group received."""

    place: Place
    body: bytes
    at_s: float


@dataclass
class Application:
    """Sends, and what the group has received."""

    sends: Sequence[Send]
    deliveries: Callable[[], Sequence[Delivery]]


Clients = Callable[[Machines], AbstractAsyncContextManager[Application]]


@dataclass
class Load:
    """What was sent, and what became of it."""

    sent: set[bytes] = field(default_factory=set)
    acknowledged: dict[Place, Sent] = field(default_factory=dict)
    """Those with SEND_OK."""
    other_status: int = 0
    failed: int = 0
    is_over: bool = False
    progress: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def produce(self, send: Send, name: str) -> None:
        """Send one message after another."""
        number = 0
        while not self.is_over:
            number += 1
            body = f"{name}-{number}".encode()
            self.sent.add(body)
            began_s = time.monotonic()
            sent = await send(body)
            if sent is None:
                self.failed += 1
                continue
            status, place = sent
            if status != SendStatus.SEND_OK.name:
                self.other_status += 1
                continue
            new = Sent(body, began_s, time.monotonic())
            before = self.acknowledged.setdefault(place, new)
            assert before is new, f"{place} was acknowledged for {before.body!r} and {body!r}"
            async with self.progress:
                self.progress.notify_all()

    async def more(self, count: int) -> None:
        """Wait for more acknowledgements."""
        wanted = len(self.acknowledged) + count
        async with asyncio.timeout(LIMIT_S), self.progress:
            await self.progress.wait_for(lambda: len(self.acknowledged) >= wanted)


@asynccontextmanager
async def ours(machines: Machines) -> AsyncIterator[Application]:
    """Eight users of a producer of ours, and two push consumers."""
    found: list[Delivery] = []

    async def note(message: StoredMessage) -> None:
        place = message.queue_id, message.queue_offset
        found.append(Delivery(place, message.body, time.monotonic()))

    async with AsyncExitStack() as stack:
        members = [
            await stack.enter_async_context(
                PushConsumer(
                    machines.name_server,
                    group=GROUP,
                    handler=note,
                    subscriptions={TOPIC: "*"},
                    start_from=StartFrom.FIRST,
                    instance_name=f"member-{number}",
                )
            )
            for number in range(MEMBERS)
        ]
        await _until(lambda: _are_shared([len(member.queues()) for member in members]))
        producer = await stack.enter_async_context(Producer(machines.name_server, group="senders"))

        async def send(body: bytes) -> tuple[str, Place] | None:
            try:
                receipt = await producer.send(Message(topic=TOPIC, body=body))
            except CometError:
                return None
            return receipt.status.name, (receipt.queue.queue_id, receipt.queue_offset)

        yield Application([send] * 8, lambda: found)


@asynccontextmanager
async def java(machines: Machines) -> AsyncIterator[Application]:
    """A producer of Java, which sends one message at a time, and two push consumers."""
    client = Client(
        replace(JAVA_53, command=_with_default_connect_time), machines.name_server, machines.folder
    )
    try:
        group = await asyncio.to_thread(client.group, GROUP, TOPIC, members=MEMBERS)

        def assigned() -> list[int]:
            last = {event["consumer"]: event["queues"] for event in list(client.main.assigned)}
            return [len(last.get(name, ())) for name in group.names]

        await _until(lambda: _are_shared(assigned()))
        monotonic_s = time.monotonic() - time.time()

        async def send(body: bytes) -> tuple[str, Place] | None:
            try:
                (sent,) = await asyncio.to_thread(client.send, TOPIC, [{"body": body.decode()}])
            except CommandError:
                return None
            return sent["status"], (sent["queue"], sent["offset"])

        def deliveries() -> list[Delivery]:
            return [
                Delivery(
                    (event["queue"], event["offset"]),
                    event["body"].encode(),
                    event["now_ms"] / 1000 + monotonic_s,
                )
                for event in group.received
            ]

        yield Application([send], deliveries)
    finally:
        await asyncio.to_thread(client.close)


def _with_default_connect_time() -> tuple[list[str], Path | None]:
    """The program of Java, which gives up a connection to a partitioned machine after 3 s."""
    arguments, folder = JAVA_53.command()
    return [one for one in arguments if one != toolchain.PATIENT_CONNECT], folder


def _are_shared(counts: Sequence[int]) -> bool:
    """Whether each member has its share of the queues."""
    return all(count == QUEUES // MEMBERS for count in counts)


async def _until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(LIMIT_S):
        while not holds():
            await asyncio.sleep(LOOK_S)


async def received(application: Application, places: set[Place]) -> list[Delivery]:
    """Wait until the group has received the messages of some places, and return all deliveries."""
    await _until(lambda: places <= {one.place for one in application.deliveries()})
    return list(application.deliveries())


class DirectSender:
    """Sends to one broker, whatever its role is, and whatever routes say."""

    def __init__(self, broker: Server) -> None:
        self._address = broker.host.address, BROKER_PORT
        self._connection: Connection | None = None
        self._number = 0

    async def send(self, body: bytes) -> tuple[str, Place] | None:
        """Send one message; a pause follows, because refusals come at once."""
        result = await asyncio.to_thread(self._send, body)
        await asyncio.sleep(DIRECT_PAUSE_S)
        return result

    def _send(self, body: bytes) -> tuple[str, Place] | None:
        queue, self._number = self._number % QUEUES, self._number + 1
        try:
            if self._connection is None:
                self._connection = Connection(self._address, timeout=DIRECT_TIMEOUT_S)
            answer = kit.send(self._connection, TOPIC, body, queue=queue)
        except (OSError, AssertionError):  # also no response, and a closed connection
            self.close()
            return None
        if answer.code != Answer.SUCCESS:
            return None
        return SendStatus.SEND_OK.name, (answer.number("queueId"), answer.number("queueOffset"))

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
