"""A slave that name servers show as the master while there is none."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cometmq.broker.app import Broker
from cometmq.broker.transactions.half_queue import GROUP
from cometmq.client import (
    AdminClient,
    LocalState,
    Message,
    MessageQueue,
    Producer,
    PushConsumer,
    TransactionProducer,
)
from cometmq.model.message import StoredMessage
from cometmq.model.topic import HALF_TOPIC, Perm
from cometmq.protocol.bodies import TopicRouteData
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.headers import GetRouteinfoByTopicRequest
from cometmq.remoting import RemotingClient, check
from support.pairs import LIMIT_S, SLAVE, Pairs, running_pairs, until

ACTING = {"enableSlaveActingMaster": "true"}
ESCAPING = ACTING | {
    "enableRemoteEscape": "true",
    "messageDelayLevel": "1s 2s",
    "syncBrokerMemberGroupPeriod": "50",
    "transactionCheckInterval": "200",
    "transactionTimeOut": "500",
}
OTHER = ESCAPING | {"brokerName": "other"}
MESSAGES = [b"%d" % number for number in range(10)]


@pytest.fixture
async def pairs(tmp_path: Path) -> AsyncIterator[Pairs]:
    async with running_pairs(
        tmp_path, supports_acting_master=True, notify_min_broker_id=True, expiry_scan_ms=50
    ) as running:
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


# --- scheduled messages and transactions ----------------------------------------------------------


def stored(broker: Broker, topic: str) -> int:
    """How many messages queue 0 of a topic has."""
    return broker.parts.store.bounds(topic, 0)[1]


async def pair_and_other(
    pairs: Pairs, *, of_master: dict[str, str] | None = None, of_slave: dict[str, str] | None = None
) -> tuple[Broker, Broker, Broker]:
    """A master, its slave, and another master; the topic T is on the first only."""
    master = await pairs.start("master", **ESCAPING | (of_master or {}))
    slave = await pairs.start("slave", **ESCAPING | SLAVE | (of_slave or {}))
    other = await pairs.start("other", **OTHER)
    async with AdminClient(pairs.name_server.address) as admin:
        await admin.create_topic("T", queues=1, brokers=["pair"])
    return master, slave, other


async def replicated(master: Broker, slave: Broker) -> None:
    await until(lambda: slave.parts.store.written_to == master.parts.store.written_to)


async def offer_other_broker(pairs: Pairs) -> None:
    async with AdminClient(pairs.name_server.address) as admin:
        await admin.create_topic("T", queues=1, brokers=["other"])


async def send_scheduled(pairs: Pairs, *bodies: bytes) -> None:
    """Send messages to the pair that are due after two seconds."""
    async with Producer(pairs.name_server.address, group="p") as producer:
        for body in bodies:
            await producer.send(
                Message("T", body, keys=["k"], delay_level=2), queue=MessageQueue("T", "pair", 0)
            )


async def test_scheduled_messages_go_to_another_broker_and_are_delivered_once(
    pairs: Pairs, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    master, slave, other = await pair_and_other(pairs)
    await send_scheduled(pairs, b"first", b"second")
    await replicated(master, slave)
    await pairs.stop(master)
    await until(lambda: slave.parts.acting is not None and slave.parts.acting.is_acting)
    await offer_other_broker(pairs)

    await until(lambda: stored(other, "T") == 2)
    assert await pairs.consume("G", "T", 2) == [b"first", b"second"]
    assert slave.parts.delay.offsets()[2] == 2

    master = await pairs.start("master", **ESCAPING)
    assert "the master announced itself" in caplog.text
    assert master.parts.delay.offsets()[2] == 2
    await send_scheduled(pairs, b"third")
    await until(lambda: stored(master, "T") > 0)
    assert stored(master, "T") == 1
    await replicated(master, slave)
    await until(lambda: slave.parts.delay.offsets()[2] == 3)


async def test_scheduled_messages_wait_for_the_master_if_they_may_not_go_elsewhere(
    pairs: Pairs,
) -> None:
    master, slave, other = await pair_and_other(pairs, of_slave={"enableRemoteEscape": "false"})
    await send_scheduled(pairs, b"body")
    await replicated(master, slave)
    await pairs.stop(master)
    await until(lambda: slave.parts.acting is not None and slave.parts.acting.is_acting)
    await offer_other_broker(pairs)
    due = slave.parts.clock.now_ms() + 2000
    await until(lambda: slave.parts.clock.now_ms() > due)

    assert stored(other, "T") == 0
    master = await pairs.start("master", **ESCAPING)
    await until(lambda: stored(master, "T") == 1)


class Orders:
    """Decides when it is checked, not before."""

    def __init__(self) -> None:
        self.checked: list[bytes] = []

    async def execute(self, message: Message, argument: object) -> LocalState:
        return LocalState.UNKNOWN

    async def check(self, message: StoredMessage) -> LocalState:
        self.checked.append(message.body)
        return LocalState.COMMIT


async def test_half_messages_are_checked_by_another_broker_and_committed_once(
    pairs: Pairs,
) -> None:
    master, slave, other = await pair_and_other(
        pairs, of_master={"transactionCheckInterval": "3600000"}
    )
    orders = Orders()
    async with TransactionProducer(
        pairs.name_server.address, group="shop", listener=orders, route_refresh_ms=100
    ) as producer:
        await producer.send_in_transaction(Message("T", b"paid", keys=["order"]))
        await replicated(master, slave)
        await pairs.stop(master)
        await until(lambda: slave.parts.acting is not None and slave.parts.acting.is_acting)
        await offer_other_broker(pairs)

        await until(lambda: stored(other, "T") == 1)
        assert orders.checked
        assert await pairs.consume("G", "T", 1) == [b"paid"]
        await until(lambda: slave.parts.offsets.committed(GROUP, HALF_TOPIC, 0) == 1)

        checks = len(orders.checked)
        master = await pairs.start("master", **ESCAPING)
        figures = master.parts.half_queue.figures()
        assert figures is not None
        assert figures.undecided == 0
        await until(lambda: stored(master, HALF_TOPIC) == 1)
        assert len(orders.checked) == checks
        assert stored(master, "T") == 0


# --- who acts ----------------------------------------------------------------------------------


@pytest.mark.parametrize("sends_log", [True, False])
async def test_a_silent_master_is_replaced_but_sends_what_is_due_while_it_sends_its_log(
    sends_log: bool, pairs: Pairs, client: RemotingClient
) -> None:
    master, slave, _ = await pair_and_other(
        pairs,
        of_master={
            "brokerNotActiveTimeoutMillis": "500",
            "haSendHeartbeatInterval": "100" if sends_log else "600000",
        },
        of_slave={"haSendHeartbeatInterval": "5000" if sends_log else "100"},
    )
    assert (await route(pairs, client)).broker_datas[0].broker_addrs[0] == master.address
    if sends_log:
        await until(lambda: slave.parts.log_copy.get().hears_master(LIMIT_S))
    assert master._jobs is not None
    await master._jobs.stop()
    async with asyncio.timeout(LIMIT_S):
        while (await route(pairs, client)).broker_datas[0].broker_addrs != {0: slave.address}:
            await asyncio.sleep(0.02)

    acting = slave.parts.acting
    assert acting is not None
    await acting.check()
    assert acting.is_acting != sends_log
