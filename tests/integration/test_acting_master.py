"""A slave that name servers show as the master while there is none."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cometmq.broker.app import Broker
from cometmq.client import AdminClient, Message, Producer, PushConsumer
from cometmq.model.message import StoredMessage
from cometmq.model.topic import Perm
from cometmq.protocol.bodies import TopicRouteData
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.headers import GetRouteinfoByTopicRequest
from cometmq.remoting import RemotingClient, check
from support.pairs import LIMIT_S, SLAVE, Pairs, running_pairs, until

ACTING = {"enableSlaveActingMaster": "true"}
MESSAGES = [b"%d" % number for number in range(10)]


@pytest.fixture
async def pairs(tmp_path: Path) -> AsyncIterator[Pairs]:
    async with running_pairs(tmp_path, supports_acting_master=True) as running:
        yield running


@pytest.fixture
async def client() -> AsyncIterator[RemotingClient]:
    made = RemotingClient(name="test")
    yield made
    await made.close()


async def half_consumed(pairs: Pairs, **settings: str) -> tuple[Broker, Broker]:
    """A master of whose messages a group has consumed the first half, and its slave."""
    master = await pairs.start("master", **settings)
    async with AdminClient(pairs.name_server.address) as admin:
        [queue] = await admin.create_topic("T", queues=1)
        await admin.create_group("G")
    async with Producer(pairs.name_server.address, group="p") as producer:
        for body in MESSAGES:
            await producer.send(Message("T", body), queue=queue)
    assert await pairs.consume("G", "T", 5) == MESSAGES[:5]
    slave = await pairs.start("slave", **SLAVE, **settings)
    await until(lambda: slave.parts.store.written_to == master.parts.store.written_to)
    await until(lambda: "T" in slave.parts.topics and "G" in slave.parts.groups)
    await until(lambda: slave.parts.offsets.of("G", "T") == {0: 5})
    return master, slave


async def route(pairs: Pairs, client: RemotingClient) -> TopicRouteData:
    header = GetRouteinfoByTopicRequest(topic="T")
    response = await client.call(
        pairs.name_server.address, RequestCode.GET_ROUTEINFO_BY_TOPIC, header, timeout=LIMIT_S
    )
    return TopicRouteData.decode(check(response).body)


async def test_consumers_go_on_with_a_slave_and_its_offsets_return_to_the_master(
    pairs: Pairs, client: RemotingClient
) -> None:
    master, slave = await half_consumed(pairs, **ACTING)
    await pairs.stop(master)
    shown = await route(pairs, client)
    assert shown.broker_datas[0].broker_addrs == {0: slave.address}
    assert shown.queue_datas[0].perm == Perm.READ

    assert await pairs.consume("G", "T", 5) == MESSAGES[5:]
    assert slave.parts.offsets.committed("G", "T", 0) == 10

    master = await pairs.start("master", **ACTING)
    assert master.parts.offsets.committed("G", "T", 0) == 10
    shown = await route(pairs, client)
    assert shown.broker_datas[0].broker_addrs == {0: master.address, 1: slave.address}
    assert shown.queue_datas[0].perm == Perm.READ | Perm.WRITE
    async with Producer(pairs.name_server.address, group="p") as producer:
        await producer.send(Message("T", b"again"))
    assert await pairs.consume("G", "T", 1) == [b"again"]


async def test_consumers_of_an_ordered_topic_lock_its_queue_at_the_slave_and_go_on(
    pairs: Pairs,
) -> None:
    master, slave = await half_consumed(pairs, **ACTING)
    await pairs.stop(master)
    received: list[bytes] = []
    has_all = asyncio.Event()

    async def handle(message: StoredMessage) -> None:
        received.append(message.body)
        if message.body == MESSAGES[-1]:
            has_all.set()

    async with PushConsumer(
        pairs.name_server.address,
        group="G",
        handler=handle,
        subscriptions={"T": "*"},
        ordered=True,
    ):
        async with asyncio.timeout(LIMIT_S):
            await has_all.wait()
    assert received == MESSAGES[5:]
    assert slave.parts.offsets.committed("G", "T", 0) == 10

    master = await pairs.start("master", **ACTING)
    assert master.parts.offsets.committed("G", "T", 0) == 10


async def test_without_the_setting_no_slave_is_shown_as_the_master(
    pairs: Pairs, client: RemotingClient
) -> None:
    master, slave = await half_consumed(pairs)
    await pairs.stop(master)
    shown = await route(pairs, client)
    assert shown.broker_datas[0].broker_addrs == {1: slave.address}
    slave.parts.offsets.commit("G", "T", 0, 10)
    master = await pairs.start("master")
    assert master.parts.offsets.committed("G", "T", 0) == 5


async def test_a_master_registers_though_its_slave_does_not_respond(
    pairs: Pairs, caplog: pytest.LogCaptureFixture
) -> None:
    master, slave = await half_consumed(pairs, **ACTING)
    await pairs.stop(master)
    for server in slave._servers:
        server.stop_accepting()
    async with asyncio.timeout(LIMIT_S):
        master = await pairs.start("master", **ACTING)
    assert not master.parts.registration.missing
    assert "offsets that were committed at a slave are not taken back" in caplog.text
    assert master.parts.offsets.committed("G", "T", 0) == 5


async def test_a_master_alone_says_nothing(pairs: Pairs, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    await pairs.start("master", **ACTING)
    assert "taken back" not in caplog.text
    assert "took back" not in caplog.text
