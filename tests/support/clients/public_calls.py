"""Every public class and method of the client, and how to call each of them on a real server.

The tables say what to pass: to a parameter of a name, or in a call of its own. What is public is
found by introspection, so that a test can see that none is missing.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import pytest
from servers import Cluster, Settings

from cometmq.client import (
    AdminClient,
    ClientInstance,
    Message,
    MessageQueue,
    PopConsumer,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceiptExpiredError,
    SimpleConsumer,
    StartFrom,
    StoredMessage,
    TransactionProducer,
)
from cometmq.client._lifecycle import Lifecycle
from cometmq.client.admin import DeadLetter
from cometmq.client.admin.static_plans import StaticPlan, add_queues, empty_part, with_epoch
from cometmq.client.settings import ClientSettings
from cometmq.model import property_names as names
from cometmq.model.errors import CometError
from cometmq.model.group import SubscriptionGroupConfig
from cometmq.model.topic import TopicConfig
from cometmq.protocol.bodies.auth import AclInfo, UserInfo
from cometmq.protocol.bodies.group import OffsetWrapper
from cometmq.protocol.bodies.pop import MessageRequestMode
from cometmq.protocol.bodies.topic import TopicOffset
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.headers.query import QueryMessageRequest
from support.brokers.clusters import COMET
from support.brokers.transaction_broker import Commits
from support.checks.leaks import left_behind, open_sockets, other_tasks
from support.network.fault_proxy import Proxied, proxied
from support.runner.versions import ALL_VERSIONS, POP_SERVERS, VERSIONS_5

T = TypeVar("T")
L = TypeVar("L", bound=Lifecycle)

KEEPS_CONNECTION = ClientSettings(call_timeout_ms=60_000, close_after_timeout=False)
"""A slow answer does not cost the connection, of which there may be one only."""
LIVES = frozenset({"start", "close", "abort", "run"})
"""What begins and ends a client: cancelled in tests of its own."""


@dataclass
class Deliveries:
    """A handler that notes what it is handed."""

    ids: set[str] = field(default_factory=set)
    all_come: bool = False
    """Whether no message may be missing any more: the group has consumed from each queue."""
    _came: asyncio.Event = field(default_factory=asyncio.Event)

    async def __call__(self, message: StoredMessage) -> None:
        """Handle a message."""
        self.ids.add(message.message_id)
        self._came.set()

    async def these(self, ids: set[str]) -> None:
        """Wait until all of these have come."""
        while ids - self.ids:
            self._came.clear()
            await self._came.wait()


@dataclass
class World:
    """One client of each kind on one connection, and a topic with some messages."""

    links: Proxied
    instance: ClientInstance
    producer: Producer
    puller: PullConsumer
    subscriber: PullConsumer
    transactions: TransactionProducer
    pusher: PushConsumer
    orderly: PushConsumer
    admin: AdminClient
    popper: PopConsumer | None
    """None where brokers do not serve pop, as the next one."""
    simple: SimpleConsumer | None
    queues: list[MessageQueue]
    group: str
    stored: list[StoredMessage]
    deliveries: dict[object, Deliveries]
    """What each consumer that is told of new messages has got."""
    received: list[StoredMessage] = field(default_factory=list)
    """What the simple consumer received and has not settled."""

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

    async def send_to_all(self) -> set[str]:
        """Send a message to each queue, and give their ids."""
        sends = (self.producer.send(self.message(), queue=queue) for queue in self.queues)
        return {receipt.message_id for receipt in await asyncio.gather(*sends)}

    async def consumes(self, consumer: PushConsumer | PopConsumer) -> None:
        """A consumer is handed new messages of each queue, of whatever it is told to subscribe."""
        await self.works()
        await consumer.subscribe(self.topic)
        deliveries = self.deliveries[consumer]
        async with asyncio.timeout(60):
            while True:
                new = await self.send_to_all()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(None if deliveries.all_come else 0.5):
                        await deliveries.these(new)
                        deliveries.all_come = True
                        return

    async def receives(self) -> None:
        """The simple consumer receives what is sent; two messages stay, for calls to settle."""
        await self.works()
        simple = the(self.simple)
        await simple.subscribe(self.topic)
        deliveries = self.deliveries[simple]
        new = await self.send_to_all()
        async with asyncio.timeout(120):
            while new - deliveries.ids or len(self.received) < 2:
                await self.receive(10.0)
        *rest, one, two = self.received
        for message in rest:
            with contextlib.suppress(ReceiptExpiredError):  # a cancelled call has settled it
                await simple.ack(message)
        self.received = [one, two]

    async def receive(self, wait: float) -> None:
        """Receive what is there with the simple consumer."""
        simple = the(self.simple)
        found = await simple.receive(wait=wait)
        got = self.deliveries.get(simple, Deliveries())
        got.ids.update(message.message_id for message in found)
        self.received += found


def the(consumer: T | None) -> T:
    """The consumer, on a cluster that serves it."""
    assert consumer is not None, "the cluster does not serve pop"
    return consumer


@pytest.fixture(scope="module")
def session_cluster(target: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster for this file: RocketMQ hands out messages only while its timer wheel turns."""
    settings: Settings = {"timerWheelEnable": True} if target in VERSIONS_5 else {}
    with Cluster(target, tmp_path_factory.mktemp("cancelled"), settings) as running:
        yield running


