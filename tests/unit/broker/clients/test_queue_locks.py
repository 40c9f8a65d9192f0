"""Locks of queues: who holds them, and requests for them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cometmq.broker.clients.queue_locks import LOCK_EXPIRY_MS, LockHandler, QueueLocks
from cometmq.broker.prerequisites import with_prerequisites
from cometmq.model.queue import MessageQueue
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.command import Command
from support.checks.manual_clock import ManualClock
from support.wire.memory_link import link
from unit.broker.conftest import Tables

ONE, TWO = MessageQueue("T", "b", 0), MessageQueue("T", "b", 1)


def test_free_queues_are_granted_and_others_refused() -> None:
    locks = QueueLocks(ManualClock())
    assert locks.lock("g", "a", [ONE]) == [ONE]
    assert locks.lock("g", "b", [ONE, TWO]) == [TWO]
    assert (locks.owner("g", ONE), locks.owner("g", TWO)) == ("a", "b")


def test_a_lock_lives_until_it_was_not_renewed_for_its_whole_life() -> None:
    clock = ManualClock()
    locks = QueueLocks(clock)
    locks.lock("g", "a", [ONE])
    clock.advance(LOCK_EXPIRY_MS)
    assert locks.lock("g", "b", [ONE]) == []
    assert locks.lock("g", "a", [ONE]) == [ONE]
    clock.advance(LOCK_EXPIRY_MS + 1)
    assert locks.owner("g", ONE) is None
    assert locks.lock("g", "b", [ONE]) == [ONE]


def test_only_its_owner_unlocks_a_queue() -> None:
    locks = QueueLocks(ManualClock())
    locks.lock("g", "a", [ONE])
    locks.unlock("g", "b", [ONE, TWO])
    assert locks.owner("g", ONE) == "a"
    locks.unlock("g", "a", [ONE])
    assert locks.owner("g", ONE) is None


def test_a_group_holds_locks_until_they_expire() -> None:
    clock = ManualClock()
    locks = QueueLocks(clock)
    assert not locks.holds_any("g")
    locks.lock("g", "a", [ONE])
    assert locks.holds_any("g")
    assert not locks.holds_any("other")
    clock.advance(LOCK_EXPIRY_MS + 1)
    assert not locks.holds_any("g")


def test_sweeping_forgets_what_has_expired() -> None:
    clock = ManualClock()
    locks = QueueLocks(clock)
    locks.lock("g", "a", [ONE])
    clock.advance(LOCK_EXPIRY_MS)
    locks.lock("h", "a", [ONE, TWO])
    clock.advance(1)
    assert locks.sweep() == 1
    assert locks.owner("h", TWO) == "a"


def test_the_number_of_locks_is_limited_until_others_are_free() -> None:
    clock = ManualClock()
    locks = QueueLocks(clock, locks_max=2)
    three = MessageQueue("T", "b", 2)
    assert locks.lock("g", "a", [ONE, TWO, three]) == [ONE, TWO]
    assert locks.lock("h", "a", [three]) == []
    assert locks.lock("g", "a", [ONE]) == [ONE], "a renewal needs no room"
    locks.unlock("g", "a", [ONE])
    assert locks.lock("h", "a", [three]) == [three]
    clock.advance(LOCK_EXPIRY_MS + 1)
    assert locks.sweep() == 2
    assert locks.lock("h", "a", [ONE, TWO, three]) == [ONE, TWO]


class Client:
    """A client of a broker that has topic T."""

    def __init__(self, tables: Tables) -> None:
        tables.topic("T", queues=2)
        locks = LockHandler(QueueLocks(tables.clock), groups=tables.groups)
        self.connection = link(
            {
                RequestCode.LOCK_BATCH_MQ: with_prerequisites(locks.lock),
                RequestCode.UNLOCK_BATCH_MQ: with_prerequisites(locks.unlock),
            }
        )[1]

    async def ask(self, code: int, *ids: int, client: str = "a", **changes: Any) -> Command:
        topic = changes.pop("topic", "T")
        queues = [{"topic": topic, "brokerName": "b", "queueId": queue} for queue in ids]
        body = {"consumerGroup": "g", "clientId": client, "mqSet": queues} | changes
        return await self.connection.call(code, body=json.dumps(body).encode(), timeout=30)

    async def lock(self, *ids: int, client: str = "a", **changes: Any) -> list[int]:
        answer = await self.ask(RequestCode.LOCK_BATCH_MQ, *ids, client=client, **changes)
        assert answer.code == 0, answer.remark
        return [queue["queueId"] for queue in json.loads(answer.body)["lockOKMQSet"]]


@pytest.fixture
async def client(tables: Tables) -> Client:
    return Client(tables)


async def test_free_queues_are_granted_once_each(client: Client) -> None:
    assert await client.lock(1, 0, 1) == [1, 0]
    assert await client.lock(0, 1, client="b") == []


async def test_an_unlocked_queue_is_free(client: Client) -> None:
    await client.lock(0)
    assert (await client.ask(RequestCode.UNLOCK_BATCH_MQ, 0)).code == 0
    assert await client.lock(0, client="b") == [0]


async def test_queues_of_unknown_topics_are_granted_as_rocketmq_does(client: Client) -> None:
    assert await client.lock(0, topic="U") == [0]
    assert await client.lock(0, topic="U", client="b") == []


@pytest.mark.parametrize("changes", [{"clientId": ""}, {"consumerGroup": "a/b"}])
async def test_bad_names_are_refused(client: Client, changes: dict[str, Any]) -> None:
    answer = await client.ask(RequestCode.LOCK_BATCH_MQ, 0, **changes)
    assert answer.code == 29


@pytest.mark.parametrize("body", [b"", b"null", b"[]", b"{"])
async def test_an_unreadable_body_is_code_1(client: Client, body: bytes) -> None:
    for code in (RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ):
        assert (await client.connection.call(code, body=body, timeout=30)).code == 1
