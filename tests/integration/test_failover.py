"""Brokers whose master a controller elects: how they start, change roles, and stop."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import msgspec
import pytest

from cometmq.broker.app import Broker
from cometmq.broker.replication.metadata import MetadataCopy
from cometmq.client import Message, Producer
from cometmq.controller import handler
from cometmq.controller.broker_set import BrokerSet, InSyncRequest
from cometmq.controller.etcd import Compare, EtcdUnavailableError, Operation, Put
from cometmq.model.errors import CometError, ConfigError
from cometmq.model.flags import SysFlag
from cometmq.model.queue import MessageQueue
from cometmq.protocol.bodies.broker_admin import HARuntimeInfo
from cometmq.protocol.bodies.controller import EpochEntryCache, SyncStateSet
from cometmq.protocol.bodies.group import LockBatchRequestBody, LockBatchResponseBody
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.command import Command
from cometmq.protocol.headers.base import Header
from cometmq.protocol.headers.broker_admin import ExchangeBrokerHaInfoResponse
from cometmq.protocol.headers.controller import ControllerAlterSyncStateSetRequest
from cometmq.protocol.headers.offset import (
    QueryConsumerOffsetRequest,
    QueryConsumerOffsetResponse,
    UpdateConsumerOffsetRequest,
)
from cometmq.protocol.headers.topic import DeleteTopicInBrokerRequest, UpdateAndCreateTopicRequest
from cometmq.protocol.headers.transaction import EndTransactionRequest
from cometmq.protocol.message_id import decode_offset_id
from cometmq.protocol.properties import encode_properties
from cometmq.store import StoreUnavailableError
from cometmq.system.clock import Clock
from cometmq.system.log_format import fields_of
from support.brokers.pairs import LIMIT_S
from support.checks.waiting import until
from support.controllers.elected_pairs import (
    NAME,
    ElectedPairs,
    is_master,
    log_of,
    members,
    running_elected_pairs,
)
from support.controllers.etcd_model import EtcdStore
from support.network.fault_proxy import FaultProxy
from support.stores.faulty_files import FaultyFiles
from support.stores.small_stores import put
from support.wire.pop_clients import PopClient

ALONE = {"allAckInSyncStateSet": "false"}
"""A master acknowledges what no slave has."""


class ForgetfulEtcd(EtcdStore):
    """Loses requests: they are not applied, and get no response."""

    def __init__(self, monotonic: Callable[[], float], forgets: bytes) -> None:
        super().__init__(monotonic)
        self._forgets = forgets
        """What the values of these requests contain."""
        self.forgotten = 0
        self.in_sync_sets: dict[int, list[int]] = {}
        """Those that were stored, by their epochs."""

    def transact(self, compares: Sequence[Compare], operations: Sequence[Operation]) -> bool:
        values = [one.value for one in operations if isinstance(one, Put)]
        if any(self._forgets in value for value in values):
            self.forgotten += 1
            raise EtcdUnavailableError("the request is lost")
        is_applied = super().transact(compares, operations)
        found = [msgspec.json.decode(value) for value in values if is_applied]
        self.in_sync_sets |= {
            one["in_sync_epoch"]: one["in_sync"] for one in found if "name" in one
        }
        return is_applied


@pytest.fixture
async def elected(tmp_path: Path) -> AsyncIterator[ElectedPairs]:
    async with running_elected_pairs(tmp_path) as made:
        yield made


async def both(elected: ElectedPairs, **settings: str) -> tuple[Broker, Broker]:
    """A master, and a slave that is in the in-sync set."""
    if not elected.controllers:
        await elected.controller()
    master = await elected.start("a", **settings)
    slave = await elected.start("b", **settings)
    await until(lambda: members(master) == {1, 2})
    return master, slave


async def test_the_first_broker_is_elected_and_the_second_follows_it(
    elected: ElectedPairs, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="cometmq.broker.failover.elected_role")
    master, slave = await both(elected)
    [line] = [one for one in caplog.records if "this broker is a slave" in one.message]
    assert fields_of(line) == {"controller_id": 2, "master": master.address, "epoch": 1}
    assert (master.core.role.name, master.core.role.broker_id) == ("SYNC_MASTER", 0)
    assert (slave.core.role.name, slave.core.role.broker_id) == ("SLAVE", 2)
    registry = elected.pairs.name_server.registry
    assert registry.groups[NAME].addresses == {0: master.address, 2: slave.address}

    assert (await elected.send(master, b"1")).code == ResponseCode.SUCCESS
    await until(lambda: log_of(slave) == log_of(master) != b"")


async def test_without_a_controller_a_broker_stays_fenced_and_unknown(
    elected: ElectedPairs,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("cometmq.broker.failover.feature.DECISION_S", 0.1)
    broker = await elected.start("a", controllerAddr="127.0.0.1:1")
    refused = await elected.send(broker, b"1")
    assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert NAME not in elected.pairs.name_server.registry.groups
    assert "refusing sends until the role is decided" in caplog.text
    assert "no decision of the controllers" in caplog.text

    controller = await elected.controller()
    broker.configuration.set({"controllerAddr": controller.address})
    await until(lambda: is_master(broker))
    await until(lambda: NAME in elected.pairs.name_server.registry.groups)
    assert (await elected.send(broker, b"1")).code == ResponseCode.SUCCESS


async def test_a_broker_says_that_its_controllers_have_another_etcd(
    elected: ElectedPairs, caplog: pytest.LogCaptureFixture
) -> None:
    await elected.controller()
    broker = await elected.start("a")
    await until(lambda: is_master(broker))
    await elected.pairs.stop(broker)
    elected.store = EtcdStore(time.monotonic)
    other = await elected.controller()

    broker = await elected.start("a", controllerAddr="127.0.0.1:1")
    await until(lambda: "no active controller among 127.0.0.1:1" in caplog.text)
    broker.configuration.set({"controllerAddr": other.address})
    await until(lambda: "the controllers do not know the id 1" in caplog.text)
    assert "If etcd's data is lost" in caplog.text
    assert "delete the file" not in caplog.text


async def test_a_master_that_cannot_change_the_in_sync_set_says_so_once(
    elected: ElectedPairs, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger="cometmq.broker.failover.elected_role")
    controller = await elected.controller()
    master, slave = await both(elected)

    def lines() -> list[logging.LogRecord]:
        return [one for one in caplog.records if "cannot change the in-sync set" in one.message]

    await controller.stop(0.1)
    await elected.pairs.stop(slave)
    await until(lambda: len(lines()) > 3)
    warnings = [one.message for one in lines() if one.levelno == logging.WARNING]
    assert len(set(warnings)) == len(warnings) < len(lines())

    controller = await elected.controller()
    master.configuration.set({"controllerAddr": controller.address})
    await until(lambda: members(master) == {1})
    assert "the in-sync set changes again" in caplog.text


async def test_a_master_that_stops_requests_no_in_sync_set_without_its_slaves(
    elected: ElectedPairs, caplog: pytest.LogCaptureFixture
) -> None:
    master, slave = await both(elected)
    await elected.pairs.stop(master)
    await until(lambda: is_master(slave))
    assert "the in-sync set" not in caplog.text


async def test_the_addresses_of_controllers_are_looked_up_in_the_dns(elected: ElectedPairs) -> None:
    controller = await elected.controller()
    broker = await elected.start(
        "a",
        controllerAddr=f"localhost:{controller.port}",
        fetchControllerAddrByDnsLookup="true",
    )
    await until(lambda: is_master(broker))
    assert (await elected.send(broker, b"1")).code == ResponseCode.SUCCESS


async def test_a_broker_leaves_a_connection_on_which_the_controller_is_silent(
    elected: ElectedPairs,
) -> None:
    controller = await elected.controller()
    async with FaultProxy(controller.address) as link:
        await elected.start("a", controllerAddr=link.address)
        link.freeze()
        asked = RequestCode.CONTROLLER_GET_REPLICA_INFO
        before = link.accepted, link.requests[asked]
        await until(lambda: link.accepted > before[0] and link.requests[asked] > before[1] + 1)


async def test_a_master_that_is_cut_off_refuses_what_it_cannot_acknowledge(
    elected: ElectedPairs,
) -> None:
    controller = await elected.controller()
    settings = {
        "allAckInSyncStateSet": "true",
        "slaveTimeout": "200",
        "controllerHeartBeatTimeoutMills": "1000",
    }
    async with FaultProxy(controller.address) as link:
        master = await elected.start("a", controllerAddr=link.address, **settings)
        slave = await elected.start("b", **settings)
        await until(lambda: members(master) == {1, 2})
        assert (await elected.send(master, b"1")).code == ResponseCode.SUCCESS

        link.stall()
        await elected.pairs.stop(slave)
        assert (await elected.send(master, b"2")).code == ResponseCode.FLUSH_SLAVE_TIMEOUT
        while (refused := await elected.send(master, b"3")).code != (
            ResponseCode.SERVICE_NOT_AVAILABLE
        ):
            assert refused.code == ResponseCode.FLUSH_SLAVE_TIMEOUT
        assert "reaches neither controllers nor all of the in-sync set" in (refused.remark or "")
        end = master.core.store.written_to
        assert (await elected.send(master, b"4")).code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert master.core.store.written_to == end

        link.flow()
        await until(lambda: master.features.sending.flow.refusal() is None)
        while (await elected.send(master, b"5")).code != ResponseCode.SUCCESS:
            await asyncio.sleep(0.02)


async def test_a_slave_takes_over_and_the_old_master_returns_as_a_slave(
    elected: ElectedPairs,
) -> None:
    first, second = await both(elected)
    async with Producer(elected.pairs.name_server.address, group="p") as producer:
        for number in range(20):
            await producer.send(Message(topic="T", body=f"{number}".encode()))
        await until(lambda: log_of(second) == log_of(first))

        await elected.pairs.stop(first)

        await until(lambda: is_master(second))
        registry = elected.pairs.name_server.registry
        await until(lambda: registry.groups[NAME].addresses == {0: second.address})
        await until_sent(producer, Message(topic="T", body=b"20"))

        first = await elected.start("a")
        await until(lambda: members(second) == {1, 2})
        assert (first.core.role.name, first.core.role.broker_id) == ("SLAVE", 1)
        await producer.send(Message(topic="T", body=b"21"))
        await until(lambda: log_of(first) == log_of(second))
    bodies = await elected.pairs.consume("g", "T", 22)
    assert sorted(map(int, bodies)) == list(range(22))


async def until_sent(producer: Producer, message: Message) -> None:
    """Send until it is acknowledged."""
    async with asyncio.timeout(LIMIT_S):
        while True:
            try:
                await producer.send(message)
                return
            except CometError:
                await asyncio.sleep(0.05)


async def test_roles_change_at_run_time_and_delayed_messages_are_delivered(
    elected: ElectedPairs,
) -> None:
    first, second = await both(elected, messageDelayLevel="2s")
    async with Producer(elected.pairs.name_server.address, group="p") as producer:
        await producer.send(Message(topic="T", body=b"later", delay_level=1))
        await until(lambda: log_of(second) == log_of(first))
        await until(lambda: "T" in second.core.topics)

        assert (await elected.elect(2)).code == ResponseCode.SUCCESS
        await until(lambda: is_master(second) and not is_master(first))

        assert (first.core.role.name, first.core.role.broker_id) == ("SLAVE", 1)
        registry = elected.pairs.name_server.registry
        await until(
            lambda: registry.groups[NAME].addresses == {0: second.address, 1: first.address}
        )
        await until(lambda: members(second) == {1, 2})
    assert await elected.pairs.consume("g", "T", 1) == [b"later"]


async def test_delayed_messages_wait_while_there_are_too_few_members(
    elected: ElectedPairs, caplog: pytest.LogCaptureFixture
) -> None:
    settings = {"messageDelayLevel": "3s", "minInSyncReplicas": "2"}
    first, second = await both(elected, **settings)
    async with Producer(elected.pairs.name_server.address, group="p") as producer:
        await producer.send(Message(topic="T", body=b"later", delay_level=1))
        await elected.pairs.stop(second)
        await until(lambda: "scheduled delivery waits for the store" in caplog.text)
        assert "in-sync replicas not enough" in caplog.text
        assert first.features.delay.delivery.offsets().get(1, 0) == 0
    await elected.start("b", **settings)
    assert await elected.pairs.consume("g", "T", 1) == [b"later"]


@pytest.mark.parametrize("renews", [True, False])
async def test_a_lost_request_for_a_slave_that_is_gone_holds_nothing_back(
    elected: ElectedPairs, renews: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may make the slave a member at any time, until the in-sync set has a new number.

    A controller of RocketMQ gives it none without an election.
    """
    if not renews:
        alter: Callable[..., BrokerSet] = handler.alter_in_sync

        def alter_new(before: BrokerSet, request: InSyncRequest, **state: object) -> BrokerSet:
            return alter(before, msgspec.structs.replace(request, renews=False), **state)

        monkeypatch.setattr(handler, "alter_in_sync", alter_new)
    elected.store = etcd = ForgetfulEtcd(time.monotonic, b'"in_sync":[1,2]')
    await elected.controller()
    master = await elected.start("a")
    slave = await elected.start("b")
    await until(lambda: etcd.forgotten)
    await elected.pairs.stop(slave)

    async with asyncio.timeout(LIMIT_S):
        while (await elected.send(master, b"1")).code != ResponseCode.SUCCESS:
            await asyncio.sleep(0.05)

    assert (last_epoch(master) == 1) == renews
    assert members(master) == {1}
    assert etcd.in_sync_sets == {0: [], 1: [1], 2: [1]}