@pytest.fixture
async def links(cluster: Cluster) -> AsyncIterator[Proxied]:
    async with proxied(cluster) as standing:
        yield standing


@pytest.fixture
async def world(
    links: Proxied, target: str, queues: list[MessageQueue], group: str
) -> AsyncIterator[World]:
    async with AsyncExitStack() as stack:
        instance = ClientInstance(links.address, settings=KEEPS_CONNECTION)
        await stack.enter_async_context(instance)
        deliveries: dict[object, Deliveries] = {}

        async def started(kind: Callable[..., L], suffix: str = "", **options: Any) -> L:
            made = kind(instance=instance, group=f"{group}{suffix}", **options)
            return await stack.enter_async_context(made)

        async def consuming(kind: Callable[..., L], suffix: str, **options: Any) -> L:
            handler = Deliveries()
            if kind is not SimpleConsumer:
                options["handler"] = handler
            made = await started(kind, suffix, subscriptions={queues[0].topic: "*"}, **options)
            deliveries[made] = handler
            return made

        pops = target in POP_SERVERS
        made = World(
            links=links,
            instance=instance,
            producer=await started(Producer),
            puller=await started(PullConsumer, start_from=StartFrom.FIRST),
            subscriber=await started(PullConsumer, "-s"),
            transactions=await started(TransactionProducer, "-t", listener=Commits()),
            pusher=await consuming(PushConsumer, "-push"),
            orderly=await consuming(PushConsumer, "-order", ordered=True),
            admin=await stack.enter_async_context(AdminClient(instance=instance)),
            popper=await consuming(PopConsumer, "-pop", hold_ms=1_000) if pops else None,
            simple=await consuming(SimpleConsumer, "-simple") if pops else None,
            queues=queues,
            group=group,
            stored=[],
            deliveries=deliveries,
        )
        for number in range(10):
            body = str(number).encode()
            message = Message(topic=queues[0].topic, body=body, keys=["k"])
            await made.producer.send(message, queue=queues[0])
        made.stored = (await made.puller.pull(queues[0], 0, wait=5.0)).messages
        await made.puller.assign(queues[:1])
        yield made


@dataclass(frozen=True)
class Kind:
    """A public class that can be started and closed."""

    of: Callable[[World], Any]
    """One that is started."""
    make: Callable[[str, str, str], Any]
    """Makes another one, of name servers, a topic and a group."""
    check: Callable[[World], Coroutine[Any, Any, None]]
    """Shows that it works."""
    served_by: tuple[str, ...] = (COMET, *ALL_VERSIONS)


def of_group(topic: str, group: str) -> dict[str, Any]:
    return {"group": group, "subscriptions": {topic: "*"}, "start_from": StartFrom.FIRST}


