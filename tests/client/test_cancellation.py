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
import itertools
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass
from typing import Any

import pytest
from servers import Cluster

from cometmq import client as public
from cometmq.client import (
    AdminClient,
    ClientInstance,
    LocalState,
    Message,
    MessageQueue,
    PopConsumer,
    Producer,
    PullConsumer,
    PushConsumer,
    SendStatus,
    SimpleConsumer,
    StartFrom,
    StoredMessage,
    TransactionProducer,
)
from cometmq.client._lifecycle import Lifecycle
from cometmq.client.settings import ClientSettings
from cometmq.model.errors import CometError
from support.cancelling import cancel_at_every_await
from support.fault_proxy import Proxied, proxied
from support.leaks import left_behind, open_sockets, other_tasks
from support.versions import VERSIONS_5

pytestmark = pytest.mark.long_elsewhere

KEEPS_CONNECTION = ClientSettings(call_timeout_ms=60_000, close_after_timeout=False)
"""A slow answer does not cost the connection, of which there may be one only."""
LIVES = frozenset({"start", "close", "abort", "run"})
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
    transactions: TransactionProducer
    pusher: PushConsumer
    admin: AdminClient
    queues: list[MessageQueue]
    group: str
    stored: list[StoredMessage]
    handled: asyncio.Event
    """Set when the push consumer's handler is called."""

    @property
    def topic(self) -> str:
        return self.queues[0].topic

    def message(self) -> Message:
        return Message(topic=self.topic, body=b"again", keys=["k"])

    @staticmethod
    async def briefly(endless: Coroutine[Any, Any, Any]) -> None:
        """Wait for what may never come, but not for long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.05):
                await endless

    async def works(self) -> None:
        """Everything still answers, over the connection there was."""
        receipt = await self.producer.send(self.message(), queue=self.queues[1], timeout=120.0)
        assert receipt.queue == self.queues[1]
        await self.puller.bounds(self.queues[1])
        await self.admin.topics()
        assert self.links.broker.accepted == 1

    async def consumes(self) -> None:
        """The push consumer still is handed new messages, of whatever it is told to subscribe."""
        await self.works()
        await self.pusher.subscribe(self.topic)
        self.handled.clear()
        async with asyncio.timeout(120):
            while not self.handled.is_set():
                await self.producer.send(self.message(), timeout=120.0)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(0.5):
                        await self.handled.wait()


class Commits:
    """The local part of a transaction that always succeeds."""

    async def execute(self, message: Message, argument: object) -> LocalState:
        return LocalState.COMMIT

    async def check(self, message: StoredMessage) -> LocalState:
        return LocalState.COMMIT


async def takes(message: StoredMessage) -> None:
    """A handler that is done with every message."""


@pytest.fixture
async def links(cluster: Cluster) -> AsyncIterator[Proxied]:
    async with proxied(cluster) as standing:
        yield standing


@pytest.fixture
async def world(links: Proxied, queues: list[MessageQueue], group: str) -> AsyncIterator[World]:
    handled = asyncio.Event()

    async def handle(message: StoredMessage) -> None:
        handled.set()

    async with (
        ClientInstance(links.address, settings=KEEPS_CONNECTION) as instance,
        Producer(instance=instance, group=group) as producer,
        PullConsumer(instance=instance, group=group, start_from=StartFrom.FIRST) as puller,
        PullConsumer(instance=instance, group=f"{group}-s") as subscriber,
        Producer(instance=instance, group=f"{group}-l") as leaving,
        TransactionProducer(instance=instance, group=f"{group}-t", listener=Commits()) as halves,
        PushConsumer(
            instance=instance,
            group=f"{group}-push",
            handler=handle,
            subscriptions={queues[0].topic: "*"},
        ) as pusher,
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
            transactions=halves,
            pusher=pusher,
            admin=admin,
            queues=queues,
            group=group,
            stored=found.messages,
            handled=handled,
        )


def public_coroutines() -> list[str]:
    """Every ``async def`` of the public classes that does not begin or end a client's life."""
    return [
        f"{kind.__name__}.{name}"
        for kind in KINDS
        for name, member in inspect.getmembers(kind, inspect.iscoroutinefunction)
        if not name.startswith("_")
        and name not in LIVES
        # What another of the classes passes on is called there.
        and not any(
            base in KINDS and getattr(base, name, None) is member for base in kind.__mro__[1:]
        )
    ]


KINDS: dict[type, Callable[[World], object]] = {
    Producer: lambda w: w.producer,
    TransactionProducer: lambda w: w.transactions,
    PushConsumer: lambda w: w.pusher,
    PullConsumer: lambda w: w.puller,
    AdminClient: lambda w: w.admin,
    ClientInstance: lambda w: w.instance,
}
"""The public classes, and which of the world's objects is one."""

