"""Timer messages with our client: commands, slaves that take over, elected masters, accounts."""

from __future__ import annotations

import asyncio
import json
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
from support.checks.waiting import until
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
        receipts = [producer.send(Message("alarms", b"x", delay=3600)) for _ in range(3)]
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
        line = ["admin", "timer", "recall", "alarms", first, "--yes", "-n", cluster.name_servers]
        result = CliRunner().invoke(app, line)
        assert "that waits" in str(result.exception)


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