async def takes(message: StoredMessage) -> None:
    """A handler that is done with every message."""


class Ordered(PushConsumer):
    """A push consumer that consumes in order: its queues are locked at the brokers."""


KINDS: dict[type, Kind] = {
    Producer: Kind(
        lambda w: w.producer, lambda ns, _, group: Producer(ns, group=group), World.works
    ),
    TransactionProducer: Kind(
        lambda w: w.transactions,
        lambda ns, _, group: TransactionProducer(ns, group=group, listener=Commits()),
        World.works,
    ),
    PushConsumer: Kind(
        lambda w: w.pusher,
        lambda ns, topic, group: PushConsumer(ns, handler=takes, **of_group(topic, group)),
        lambda w: w.consumes(w.pusher),
    ),
    Ordered: Kind(
        lambda w: w.orderly,
        lambda ns, topic, group: PushConsumer(
            ns, handler=takes, ordered=True, **of_group(topic, group)
        ),
        lambda w: w.consumes(w.orderly),
    ),
    PullConsumer: Kind(
        lambda w: w.puller,
        lambda ns, topic, group: PullConsumer(ns, **of_group(topic, group)),
        World.works,
    ),
    PopConsumer: Kind(
        lambda w: the(w.popper),
        lambda ns, topic, group: PopConsumer(ns, handler=takes, **of_group(topic, group)),
        lambda w: w.consumes(the(w.popper)),
        served_by=POP_SERVERS,
    ),
    SimpleConsumer: Kind(
        lambda w: the(w.simple),
        lambda ns, topic, group: SimpleConsumer(ns, **of_group(topic, group)),
        World.receives,
        served_by=POP_SERVERS,
    ),
    AdminClient: Kind(lambda w: w.admin, lambda ns, *_: AdminClient(ns), World.works),
    ClientInstance: Kind(lambda w: w.instance, lambda ns, *_: ClientInstance(ns), World.works),
}
"""Every public class."""


def coroutines(kind: type) -> list[str]:
    """Every public ``async def`` of a class; what another public class defines is called there."""
    others = [base for base in kind.__mro__[1:] if base in KINDS and kind is not Ordered]
    return [
        name
        for name, member in inspect.getmembers(kind, inspect.iscoroutinefunction)
        if (not name.startswith("_") or name == "__anext__")
        and all(getattr(base, name, None) is not member for base in others)
    ]


def each_kind(*, lives: bool) -> list[Any]:
    """A parameter for each class; with ``lives`` for each call that begins or ends it, too."""
    return [
        pytest.param(
            *((kind, name) if lives else (kind,)),
            marks=pytest.mark.only_on(*found.served_by),
            id=f"{kind.__name__}-{name}" if lives else kind.__name__,
        )
        for kind, found in KINDS.items()
        for name in (coroutines(kind) if lives else [""])
        if not lives or name in LIVES
    ]


def letter_of(world: World) -> DeadLetter:
    """A dead letter whose origin is recorded."""
    message = world.stored[0]
    origin = {
        names.DLQ_ORIGIN_TOPIC: world.topic,
        names.DLQ_ORIGIN_MESSAGE_ID: message.offset_message_id,
    }
    return DeadLetter(replace(message, properties=message.properties | origin))


def static_topic_of(world: World) -> str:
    return f"{world.topic}-static"


def broker_name_of(world: World) -> str:
    return world.queues[0].broker_name


def plan_of(world: World) -> StaticPlan:
    """A plan of a static topic of one queue that the broker has, newer than the one before."""
    topic, broker, epoch = f"{world.topic}-planned", broker_name_of(world), time.time_ns() // 10**6
    parts = with_epoch({broker: empty_part(topic, broker)}, epoch, 1)
    add_queues(parts, [broker], 0, 1)
    return StaticPlan(topic, epoch, parts)


