"""Two tasks or threads that use one object at once: each call works, or is refused with a reason.

A refused call raises an error of the client. Nothing hangs, and the object works afterwards.
An asyncio object that another event loop or another thread calls refuses, and says so.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import dataclasses
import inspect
import itertools
import threading
import uuid
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from servers import Cluster

from cometmq.client import (
    ClientInstance,
    Message,
    MessageQueue,
    Producer,
    PullConsumer,
    StartFrom,
    StoredMessage,
    blocking,
)
from cometmq.model.errors import CometError
from support.checks.cancellation import at_wait
from support.checks.waiting import until
from support.clients.public_calls import (
    ARGUMENTS,
    CALLS,
    KINDS,
    LIVES,
    Commits,
    Ordered,
    World,
    each_kind,
    links,
    required,
    session_cluster,
    takes,
    world,
)
from support.network.fault_proxy import Proxied
from support.runner.tiers import is_long_run
from support.runner.versions import POP_SERVERS

__all__ = ["links", "session_cluster", "world"]
"""Fixtures that stand elsewhere."""

pytestmark = pytest.mark.long_elsewhere

CALL_S = 30.0
ENDLESS_S = 0.1
ENDLESS = frozenset({"__anext__", "ready", "run", "poll", "receive"})
"""Calls that may wait for what the other call has ended: they are cancelled then."""
FOR_MEMBERS = frozenset({"join", "leave", "shared", "membership"})
"""Calls between the parts of a client."""


def methods(kind: type) -> list[str]:
    """Every public method of a class, and what its iteration calls."""
    others = [base for base in kind.__mro__[1:] if base in KINDS and kind is not Ordered]
    return [
        name
        for name, member in inspect.getmembers(kind, inspect.isfunction)
        if (not name.startswith("_") or name == "__anext__")
        and name not in FOR_MEMBERS
        and (name in LIVES or all(getattr(base, name, None) is not member for base in others))
    ]


async def called(world: World, kind: type, name: str) -> object:
    """Call a public method, and give the error by which it is refused."""
    call = CALLS.get(f"{kind.__name__}.{name}")
    try:
        async with asyncio.timeout(ENDLESS_S if name in ENDLESS else CALL_S):
            if call is not None:
                return await call(world)
            bound = getattr(KINDS[kind].of(world), name)
            result = bound(*(ARGUMENTS[parameter](world) for parameter in required(bound)))
            return await result if inspect.isawaitable(result) else result
    except CometError as refused:
        return refused
    except TimeoutError:
        assert name in ENDLESS, f"{name} hangs"
        return None


async def interleaved(first: Coroutine[Any, Any, Any], second: Callable[[], Any], at: int) -> None:
    """Run two calls at once; the second begins at a wait of the first, or after it."""
    others: list[asyncio.Task[Any]] = []

    def begin(_: object = None) -> None:
        others.append(asyncio.ensure_future(second()))

    await at_wait(first, at, begin)
    if not others:
        begin()
    await others[0]


def pairs(names: list[str]) -> Iterator[tuple[str, str]]:
    """All pairs; of many names, those of each with itself and with the next ones."""
    if is_long_run() or len(names) <= 30:
        yield from itertools.product(names, names)
    else:
        for index, name in enumerate(names):
            yield from ((name, names[(index + more) % len(names)]) for more in range(3))


@contextlib.contextmanager
def noted(*names: object) -> Iterator[None]:
    """Say in an error which calls it was."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"calling {' and '.join(map(str, names))}")
        raise


@pytest.mark.parametrize("kind", each_kind(lives=False))
async def test_two_tasks_may_call_any_two_methods_at_once(world: World, kind: type) -> None:
    found = KINDS[kind]
    names = [name for name in methods(kind) if name not in LIVES]
    await found.check(world)
    for first, group in itertools.groupby(pairs(names), lambda pair: pair[0]):
        for _, second in group:
            for at in range(5) if is_long_run() else (0, 1):
                with noted(first, second, f"wait {at}"):
                    begin = partial(called, world, kind, second)
                    await interleaved(called(world, kind, first), begin, at)
        with noted(first):
            if is_long_run() or first == names[-1]:
                await works_again(world, kind)


