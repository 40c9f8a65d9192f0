"""Divides queues by the rooms that brokers and clients stand in.

Source: AllocateMessageQueueByMachineRoom and AllocateMachineRoomNearby, RocketMQ 5.3.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from cometmq.client.rebalance.contracts import AllocationError, AllocationStrategy
from cometmq.client.rebalance.strategies import position
from cometmq.model.queue import MessageQueue

T = TypeVar("T")


class MachineRoom:
    """Allocates only the queues of brokers in certain rooms. Brokers are named ``room@name``.

    Args:
        rooms: the rooms whose queues this group consumes. Queues of other rooms have no owner.
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