async def test_sends_to_the_old_master_go_on_after_an_election(elected: ElectedPairs) -> None:
    """As those of a client do that has not looked for the new route."""
    first, second = await both(elected)
    assert (await elected.send(first, b"1", "T")).code == ResponseCode.SUCCESS
    await until(lambda: "T" in second.core.topics)

    assert (await elected.elect(2)).code == ResponseCode.SUCCESS
    await until(lambda: first.core.role.master_address == second.address)
    await until(lambda: is_master(second) and members(second) == {1, 2})

    stored = await elected.send(first, b"2", "T")
    assert stored.code == ResponseCode.SUCCESS, stored
    assert second.core.store.bounds("T", 0)[1] == int(stored.fields["queueOffset"]) + 1 == 2
    await until(lambda: log_of(first) == log_of(second))

    await elected.pairs.stop(second)
    await until(lambda: is_master(first) and first.core.role.in_force.is_set())
    assert (await elected.send(first, b"3", "T")).code == ResponseCode.SUCCESS
    assert await elected.pairs.consume("g", "T", 3) == [b"1", b"2", b"3"]


async def test_transactions_at_the_old_master_are_decided_after_an_election(
    elected: ElectedPairs,
) -> None:
    first, second = await both(elected)
    assert (await elected.elect(2)).code == ResponseCode.SUCCESS
    await until(lambda: first.core.role.master_address == second.address)
    await until(lambda: is_master(second))

    half = await elected.send(
        first,
        b"paid",
        "T",
        sys_flag=SysFlag.TRANSACTION_PREPARED,
        properties=encode_properties({"TRAN_MSG": "true", "PGROUP": "p"}).decode(),
    )
    assert half.code == ResponseCode.SUCCESS, half
    decision = EndTransactionRequest(
        producer_group="p",
        tran_state_table_offset=int(half.fields["queueOffset"]),
        commit_log_offset=decode_offset_id(half.fields["msgId"]).log_offset,
        commit_or_rollback=SysFlag.TRANSACTION_COMMIT,
        msg_id="",
    )
    await elected.client.oneway(first.address, RequestCode.END_TRANSACTION, decision)
    assert await elected.pairs.consume("g", "T", 1) == [b"paid"]


