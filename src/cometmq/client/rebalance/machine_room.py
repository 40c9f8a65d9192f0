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
    """Divides the queues of brokers that are named ``room@name``, in certain rooms only.

    Args:
        rooms: the rooms whose queues this group consumes; those of others have no owner.
    """

    name = "MACHINE_ROOM"

    def __init__(self, rooms: Iterable[str]) -> None:
        self._rooms = frozenset(rooms)

    def allocate(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], clients: Sequence[str]
    ) -> list[MessageQueue]:
        """Give the queues of one member: a run, and one of those that are left over."""
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
    """Gives queues to members in the same room; those of rooms without members to everybody.

    Args:
        inner: divides the queues of a room among its members.
        room_of_queue: tells the room of a queue's broker.
        room_of_client: tells the room of a member by its client id.
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
        """The strategy's name, that of the inner one included."""
        return f"MACHINE_ROOM_NEARBY-{self._inner.name}"

    def allocate(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], clients: Sequence[str]
    ) -> list[MessageQueue]:
        """Give the queues of one member.

        Raises:
            AllocationError: a queue or a member is in no room.
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
            raise AllocationError(f"{thing} is in no machine room")
        rooms.setdefault(room, []).append(thing)
    return rooms
