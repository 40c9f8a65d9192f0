"""The ring of hashes: the recorded hashes, and how little moves."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cometmq.client.allocation import ConsistentHash, md5_32
from cometmq.model.errors import ConfigError
from cometmq.model.queue import MessageQueue

VALUES = Path(__file__).resolve().parents[2] / "vectors" / "values"
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
