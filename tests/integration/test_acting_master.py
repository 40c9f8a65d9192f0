"""A slave that name servers show as the master while there is none."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from cometmq.broker.app import Broker
from cometmq.broker.replication import metadata
from cometmq.broker.transactions.half_queue import GROUP
from cometmq.client import (
    AdminClient,
    LocalState,
    Message,
    MessageQueue,
    Producer,
    PushConsumer,
    SendStatus,
    StartFrom,
    TransactionProducer,
)
from cometmq.client._pop.calls import RETRY_V1, RETRY_V2
from cometmq.model.message import StoredMessage
from cometmq.model.topic import HALF_TOPIC, SYNC_BROKER_MEMBER_PREFIX, Perm
from cometmq.protocol.bodies.route import TopicRouteData
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.headers.broker_admin import ExchangeBrokerHaInfoRequest
from cometmq.protocol.headers.namesrv import GetRouteinfoByTopicRequest
from cometmq.protocol.record import iter_records
from cometmq.remoting import RemotingClient, check
from cometmq.remoting.ports import free_broker_port
from cometmq.testing import ServerProcess
from support.brokers.pairs import LIMIT_S, SLAVE, Pairs, running_pairs
from support.checks.waiting import until
from support.wire.pop_clients import PopClient

ACTING = {"enableSlaveActingMaster": "true"}
ESCAPING = ACTING | {
    "enableRemoteEscape": "true",
    "messageDelayLevel": "1s 2s",
    "syncBrokerMemberGroupPeriod": "50",
    "transactionCheckInterval": "200",
    "transactionTimeOut": "500",
}
OTHER = ESCAPING | {"brokerName": "other"}
HANGING = {
    "brokerName": "pair",
    "messageDelayLevel": "1s 2s 3s",
    "brokerHeartbeatInterval": "100",
    "brokerNotActiveTimeoutMillis": "1000",
    "haSendHeartbeatInterval": "200",
}
"""Of brokers that notice a master that hangs after a second, not after ten."""
NAME_SERVER = {
    "supportActingMaster": "true",
    "notifyMinBrokerIdChanged": "true",
    "scanNotActiveBrokerInterval": "100",
}
MESSAGES = [b"%d" % number for number in range(10)]


def acts(slave: Broker) -> bool:
    """Whether a slave acts as the master."""
    acting = slave.features.acting_master.acting
    return acting is not None and acting.is_acting


@pytest.fixture
async def pairs(tmp_path: Path) -> AsyncIterator[Pairs]:
    async with running_pairs(
        tmp_path, supports_acting_master=True, notify_min_broker_id=True, expiry_scan_ms=50
    ) as running:
        yield running


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
    await until(lambda: slave.core.store.written_to == master.core.store.written_to)
    await until(lambda: "T" in slave.core.topics and "G" in slave.core.groups)
    await until(lambda: slave.core.offsets.of("G", "T") == {0: 5})
    return master, slave


async def route(pairs: Pairs, client: RemotingClient, topic: str = "T") -> TopicRouteData:
    header = GetRouteinfoByTopicRequest(topic=topic)
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
    # RocketMQ's slaves see in this route that there is no master.
    shown = await route(pairs, client, f"{SYNC_BROKER_MEMBER_PREFIX}pair")
    assert shown.broker_datas[0].broker_addrs == {1: slave.address}

    assert await pairs.consume("G", "T", 5) == MESSAGES[5:]
    assert slave.core.offsets.committed("G", "T", 0) == 10

    master = await pairs.start("master", **ACTING)
    assert master.core.offsets.committed("G", "T", 0) == 10
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
    assert slave.core.offsets.committed("G", "T", 0) == 10

    master = await pairs.start("master", **ACTING)
    assert master.core.offsets.committed("G", "T", 0) == 10


async def test_without_the_setting_no_slave_is_shown_as_the_master(
    pairs: Pairs, client: RemotingClient
) -> None:
    master, slave = await half_consumed(pairs)
    await pairs.stop(master)
    shown = await route(pairs, client)
    assert shown.broker_datas[0].broker_addrs == {1: slave.address}
    slave.core.offsets.commit("G", "T", 0, 10)
    master = await pairs.start("master")
    assert master.core.offsets.committed("G", "T", 0) == 5


async def test_a_master_registers_though_its_slave_does_not_respond(
    pairs: Pairs, caplog: pytest.LogCaptureFixture
) -> None:
    master, slave = await half_consumed(pairs, **ACTING)
    await pairs.stop(master)
    for server in slave.listening.servers:
        server.stop_accepting()
    async with asyncio.timeout(LIMIT_S):
        master = await pairs.start("master", **ACTING)
    assert not master.features.registration.registration.missing
    assert "offsets that were committed at a slave are not taken over" in caplog.text
    assert master.core.offsets.committed("G", "T", 0) == 5


async def test_a_master_alone_says_nothing(pairs: Pairs, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    await pairs.start("master", **ACTING)
    assert "taken over" not in caplog.text
    assert "took over" not in caplog.text


# --- scheduled messages and transactions ----------------------------------------------------------


def stored(broker: Broker, topic: str) -> int:
    """How many messages queue 0 of a topic has."""
    return broker.core.store.bounds(topic, 0)[1]


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
    await until(lambda: slave.core.store.written_to == master.core.store.written_to)


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
    pairs: Pairs, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(metadata, "INTERVAL_S", 0.2)
    master, slave, other = await pair_and_other(pairs)
    await send_scheduled(pairs, b"first", b"second")
    await replicated(master, slave)
    await pairs.stop(master)
    await until(lambda: acts(slave))
    await offer_other_broker(pairs)

    await until(lambda: stored(other, "T") == 2)
    assert await pairs.consume("G", "T", 2) == [b"first", b"second"]
    assert slave.features.delay.delivery.offsets()[2] == 2

    master = await pairs.start("master", **ESCAPING)
    assert "the master announced itself" in caplog.text
    assert master.features.delay.delivery.offsets()[2] == 2
    await send_scheduled(pairs, b"third")
    await until(lambda: stored(master, "T") > 0)
    assert stored(master, "T") == 1
    await replicated(master, slave)
    await until(lambda: slave.features.delay.delivery.offsets()[2] == 3)


async def test_scheduled_messages_wait_for_the_master_if_they_may_not_go_elsewhere(
    pairs: Pairs,
) -> None:
    master, slave, other = await pair_and_other(pairs, of_slave={"enableRemoteEscape": "false"})
    await send_scheduled(pairs, b"body")
    await replicated(master, slave)
    await pairs.stop(master)
    await until(lambda: acts(slave))
    await offer_other_broker(pairs)
    due = slave.core.clock.now_ms() + 2000
    await until(lambda: slave.core.clock.now_ms() > due)

    assert stored(other, "T") == 0
    master = await pairs.start("master", **ESCAPING)
    await until(lambda: stored(master, "T") == 1)


TIMERS = {"timerPrecisionMs": "200", "recallMessageEnable": "true"}


async def send_timers(pairs: Pairs, count: int) -> set[bytes]:
    """Send messages to the pair that are due one after the other; return those not recalled."""
    begin_ms = int(time.time() * 1000) + 2_000
    kept: set[bytes] = set()
    async with Producer(pairs.name_server.address, group="p") as producer:
        for number in range(count):
            body, queue = b"%d" % number, MessageQueue("T", "pair", 0)
            message = Message("T", body, deliver_at=begin_ms + number * 100)
            receipt = await producer.send(message, queue=queue)
            if number % 10 == 7:
                assert receipt.recall_handle is not None
                await producer.recall("T", receipt.recall_handle)
            else:
                kept.add(body)
    return kept


def delivered_bodies(*brokers: Broker) -> list[bytes]:
    """Return the messages of queue 0 of topic T at some brokers."""
    found = []
    for broker in brokers:
        store = broker.core.store
        for unit in store.written_units("T", 0, 0):
            data = store.written_record_at(*unit)
            assert data is not None
            found += [each.body for each in iter_records(data)]
    return sorted(found)


async def test_timer_messages_go_to_another_broker_and_none_is_delivered_twice(
    pairs: Pairs,
) -> None:
    master, slave, other = await pair_and_other(pairs, of_master=TIMERS, of_slave=TIMERS)
    kept = await send_timers(pairs, 60)
    await replicated(master, slave)
    await pairs.stop(master)
    await until(lambda: acts(slave))
    await offer_other_broker(pairs)
    await until(lambda: stored(other, "T") >= 10)

    master = await pairs.start("master", **ESCAPING | TIMERS)  # in the middle of a slot

    assert len(delivered_bodies(other)) < len(kept)
    await until(lambda: not acts(slave))
    await until(lambda: len(delivered_bodies(other, master)) >= len(kept))
    await until(lambda: master.features.timers.counts() == [])
    assert delivered_bodies(other, master) == sorted(kept)


async def test_timer_messages_wait_for_the_master_if_they_may_not_go_elsewhere(
    pairs: Pairs,
) -> None:
    stays = {"enableRemoteEscape": "false"}
    master, slave, other = await pair_and_other(pairs, of_master=TIMERS, of_slave=TIMERS | stays)
    kept = await send_timers(pairs, 5)
    await replicated(master, slave)
    await pairs.stop(master)
    await until(lambda: acts(slave))
    await offer_other_broker(pairs)
    due_ms = slave.core.clock.now_ms() + 2_500
    await until(lambda: slave.core.clock.now_ms() > due_ms)

    assert delivered_bodies(other) == []
    master = await pairs.start("master", **ESCAPING | TIMERS)
    await until(lambda: len(delivered_bodies(master)) >= len(kept))
    assert delivered_bodies(master) == sorted(kept)


class Orders:
    """Decides when it is checked, not before."""

    def __init__(self) -> None:
        self.checked: list[bytes] = []

    async def execute(self, message: Message, argument: object) -> LocalState:
        return LocalState.UNKNOWN

    async def check(self, message: StoredMessage) -> LocalState:
        self.checked.append(message.body)
        return LocalState.COMMIT


@pytest.mark.parametrize(("kind", "sign"), [(RETRY_V1, "_"), (RETRY_V2, "+")])
async def test_popped_messages_go_to_another_broker_and_the_master_redelivers_none_of_them(
    pairs: Pairs, client: RemotingClient, monkeypatch: pytest.MonkeyPatch, kind: str, sign: str
) -> None:
    """Their retry topic is that of the group there, and makes no group of its own."""
    monkeypatch.setattr(metadata, "INTERVAL_S", 0.2)
    form = {"enableRetryTopicV2": "true" if kind == RETRY_V2 else "false"}
    master, slave, other = await pair_and_other(pairs, of_master=form, of_slave=form)
    other.configuration.set(form)
    await other.core.groups.create_all(["G"])
    async with AdminClient(pairs.name_server.address) as admin:
        await admin.create_group("G")
    async with Producer(pairs.name_server.address, group="p") as producer:
        for body in (b"acknowledged", b"forgotten"):
            await producer.send(Message("T", body), queue=MessageQueue("T", "pair", 0))
    await until(lambda: "T" in slave.core.topics and "G" in slave.core.groups)
    consumer = PopClient(client, master)
    [(_, handle), _] = await consumer.pop(invisible_time=3_000)
    assert await consumer.ack(handle) == 0
    await replicated(master, slave)
    await pairs.stop(master)
    await until(lambda: acts(slave))
    await offer_other_broker(pairs)

    await until(lambda: stored(other, f"%RETRY%G{sign}T") == 1)
    assert "G" in other.core.groups
    assert f"G{sign}T" not in other.core.groups
    [(message, handle)] = await PopClient(client, other).pop()
    assert (message.body, message.reconsume_times) == (b"forgotten", 1)
    assert handle.kind == kind

    master = await pairs.start("master", **ESCAPING)
    await until(lambda: master.features.pop.parts.get().check_points.is_loaded)
    assert master.features.pop.figures().in_flight == 0
    assert await PopClient(client, master).pop() == []


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
        await until(lambda: acts(slave))
        await offer_other_broker(pairs)

        await until(lambda: stored(other, "T") == 1)
        assert orders.checked
        assert await pairs.consume("G", "T", 1) == [b"paid"]
        await until(lambda: slave.core.offsets.committed(GROUP, HALF_TOPIC, 0) == 1)

        checks = len(orders.checked)
        master = await pairs.start("master", **ESCAPING)
        figures = master.features.transactions.half_queue.figures()
        assert figures is not None
        assert figures.undecided == 0
        await until(lambda: stored(master, HALF_TOPIC) == 1)
        assert len(orders.checked) == checks
        assert stored(master, "T") == 0


async def test_a_slave_copies_no_tables_from_a_master_that_has_yet_to_take_them_back(
    pairs: Pairs, client: RemotingClient
) -> None:
    """RocketMQ's master serves requests before it is registered."""
    master, slave = await half_consumed(pairs, **ESCAPING)
    await pairs.stop(master)
    await until(lambda: acts(slave))
    slave.core.offsets.commit("G", "T", 0, 10)

    master = await pairs.start("master", **ESCAPING | {"namesrvAddr": ""})
    header = ExchangeBrokerHaInfoRequest(
        master_address=f"localhost:{master.port}",  # a new address, from which tables are due
        master_ha_address=f"localhost:{master.features.replication.master.port}",
    )
    response = await client.call(
        slave.address, RequestCode.EXCHANGE_BROKER_HA_INFO, header, timeout=LIMIT_S
    )
    check(response)
    await slave.life.jobs._jobs["copy-tables"].run()
    assert slave.core.offsets.committed("G", "T", 0) == 10
    await until(lambda: master.features.replication.master.slaves)


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
        await until(lambda: slave.features.replication.log_copy.get().hears_master(LIMIT_S))
    await master.life.jobs.stop()
    async with asyncio.timeout(LIMIT_S):
        while (await route(pairs, client)).broker_datas[0].broker_addrs != {0: slave.address}:
            await asyncio.sleep(0.02)

    acting = slave.features.acting_master.acting
    assert acting is not None
    await acting.check()
    assert acting.is_acting != sends_log


