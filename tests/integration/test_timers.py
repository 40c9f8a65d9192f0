"""Timer messages with our client: commands, slaves that take over, elected masters, accounts."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from cometmq.broker.app import Broker
from cometmq.cli.commands import app
from cometmq.client import Message, Producer, ResponseError
from cometmq.client.blocking import AdminClient
from cometmq.client.blocking import Producer as BlockingProducer
from cometmq.model.topic import TIMER_TOPIC
from cometmq.protocol.record import iter_records
from cometmq.testing import ThreadedCluster
from support.brokers.pairs import SLAVE, Pairs
from support.checks.waiting import until, wait_until
from support.controllers.elected_pairs import (
    ElectedPairs,
    is_master,
    members,
    running_elected_pairs,
)

RECALLING = {"recallMessageEnable": "true"}
COUNT = 40


def run(cluster: ThreadedCluster, words: str) -> Any:
    line = ["admin", *words.split(), "--json", "-n", cluster.name_servers]
    result = CliRunner().invoke(app, line)
    assert result.exit_code == 0, (words, result.stdout, result.stderr, result.exception)
    return json.loads(result.stdout)


def test_a_timed_message_is_found_and_recalled_with_commands() -> None:
    with (
        ThreadedCluster(settings=RECALLING) as cluster,
        AdminClient(cluster.name_servers) as admin,
        BlockingProducer(cluster.name_servers, group="clock") as producer,
    ):
        admin.create_topic("alarms", queues=1)
        receipts = [
            producer.send(Message("alarms", b"x", keys=[f"k{number}", "all"], delay=3600 + number))
            for number in range(3)
        ]
        first, second, third = (receipt.message_id for receipt in receipts)

        [row] = run(cluster, f"timer find alarms {first}")
        assert (row["message_id"], row["state"]) == (first, "waiting")
        assert row["handle"] == receipts[0].recall_handle
        [planned] = run(cluster, f"timer recall alarms {first} --dry-run")
        [done] = run(cluster, f"timer recall alarms {first} --yes")
        assert [planned["state"], done["state"]] == ["planned", "done"]
        run(cluster, f"timer recall alarms {receipts[1].recall_handle} --yes")

        states = [
            run(cluster, f"timer find alarms {each}")[0]["state"] for each in (first, second, third)
        ]
        assert states == ["recalled", "recalled", "waiting"]
        by_key = run(cluster, "timer find alarms all")
        assert [row["state"] for row in by_key] == states
        line = ["admin", "timer", "recall", "alarms", first, "--yes", "-n", cluster.name_servers]
        result = CliRunner().invoke(app, line)
        assert "that waits" in str(result.exception)


def test_messages_that_wait_are_listed_in_the_order_of_their_times() -> None:
    with (
        ThreadedCluster(settings=RECALLING) as cluster,
        AdminClient(cluster.name_servers) as admin,
        BlockingProducer(cluster.name_servers, group="clock") as producer,
    ):
        for topic in ("alarms", "others"):
            admin.create_topic(topic, queues=1)
        at_ms = int(time.time() * 1000) // 1000 * 1000 + 3_600_000
        ids: dict[str, str] = {}
        handles: dict[str, str | None] = {}
        for name, topic, due_ms in (
            ("late", "alarms", at_ms + 90_000_000),
            ("early", "alarms", at_ms + 400),
            ("recalled", "alarms", at_ms + 900),
            ("other", "others", at_ms + 60_000),
        ):
            message = Message(topic, b"body", keys=[name, "all"], deliver_at=due_ms)
            receipt = producer.send(message)
            ids[receipt.message_id], handles[name] = name, receipt.recall_handle
        assert handles["recalled"] is not None
        producer.recall("alarms", handles["recalled"])
        [broker] = admin.cluster_info().registered(None)

        def shown(words: str = "") -> list[tuple[str, str]]:
            rows = run(cluster, f"timer list {words}")
            return [(ids[row["message_id"]], row["state"]) for row in rows]

        everything = [("early", "waiting"), ("recalled", "recalled")]
        everything += [("other", "waiting"), ("late", "waiting")]
        wait_until(lambda: sorted(shown()) == sorted(everything))
        assert shown()[2:] == everything[2:]
        assert sorted(shown("--topic alarms")) == sorted(everything[:2] + everything[3:])
        assert shown("--key late") == [("late", "waiting")]
        assert len(shown("--limit 2")) == 2
        found = admin.waiting_timers(broker.address, key="late")
        assert [(each.due_ms, each.handle) for each in found] == [
            (at_ms + 90_000_000, handles["late"])
        ]
        # One message of a slot does not fit: the next page has the slot as a whole.
        assert [len(admin.waiting_timers(broker.address, limit=n)) for n in (1, 3)] == [1, 3]


async def test_recalls_are_refused_unless_they_are_enabled(pairs: Pairs) -> None:
    await pairs.start("master")
    async with Producer(pairs.name_server.address, group="clock") as producer:
        receipt = await producer.send(Message("T", b"x", delay=60))
        assert receipt.recall_handle is not None
        with pytest.raises(ResponseError, match="operation is forbidden"):
            await producer.recall("T", receipt.recall_handle)


async def send_all(producer: Producer, first_s: float) -> None:
    for number in range(COUNT):
        delay = first_s + number * 0.1
        await producer.send(Message("T", b"%d" % number, delay=delay))


def bodies(broker: Broker) -> list[int]:
    """Return the messages of topic T, whether or not readers see them."""
    found: list[int] = []
    store = broker.core.store
    for topic, queue_id in store.queue_keys():
        if topic == "T":
            for unit in store.written_units(topic, queue_id, 0):
                data = store.written_record_at(*unit)
                assert data is not None
                found += [int(message.body) for message in iter_records(data)]
    return sorted(found)


async def test_a_slave_that_becomes_the_master_delivers_the_rest_once(pairs: Pairs) -> None:
    master = await pairs.start("master", flushDiskType="ASYNC_FLUSH")
    slave = await pairs.start("slave", **SLAVE, flushDiskType="ASYNC_FLUSH")
    async with Producer(pairs.name_server.address, group="clock") as producer:
        await send_all(producer, 2.0)
    await until(lambda: slave.features.timers.delivery.get().index.queue_offset == COUNT)
    slave.features.replication.metadata.get().hurry()
    await until(lambda: len(bodies(master)) >= 5)
    slave.features.replication.metadata.get().hurry()
    await until(lambda: len(bodies(slave)) >= 12)
    assert slave.features.timers.figures().delivered == 0
    await pairs.stop(master)
    await pairs.stop(slave)

    promoted = await pairs.start("slave", flushDiskType="ASYNC_FLUSH")

    await until(lambda: len(bodies(promoted)) >= COUNT)
    assert bodies(promoted) == list(range(COUNT))
    await until(lambda: promoted.features.timers.counts() == [])


@pytest.fixture
async def elected(tmp_path: Path) -> AsyncIterator[ElectedPairs]:
    async with running_elected_pairs(tmp_path) as made:
        yield made


async def test_an_elected_master_delivers_what_its_predecessor_has_not(
    elected: ElectedPairs,
) -> None:
    await elected.controller()
    first = await elected.start("a")
    second = await elected.start("b")
    await until(lambda: members(first) == {1, 2})
    async with Producer(elected.pairs.name_server.address, group="clock") as producer:
        await send_all(producer, 2.0)
        await until(lambda: len(bodies(first)) >= 10)
        await elected.pairs.stop(first)
        await until(lambda: is_master(second))

        await until(lambda: len(bodies(second)) >= COUNT)

    assert bodies(second) == list(range(COUNT))
    assert second.core.store.next_offset(TIMER_TOPIC, 0) == COUNT
    await asyncio.sleep(0.5)
    assert bodies(second) == list(range(COUNT))