async def works_again(world: World, kind: type) -> None:
    """Undo what the calls asked for, and see that the object works."""
    one = KINDS[kind].of(world)
    if kind is PullConsumer:
        await world.puller.assign(world.queues[:1])
    elif (resume := getattr(one, "resume", None)) is not None:
        resume()
    if (deliveries := world.deliveries.get(one)) is not None:
        deliveries.all_come = False  # `skip_backlog` may have left some out
    await KINDS[kind].check(world)


@pytest.mark.parametrize("kind", each_kind(lives=False))
async def test_a_task_may_start_or_close_an_object_that_another_one_uses(
    world: World, links: Proxied, kind: type
) -> None:
    """The other call works, or is refused clearly; then the object can be closed."""
    found, groups = KINDS[kind], itertools.count()
    (attribute,) = (
        each.name
        for each in dataclasses.fields(world)
        if getattr(world, each.name) is found.of(world)
    )
    await found.check(world)
    before = links.broker.open
    names = [name for name in methods(kind) if name != "run"]
    chosen = names if is_long_run() or len(names) <= 30 else names[::5]
    for life in LIVES & set(names):
        for other, at in itertools.product(chosen, (0, 3)):
            fresh = found.make(links.address, world.topic, f"{world.group}-{next(groups)}")
            own = dataclasses.replace(world, **{attribute: fresh})
            with noted(life, other, f"wait {at}"):
                if life != "start":
                    await fresh.start()
                begin = partial(called, own, kind, life)
                await interleaved(called(own, kind, other), begin, at)
                async with asyncio.timeout(CALL_S):
                    await fresh.close()
    await until(lambda: links.broker.open <= before, timeout=60)


@pytest.mark.parametrize("kind", each_kind(lives=False))
async def test_another_event_loop_or_thread_is_refused(world: World, kind: type) -> None:
    """Methods that wait refuse; plain ones may work instead."""
    found, wrong = KINDS[kind], []
    await found.check(world)
    names = [name for name in methods(kind) if name != "run"]

    def from_a_loop(name: str) -> object:
        return asyncio.run(called(world, kind, name))

    def from_a_thread(name: str) -> object:
        bound = getattr(found.of(world), name)
        with contextlib.suppress(CometError):
            return bound(*(ARGUMENTS[parameter](world) for parameter in required(bound)))

    for name in names:
        bound = getattr(found.of(world), name)
        waits = inspect.iscoroutinefunction(bound)
        if not waits and set(required(bound)) - set(ARGUMENTS):
            continue
        try:
            result = await asyncio.to_thread(from_a_loop if waits else from_a_thread, name)
        except BaseException as error:
            wrong.append(f"{name}: {error!r}")
            continue
        if waits and not isinstance(result, CometError):  # of its arguments, if not of the loop
            wrong.append(f"{name}: {result!r}")
    assert not wrong
    await found.check(world)


async def test_two_tasks_that_read_get_each_message_once(
    instance: ClientInstance, producer: Producer, queues: list[MessageQueue], group: str
) -> None:
    """What one of them has in its hands is not finished by what the other does."""
    bodies = [b"%d" % number for number in range(200)]
    await producer.send_all([Message(topic=queues[0].topic, body=body) for body in bodies])
    seen: list[bytes] = []
    done = asyncio.Event()

    def take(*messages: StoredMessage) -> None:
        seen.extend(message.body for message in messages)
        if len(seen) >= len(bodies):
            done.set()

    async def iterate(consumer: PullConsumer) -> None:
        async for message in consumer:
            await asyncio.sleep(0)
            take(message)

    async def poll(consumer: PullConsumer) -> None:
        while True:
            messages = await consumer.poll(60.0)
            await asyncio.sleep(0)
            take(*messages)

    async with PullConsumer(instance=instance, group=group, start_from=StartFrom.FIRST) as consumer:
        await consumer.assign(queues)
        readers = [asyncio.create_task(way(consumer)) for way in (iterate, iterate, poll, poll)]
        async with asyncio.timeout(60):
            await done.wait()
        for reader in readers:
            reader.cancel()
        await asyncio.wait(readers)

    assert sorted(seen) == sorted(bodies)


