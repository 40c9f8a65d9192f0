"""Strategies that allocate queues: as recorded from RocketMQ, without overlap or gap."""

from __future__ import annotations

import json
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from cometmq.client.allocation import (
    AllocationError,
    AllocationStrategy,
    Averagely,
    AveragelyByCircle,
    ByConfiguration,
    ConsistentHash,
    MachineRoom,
    MachineRoomNearby,
    md5_32,
)
from cometmq.model.errors import ConfigError
from cometmq.model.queue import MessageQueue

VALUES = Path(__file__).resolve().parents[2] / "vectors" / "values"
VERSIONS = ("4.9.7", "5.3.3")
SIZES = range(21)


def recorded(version: str) -> list[dict[str, Any]]:
    """The tables that a version of RocketMQ made."""
    cases: list[dict[str, Any]] = json.loads((VALUES / version / "allocate.json").read_text())[
        "cases"
    ]
    return cases


def queue_of(text: str, topic: str = "T") -> MessageQueue:
    """The queue that a table calls ``broker:number``."""
    broker, _, number = text.rpartition(":")
    return MessageQueue(topic, broker, int(number))


def room(text: str) -> str:
    """The room of the recorded names: what stands before the first dash."""
    return text.partition("-")[0]


def strategy_of(case: dict[str, Any]) -> AllocationStrategy:
    """The strategy of a recorded table."""
    match case["strategy"]:
        case "AVG":
            return Averagely()
        case "AVG_BY_CIRCLE":
            return AveragelyByCircle()
        case "CONSISTENT_HASH":
            return ConsistentHash(case["virtual_nodes"])
        case "CONFIG":
            return ByConfiguration(map(queue_of, case["configured"]))
        case "MACHINE_ROOM":
            return MachineRoom(case["idcs"])
        case "MACHINE_ROOM_NEARBY-AVG":
            return MachineRoomNearby(Averagely(), lambda queue: room(queue.broker_name), room)
        case other:
            raise AssertionError(f"a strategy nobody knows: {other}")


@pytest.mark.parametrize("version", VERSIONS)
def test_every_strategy_divides_as_the_recorded_tables_say(version: str) -> None:
    cases = recorded(version)
    for case in cases:
        strategy = strategy_of(case)
        assert strategy.name == case["strategy"]
        queues = [queue_of(text) for text in case["queues"]]
        for client, told in case["result"].items():
            mine = strategy.allocate("g", client, queues, case["members"])
            assert [f"{queue.broker_name}:{queue.queue_id}" for queue in mine] == told, case
    assert len({case["strategy"] for case in cases}) == 6


def queues_of(count: int) -> list[MessageQueue]:
    return [MessageQueue("T", "a", number) for number in range(count)]


def clients_of(count: int) -> list[str]:
    return sorted(f"10.0.0.{number}@1" for number in range(count))


def runs(queues: list[MessageQueue], clients: int, index: int) -> list[MessageQueue]:
    """The rule of the averaging strategy, as it is written down."""
    count, rest = len(queues), len(queues) % clients
    if count <= clients:
        size = 1
    elif rest > 0 and index < rest:
        size = count // clients + 1
    else:
        size = count // clients
    start = index * size if rest > 0 and index < rest else index * size + rest
    size = min(size, count - start)
    return [queues[(start + step) % count] for step in range(size)]


@pytest.mark.parametrize("count", SIZES[1:])
def test_averaging_gives_runs_as_the_rule_says_for_up_to_twenty(count: int) -> None:
    queues = queues_of(count)
    for members in SIZES[1:]:
        clients = clients_of(members)
        for index, client in enumerate(clients):
            mine = Averagely().allocate("g", client, queues, clients)
            assert mine == runs(queues, members, index)


@pytest.mark.parametrize("count", SIZES[1:])
def test_circling_gives_every_nth_queue_for_up_to_twenty(count: int) -> None:
    queues = queues_of(count)
    for members in SIZES[1:]:
        clients = clients_of(members)
        for index, client in enumerate(clients):
            mine = AveragelyByCircle().allocate("g", client, queues, clients)
            assert [queue.queue_id for queue in mine] == [
                number for number in range(count) if number % members == index
            ]