ARGUMENTS: dict[str, Callable[[World], object]] = {
    "address": lambda w: w.links.broker.address,
    "body": lambda w: b"answer",
    "broker": lambda w: "no-broker",
    "changes": lambda w: {"defaultTopicQueueNums": "4"},
    "client_id": lambda w: w.instance.client_id,
    "config": lambda w: f"{w.group}-new",
    "group": lambda w: w.group,
    "handle": lambda w: "no-handle",
    "key": lambda w: "k",
    "message": lambda w: w.message(),
    "message_id": lambda w: w.stored[0].message_id,
    "messages": lambda w: [w.message() for _ in range(3)],
    "name": lambda w: "TOPIC_PUT_NUMS",
    "offset": lambda w: 0,
    "offset_message_id": lambda w: w.stored[0].offset_message_id,
    "queue": lambda w: w.queues[0],
    "queues": lambda w: w.queues[:1],
    "request": lambda w: w.stored[0],
    "source": lambda w: w.group,
    "space": lambda w: "space",
    "target": lambda w: f"{w.group}-copy",
    "timestamp_ms": lambda w: 0,
    "topic": lambda w: w.topic,
    "topics": lambda w: [w.topic],
    "value": lambda w: "v",
}
"""What a parameter of this name is given; those with defaults keep them."""

Call = Callable[[World], Coroutine[Any, Any, Any]]


async def start_and_wait(world: World) -> None:
    """A call whose future is awaited."""
    await (await world.producer.send_soon(world.message()))


async def start_at_once(world: World) -> None:
    """A plain call whose future is awaited."""
    await world.producer.send_nowait(world.message())


async def next_message(world: World) -> None:
    await world.puller.seek(world.queues[0], 0)
    await anext(world.puller)


CALLS: dict[str, Call] = {
    "Producer.send_nowait": start_at_once,
    "Producer.send_soon": start_and_wait,
    "Producer.request": lambda w: w.producer.request(w.message(), timeout=0.1),
    "PullConsumer.__anext__": next_message,
    "PullConsumer.poll": lambda w: w.puller.poll(0.05),
    "PullConsumer.send_back": lambda w: w.puller.send_back(w.stored[0]),
    "PullConsumer.subscribe": lambda w: w.subscriber.subscribe(w.topic),
    "PullConsumer.unsubscribe": lambda w: w.subscriber.unsubscribe(w.topic),
    "AdminClient.consume_directly": lambda w: w.admin.consume_directly(
        f"{w.group}-push", w.instance.client_id, w.stored[0]
    ),
    "AdminClient.running_info": lambda w: w.admin.running_info(
        f"{w.group}-push", w.instance.client_id
    ),
    "AdminClient.set_order_conf": lambda w: w.admin.set_order_conf(f"{w.topic}-2", {"b": 1}),
    "AdminClient.track": lambda w: w.admin.track(w.stored[0]),
    "AdminClient.create_topic": lambda w: w.admin.create_topic(f"{w.topic}-2", queues=1),
    "AdminClient.delete_topic": lambda w: w.admin.delete_topic(f"{w.topic}-2"),
    "ClientInstance.leave": lambda w: w.instance.leave(w.leaving),
}
"""Calls that take more than the arguments above."""


async def called(world: World, name: str) -> None:
    """Call a public coroutine; what a server refuses has been waited for all the same."""
    if name in CALLS:
        call = CALLS[name](world)
    else:
        bound = method(world, name)
        call = bound(*(argument(world, wanted, name) for wanted in required(bound)))
    with contextlib.suppress(CometError):
        await call


def method(world: World, name: str) -> Callable[..., Any]:
    """The method of one of the world's objects."""
    kind, _, attribute = name.partition(".")
    (of_kind,) = (find for known, find in KINDS.items() if known.__name__ == kind)
    found: Callable[..., Any] = getattr(of_kind(world), attribute)
    return found


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


@pytest.mark.parametrize("kind", [kind.__name__ for kind in KINDS])
async def test_calls_can_be_cancelled_wherever_they_wait(world: World, kind: str) -> None:
    """Each public coroutine of a class, one after the other, on one client."""
    check = world.consumes if kind == PushConsumer.__name__ else world.works
    for name in sorted({*public_coroutines(), *CALLS}):
        if name.partition(".")[0] != kind:
            continue
        try:
            await cancel_at_every_await(lambda name=name: called(world, name), check)
        except Exception as error:
            error.add_note(f"calling {name}")
            raise


@pytest.mark.only_on(*VERSIONS_5)
async def test_calls_of_a_pop_consumer_can_be_cancelled_wherever_they_wait(world: World) -> None:
    async with PopConsumer(
        instance=world.instance,
        group=f"{world.group}-pop",
        handler=takes,
        subscriptions={world.topic: "*"},
    ) as popper:
        calls: tuple[Callable[[], Coroutine[Any, Any, Any]], ...] = (
            lambda: popper.subscribe(f"{world.topic}-2"),
            lambda: popper.unsubscribe(f"{world.topic}-2"),
            popper.ready,
        )
        for call in calls:
            await cancel_at_every_await(call, world.works)


