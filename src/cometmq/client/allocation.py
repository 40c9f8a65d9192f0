"""Strategies that allocate the queues of a topic to the members of a group.

Source: AllocateMessageQueueStrategy and its implementations, RocketMQ 5.3."""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from cometmq.model.allocation import averagely, by_circle
from cometmq.model.errors import CometError, ConfigError
from cometmq.model.queue import MessageQueue

__all__ = [
    "AllocationStrategy",
    "Averagely",
    "AveragelyByCircle",
    "ByConfiguration",
    "ConsistentHash",
    "MachineRoom",
    "MachineRoomNearby",
    "AllocationError",
]


class AllocationError(CometError):
    """A strategy cannot allocate these queues; the assignment does not change.

    Example:
        try:
            Averagely().allocate("billing", "client-1", [], ["client-1"])
        except AllocationError as error:
            print(error)
    """


class AllocationStrategy(Protocol):
    """Allocates a topic's queues to the members of a group. All members must use the same strategy.

    It receives the same lists in the same order at every member, and must depend on nothing else.

    Example:
        class OnlyTheFirst:
            name = "ONLY_THE_FIRST"

            def allocate(self, group, client_id, queues, clients):
                return list(queues) if client_id == clients[0] else []

        strategy: AllocationStrategy = OnlyTheFirst()
        PullConsumer(name_server, group="audit", strategy=strategy)
    """

    @property
    def name(self) -> str:
        """RocketMQ's name of the strategy, such as ``AVG``."""

    def allocate(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], clients: Sequence[str]
    ) -> list[MessageQueue]:
        """Return the queues of one member.

        Args:
            group: the group.
            client_id: the member; one that is not in ``clients`` gets no queue.
            queues: all queues of the topic, sorted; not empty.
            clients: the ids of all members, sorted; not empty.

        Raises:
            AllocationError: the queues cannot be allocated.
        """


class QueueOwner(Protocol):
    """Owns the queues that a rebalancer assigns, one `assign` or `revoke` of a queue at a time."""

    def assigned(self, topic: str) -> Collection[MessageQueue]:
        """Return the assigned queues of a topic."""

    async def assign(self, queue: MessageQueue) -> bool:
        """Begin with a queue: lock it where needed, find its first offset, start pulling.

        Returns:
            False when that was not possible now; the queue is tried again in the next round.
        """

    async def revoke(self, queue: MessageQueue) -> bool:
        """Release a queue: stop pulling, store its offset, unlock it.

        Returns:
            Whether it was owned. Handlers that still run are waited for in the background.
        """

    async def rebalanced(
        self, topic: str, queues: Collection[MessageQueue], mine: Collection[MessageQueue]
    ) -> None:
        """Note that the assignment of a topic has changed, as far as that was possible."""


def position(client_id: str, queues: Sequence[MessageQueue], clients: Sequence[str]) -> int | None:
    """Return the index of a member among all members, or None if it is not among them.

    Raises:
        AllocationError: there is no queue or no member.
    """
    if not client_id:
        raise AllocationError("cannot allocate queues: the client id is empty")
    if not queues:
        raise AllocationError(f"cannot allocate queues for client {client_id}: there are no queues")
    if not clients:
        raise AllocationError(
            f"cannot allocate queues for client {client_id}: the group has no members"
        )
    return clients.index(client_id) if client_id in clients else None


@dataclass(frozen=True, slots=True)
class Averagely:
    """Each member gets consecutive queues; the first members get one more. The default.

    Example:
        PullConsumer(name_server, group="audit", strategy=Averagely())
    """

    name: str = "AVG"
    """RocketMQ's name of the strategy."""

    def allocate(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], clients: Sequence[str]
    ) -> list[MessageQueue]:
        """Return the queues of one member."""
        index = position(client_id, queues, clients)
        if index is None:
            return []
        return averagely(queues, index, len(clients))


@dataclass(frozen=True, slots=True)
class AveragelyByCircle:
    """Assigns the queues to the members in rotation.

    Example:
        PullConsumer(name_server, group="audit", strategy=AveragelyByCircle())
    """

    name: str = "AVG_BY_CIRCLE"
    """RocketMQ's name of the strategy."""

    def allocate(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], clients: Sequence[str]
    ) -> list[MessageQueue]:
        """Return the queues of one member."""
        index = position(client_id, queues, clients)
        return [] if index is None else by_circle(queues, index, len(clients))


class ByConfiguration:
    """This member gets the given queues, independent of the other members.

    Args:
        queues: its queues, of any topics.

    Example:
        PullConsumer(name_server, group="audit", strategy=ByConfiguration([queue]))
    """

    name = "CONFIG"

    def __init__(self, queues: Iterable[MessageQueue]) -> None:
        self._queues = tuple(queues)

    def allocate(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], clients: Sequence[str]
    ) -> list[MessageQueue]:
        """Return the given queues that belong to the topic."""
        known = set(queues)
        return [queue for queue in self._queues if queue in known]


VIRTUAL_NODES = 10