async def commit_at(elected: ElectedPairs, broker: Broker, offset: int) -> Command:
    """Commit an offset of a group in queue 0 of T at a broker, whatever its role."""
    header = UpdateConsumerOffsetRequest(
        consumer_group="g", topic="T", queue_id=0, commit_offset=offset
    )
    return await elected.call(broker.address, RequestCode.UPDATE_CONSUMER_OFFSET, header)


async def committed_at(elected: ElectedPairs, broker: Broker) -> int:
    """The committed offset of the group, as a broker responds."""
    header = QueryConsumerOffsetRequest(
        consumer_group="g", topic="T", queue_id=0, set_zero_if_not_found=False
    )
    response = await elected.call(broker.address, RequestCode.QUERY_CONSUMER_OFFSET, header)
    assert response.code == ResponseCode.SUCCESS, response
    return response.header(QueryConsumerOffsetResponse).offset


async def with_group(elected: ElectedPairs, **settings: str) -> tuple[Broker, Broker]:
    """A master and a slave that have three messages in T, and the group g."""
    first, second = await both(elected, **settings)
    await fill(elected, first, second)
    return first, second


async def fill(elected: ElectedPairs, first: Broker, second: Broker) -> None:
    """Store three messages and a group at a master, and wait until its slave has them."""
    for body in (b"1", b"2", b"3"):
        assert (await elected.send(first, body, "T")).code == ResponseCode.SUCCESS
    await first.core.groups.create_all(["g"])
    await until(lambda: "T" in second.core.topics and log_of(first) == log_of(second))