def test_no_public_class_is_forgotten() -> None:
    """Whatever can be started and closed is one of the classes whose calls are cancelled."""
    living = {
        name
        for name, member in vars(public).items()
        if inspect.isclass(member) and issubclass(member, Lifecycle)
    }

    assert living == {kind.__name__ for kind in (*KINDS, PopConsumer, SimpleConsumer)}


@pytest.fixture
async def stocked(instance: ClientInstance, topic: str, group: str) -> str:
    """A topic with some messages."""
    async with Producer(instance=instance, group=f"{group}-stock") as producer:
        for _ in range(10):
            await producer.send(Message(topic=topic, body=b"stock"))
    return topic


Life = Callable[[str, str, str], Coroutine[Any, Any, Any]]


async def producing(name_servers: str, topic: str, group: str) -> None:
    async with Producer(name_servers, group=group) as producer:
        await producer.send(Message(topic=topic, body=b"first"))


async def beginning_sends(name_servers: str, topic: str, group: str) -> None:
    async with Producer(name_servers, group=group) as producer:
        for _ in range(3):
            producer.send_nowait(Message(topic=topic, body=b"first"))


async def assigning(name_servers: str, topic: str, group: str) -> None:
    async with PullConsumer(name_servers, group=group, start_from=StartFrom.FIRST) as consumer:
        await consumer.assign(await consumer.fetch_queues(topic))
        await anext(consumer)


async def subscribing(name_servers: str, topic: str, group: str) -> None:
    async with PullConsumer(name_servers, group=group, start_from=StartFrom.FIRST) as consumer:
        await consumer.subscribe(topic)
        await anext(consumer)


async def pushing(name_servers: str, topic: str, group: str, *, ordered: bool = False) -> None:
    came = asyncio.Event()

    async def handler(message: StoredMessage) -> None:
        came.set()

    async with PushConsumer(
        name_servers,
        group=group,
        handler=handler,
        ordered=ordered,
        subscriptions={topic: "*"},
        start_from=StartFrom.FIRST,
    ):
        await came.wait()


async def pushing_in_order(name_servers: str, topic: str, group: str) -> None:
    await pushing(name_servers, topic, group, ordered=True)


async def aborting(name_servers: str, topic: str, group: str) -> None:
    consumer = PushConsumer(name_servers, group=group, handler=takes, subscriptions={topic: "*"})
    try:
        await consumer.start()
    finally:
        await consumer.abort()


async def administrating(name_servers: str, topic: str, group: str) -> None:
    async with AdminClient(name_servers) as admin:
        await admin.topic_stats(topic)


async def popping(name_servers: str, topic: str, group: str) -> None:
    came = asyncio.Event()

    async def handler(message: StoredMessage) -> None:
        came.set()

    with contextlib.suppress(CometError):
        async with PopConsumer(
            name_servers, group=group, handler=handler, subscriptions={topic: "*"}
        ):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.2):
                    await came.wait()


LIFE: tuple[Life, ...] = (
    producing,
    beginning_sends,
    assigning,
    subscribing,
    pushing,
    pushing_in_order,
    popping,
    aborting,
    administrating,
)


@pytest.mark.parametrize("life", LIFE, ids=lambda life: life.__name__)
async def test_a_client_whose_life_is_cut_anywhere_leaves_nothing_behind(
    links: Proxied, stocked: str, group: str, life: Life
) -> None:
    """Looking for routes, connecting, waiting, closing: each run has a client of its own."""
    tasks, sockets = other_tasks(), open_sockets()
    groups = itertools.count()

    def lives() -> Coroutine[Any, Any, Any]:
        return life(links.address, stocked, f"{group}-{next(groups)}")

    async def nothing_is_left() -> None:
        async with asyncio.timeout(60):
            while links.broker.open or links.name_server.open:
                await asyncio.sleep(0.01)
        assert await left_behind(tasks, sockets) == []

    assert await cancel_at_every_await(lives, nothing_is_left) > 1


async def test_begun_sends_end_well_when_the_closing_is_cancelled(
    links: Proxied, stocked: str, group: str
) -> None:
    """Nobody waits for the closing any more, but it goes on to its end."""
    producer = Producer(links.address, group=group, timeout_ms=120_000)
    await producer.start()
    await producer.ready(stocked)
    links.broker.stall()
    sends = [producer.send_nowait(Message(topic=stocked, body=b"x")) for _ in range(3)]
    closing = asyncio.create_task(producer.close())
    await asyncio.sleep(0)  # the closing begins, and waits for the sends
    closing.cancel()
    links.broker.flow()

    receipts = await asyncio.gather(*sends)
    await producer.close()

    assert closing.cancelled()
    assert {receipt.status for receipt in receipts} == {SendStatus.SEND_OK}


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
    async with asyncio.timeout(60):
        while len(seen) < len(world.stored):
            seen.append((await anext(world.puller)).queue_offset)

    assert seen == list(range(len(seen)))