ARGUMENTS: dict[str, Callable[[World], object]] = {
    "access_key": lambda w: "no-account",
    "address": lambda w: w.links.broker.address,
    "allowed": lambda w: True,
    "body": lambda w: b"answer",
    "begin_ms": lambda w: 0,
    "broker": lambda w: "no-broker",
    "broker_id": lambda w: None,
    "brokers": lambda w: [broker_name_of(w)],
    "changes": lambda w: {"defaultTopicQueueNums": "4"},
    "client_id": lambda w: w.instance.client_id,
    "cluster": lambda w: "no-cluster",
    "code": lambda w: RequestCode.GET_ALL_TOPIC_CONFIG,
    "config": lambda w: f"{w.group}-new",
    "config_path": lambda w: "no-file",
    "configs": lambda w: [],
    "container": lambda w: w.links.broker.address,
    "count": lambda w: 20,
    "group": lambda w: w.group,
    "handle": lambda w: "no-handle",
    "index": lambda w: 0,
    "key": lambda w: "k",
    "leader": lambda w: w.links.broker.address,
    "letter": lambda w: letter_of(w),
    "letters": lambda w: [letter_of(w)],
    "limit": lambda w: "1024",
    "message": lambda w: w.message(),
    "message_id": lambda w: w.stored[0].message_id,
    "messages": lambda w: [w.message() for _ in range(3)],
    "name": lambda w: "TOPIC_PUT_NUMS",
    "number": lambda w: 0,
    "offset": lambda w: 0,
    "offset_message_id": lambda w: w.stored[0].offset_message_id,
    "plan": plan_of,
    "policy": lambda w: AclInfo(subject="User:nobody"),
    "queue": lambda w: w.queues[0],
    "queue_id": lambda w: 0,
    "queues": lambda w: w.queues[:1],
    "request": lambda w: w.stored[0],
    "secret_key": lambda w: "no-secret",
    "source": lambda w: w.group,
    "space": lambda w: "space",
    "stats": lambda w: {MessageQueue(static_topic_of(w), broker_name_of(w), 0): OffsetWrapper()},
    "subject": lambda w: "User:nobody",
    "target": lambda w: f"{w.group}-copy",
    "targets": lambda w: [broker_name_of(w)],
    "time": lambda w: 0,
    "time_ms": lambda w: 0,
    "topic": lambda w: w.topic,
    "topics": lambda w: [w.topic],
    "user": lambda w: UserInfo(username="nobody", password="no-secret"),
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


async def receive(world: World) -> None:
    """Receive everything that is there, and wait for more."""
    count = -1
    while count < len(world.received):
        count = len(world.received)
        await world.receive(0.05)


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
    "PushConsumer.dead_letter": lambda w: w.pusher.dead_letter(w.stored[0]),
    "Ordered.dead_letter": lambda w: w.orderly.dead_letter(w.stored[0]),
    "SimpleConsumer.ack": lambda w: the(w.simple).ack(w.received[0]),
    "SimpleConsumer.dead_letter": lambda w: the(w.simple).dead_letter(w.received[0]),
    "SimpleConsumer.extend": lambda w: the(w.simple).extend(w.received[0], 60.0),
    "SimpleConsumer.nack": lambda w: the(w.simple).nack(w.received[0]),
    "SimpleConsumer.receive": receive,
    "AdminClient.consume_directly": lambda w: w.admin.consume_directly(
        f"{w.group}-push", w.instance.client_id, w.stored[0]
    ),
    "AdminClient.broker_messages": lambda w: w.admin.broker_messages(
        "no-broker",
        w.links.broker.address,
        QueryMessageRequest(
            topic=w.topic, key="k", max_num=1, begin_timestamp=0, end_timestamp=2**62
        ),
    ),
    "AdminClient.running_info": lambda w: w.admin.running_info(
        f"{w.group}-push", w.instance.client_id
    ),
    "AdminClient.set_group_config": lambda w: w.admin.set_group_config(
        w.links.broker.address, SubscriptionGroupConfig(group_name=f"{w.group}-new")
    ),
    "AdminClient.set_topic_config": lambda w: w.admin.set_topic_config(
        w.links.broker.address, TopicConfig(topic_name=f"{w.topic}-2")
    ),
    "AdminClient.set_order_conf": lambda w: w.admin.set_order_conf(f"{w.topic}-2", {"b": 1}),
    "AdminClient.broker_counters": lambda w: w.admin.broker_counters(
        [w.links.broker.address], "TOPIC_PUT_NUMS", w.topic
    ),
    "AdminClient.create_static_topic": lambda w: w.admin.create_static_topic(static_topic_of(w), 2),
    "AdminClient.logical_topic_stats": lambda w: w.admin.logical_topic_stats(
        static_topic_of(w), {MessageQueue(static_topic_of(w), broker_name_of(w), 0): TopicOffset()}
    ),
    "AdminClient.move_static_queues": lambda w: w.admin.move_static_queues(
        static_topic_of(w), [broker_name_of(w)]
    ),
    "AdminClient.plan_queue_moves": lambda w: w.admin.plan_queue_moves(
        static_topic_of(w), [broker_name_of(w)]
    ),
    "AdminClient.plan_remapping": lambda w: w.admin.plan_remapping(
        static_topic_of(w), [broker_name_of(w)]
    ),
    "AdminClient.plan_static_topic": lambda w: w.admin.plan_static_topic(
        static_topic_of(w), 4, [broker_name_of(w)]
    ),
    "AdminClient.elect_master": lambda w: w.admin.elect_master(
        w.links.broker.address, "no-cluster", "no-broker", 1
    ),
    "AdminClient.redelivery": lambda w: w.admin.redelivery(w.group, w.stored[0]),
    "AdminClient.send": lambda w: w.admin.send(Message(w.topic, b"test")),
    "AdminClient.send_again": lambda w: w.admin.send_again(w.stored[0]),
    "AdminClient.set_consume_mode": lambda w: w.admin.set_consume_mode(
        w.links.broker.address, w.group, w.topic, MessageRequestMode.PULL
    ),
    "AdminClient.set_read_ahead": lambda w: w.admin.set_read_ahead(w.links.broker.address, 0),
    "AdminClient.set_white_addresses": lambda w: w.admin.set_white_addresses(
        w.links.broker.address, "127.0.0.1"
    ),
    "AdminClient.sync_state": lambda w: w.admin.sync_state(w.links.broker.address, ["no-broker"]),
    "AdminClient.track": lambda w: w.admin.track(w.stored[0]),
    "AdminClient.create_topic": lambda w: w.admin.create_topic(f"{w.topic}-2", queues=1),
    "AdminClient.delete_topic": lambda w: w.admin.delete_topic(f"{w.topic}-2"),
}
"""Calls that take more than the arguments above."""