async def test_offsets_that_are_committed_at_the_old_master_are_those_of_the_new_one(
    elected: ElectedPairs,
) -> None:
    """A consumer that has not looked for the new route commits at the old master, one-way."""
    first, second = await with_group(elected)
    assert (await elected.elect(2)).code == ResponseCode.SUCCESS
    await until(lambda: first.core.role.master_address == second.address)
    await until(lambda: is_master(second) and members(second) == {1, 2})
    await second.core.groups.create_all(["g"])

    assert (await commit_at(elected, first, 2)).code == ResponseCode.SUCCESS
    assert second.core.offsets.committed("g", "T", 0) == 2
    assert await committed_at(elected, first) == await committed_at(elected, second) == 2
    header = UpdateConsumerOffsetRequest(consumer_group="g", topic="T", queue_id=0, commit_offset=3)
    await elected.client.oneway(first.address, RequestCode.UPDATE_CONSUMER_OFFSET, header)
    await until(lambda: second.core.offsets.committed("g", "T", 0) == 3)


async def test_a_commit_waits_until_a_broker_that_starts_knows_its_master(
    elected: ElectedPairs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a master that was killed and starts again would take it alone."""
    monkeypatch.setattr("cometmq.broker.failover.feature.DECISION_S", 0.1)
    monkeypatch.setattr("cometmq.broker.forwarding.DECIDED_S", LIMIT_S)
    first, second = await with_group(elected)
    await elected.pairs.stop(first)
    await until(lambda: is_master(second) and second.core.role.in_force.is_set())
    await second.core.groups.create_all(["g"])
    first = await elected.start("a", controllerAddr="127.0.0.1:1")
    committing = asyncio.create_task(commit_at(elected, first, 2))
    first.configuration.set({"controllerAddr": elected.controllers[0].address})
    assert (await committing).code == ResponseCode.SUCCESS
    assert second.core.offsets.committed("g", "T", 0) == 2
    assert first.core.offsets.committed("g", "T", 0) is None


async def test_a_slave_takes_commits_while_its_master_is_gone(elected: ElectedPairs) -> None:
    first, second = await with_group(elected)
    assert (await elected.elect(2)).code == ResponseCode.SUCCESS
    await until(lambda: first.core.role.master_address == second.address)
    for controller in elected.controllers:
        await controller.stop(0.0)
    elected.controllers.clear()
    await elected.pairs.stop(second)

    assert (await commit_at(elected, first, 2)).code == ResponseCode.SUCCESS
    assert await committed_at(elected, first) == 2
    assert (await commit_at(elected, first, 1)).code == ResponseCode.SUCCESS
    assert first.core.offsets.committed("g", "T", 0) == 1


async def test_a_lock_at_the_old_master_excludes_members_that_lock_at_the_new_one(
    elected: ElectedPairs,
) -> None:
    first, second = await with_group(elected)
    assert (await elected.elect(2)).code == ResponseCode.SUCCESS
    await until(lambda: first.core.role.master_address == second.address)
    await until(lambda: is_master(second))
    await second.core.groups.create_all(["g"])
    queue = MessageQueue("T", NAME, 0)

    async def lock(broker: Broker, client_id: str, code: int = RequestCode.LOCK_BATCH_MQ) -> bytes:
        body = LockBatchRequestBody(consumer_group="g", client_id=client_id, mq_set=[queue])
        response = await elected.call(broker.address, code, body=body.encode())
        assert response.code == ResponseCode.SUCCESS, response
        return response.body

    assert LockBatchResponseBody.decode(await lock(first, "one")).lock_ok_mq_set == [queue]
    assert second.features.clients.locks.owner("g", queue) == "one"
    assert LockBatchResponseBody.decode(await lock(second, "two")).lock_ok_mq_set == []
    await lock(first, "one", RequestCode.UNLOCK_BATCH_MQ)
    assert LockBatchResponseBody.decode(await lock(second, "two")).lock_ok_mq_set == [queue]


async def test_only_the_log_of_the_master_is_appended_to_that_of_a_slave(
    elected: ElectedPairs,
) -> None:
    first, second = await both(elected)
    assert (await elected.send(first, b"1")).code == ResponseCode.SUCCESS
    await until(lambda: log_of(second) == log_of(first))
    with pytest.raises(StoreUnavailableError, match="this broker is a slave"):
        put(second.core.store, b"stray")
    second.core.store.hold("a master would wait for something")

    assert (await elected.elect(2)).code == ResponseCode.SUCCESS
    await until(lambda: is_master(second) and not is_master(first))
    with pytest.raises(StoreUnavailableError, match="this broker is a slave"):
        put(first.core.store, b"stray")

    await until(lambda: members(second) == {1, 2})
    assert (await elected.send(second, b"2")).code == ResponseCode.SUCCESS
    await until(lambda: log_of(second) == log_of(first))
    assert await elected.pairs.consume("g", "TBW102", 2) == [b"1", b"2"]


async def test_a_master_whose_disk_has_failed_gives_way(elected: ElectedPairs) -> None:
    disk = elected.pairs.disks["a"] = FaultyFiles()
    first, second = await both(elected)
    assert (await elected.send(first, b"1")).code == ResponseCode.SUCCESS
    await until(lambda: log_of(second) == log_of(first))
    await asyncio.get_running_loop().run_in_executor(None, first.core.store.flush)

    disk.fail_sync = True
    await elected.send(first, b"lost")

    await until(lambda: is_master(second) and not is_master(first))
    disk.fail_sync = False
    assert (await elected.send(second, b"2")).code == ResponseCode.SUCCESS
    assert (await elected.elect(1)).code != ResponseCode.SUCCESS
    assert is_master(second)


async def test_a_new_topic_is_copied_soon_after_its_first_message(elected: ElectedPairs) -> None:
    _, slave = await both(elected)
    async with Producer(elected.pairs.name_server.address, group="p") as producer:
        await until(lambda: slave.core.topics.version.counter)  # the first copy
        for topic in ("T1", "T2"):
            began_s = time.monotonic()
            await producer.send(Message(topic=topic, body=b"1"))
            await until(lambda topic=topic: topic in slave.core.topics)
            assert time.monotonic() - began_s < 8.0  # copies are made every ten seconds


async def test_topics_that_a_slave_has_not_copied_exist_when_it_takes_over(
    elected: ElectedPairs, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = await both(elected, messageDelayLevel="1s")
    async with Producer(elected.pairs.name_server.address, group="p") as producer:
        for topic in ("deleted", "wider"):
            await producer.send(Message(topic=topic, body=b"0"))
        await until(lambda: {"deleted", "wider"} <= second.core.topics.all().keys())
        await delete_topic(elected, first, "deleted")
        second.features.replication.metadata.get().hurry()
        await until(lambda: "deleted" not in second.core.topics)

        monkeypatch.setattr(MetadataCopy, "run", no_copy)
        await producer.send(Message(topic="new", body=b"1"))
        await producer.send(Message(topic="delayed", body=b"2", delay_level=1))
        await widen(elected, first, "wider", 20)
        assert (await elected.send(first, b"3", "wider", queue_id=19)).code == ResponseCode.SUCCESS
        await until(lambda: log_of(second) == log_of(first))
        assert not {"new", "delayed"} & second.core.topics.all().keys()

        await elected.pairs.stop(first)
        await until(lambda: is_master(second))

        assert second.core.topics.require("new").read_queue_nums == 8
        assert second.core.topics.require("wider").read_queue_nums == 20
        assert "deleted" not in second.core.topics
        assert await elected.pairs.consume("g", "new", 1) == [b"1"]
        assert await elected.pairs.consume("g", "delayed", 1) == [b"2"]
        assert await elected.pairs.consume("g", "wider", 2) == [b"0", b"3"]


async def test_no_committed_offset_is_behind_messages_that_a_new_master_stores(
    elected: ElectedPairs,
) -> None:
    """Offsets beyond the end of the log are corrected before a message gets one of them."""
    first, second = await both(elected)
    assert (await elected.send(first, b"0")).code == ResponseCode.SUCCESS
    await until(lambda: log_of(second) == log_of(first))
    groups = [f"g{number}" for number in range(10_000)]
    for group in groups:  # copied from a master that has lost the end of its log
        second.core.offsets.commit(group, "TBW102", 0, 100)

    assert (await elected.elect(2)).code == ResponseCode.SUCCESS
    while not is_master(second):  # a slave forwards messages
        await asyncio.sleep(0)
    while (await elected.send(second, b"1")).code != ResponseCode.SUCCESS:
        await asyncio.sleep(0)
    for _ in range(20):
        await elected.send(second, b"2")
    assert {second.core.offsets.committed(group, "TBW102", 0) for group in groups} == {1}


async def test_a_broker_that_leaves_an_epoch_before_it_has_begun_is_no_master_of_it(
    elected: ElectedPairs,
) -> None:
    """Its role would be that of a master which acknowledges nothing."""
    settings = {"allAckInSyncStateSet": "true"}
    first, second = await both(elected, **settings)
    await elected.send(first, b"0")
    await until(lambda: log_of(second) == log_of(first))
    role = second.features.failover.elected
    assert role is not None

    async with role._gap.copying:  # as if many messages were read, or the disk was slow
        assert (await elected.elect(2)).code == ResponseCode.SUCCESS
        await until(lambda: role.replication.in_sync is not None)
        role._leave_epoch()  # a controller of RocketMQ did not renew the in-sync set

    await until(lambda: is_master(second))
    assert role.epochs[-1].number > 2
    async with asyncio.timeout(LIMIT_S):
        while (await elected.send(second, b"1")).code != ResponseCode.SUCCESS:
            await asyncio.sleep(0.02)


async def test_a_topic_of_delayed_messages_only_outlives_two_restarts(
    elected: ElectedPairs,
) -> None:
    settings = {"messageDelayLevel": "4s", "allAckInSyncStateSet": "true"}
    first, second = await both(elected, **settings)
    async with Producer(elected.pairs.name_server.address, group="p") as producer:
        await producer.send(Message(topic="delayed", body=b"1", delay_level=1))
    await until(lambda: log_of(second) == log_of(first))

    await elected.pairs.stop(first)
    await until(lambda: is_master(second))
    assert "delayed" in second.core.topics
    first = await elected.start("a", **settings)
    await until(lambda: members(second) == {1, 2})
    await until(lambda: first.core.topics.version.state_version == 2)
    assert "delayed" in first.core.topics
    await elected.pairs.stop(second)
    await until(lambda: is_master(first))

    second = await elected.start("b", **settings)
    await until(lambda: members(first) == {1, 2})
    assert await elected.pairs.consume("g", "delayed", 1) == [b"1"]


async def test_no_schedule_offset_counts_what_a_truncation_has_removed(
    elected: ElectedPairs,
) -> None:
    first, second = await both(elected, messageDelayLevel="2s", **ALONE)
    async with Producer(elected.pairs.name_server.address, group="p") as producer:
        await producer.send(Message(topic="T", body=b"0"))
        await until(lambda: log_of(second) == log_of(first))
        await until(lambda: "T" in second.core.topics)
        copy = second.features.replication.log_copy.get()
        assert copy._connection is not None
        assert copy._connection._transport is not None
        copy._connection._transport.pause_reading()  # it stays in the in-sync set for a while
        await producer.send(Message(topic="T", body=b"on one replica only", delay_level=1))
        await until(lambda: first.features.delay.delivery.offsets().get(1) == 1)

        assert (await elected.elect(2)).code == ResponseCode.SUCCESS
        await until(lambda: is_master(second) and not is_master(first))
        await until(lambda: members(second) == {1, 2})
        assert first.features.delay.delivery.offsets().get(1, 0) == 0
        await until_sent(producer, Message(topic="T", body=b"on both", delay_level=1))
        await until(lambda: log_of(second) == log_of(first))
        await elected.pairs.stop(second)
    await until(lambda: is_master(first))
    await elected.start("b", messageDelayLevel="2s")
    assert await elected.pairs.consume("g", "T", 2) == [b"0", b"on both"]


async def test_no_committed_offset_counts_what_a_truncation_has_removed(
    elected: ElectedPairs,
) -> None:
    """The new master does not know the group yet, so no copy of its offsets corrects that."""
    first, second = await both(elected, **ALONE)
    assert (await elected.send(first, b"0")).code == ResponseCode.SUCCESS
    await until(lambda: log_of(second) == log_of(first))
    copy = second.features.replication.log_copy.get()
    assert copy._connection is not None
    assert copy._connection._transport is not None
    copy._connection._transport.pause_reading()  # it stays in the in-sync set for a while
    for body in (b"1", b"2"):
        assert (await elected.send(first, body)).code == ResponseCode.SUCCESS
    first.core.offsets.commit("g", "TBW102", 0, 3)

    assert (await elected.elect(2)).code == ResponseCode.SUCCESS
    await until(lambda: is_master(second) and not is_master(first))
    await until(lambda: members(second) == {1, 2})
    async with asyncio.timeout(LIMIT_S):
        while (await elected.send(second, b"3")).code != ResponseCode.SUCCESS:
            await asyncio.sleep(0.02)
    for body in (b"4", b"5"):
        assert (await elected.send(second, body)).code == ResponseCode.SUCCESS
    await until(lambda: log_of(second) == log_of(first))
    await elected.pairs.stop(second)
    await until(lambda: is_master(first))
    assert first.core.offsets.committed("g", "TBW102", 0) == 1


async def consumed_at(elected: ElectedPairs, broker: Broker, **fields: int) -> list[bytes]:
    """Pop messages, and acknowledge them at the same broker."""
    client = PopClient(elected.client, broker, group="g")
    popped = await client.pop(**fields)
    for _, handle in popped:
        assert await client.ack(handle) == ResponseCode.SUCCESS
    return [message.body for message, _ in popped]


async def test_pops_at_the_old_master_get_what_the_new_one_has(elected: ElectedPairs) -> None:
    """A consumer that has not looked for the new route pops and acknowledges at the old master."""
    first, second = await with_group(elected)
    assert await consumed_at(elected, first, max_msg_nums=1) == [b"1"]
    assert (await elected.elect(2)).code == ResponseCode.SUCCESS
    await until(lambda: first.core.role.master_address == second.address)
    await until(lambda: is_master(second) and members(second) == {1, 2})
    await second.core.groups.create_all(["g"])

    assert await consumed_at(elected, first) == [b"2", b"3"]
    assert second.features.pop.figures().in_flight == 0
    held = asyncio.create_task(consumed_at(elected, first, poll_time=30_000))
    await until(lambda: second.features.pop.figures().held == 1)
    assert (await elected.send(second, b"4", "T")).code == ResponseCode.SUCCESS
    assert await held == [b"4"]
    parts = first.features.pop.parts.made()
    assert parts is not None
    assert not parts.check_points.is_loaded


@pytest.mark.parametrize("order", [False, True])
async def test_a_master_that_is_cut_off_delivers_no_message_that_the_new_one_has_delivered(
    elected: ElectedPairs, *, order: bool
) -> None:
    """Its consumers pop where nothing is confirmed any more."""
    controller = await elected.controller()
    settings = {"slaveTimeout": "300", "controllerHeartBeatTimeoutMills": "1000"}
    async with FaultProxy(controller.address) as link:
        first = await elected.start("a", controllerAddr=link.address, **settings)
        second = await elected.start("b", **settings)
        await until(lambda: members(first) == {1, 2})
        await fill(elected, first, second)
        assert await consumed_at(elected, first, max_msg_nums=1, order=order) == [b"1"]
        await until(lambda: log_of(second) == log_of(first))
        await second.core.groups.create_all(["g"])

        link.stall()
        await until(lambda: is_master(second) and second.core.role.in_force.is_set())
        assert await consumed_at(elected, second, order=order) == [b"2", b"3"]
        response = await PopClient(elected.client, first, group="g").request(order=order)
        assert (response.code, response.body) == (ResponseCode.SERVICE_NOT_AVAILABLE, b"")
        assert is_master(first)


async def test_no_offset_is_behind_messages_whose_check_point_was_truncated(
    elected: ElectedPairs,
) -> None:
    """The new master does not know the group yet, so no copy of its offsets corrects that."""
    first, second = await with_group(elected, **ALONE)
    await until(lambda: log_of(second) == log_of(first))
    copy = second.features.replication.log_copy.get()
    assert copy._connection is not None
    assert copy._connection._transport is not None
    copy._connection._transport.pause_reading()  # it stays in the in-sync set for a while
    assert len(await PopClient(elected.client, first, group="g").pop(queue_id=0)) == 3
    assert first.core.offsets.committed("g", "T", 0) == 3

    assert (await elected.elect(2)).code == ResponseCode.SUCCESS
    await until(lambda: is_master(second) and not is_master(first))
    await until(lambda: members(second) == {1, 2})
    assert first.core.offsets.committed("g", "T", 0) == 0
    await elected.pairs.stop(second)
    await until(lambda: is_master(first) and first.core.role.in_force.is_set())
    assert await consumed_at(elected, first) == [b"1", b"2", b"3"]


async def no_copy(_: MetadataCopy) -> None:
    """The tables of the master are not copied for a while."""


async def delete_topic(elected: ElectedPairs, broker: Broker, topic: str) -> None:
    header = DeleteTopicInBrokerRequest(topic=topic)
    response = await elected.call(broker.address, RequestCode.DELETE_TOPIC_IN_BROKER, header)
    assert response.code == ResponseCode.SUCCESS


async def widen(elected: ElectedPairs, broker: Broker, topic: str, queues: int) -> None:
    """Give a topic more queues."""
    header = UpdateAndCreateTopicRequest(
        topic=topic,
        default_topic="TBW102",
        read_queue_nums=queues,
        write_queue_nums=queues,
        perm=6,
        topic_filter_type="SINGLE_TAG",
        topic_sys_flag=0,
        order=False,
    )
    response = await elected.call(broker.address, RequestCode.UPDATE_AND_CREATE_TOPIC, header)
    assert response.code == ResponseCode.SUCCESS


async def test_a_slave_that_has_copied_nothing_since_its_start_knows_the_topics_of_its_log(
    elected: ElectedPairs, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = await both(elected)
    assert (await elected.send(first, b"1", "early")).code == ResponseCode.SUCCESS
    await until(lambda: "early" in second.core.topics)
    await elected.pairs.stop(second)
    await until(lambda: members(first) == {1})
    monkeypatch.setattr(MetadataCopy, "run", no_copy)
    second = await elected.start("b")
    await until(lambda: members(first) == {1, 2})
    assert (await elected.send(first, b"2", "late")).code == ResponseCode.SUCCESS
    await until(lambda: log_of(second) == log_of(first))

    await elected.pairs.stop(first)
    await until(lambda: is_master(second))

    assert {"early", "late"} <= second.core.topics.all().keys()


async def test_a_second_controller_goes_on_where_the_first_one_ended(
    elected: ElectedPairs,
) -> None:
    await elected.controller(controller_id="n0", lease_s=2)
    await elected.controller(controller_id="n1", lease_s=2)
    first, second = await both(elected)
    await elected.controllers[0].stop(0.1)
    await until(lambda: elected.controllers[1].active.is_active)
    assert is_master(first)

    await elected.pairs.stop(first)

    await until(lambda: is_master(second))


async def test_a_master_goes_on_without_controllers(elected: ElectedPairs) -> None:
    controller = await elected.controller()
    master, slave = await both(elected)
    await controller.stop(0.1)
    assert (await elected.send(master, b"1")).code == ResponseCode.SUCCESS
    await until(lambda: log_of(slave) == log_of(master))
    assert is_master(master)


async def test_a_master_that_stood_still_stays_in_doubt_until_a_controller_responds(
    elected: ElectedPairs,
) -> None:
    controller = await elected.controller()
    master = await elected.start("a", controllerHeartBeatTimeoutMills="500", slaveTimeout="300")
    assert (await elected.send(master, b"1")).code == ResponseCode.SUCCESS

    await controller.stop(0.0)
    time.sleep(1.0)  # noqa: ASYNC251 (all of the process stands still)
    for _ in range(3):
        refused = await elected.send(master, b"2")
        assert refused.code in (
            ResponseCode.FLUSH_SLAVE_TIMEOUT,
            ResponseCode.SERVICE_NOT_AVAILABLE,
        )

    controller = await elected.controller()
    master.configuration.set({"controllerAddr": controller.address})
    async with asyncio.timeout(LIMIT_S):
        while (await elected.send(master, b"3")).code != ResponseCode.SUCCESS:
            await asyncio.sleep(0.05)


class SuspendedMachine(Clock):
    """The clock of a machine that was suspended for a minute."""

    def since_boot(self) -> float:
        """Return the seconds since the boot."""
        return super().since_boot() + 60


async def test_a_master_whose_machine_was_suspended_is_in_doubt(elected: ElectedPairs) -> None:
    controller = await elected.controller()
    master = await elected.start("a", slaveTimeout="300")
    assert (await elected.send(master, b"1")).code == ResponseCode.SUCCESS
    await controller.stop(0.0)
    assert master.features.failover.elected is not None
    master.features.failover.elected._clock = SuspendedMachine()

    refused = await elected.send(master, b"2")
    assert refused.code == ResponseCode.FLUSH_SLAVE_TIMEOUT


async def test_tools_see_the_epochs_and_the_in_sync_set(elected: ElectedPairs) -> None:
    master, slave = await both(elected)
    await elected.send(master, b"1")
    await until(lambda: log_of(slave) == log_of(master))
    for broker, broker_id in ((master, 0), (slave, 2)):
        response = await elected.call(broker.address, RequestCode.GET_BROKER_EPOCH_CACHE)
        cache = EpochEntryCache.decode(response.body)
        assert (cache.broker_name, cache.broker_id) == (NAME, broker_id)
        assert cache.max_offset == master.core.store.written_to
        assert [(one.epoch, one.start_offset) for one in cache.epoch_list] == [(1, 0)]
        assert cache.epoch_list[0].end_offset == 2**63 - 1
    status = HARuntimeInfo.decode(
        (await elected.call(master.address, RequestCode.GET_BROKER_HA_STATUS)).body
    )
    assert (status.master, status.in_sync_slave_nums) == (True, 1)
    asked = await elected.call(master.address, RequestCode.EXCHANGE_BROKER_HA_INFO)
    found = asked.header(ExchangeBrokerHaInfoResponse)
    assert found.master_ha_address == f"127.0.0.1:{master.port + 1}"
    asked = await elected.call(slave.address, RequestCode.EXCHANGE_BROKER_HA_INFO)
    assert asked.header(ExchangeBrokerHaInfoResponse).master_ha_address is None


async def test_the_store_of_a_broker_with_another_name_is_refused(
    elected: ElectedPairs,
) -> None:
    await elected.controller()
    broker = await elected.start("a")
    await elected.pairs.stop(broker)
    with pytest.raises(ConfigError, match="belongs to another broker"):
        await elected.start("a", brokerName="other")


def last_epoch(broker: Broker) -> int:
    assert broker.features.failover.elected is not None
    return broker.features.failover.elected.epochs[-1].number


def request_of(broker: Broker, wanted: list[int]) -> tuple[int, Header, bytes]:
    """The request of a master for another in-sync set."""
    assert broker.features.failover.elected is not None
    in_sync = broker.features.failover.elected.replication.in_sync
    assert in_sync is not None
    header = ControllerAlterSyncStateSetRequest(
        broker_name=NAME, master_broker_id=in_sync.own_id, master_epoch=last_epoch(broker)
    )
    body = SyncStateSet(sync_state_set=wanted, sync_state_set_epoch=in_sync.in_sync_epoch)
    return RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET, header, body.encode()


@pytest.mark.parametrize("knows_processes", [False, True])
@pytest.mark.parametrize("power_lost", [False, True])
async def test_a_master_whose_controllers_did_not_see_its_end(
    elected: ElectedPairs,
    power_lost: bool,
    knows_processes: bool,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A controller that knows processes sees that the master is another one."""
    if not knows_processes:  # as RocketMQ's
        monkeypatch.setattr(handler, "_names_of", lambda _header: None)
        monkeypatch.setattr(handler, "_name_set", lambda *_: None)
        monkeypatch.setattr(handler, "_is_holder", lambda *_: True)
    controller = await elected.controller()
    broker = await elected.start("a")
    late = request_of(broker, [1, 2])
    assert (await elected.send(broker, b"1")).code == ResponseCode.SUCCESS
    await controller.stop(0.1)
    abort = broker.core.store.paths.abort
    await elected.pairs.stop(broker)
    if power_lost:
        abort.write_bytes(b"1\nanother boot")
    elected.controllers.clear()
    await elected.controller()

    broker = await elected.start("a")
    await until(lambda: is_master(broker))

    assert last_epoch(broker) > 1
    assert ("cannot be the master of epoch 1" in caplog.text) != knows_processes
    arrived = await elected.call(elected.controllers[0].address, *late)
    assert arrived.code == ResponseCode.CONTROLLER_FENCED_MASTER_EPOCH
    assert (await elected.send(broker, b"2")).code == ResponseCode.SUCCESS
    assert await elected.pairs.consume("g", "TBW102", 2) == [b"1", b"2"]


async def test_two_brokers_that_start_at_once_get_different_ids(elected: ElectedPairs) -> None:
    await elected.controller()
    brokers = await asyncio.gather(*(elected.start(name) for name in ("a", "b", "c")))
    await until(lambda: any(members(broker) == {1, 2, 3} for broker in brokers))
    assert sum(map(is_master, brokers)) == 1
    registry = elected.pairs.name_server.registry
    await until(lambda: len(registry.groups[NAME].addresses) == 3)


async def test_a_learner_copies_the_log_and_is_never_elected(elected: ElectedPairs) -> None:
    await elected.controller()
    master = await elected.start("a")
    learner = await elected.start("b", asyncLearner="true")
    assert (await elected.send(master, b"1")).code == ResponseCode.SUCCESS
    await until(lambda: log_of(learner) == log_of(master) != b"")
    assert members(master) == {1}

    await elected.pairs.stop(master)

    await until(lambda: learner.core.role.master_address == "")
    assert not is_master(learner)
