"""Any public coroutine can be cancelled wherever it waits: its client stays usable.

Each call is cancelled at its first wait, at its second and so on, once while the wait lasts and
once in the moment when it is over (see `support.cancelling`). After each run the same client sends
a message over the same connection. What opens and closes a client is cancelled too; then nothing of
it may be left.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass
from typing import Any

import pytest
from servers import Cluster

from cometmq import client as public
from cometmq.client import (
    AdminClient,
    ClientInstance,
    Message,
    MessageQueue,
    Producer,
    PullConsumer,
    StartFrom,
    StoredMessage,
)
from cometmq.model.errors import CometError
from support.cancelling import cancel_at_every_await
from support.fault_proxy import Proxied, proxied
from support.leaks import left_behind, open_sockets, other_tasks

pytestmark = pytest.mark.soak_elsewhere

LIVES = frozenset({"start", "close", "abort"})
"""What begins and ends a client: cancelled in tests of its own."""


@dataclass
class World:
    """One client of each kind on one connection, and a topic with some messages."""

    links: Proxied
    instance: ClientInstance
    producer: Producer
    puller: PullConsumer
    subscriber: PullConsumer
    leaving: Producer
    admin: AdminClient
    queues: list[MessageQueue]
    group: str
    stored: list[StoredMessage]

    @property
    def topic(self) -> str:
        return self.queues[0].topic

    def message(self) -> Message:
        return Message(topic=self.topic, body=b"again", keys=["k"])

    async def works(self) -> None:
        """Everything still answers, over the connection there was."""
        receipt = await self.producer.send(self.message(), queue=self.queues[1], timeout=5.0)
        assert receipt.queue == self.queues[1]
        await self.puller.bounds(self.queues[1])
        await self.admin.topics()
        assert self.links.broker.accepted == 1


@pytest.fixture
async def links(cluster: Cluster) -> AsyncIterator[Proxied]:
    async with proxied(cluster) as standing:
        yield standing


@pytest.fixture
async def world(links: Proxied, queues: list[MessageQueue], group: str) -> AsyncIterator[World]:
    async with (
        ClientInstance(links.address) as instance,
        Producer(instance=instance, group=group) as producer,
        PullConsumer(instance=instance, group=group, start_from=StartFrom.FIRST) as puller,
        PullConsumer(instance=instance, group=f"{group}-s") as subscriber,
        Producer(instance=instance, group=f"{group}-l") as leaving,
        AdminClient(instance=instance) as admin,
    ):
        for number in range(10):
            body = str(number).encode()
            message = Message(topic=queues[0].topic, body=body, keys=["k"])
            await producer.send(message, queue=queues[0])
        found = await puller.pull(queues[0], 0, wait=5.0)
        await puller.assign(queues[:1])
        yield World(
            links=links,
            instance=instance,
            producer=producer,
            puller=puller,
            subscriber=subscriber,
            leaving=leaving,
            admin=admin,
            queues=queues,
            group=group,
            stored=found.messages,
        )


def public_coroutines() -> list[str]:
    """Every ``async def`` of the public classes that does not begin or end a client's life."""
    return [
        f"{kind}.{name}"
        for kind in KINDS
        if hasattr(public, kind)
        for name, _ in inspect.getmembers(getattr(public, kind), inspect.iscoroutinefunction)
        if not name.startswith("_") and name not in LIVES
    ]


KINDS: dict[str, Callable[[World], object]] = {
    "Producer": lambda w: w.producer,
    "PullConsumer": lambda w: w.puller,
    "AdminClient": lambda w: w.admin,
    "ClientInstance": lambda w: w.instance,
}
"""The public classes, and which of the world's objects is one."""

ARGUMENTS: dict[str, Callable[[World], object]] = {
    "message": lambda w: w.message(),
    "messages": lambda w: [w.message() for _ in range(3)],
    "topic": lambda w: w.topic,
    "group": lambda w: w.group,
    "queue": lambda w: w.queues[0],
    "queues": lambda w: w.queues[:1],
    "offset": lambda w: 0,
    "timestamp_ms": lambda w: 0,
    "address": lambda w: w.links.broker.address,
    "key": lambda w: "k",
    "request": lambda w: w.stored[0],
    "body": lambda w: b"answer",
    "handle": lambda w: "no-handle",
    "offset_message_id": lambda w: w.stored[0].offset_message_id,
}
"""What a parameter of this name is given; those with defaults keep them."""

