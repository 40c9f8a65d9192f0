"""Finds the broker that has a queue now; a queue without a broker is either gone or away.

A name server forgets a broker that does not respond, with all its queues. So a queue that no route
names is gone for good only while its broker is registered. Otherwise the broker is away, and may
come back with all its messages. The queues of a static topic have no broker of their own, and are
never removed: they are away as long as the topic exists.

Source: RouteInfoManager, RocketMQ 5.3, by which name servers forget brokers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeVar

from cometmq.client.errors import TopicNotFoundError
from cometmq.client.library import LOGICAL_PREFIX, MASTER_ID, ClientConnection, Route
from cometmq.model.errors import RemotingError
from cometmq.model.queue import MessageQueue
from cometmq.protocol.bodies.route import ClusterInfo
from cometmq.protocol.codes import RequestCode
from cometmq.spark.brokers.retry_policy import AwayError
from cometmq.spark.offsets import QueueKey

K = TypeVar("K")
T = TypeVar("T")

AT_ONCE: Final = 64
"""Requests of one question that wait for answers at a time."""


@dataclass(frozen=True, slots=True)
class QueueRoutes:
    """The brokers of queues."""

    addresses: dict[QueueKey, tuple[str, ...]] = field(default_factory=dict)
    """The addresses of each queue's broker: the master first, then the replicas."""
    replicas: dict[QueueKey, Mapping[int, str]] = field(default_factory=dict)
    """The same by the ids of replicas; 0 is the master's."""
    gone: dict[QueueKey, str] = field(default_factory=dict)
    """Queues that are no longer readable, and why."""
    away: dict[QueueKey, str] = field(default_factory=dict)
    """Queues whose broker is not registered now, and the text of an error that says so."""

    def master(self, key: QueueKey) -> str | None:
        """Return the address of the master that has a queue, None if it is not registered."""
        return self.replicas[key].get(MASTER_ID)

    def lose(self, key: QueueKey, why: str) -> None:
        """Note that a queue is gone, which its broker itself says."""
        self.addresses.pop(key, None)
        self.gone[key] = why

    def by_broker(self) -> list[QueueRoutes]:
        """Return the routes of the queues of each broker; queues that are gone have none."""
        parts: dict[object, QueueRoutes] = {}
        for key, addresses in self.addresses.items():
            part = parts.setdefault(addresses, QueueRoutes())
            part.addresses[key], part.replicas[key] = addresses, self.replicas[key]
        for key, why in self.away.items():
            parts.setdefault(key.broker, QueueRoutes()).away[key] = why
        return list(parts.values())


class RouteFinder:
    """Finds the brokers of queues; asks the name server each time, for routes change.

    Every method raises `RemotingError` if no name server answered.
    """

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection

    async def route(self, topic: str) -> Route | None:
        """Give the topic's route as it is now, None if there is no such topic."""
        try:
            return await self._connection.route(topic)
        except TopicNotFoundError:
            return None

    async def routes(self, topics: Iterable[str]) -> dict[str, Route | None]:
        """Give the routes of several topics."""
        return await ask_each(sorted(set(topics)), self.route)

    async def find(self, keys: Iterable[QueueKey]) -> QueueRoutes:
        """Find the broker of each queue."""
        keys = list(keys)
        found = await self._find(keys)
        if found.gone:  # its broker may have come back between the two requests: send both again
            found = await self._find(keys)
        return found

    async def _find(self, keys: list[QueueKey]) -> QueueRoutes:
        topics = await self.routes(key.topic for key in keys)
        readable = {topic: set(keys_of(route)) for topic, route in topics.items() if route}
        found = QueueRoutes()
        missing = []
        for key in keys:
            route = topics[key.topic]
            if route and key in readable[key.topic] and (known := _replicas(route, key)):
                found.replicas[key], found.addresses[key] = known, masters_first(known)
            else:
                missing.append(key)
        if missing:
            registered = (await self.cluster()).broker_addr_table
            for key in missing:
                route = topics[key.topic]
                if _is_away(key, route, registered):
                    found.away[key] = _why_away(key)
                else:
                    found.gone[key] = _why_gone(key, route)
        return found

    async def cluster(self) -> ClusterInfo:
        """Give all brokers that are registered."""
        code = RequestCode.GET_BROKER_CLUSTER_INFO
        return ClusterInfo.decode((await self._connection.call_name_server(code)).body)


def keys_of(route: Route) -> list[QueueKey]:
    """Give the queues of a topic that can be read."""
    return [QueueKey(route.topic, queue.broker_name, queue.queue_id) for queue in route.read_queues]


def queue_of(key: QueueKey) -> MessageQueue:
    """Give a queue as the client calls it."""
    return MessageQueue(key.topic, key.broker, key.queue_id)


def masters_first(addresses: Mapping[int, str]) -> tuple[str, ...]:
    """Give the addresses of a broker's replicas, by their ids: the master's first."""
    return tuple(addresses[i] for i in sorted(addresses, key=lambda i: (i != MASTER_ID, i)))


async def ask_each(keys: Iterable[K], ask: Callable[[K], Awaitable[T]]) -> dict[K, T]:
    """Ask for each key at once, but for no more than `AT_ONCE` at a time.

    If one request fails, the others are cancelled.
    """
    turns = asyncio.Semaphore(AT_ONCE)

    async def one(key: K) -> T:
        async with turns:
            return await ask(key)

    keys = list(keys)
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(key)) for key in keys]
    except BaseExceptionGroup as failed:
        raise failed.exceptions[0] from None
    return {key: task.result() for key, task in zip(keys, tasks, strict=True)}


async def ask_one_of(addresses: tuple[str, ...], ask: Callable[[str], Awaitable[T]]) -> T:
    """Give the first answer of a broker or of whoever has a copy.

    Raises:
        RemotingError: none of them answered.
        ResponseError: the one that answered refused.
    """
    last: RemotingError | None = None
    for address in addresses:
        try:
            return await ask(address)
        except RemotingError as error:
            last = error
    raise last or AwayError("the broker has no address")


async def ask_master(routes: QueueRoutes, key: QueueKey, ask: Callable[[str], Awaitable[T]]) -> T:
    """Give what the master of a queue's broker responds; its replicas are not asked.

    A replica may keep messages for a shorter time, and has offsets of groups some seconds later: a
    query that begins or ends where a replica says may skip rows.

    Raises:
        AwayError: the master did not respond, or is not registered.
        ResponseError: it refused.
    """
    problem: object = "it is not registered with the name server now"
    if address := routes.master(key):
        try:
            return await ask(address)
        except RemotingError as error:
            problem = error
    raise AwayError(
        f"{key}: the master of {key.broker} does not respond, and a replica may have fewer messages"
        f" and older offsets: expected the master: {problem}"
    )


def _replicas(route: Route, key: QueueKey) -> Mapping[int, str]:
    return route.brokers.get(route.physical(queue_of(key)), {})


def _is_away(key: QueueKey, route: Route | None, registered: Collection[str]) -> bool:
    if key.broker.startswith(LOGICAL_PREFIX):
        return route is not None or not registered
    return key.broker not in registered


def _why_away(key: QueueKey) -> str:
    name = f"a broker of {key.topic}" if key.broker.startswith(LOGICAL_PREFIX) else key.broker
    return f"{key}: {name} is not registered with the name server now"


def _why_gone(key: QueueKey, route: Route | None) -> str:
    if route is None:
        return "the topic does not exist"
    if key.broker not in {queue.broker_name for queue in route.read_queues}:
        return f"the topic cannot be read on {key.broker}, which is registered"
    return f"{key.broker} has no such queue that can be read"