class Blocking:
    """A blocking object of each class, and what `public_calls` passes to calls."""

    def __init__(self, name_servers: str, *, pops: bool) -> None:
        self.group = f"g-{uuid.uuid4().hex}"
        self._stack = contextlib.ExitStack()
        started = self._stack.enter_context
        self.instance = started(blocking.ClientInstance(name_servers))
        self.admin = started(blocking.AdminClient(instance=self.instance))
        self.queues = self.admin.create_topic(f"t-{uuid.uuid4().hex}", queues=4)
        self.topic = self.queues[0].topic
        shared: dict[str, Any] = {"instance": self.instance}
        consuming: dict[str, Any] = {**shared, "subscriptions": {self.topic: "*"}}
        self.producer = started(blocking.Producer(group=self.group, **shared))
        self.leaving = self.producer
        self.transactions = started(
            blocking.TransactionProducer(group=f"{self.group}-t", listener=Commits(), **shared)
        )
        for number in range(10):
            message = Message(topic=self.topic, body=b"%d" % number, keys=["k"])
            self.producer.send(message, queue=self.queues[0])
        self.puller = started(blocking.PullConsumer(group=self.group, **shared))
        self.puller.assign(self.queues[:1])
        self.stored = self.puller.pull(self.queues[0], 0, wait=5.0).messages
        self.subscriber = started(blocking.PullConsumer(group=f"{self.group}-s", **shared))
        self.pusher = started(
            blocking.PushConsumer(group=f"{self.group}-push", handler=takes, **consuming)
        )
        self.links = SimpleNamespace(broker=SimpleNamespace(address=self._broker()))
        self.received: list[StoredMessage] = []
        if pops:
            self.popper = started(
                blocking.PopConsumer(group=f"{self.group}-pop", handler=takes, **consuming)
            )
            self.simple = started(
                blocking.SimpleConsumer(
                    group=f"{self.group}-simple", start_from=StartFrom.FIRST, **consuming
                )
            )
            self.received = self.simple.receive(wait=10.0)

    def _broker(self) -> str:
        [broker] = self.admin.cluster_info().broker_addr_table.values()
        return str(broker.broker_addrs[0])

    def message(self) -> Message:
        return Message(topic=self.topic, body=b"again", keys=["k"])

    def works(self) -> None:
        """A message can be sent and read; by a group whose offsets no administrator has reset.

        A broker answers the next pull of a queue that was reset with the offset to go on at.
        """
        receipt = self.producer.send(self.message(), queue=self.queues[1])
        found = self.subscriber.pull(self.queues[1], receipt.queue_offset, wait=5.0)
        assert found.messages[0].message_id == receipt.message_id

    def close(self) -> None:
        self._stack.close()


@pytest.fixture
def world_of_threads(cluster: Cluster, target: str) -> Iterator[Blocking]:
    made = Blocking(cluster.namesrv, pops=target in POP_SERVERS)
    with contextlib.closing(made):
        yield made


BLOCKING: dict[str, str] = {
    "Producer": "producer",
    "TransactionProducer": "transactions",
    "PushConsumer": "pusher",
    "PullConsumer": "puller",
    "PopConsumer": "popper",
    "SimpleConsumer": "simple",
    "AdminClient": "admin",
    "ClientInstance": "instance",
}
"""The blocking classes, and the attribute of the world that is one."""

OTHERWISE: dict[str, Callable[[Any], Any]] = {
    "Producer.send_soon": lambda w: w.producer.send_soon(w.message()).result(CALL_S),
    "Producer.send_nowait": lambda w: w.producer.send_nowait(w.message()).result(CALL_S),
    "SimpleConsumer.receive": lambda w: w.simple.receive(wait=0.05),
    "PullConsumer.commit": lambda w: w.puller.commit(),
    "PushConsumer.ready": lambda w: w.pusher.ready(ENDLESS_S),
    "PopConsumer.ready": lambda w: w.popper.ready(ENDLESS_S),
    "SimpleConsumer.ready": lambda w: w.simple.ready(ENDLESS_S),
    "PullConsumer.ready": lambda w: w.puller.ready(ENDLESS_S),
}
"""Calls that differ from those of asyncio objects, and those that would wait for long."""