Call = Callable[[World], Coroutine[Any, Any, Any]]


async def soon(world: World) -> None:
    """A plain call whose future is awaited."""
    await world.producer.send_soon(world.message())


async def next_message(world: World) -> None:
    await world.puller.seek(world.queues[0], 0)
    await anext(world.puller)


CALLS: dict[str, Call] = {
    "Producer.send_soon": soon,
    "Producer.request": lambda w: w.producer.request(w.message(), timeout=0.1),
    "PullConsumer.__anext__": next_message,
    "PullConsumer.poll": lambda w: w.puller.poll(0.05),
    "PullConsumer.send_back": lambda w: w.puller.send_back(w.stored[0]),
    "PullConsumer.subscribe": lambda w: w.subscriber.subscribe(w.topic),
    "PullConsumer.unsubscribe": lambda w: w.subscriber.unsubscribe(w.topic),
    "AdminClient.create_topic": lambda w: w.admin.create_topic(f"{w.topic}-2", queues=1),
    "AdminClient.delete_topic": lambda w: w.admin.delete_topic(f"{w.topic}-2"),
    "ClientInstance.leave": lambda w: w.instance.leave(w.leaving),
}
"""Calls that take more than the arguments above."""


async def called(world: World, name: str) -> None:
    """Call a public coroutine; what a server refuses has been waited for all the same."""
    kind, _, method = name.partition(".")
    if name in CALLS:
        call = CALLS[name](world)
    else:
        bound = getattr(KINDS[kind](world), method)
        call = bound(*(argument(world, wanted, name) for wanted in required(bound)))
    with contextlib.suppress(CometError):
        await call


def argument(world: World, parameter: str, call: str) -> object:
    """What a parameter is given."""
    assert parameter in ARGUMENTS, f"{call} takes {parameter!r}: say what in ARGUMENTS or in CALLS"
    return ARGUMENTS[parameter](world)


def required(call: Callable[..., object]) -> list[str]:
    """The names of the parameters that a call cannot do without."""
    return [
        name
        for name, parameter in inspect.signature(call).parameters.items()
        if parameter.default is inspect.Parameter.empty
        and parameter.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
    ]


@pytest.mark.parametrize("name", sorted({*public_coroutines(), *CALLS}))
async def test_a_call_can_be_cancelled_wherever_it_waits(world: World, name: str) -> None:
    await cancel_at_every_await(lambda: called(world, name), world.works)


async def test_a_first_call_can_be_cancelled_while_it_looks_for_routes_and_connects(
    links: Proxied, topic: str, group: str
) -> None:
    """Each run has a client of its own, whose whole life is cut somewhere; nothing is left."""
    tasks, sockets = other_tasks(), open_sockets()
    passing = links.broker.open

    async def life() -> None:
        async with Producer(links.address, group=group) as producer:
            await producer.send(Message(topic=topic, body=b"first"))

    async def nothing_is_left() -> None:
        async with asyncio.timeout(5):
            while links.broker.open > passing or links.name_server.open:
                await asyncio.sleep(0.01)
        assert await left_behind(tasks, sockets) == []

    assert await cancel_at_every_await(life, nothing_is_left) > 5


async def test_messages_are_handed_out_in_order_and_none_is_lost_by_cancelling(
    world: World,
) -> None:
    await world.puller.assign(world.queues[:1])
    seen: list[int] = []

    async def read_three() -> None:
        for _ in range(3):
            seen.append((await anext(world.puller)).queue_offset)

    async def nothing() -> None:
        """The order of what was seen is the check."""

    await cancel_at_every_await(read_three, nothing)
    async with asyncio.timeout(10):
        while len(seen) < len(world.stored):
            seen.append((await anext(world.puller)).queue_offset)

    assert seen == list(range(len(seen)))