def md5_32(text: str) -> int:
    """Return the first four bytes of a text's MD5 as a number."""
    digest = hashlib.md5(text.encode(), usedforsecurity=False).digest()
    return int.from_bytes(digest[:4], "big")


class ConsistentHash:
    """Allocates queues by a hash ring.

    Args:
        virtual_nodes: nodes of each member on the ring; with 0 no member gets a queue.
        hash: maps a text to a number; the same for all members.

    Raises:
        ConfigError: ``virtual_nodes`` is negative.

    Example:
        PullConsumer(name_server, group="audit", strategy=ConsistentHash(virtual_nodes=20))
    """

    name = "CONSISTENT_HASH"

    def __init__(
        self, virtual_nodes: int = VIRTUAL_NODES, hash: Callable[[str], int] = md5_32
    ) -> None:
        if virtual_nodes < 0:
            raise ConfigError(f"{virtual_nodes} virtual nodes on a ring: at least 0")
        self._virtual_nodes = virtual_nodes
        self._hash = hash

    def allocate(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], clients: Sequence[str]
    ) -> list[MessageQueue]:
        """Return the queues of one member."""
        ring = self._ring(clients)
        if position(client_id, queues, clients) is None or not ring:
            return []
        hashes = sorted(ring)
        return [queue for queue in queues if ring[self._node(queue, hashes)] == client_id]

    def _ring(self, clients: Sequence[str]) -> dict[int, str]:
        return {
            self._hash(f"{client}-{number}"): client
            for client in clients
            for number in range(self._virtual_nodes)
        }

    def _node(self, queue: MessageQueue, hashes: list[int]) -> int:
        key = (
            f"MessageQueue [topic={queue.topic}, brokerName={queue.broker_name}, "
            f"queueId={queue.queue_id}]"
        )
        return hashes[bisect_left(hashes, self._hash(key)) % len(hashes)]


T = TypeVar("T")


class MachineRoom:
    """Allocates only the queues of brokers in certain rooms. Brokers are named ``room@name``.

    Args:
        rooms: the rooms whose queues this group consumes. Queues of other rooms have no owner.

    Example:
        PullConsumer(name_server, group="audit", strategy=MachineRoom(["north"]))
    """

    name = "MACHINE_ROOM"

    def __init__(self, rooms: Iterable[str]) -> None:
        self._rooms = frozenset(rooms)

    def allocate(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], clients: Sequence[str]
    ) -> list[MessageQueue]:
        """Return the queues of one member: consecutive ones, and its part of the remainder."""
        index = position(client_id, queues, clients)
        if index is None:
            return []
        ours = [queue for queue in queues if _room_in_name(queue) in self._rooms]
        each, left = divmod(len(ours), len(clients))
        mine = ours[index * each : (index + 1) * each]
        return [*mine, ours[len(clients) * each + index]] if index < left else mine


def _room_in_name(queue: MessageQueue) -> str | None:
    room, separator, name = queue.broker_name.rstrip("@").partition("@")
    return room if separator and "@" not in name else None


class MachineRoomNearby:
    """Allocates queues to members in the same room. Queues of a room without members go to all.

    Args:
        inner: allocates the queues of a room to its members.
        room_of_queue: returns the room of a queue's broker.
        room_of_client: returns the room of a member by its client id.

    Example:
        near = MachineRoomNearby(
            Averagely(),
            room_of_queue=lambda queue: queue.broker_name.partition("@")[0],
            room_of_client=lambda client_id: client_id.partition("@")[0],
        )
        PullConsumer(name_server, group="audit", strategy=near)
    """

    def __init__(
        self,
        inner: AllocationStrategy,
        room_of_queue: Callable[[MessageQueue], str],
        room_of_client: Callable[[str], str],
    ) -> None:
        self._inner = inner
        self._room_of_queue = room_of_queue
        self._room_of_client = room_of_client

    @property
    def name(self) -> str:
        """The name of this strategy and of the inner one."""
        return f"MACHINE_ROOM_NEARBY-{self._inner.name}"

    def allocate(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], clients: Sequence[str]
    ) -> list[MessageQueue]:
        """Return the queues of one member.

        Raises:
            AllocationError: a queue or a member has no room.
        """
        if position(client_id, queues, clients) is None:
            return []
        queue_rooms = _by_room(queues, self._room_of_queue)
        client_rooms = _by_room(clients, self._room_of_client)
        own = self._room_of_client(client_id)
        mine: list[MessageQueue] = []
        if near := queue_rooms.pop(own, []):
            mine += self._inner.allocate(group, client_id, near, client_rooms[own])
        for room in sorted(queue_rooms.keys() - client_rooms.keys()):
            mine += self._inner.allocate(group, client_id, queue_rooms[room], clients)
        return mine


def _by_room(things: Iterable[T], room_of: Callable[[T], str]) -> dict[str, list[T]]:
    rooms: dict[str, list[T]] = {}
    for thing in things:
        room = room_of(thing)
        if not room:
            raise AllocationError(f"{thing} has no machine room")
        rooms.setdefault(room, []).append(thing)
    return rooms