async def called(world: World, kind: type, name: str) -> None:
    """Call a public coroutine; what a server refuses has been waited for all the same."""
    if (known := CALLS.get(f"{kind.__name__}.{name}")) is not None:
        call = known(world)
    else:
        bound = getattr(KINDS[kind].of(world), name)
        call = bound(*(ARGUMENTS[parameter](world) for parameter in required(bound)))
    with contextlib.suppress(CometError):
        await call


def required(call: Callable[..., object]) -> list[str]:
    """The names of the parameters that a call cannot do without."""
    return [
        name
        for name, parameter in inspect.signature(call).parameters.items()
        if parameter.default is inspect.Parameter.empty
        and parameter.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
    ]


def calls_of(kind: type) -> list[str]:
    """The calls that neither begin nor end a client."""
    called_otherwise = [name.partition(".") for name in CALLS]
    more = [name for known, _, name in called_otherwise if known == kind.__name__]
    return sorted({name for name in (*coroutines(kind), *more) if name not in LIVES})


@dataclass
class Watch:
    """Sees that nothing of a client is left."""

    links: Proxied
    tasks: set[asyncio.Task[object]]
    sockets: set[str]

    @classmethod
    def begin(cls, links: Proxied) -> Watch:
        return cls(links, other_tasks(), open_sockets())

    async def nothing_is_left(self) -> None:
        async with asyncio.timeout(60):
            while self.links.broker.open or self.links.name_server.open:
                await asyncio.sleep(0.01)
        assert await left_behind(self.tasks, self.sockets) == []