def call_of(world: Any, kind: str, name: str) -> None:
    """Call a method of a blocking object; it may be refused."""
    known = OTHERWISE.get(f"{kind}.{name}") or CALLS.get(f"{kind}.{name}")
    with contextlib.suppress(CometError, TimeoutError if name == "ready" else CometError):
        if known is not None:
            known(world)
            return
        bound = getattr(getattr(world, BLOCKING[kind]), name)
        bound(*(ARGUMENTS[parameter](world) for parameter in required(bound)))


def both(threads: ThreadPoolExecutor, *calls: Callable[[], object]) -> None:
    """Make calls in threads that begin at the same moment."""
    barrier = threading.Barrier(len(calls))

    def call(act: Callable[[], object]) -> None:
        barrier.wait(CALL_S)
        act()

    for running in [threads.submit(call, act) for act in calls]:
        running.result(CALL_S)


def blocking_methods(kind: str) -> list[str]:
    found: type = getattr(blocking, kind)
    inherited = blocking.Producer if kind == "TransactionProducer" else object
    return [
        name
        for name, member in inspect.getmembers(found, inspect.isfunction)
        if not name.startswith("_") and getattr(inherited, name, None) is not member
    ]


def blocking_kinds() -> list[Any]:
    by_name = {kind.__name__: found for kind, found in KINDS.items()}
    return [
        pytest.param(kind, marks=pytest.mark.only_on(*by_name[kind].served_by)) for kind in BLOCKING
    ]


def test_every_blocking_class_is_called() -> None:
    classes = {name for name in blocking.__all__ if inspect.isclass(getattr(blocking, name))}

    assert classes == {*BLOCKING, "Portal"}


@pytest.mark.parametrize("kind", blocking_kinds())
def test_two_threads_may_call_any_two_methods_at_once(
    world_of_threads: Blocking, kind: str
) -> None:
    names = [name for name in blocking_methods(kind) if name not in LIVES]
    with ThreadPoolExecutor(2, "caller") as threads:
        for first, second in pairs(names):
            with noted(first, second):
                both(
                    threads,
                    partial(call_of, world_of_threads, kind, first),
                    partial(call_of, world_of_threads, kind, second),
                )
    if kind == "PullConsumer":
        world_of_threads.puller.assign(world_of_threads.queues[:1])
    world_of_threads.works()


@pytest.mark.parametrize("kind", blocking_kinds())
def test_a_thread_may_close_a_blocking_object_that_another_one_uses(
    world_of_threads: Blocking, cluster: Cluster, kind: str
) -> None:
    """The other call works, or is refused clearly; then the object is closed."""
    names = [name for name in blocking_methods(kind) if name != "run"]
    chosen = names if is_long_run() or len(names) <= 30 else names[::5]
    with ThreadPoolExecutor(2, "caller") as threads:
        for life, other in itertools.product(sorted(LIVES & set(names)), chosen):
            fresh = fresh_of(kind, cluster.namesrv, world_of_threads)
            own = copy.copy(world_of_threads)
            setattr(own, BLOCKING[kind], fresh)
            with noted(life, other):
                if life != "start":
                    fresh.start()
                both(
                    threads,
                    partial(call_of, own, kind, other),
                    partial(call_of, own, kind, life),
                )
                fresh.close()
    world_of_threads.works()


def fresh_of(kind: str, name_servers: str, world: Blocking) -> Any:
    """Another object of a class, not started."""
    options: dict[str, Any] = {}
    if kind not in ("AdminClient", "ClientInstance"):
        options["group"] = f"g-{uuid.uuid4().hex}"
    if kind.endswith("Consumer"):
        options["subscriptions"] = {world.topic: "*"}
    if kind in ("PushConsumer", "PopConsumer"):
        options["handler"] = takes
    if kind == "TransactionProducer":
        options["listener"] = Commits()
    return getattr(blocking, kind)(name_servers, **options)
