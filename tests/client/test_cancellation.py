"""Any public coroutine can be cancelled wherever it waits: its client stays usable.

Each call is cancelled at its first wait, at its second and so on, once while the wait lasts and
once in the moment when it is over (see `support.checks.cancellation`). After each run the same
client sends a message over the same connection. Calls that open or close a client are cancelled
too, and may then leave nothing open.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import itertools
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from cometmq import client as public
from cometmq.client import (
    AdminClient,
    ClientClosedError,
    ClientInstance,
    Message,
    PopConsumer,
    Producer,
    PullConsumer,
    PushConsumer,
    SendStatus,
    StartFrom,
    StoredMessage,
)
from cometmq.client._connection.instance import core_of
from cometmq.client._consuming.group_calls import GroupCalls
from cometmq.model.errors import CometError
from support.checks.cancellation import cancel_at_every_await
from support.clients.consumer_inputs import from_the_first
from support.clients.public_calls import (
    ARGUMENTS,
    CALLS,
    KINDS,
    Deliveries,
    Ordered,
    Watch,
    World,
    called,
    calls_of,
    each_kind,
    links,
    required,
    session_cluster,
    takes,
    the,
    world,
)
from support.network.fault_proxy import Proxied
from support.runner.versions import POP_SERVERS

__all__ = ["links", "session_cluster", "world"]
"""Fixtures that stand elsewhere."""

pytestmark = pytest.mark.long_elsewhere


def test_every_public_class_and_coroutine_is_called() -> None:
    """A new one fails here until it is said how to call it."""
    living = {
        member
        for member in vars(public).values()
        if inspect.isclass(member) and hasattr(member, "__aenter__")
    }
    unknown = [
        f"{kind.__name__}.{name}({parameter})"
        for kind in KINDS
        for name in calls_of(kind)
        if f"{kind.__name__}.{name}" not in CALLS
        for parameter in required(getattr(kind, name))
        if parameter not in (*ARGUMENTS, "self")
    ]

    assert living == set(KINDS) - {Ordered}
    assert not unknown, "say in ARGUMENTS or in CALLS what to pass"


@pytest.mark.parametrize("kind", each_kind(lives=False))
async def test_calls_can_be_cancelled_wherever_they_wait(world: World, kind: type) -> None:
    """Each public coroutine of a class, one after the other, on one client.

    After each cancelled run the call works, or is refused clearly, and the client works: a consumer
    gets every new message of every queue.
    """
    found = KINDS[kind]
    deliveries = world.deliveries.get(found.of(world), Deliveries())
    await found.check(world)
    for name in calls_of(kind):

        async def works(name: str = name) -> None:
            async with asyncio.timeout(60):
                await called(world, kind, name)
            deliveries.all_come &= name != "skip_backlog"  # which leaves messages out
            await found.check(world)

        try:
            await cancel_at_every_await(lambda name=name: called(world, kind, name), works)
        except BaseException as error:
            error.add_note(f"calling {name}")
            raise


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
        name_servers, handler=handler, ordered=ordered, **from_the_first(group, topic)
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


@pytest.mark.parametrize(("kind", "name"), each_kind(lives=True))
async def test_starting_and_closing_can_be_cancelled_wherever_they_wait(
    links: Proxied, instance: ClientInstance, stocked: str, group: str, kind: type, name: str
) -> None:
    """The same call then works or is refused clearly, and closing leaves nothing behind.

    Nothing is a task, a socket, a connection, or the lock of a queue at the broker.
    """
    queues = list((await core_of(instance).routes.find(stocked)).read_queues)
    locks, watch, groups = GroupCalls(core_of(instance)), Watch.begin(links), itertools.count()
    current: list[Any] = []

    async def prepare() -> None:
        own = f"{group}-{next(groups)}"
        current[:] = [KINDS[kind].make(links.address, stocked, own), own]
        if name != "start":
            await current[0].start()

    async def call() -> None:
        with contextlib.suppress(CometError):  # what a server refuses has been waited for
            call: Coroutine[Any, Any, None] = getattr(current[0], name)()
            await (World.briefly(call) if name == "run" else call)

    async def check() -> None:
        client, own = current
        async with asyncio.timeout(60):
            with contextlib.suppress(ClientClosedError):
                if name != "run":
                    await call()
            await client.close()
        await watch.nothing_is_left()
        if kind is Ordered:
            async with asyncio.timeout(60):
                while await locks.lock(own, "another member", queues) != set(queues):
                    await asyncio.sleep(0.01)

    await cancel_at_every_await(call, check, prepare=prepare)


@pytest.mark.parametrize("life", LIFE, ids=lambda life: life.__name__)
async def test_a_client_whose_life_is_cut_anywhere_leaves_nothing_behind(
    links: Proxied, stocked: str, group: str, life: Life
) -> None:
    """Looking for routes, connecting, waiting, closing: each run has a client of its own."""
    watch, groups = Watch.begin(links), itertools.count()

    def lives() -> Coroutine[Any, Any, Any]:
        return life(links.address, stocked, f"{group}-{next(groups)}")

    assert await cancel_at_every_await(lives, watch.nothing_is_left) > 1


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


@pytest.mark.parametrize("way", ["anext", "poll"])
async def test_messages_are_handed_out_in_order_and_none_is_lost_by_cancelling(
    world: World, way: str
) -> None:
    await world.puller.assign(world.queues[:1])
    seen: list[int] = []

    async def read() -> None:
        found = await world.puller.poll(0.05) if way == "poll" else [await anext(world.puller)]
        seen.extend(message.queue_offset for message in found)

    async def read_three() -> None:
        for _ in range(3):
            await read()

    async def nothing() -> None:
        """The order of what was seen is the check."""

    await cancel_at_every_await(read_three, nothing)
    async with asyncio.timeout(60):
        while len(seen) < len(world.stored):
            await read()

    assert seen == list(range(len(seen)))


@pytest.mark.only_on(*POP_SERVERS)
async def test_no_received_message_is_lost_by_cancelling(world: World) -> None:
    """What a cancelled receive has asked for goes to the next one, without a redelivery."""
    simple, seen = the(world.simple), list[bytes]()
    batch = [Message(topic=world.topic, body=b"%d" % number) for number in range(100)]
    await world.producer.send_all(batch)

    async def receive_three() -> None:
        for _ in range(3):
            messages = await simple.receive(2, 0.5)
            assert not any(message.reconsume_times for message in messages)
            seen.extend(message.body for message in messages if not message.keys)
            await simple.ack(*messages)

    async def nothing() -> None:
        """What was seen is the check."""

    await cancel_at_every_await(receive_three, nothing)
    async with asyncio.timeout(60):
        while len(seen) < len(batch):
            await receive_three()

    assert sorted(seen) == sorted(message.body for message in batch)