async def test_a_master_that_hangs_is_replaced_and_its_scheduled_messages_are_sent(
    tmp_path: Path, client: RemotingClient
) -> None:
    """In processes of their own, of which one is stopped by a signal, not killed."""
    names = await ServerProcess.start(
        "namesrv", "-c", str(properties(tmp_path / "namesrv.conf", NAME_SERVER)), "--port", "0",
        log=tmp_path / "namesrv.log", timeout=LIMIT_S,
    )  # fmt: skip
    async with names, AsyncExitStack() as stack:
        address = names.addresses["namesrv"]

        async def broker(name: str, **settings: str) -> ServerProcess:
            file = properties(tmp_path / f"{name}.conf", ESCAPING | HANGING | settings)
            started = await ServerProcess.start(
                "broker", "-c", str(file), "--port", str(free_broker_port()),
                "--store", str(tmp_path / name), "-n", address,
                log=tmp_path / f"{name}.log", timeout=LIMIT_S,
            )  # fmt: skip
            return await stack.enter_async_context(started)

        master = await broker("master", brokerRole="SYNC_MASTER")
        await broker("slave", **SLAVE)
        await broker("other", brokerName="other")
        async with (
            AdminClient(address) as admin,
            Producer(address, group="p", route_refresh_ms=100) as producer,
        ):
            [queue] = await admin.create_topic("T", queues=1, brokers=["pair"])
            first = Message("T", b"first", delay_level=1)
            async with asyncio.timeout(LIMIT_S):
                while (await producer.send(first, queue=queue)).status is not SendStatus.SEND_OK:
                    await asyncio.sleep(0.05)
            received: list[bytes] = []
            has_both = asyncio.Event()

            async def handle(message: StoredMessage) -> None:
                received.append(message.body)
                if len(set(received)) == 2:
                    has_both.set()

            async with PushConsumer(
                address,
                group="G",
                handler=handle,
                subscriptions={"T": "*"},
                start_from=StartFrom.FIRST,
                route_refresh_ms=100,
            ):
                await until(lambda: b"first" in received)
                second = Message("T", b"second", delay_level=3)
                assert (await producer.send(second, queue=queue)).status is SendStatus.SEND_OK
                os.kill(master.pid, signal.SIGSTOP)
                await admin.create_topic("T", queues=1, brokers=["other"])
                async with asyncio.timeout(LIMIT_S):
                    await has_both.wait()
                os.kill(master.pid, signal.SIGCONT)


def properties(file: Path, settings: dict[str, str]) -> Path:
    file.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    return file
