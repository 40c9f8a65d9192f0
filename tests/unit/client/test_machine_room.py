"""Dividing by rooms: which names say a room, and what becomes of rooms without members."""

from __future__ import annotations

import pytest

from cometmq.client.allocation import AllocationError, Averagely, MachineRoom, MachineRoomNearby
from cometmq.model.queue import MessageQueue


@pytest.mark.parametrize(
    ("broker", "ours"),
    [
        ("r1@a", True),
        ("r2@a", False),
        ("a", False),
        ("r1@a@b", False),
        ("r1@", False),
        ("@r1", False),
    ],
)
def test_a_broker_is_in_a_room_if_its_name_says_so(broker: str, ours: bool) -> None:
    queues = [MessageQueue("t", broker, 0)]

    assert MachineRoom(["r1"]).allocate("g", "x", queues, ["x"]) == (queues if ours else [])


def nearby(rooms: dict[str, str]) -> MachineRoomNearby:
    """Rooms by the names of brokers and clients."""
    return MachineRoomNearby(
        Averagely(), lambda queue: rooms[queue.broker_name], lambda client: rooms[client]
    )


def test_queues_of_a_room_without_members_go_to_everybody() -> None:
    strategy = nearby({"near": "1", "far": "2", "x": "1", "y": "3"})
    queues = [
        MessageQueue("t", "far", 0),
        MessageQueue("t", "far", 1),
        MessageQueue("t", "near", 0),
    ]

    assert strategy.allocate("g", "x", queues, ["x", "y"]) == [queues[2], queues[0]]
    assert strategy.allocate("g", "y", queues, ["x", "y"]) == [queues[1]]


@pytest.mark.parametrize("lost", ["a", "x"])
def test_nothing_is_divided_while_somebody_is_in_no_room(lost: str) -> None:
    strategy = nearby({"a": "1", "x": "1", lost: ""})

    with pytest.raises(AllocationError, match="has no machine room"):
        strategy.allocate("g", "x", [MessageQueue("t", "a", 0)], ["x"])