@pytest.mark.parametrize(
    "strategy", [Averagely(), AveragelyByCircle(), ConsistentHash()], ids=lambda each: each.name
)
def test_every_queue_has_exactly_one_owner(strategy: AllocationStrategy) -> None:
    for count in SIZES[1:]:
        for members in SIZES[1:]:
            queues, clients = queues_of(count), clients_of(members)
            shares = [strategy.allocate("g", client, queues, clients) for client in clients]
            assert sorted(chain.from_iterable(shares)) == queues


ALL = [
    Averagely(),
    AveragelyByCircle(),
    ConsistentHash(),
    MachineRoom(["r"]),
    MachineRoomNearby(Averagely(), lambda _: "r", lambda _: "r"),
]


@pytest.mark.parametrize("strategy", ALL, ids=lambda each: each.name)
@pytest.mark.parametrize(
    ("client", "count", "members", "why"),
    [("", 1, 1, "client id is empty"), ("x", 0, 1, "no queues"), ("x", 1, 0, "no members")],
)
def test_nothing_is_divided_without_queues_or_members(
    strategy: AllocationStrategy, client: str, count: int, members: int, why: str
) -> None:
    with pytest.raises(AllocationError, match=why):
        strategy.allocate("g", client, queues_of(count), clients_of(members))


@pytest.mark.parametrize("strategy", ALL, ids=lambda each: each.name)
def test_a_client_that_is_no_member_gets_nothing(strategy: AllocationStrategy) -> None:
    assert strategy.allocate("g", "stranger", queues_of(4), clients_of(2)) == []


def test_a_configured_queue_that_the_topic_does_not_have_is_left_out() -> None:
    strategy = ByConfiguration([MessageQueue("T", "a", 1), MessageQueue("other", "a", 0)])

    assert strategy.allocate("g", "x", queues_of(3), ["x"]) == [MessageQueue("T", "a", 1)]


QUEUES = [MessageQueue("T", "a", number) for number in range(64)]


@pytest.mark.parametrize("version", ["4.9.7", "5.3.3"])
def test_the_hash_is_the_first_four_bytes_of_the_md5(version: str) -> None:
    table = json.loads((VALUES / version / "allocate.json").read_text())

    assert [md5_32(row["s"]) for row in table["consistent_hash_function"]] == [
        row["hash"] for row in table["consistent_hash_function"]
    ]


def test_only_the_queues_of_a_member_that_left_move() -> None:
    clients, strategy = ["a@1", "b@2", "c@3", "d@4"], ConsistentHash()
    before = {
        queue: client
        for client in clients
        for queue in strategy.allocate("g", client, QUEUES, clients)
    }
    left = [client for client in clients if client != "c@3"]

    for client in left:
        for queue in strategy.allocate("g", client, QUEUES, left):
            assert before[queue] in (client, "c@3")


def test_a_queue_whose_hash_is_a_nodes_own_belongs_to_that_node() -> None:
    hashes = {"a-0": 10, "b-0": 20}
    strategy = ConsistentHash(1, lambda text: hashes.get(text, 10))

    assert strategy.allocate("g", "a", QUEUES[:1], ["a", "b"]) == QUEUES[:1]


def test_a_queue_above_the_highest_node_belongs_to_the_first() -> None:
    hashes = {"a-0": 10, "b-0": 20}
    strategy = ConsistentHash(1, lambda text: hashes.get(text, 21))

    assert strategy.allocate("g", "a", QUEUES[:1], ["a", "b"]) == QUEUES[:1]


def test_nobody_gets_anything_on_a_ring_without_nodes() -> None:
    assert ConsistentHash(0).allocate("g", "a", QUEUES, ["a"]) == []


def test_fewer_than_no_nodes_are_refused() -> None:
    with pytest.raises(ConfigError, match="-1 virtual nodes"):
        ConsistentHash(-1)


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
