"""Finds the broker that has a queue now; a queue without a broker is either gone or away.

A name server forgets a broker that does not answer, with all its queues. So a queue that no route
names is gone for good only while its broker is registered; otherwise the broker is away, and may
come back with all it has.

Source: RouteInfoManager, RocketMQ 5.3, by which name servers forget brokers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

from cometmq.client.errors import TopicNotFoundError
from cometmq.client.library import LOGICAL_PREFIX, MASTER_ID, ClientConnection, Route
from cometmq.model.errors import RemotingError
from cometmq.model.queue import MessageQueue
from cometmq.protocol.bodies.route import ClusterInfo
from cometmq.protocol.codes import RequestCode
from cometmq.spark.brokers.patience import AwayError
from cometmq.spark.offsets import QueueKey

K = TypeVar("K")
T = TypeVar("T")

AT_ONCE: Final = 64
"""Requests of one question that wait for answers at a time."""


@dataclass(frozen=True, slots=True)
class Placed:
    """Where queues are."""

    addresses: dict[QueueKey, tuple[str, ...]]
    """Of each queue's broker: the master first, then whoever has a copy."""
    replicas: dict[QueueKey, Mapping[int, str]]
    """The same by the ids of replicas; 0 is the master's."""
    gone: dict[QueueKey, str]
    """Queues that are no longer readable, and why."""

    def master(self, key: QueueKey) -> str | None:
        """Return the address of the master that has a queue, None if it is not registered."""
        return self.replicas[key].get(MASTER_ID)

    def lose(self, key: QueueKey, why: str) -> None:
        """Note that a queue is gone, which its broker itself says."""
        self.addresses.pop(key, None)
        self.gone[key] = why


class Places:
    """Finds the brokers of queues; asks the name server each time, for routes change.

    Args:
        connection: to the servers.
    """

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection

    async def route(self, topic: str) -> Route | None:
        """Give the topic's route as the name server tells it now, None if there is no such topic.

        Raises:
            RemotingError: no name server answered.
        """
        try:
            return await self._connection.route(topic)
        except TopicNotFoundError:
            return None

    async def routes(self, topics: Iterable[str]) -> dict[str, Route | None]:
        """Give the routes of several topics.

        Raises:
            RemotingError: no name server answered.
        """
        return await ask_each(sorted(set(topics)), self.route)

    async def place(self, keys: Iterable[QueueKey]) -> Placed:
        """Say where each queue is.

        Raises:
            AwayError: the broker of one is not registered now.
            RemotingError: no name server answered.
        """
        keys = list(keys)
        placed = await self._placed(keys)
        if placed.gone:  # its broker may have come back between the two questions: ask both again
            placed = await self._placed(keys)
        return placed

    async def _placed(self, keys: list[QueueKey]) -> Placed:
        routes = await self.routes(key.topic for key in keys)
        readable = {topic: _readable(route) for topic, route in routes.items()}
        found: dict[QueueKey, Mapping[int, str]] = {}
        for key in keys:
            route = routes[key.topic]
            if route and key in readable[key.topic] and (known := _replicas(route, key)):
                found[key] = known
        missing = [key for key in keys if key not in found]
        gone = await self._why_gone(missing, routes) if missing else {}
        return Placed({key: masters_first(known) for key, known in found.items()}, found, gone)

    async def cluster(self) -> ClusterInfo:
        """Give all brokers that are registered.

        Raises:
            RemotingError: no name server answered.
        """
        code = RequestCode.GET_BROKER_CLUSTER_INFO
        return ClusterInfo.decode((await self._connection.call_name_server(code)).body)

    async def _why_gone(
        self, missing: list[QueueKey], routes: dict[str, Route | None]
    ) -> dict[QueueKey, str]:
        registered = (await self.cluster()).broker_addr_table
        gone: dict[QueueKey, str] = {}
        for key in missing:
            logical = key.broker.startswith(LOGICAL_PREFIX) and registered
            if key.broker not in registered and not logical:
                raise AwayError(f"{key}: {key.broker} is not registered with the name server now")
            gone[key] = _why(key, routes[key.topic])
        return gone


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


async def ask_master(placed: Placed, key: QueueKey, ask: Callable[[str], Awaitable[T]]) -> T:
    """Give what the master of a queue's broker responds; its replicas are not asked.

    A replica may keep messages for a shorter time, and has offsets of groups some seconds later: a
    query that begins or ends where a replica says may skip rows.

    Raises:
        AwayError: the master did not respond, or is not registered.
        ResponseError: it refused.
    """
    problem: object = "it is not registered with the name server now"
    if address := placed.master(key):
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


def _readable(route: Route | None) -> frozenset[QueueKey]:
    return frozenset(keys_of(route)) if route else frozenset()


def _why(key: QueueKey, route: Route | None) -> str:
    if route is None:
        return "the topic does not exist"
    if key.broker not in {queue.broker_name for queue in route.read_queues}:
        return f"the topic cannot be read on {key.broker}, which is registered"
    return f"{key.broker} has no such queue that can be read"
