"""Slaves: what they copy, refuse and forward, and how a slave becomes a master."""

from __future__ import annotations

import asyncio
import json
import struct
from pathlib import Path

import pytest

from cometmq.broker.app import Broker
from cometmq.broker.replication import master as master_module
from cometmq.broker.replication.wire import HEADER
from cometmq.client import AdminClient, Message, Producer
from cometmq.model.group import SubscriptionGroupConfig
from cometmq.model.topic import TopicConfig
from cometmq.protocol.bodies.pop import MessageRequestModeSerializeWrapper
from cometmq.protocol.bodies.topic import TimerMetricsSerializeWrapper
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.command import Command
from cometmq.protocol.headers.base import Header
from cometmq.protocol.headers.consumer import ConsumerSendMsgBackRequest
from cometmq.protocol.headers.offset import (
    InvokeBrokerToResetOffsetRequest,
    UpdateConsumerOffsetRequest,
)
from cometmq.protocol.headers.pull import PullMessageRequest, PullMessageResponse
from cometmq.protocol.headers.send import SendMessageRequest
from cometmq.protocol.headers.transaction import (
    EndTransactionRequest,
    ResumeCheckHalfMessageRequest,
)
from cometmq.remoting import RemotingClient
from cometmq.remoting.ports import fast_port
from support.brokers.certificates import Authority
from support.brokers.pairs import LIMIT_S, SLAVE, Pairs
from support.brokers.replication_peer import Peer
from support.checks.waiting import until
from support.stores.small_stores import put
from support.wire.request_headers import pull_header, send_header


async def call(
    client: RemotingClient, address: str, code: int, header: Header | None = None, body: bytes = b""
) -> Command:
    return await client.call(address, code, header, body, timeout=LIMIT_S)


async def test_a_slave_registers_with_its_id_and_learns_of_its_master(pairs: Pairs) -> None:
    slave = await pairs.start("slave", **SLAVE)
    assert slave.core.role.master_address == ""
    master = await pairs.start("master")
    slave.features.registration.registration.wake()
    await until(lambda: slave.core.role.master_address)
    assert slave.core.role.master_address == master.address
    assert slave.core.role.master_ha_address == f"127.0.0.1:{master.port + 1}"
    addresses = pairs.name_server.registry.groups["pair"].addresses
    assert addresses == {0: master.address, 1: slave.address}


async def test_a_slave_that_knows_no_master_asks_again(
    pairs: Pairs, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("cometmq.broker.registration.name_servers.MASTER_UNKNOWN_S_MAX", 0.05)
    monkeypatch.setattr("cometmq.broker.replication.metadata.UNKNOWN_S", 0.0)
    slave = await pairs.start("slave", **SLAVE)
    await until(lambda: "master=unknown" in caplog.text)
    master = await pairs.start("master")
    await until(lambda: slave.core.role.master_address == master.address)


async def test_topics_groups_and_offsets_are_copied(pairs: Pairs) -> None:
    master = await pairs.start("master")
    async with AdminClient(pairs.name_server.address) as admin:
        await admin.create_topic("T", queues=3)
        await admin.create_group(SubscriptionGroupConfig(group_name="G", retry_max_times=7))
    await master.core.groups.set_readable("G", "T", False)
    master.core.offsets.commit("G", "T", 2, 5)
    slave = await pairs.start("slave", **SLAVE)
    topics, groups = slave.core.topics, slave.core.groups
    await until(lambda: topics.version == master.core.topics.version)
    await until(lambda: groups.version == master.core.groups.version)
    assert topics.all() == master.core.topics.all()
    assert groups.all() == master.core.groups.all()
    assert groups.is_forbidden("G", "T")
    await until(lambda: slave.core.offsets.committed("G", "T", 2) == 5)

    await pairs.stop(slave)  # all of it is on its disk
    again = await pairs.start("slave", **SLAVE)
    assert again.core.topics.all()["T"].read_queue_nums == 3
    assert again.core.groups.all()["G"].retry_max_times == 7
    assert again.core.offsets.of("G", "T") == {2: 5}


async def test_what_the_master_has_deleted_goes_and_system_topics_stay(pairs: Pairs) -> None:
    master = await pairs.start("master", traceTopicEnable="false")
    slave = await pairs.start("slave", **SLAVE, traceTopicEnable="true")
    await until(lambda: slave.core.topics.version == master.core.topics.version)
    assert "RMQ_SYS_TRACE_TOPIC" in slave.core.topics
    await slave.core.topics.create_all([TopicConfig(topic_name="mine")])
    slave.features.replication.metadata.get().hurry()
    await until(lambda: "mine" not in slave.core.topics)
    assert slave.core.topics.version == master.core.topics.version


async def test_a_master_that_is_gone_is_logged_once_and_asked_for_again(
    pairs: Pairs, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setattr("cometmq.broker.replication.metadata.RETRY_S", 0.0)
    monkeypatch.setattr("cometmq.broker.replication.metadata.INTERVAL_S", 0.0)
    master = await pairs.start("master")
    slave = await pairs.start("slave", **SLAVE)
    await until(lambda: slave.core.topics.version == master.core.topics.version)
    await pairs.stop(master)
    await until(lambda: "cannot copy tables" in caplog.text)
    master = await pairs.start("master")
    await master.core.topics.touch()
    await until(lambda: slave.core.topics.version == master.core.topics.version)
    assert caplog.text.count("cannot copy tables") == 1
    await until(lambda: "copying tables works again" in caplog.text)


async def test_what_a_slave_refuses(pairs: Pairs, client: RemotingClient) -> None:
    slave = await pairs.start("slave", **SLAVE)
    group = json.dumps({"groupName": "g"}).encode()
    back = ConsumerSendMsgBackRequest(offset=0, group="g", delay_level=0)
    end = EndTransactionRequest(
        producer_group="p",
        tran_state_table_offset=0,
        commit_log_offset=0,
        commit_or_rollback=8,
        msg_id="m",
    )
    reset = InvokeBrokerToResetOffsetRequest(
        topic="SELF_TEST_TOPIC", group="TOOLS_CONSUMER", timestamp=-1, is_force=True
    )
    send = send_header(SendMessageRequest, topic="SELF_TEST_TOPIC")
    refusals = {
        RequestCode.SEND_MESSAGE: (send, b"x", 14),
        RequestCode.SEND_REPLY_MESSAGE: (send, b"x", 14),
        RequestCode.CONSUMER_SEND_MSG_BACK: (back, b"", 1),
        RequestCode.END_TRANSACTION: (end, b"", 11),
        RequestCode.RESUME_CHECK_HALF_MESSAGE: (ResumeCheckHalfMessageRequest(), b"", 14),
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: (None, group, 1),
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: (reset, b"", 1),
        RequestCode.CLEAN_UNUSED_TOPIC: (None, b"", 1),
    }
    for code, (header, body, expected) in refusals.items():
        response = await call(client, slave.address, code, header, body)
        assert (response.code, "slave" in (response.remark or "")) == (expected, True), code
    assert slave.core.store.written_to == 0
    assert "g" not in slave.core.groups


async def test_what_a_slave_serves(pairs: Pairs, client: RemotingClient) -> None:
    slave = await pairs.start("slave", **SLAVE)
    commit = UpdateConsumerOffsetRequest(
        consumer_group="TOOLS_CONSUMER", topic="SELF_TEST_TOPIC", queue_id=0, commit_offset=0
    )
    response = await call(client, slave.address, RequestCode.UPDATE_CONSUMER_OFFSET, commit)
    assert response.code == 0
    response = await call(client, slave.address, RequestCode.GET_ALL_TOPIC_CONFIG)
    assert b"SELF_TEST_TOPIC" in response.body


def pull(offset: int, *, hold_ms: int = 0, commit: int | None = None) -> PullMessageRequest:
    fields = {"consumer_group": "TOOLS_CONSUMER", "topic": "SELF_TEST_TOPIC"}
    flag = 4 | (2 if hold_ms else 0) | (1 if commit is not None else 0)
    commits = {"sys_flag": flag, "commit_offset": commit or 0}
    return pull_header(offset, hold_ms=hold_ms, **fields, **commits)


async def test_a_pull_outside_the_queue_of_a_slave_goes_to_the_master_with_its_offset(
    pairs: Pairs, client: RemotingClient
) -> None:
    slave = await pairs.start("slave", **SLAVE, shortPollingTimeMills="50")
    loop = asyncio.get_running_loop()
    for hold_ms in (0, 10_000):
        began_s = loop.time()
        asked = pull(7, hold_ms=hold_ms, commit=3)
        response = await call(client, slave.address, RequestCode.PULL_MESSAGE, asked)
        found = response.header(PullMessageResponse)
        assert response.code == ResponseCode.PULL_RETRY_IMMEDIATELY
        assert (found.next_begin_offset, found.suggest_which_broker_id) == (7, 0)
        assert bool(hold_ms) == (loop.time() - began_s > 0.04)
    assert slave.core.offsets.of("TOOLS_CONSUMER", "SELF_TEST_TOPIC") == {}


async def test_slaves_of_rocketmq_5_are_served_on_the_fast_port(
    pairs: Pairs, client: RemotingClient
) -> None:
    master = await pairs.start("master")
    fast = f"127.0.0.1:{fast_port(master.port)}"
    topics = await call(client, fast, RequestCode.GET_ALL_TOPIC_CONFIG)
    assert b"SELF_TEST_TOPIC" in topics.body
    checkpoint = await call(client, fast, RequestCode.GET_TIMER_CHECK_POINT)
    read_ms, *places, state, version_ms, counter = struct.unpack(">7q", checkpoint.body)
    assert (places, state, counter) == ([0, 0, 0], 0, 1)
    assert read_ms + 1000 >= version_ms > 0
    metrics = await call(client, fast, RequestCode.GET_TIMER_METRICS)
    assert TimerMetricsSerializeWrapper.decode(metrics.body).timing_count == {}
    modes = await call(client, master.address, RequestCode.GET_ALL_MESSAGE_REQUEST_MODE)
    found = MessageRequestModeSerializeWrapper.decode(modes.body)
    assert found.message_request_mode_map == {}


async def test_a_slave_assumes_less_of_the_log_to_be_in_memory(pairs: Pairs) -> None:
    slave = await pairs.start("slave", **SLAVE, accessMessageInMemoryMaxRatio="40")
    limits = slave.core.store._limits
    as_slave = limits.memory_bytes
    slave.core.role.change("ASYNC_MASTER", 0)
    assert as_slave == pytest.approx(limits.memory_bytes * 30 / 40)


# --- TLS for the log ------------------------------------------------------------------------------


def sealed(authority: Authority, name: str) -> dict[str, str]:
    """The settings of a broker that has a certificate and checks those of others."""
    certificate, key = map(str, authority.issue(name))
    return {
        "tls.server.mode": "enforcing",
        "tls.server.certPath": certificate,
        "tls.server.keyPath": key,
        "tls.server.need.client.auth": "require",
        "tls.server.trustCertPath": str(authority.file),
        "tls.client.trustCertPath": str(authority.file),
        "tls.client.certPath": certificate,
        "tls.client.keyPath": key,
        "tls.enable": "false",  # the name server has none
    }


def log_of_master(master: Broker) -> dict[str, str]:
    return {"haMasterAddress": f"127.0.0.1:{master.features.replication.master.port}"}


def append(broker: Broker, body: bytes) -> None:
    put(broker.core.store, topic="T", body=body)


async def refuses_plain_slaves(master: Broker) -> bool:
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", master.features.replication.master.port
    )
    writer.write(bytes(8))  # the report of a slave that has nothing
    async with asyncio.timeout(LIMIT_S):
        try:
            received = await reader.read()  # at most an alert of TLS
        except ConnectionError:
            received = b""
    writer.close()
    return len(received) < HEADER.size


async def followed(master: Broker, slave: Broker) -> None:
    await until(lambda: slave.core.store.written_to == master.core.store.written_to)


async def test_the_log_is_sent_over_tls_if_nothing_else_is_accepted(
    pairs: Pairs, tmp_path: Path
) -> None:
    authority = Authority(tmp_path, "authority")
    master = await pairs.start("master", **sealed(authority, "master"))
    append(master, b"before")
    slave = await pairs.start(
        "slave", **SLAVE, **sealed(authority, "slave"), **log_of_master(master)
    )
    await followed(master, slave)
    for number in range(200):  # more than is received at a time
        append(master, b"%d" % number * 1000)
    await followed(master, slave)
    await until(lambda: slave.core.store.bounds("T", 0) == (0, 201))
    assert await refuses_plain_slaves(master)


@pytest.mark.parametrize("wrong", ["authority", "certificate"])
async def test_neither_side_takes_a_peer_that_it_cannot_verify(
    pairs: Pairs, tmp_path: Path, wrong: str, caplog: pytest.LogCaptureFixture
) -> None:
    authority, other = Authority(tmp_path, "authority"), Authority(tmp_path, "other")
    master = await pairs.start("master", **sealed(authority, "master"))
    append(master, b"secret")
    settings = sealed(authority, "slave")
    if wrong == "authority":
        settings["tls.client.trustCertPath"] = str(other.file)
    else:
        certificate, key = map(str, other.issue("slave"))
        settings |= {"tls.client.certPath": certificate, "tls.client.keyPath": key}
    slave = await pairs.start("slave", **SLAVE, **settings, **log_of_master(master))
    await until(lambda: "the log is not copied" in caplog.text)
    if wrong == "certificate":  # a slave that refuses the master's sends no alert
        await until(lambda: "its TLS handshake failed: certificate verify failed" in caplog.text)
    assert slave.core.store.written_to == 0
    assert not master.features.replication.master.slaves


async def test_a_plain_slave_of_a_master_with_tls_names_the_setting(
    pairs: Pairs, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    authority = Authority(tmp_path, "authority")
    master = await pairs.start("master", **sealed(authority, "master"))
    slave = await pairs.start("slave", **SLAVE, **log_of_master(master))
    await until(lambda: "set haTlsEnable=true here" in caplog.text)
    assert "it uses no TLS for the log, and this broker does; set haTlsEnable" in caplog.text
    assert slave.core.store.written_to == 0


async def test_a_slave_with_tls_of_a_plain_master_names_the_setting(
    pairs: Pairs, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    authority = Authority(tmp_path, "authority")
    plain = {"haTlsEnable": "false"}  # also RocketMQ's way
    master = await pairs.start("master", **sealed(authority, "master"), **plain)
    append(master, b"first")
    settings = sealed(authority, "slave")
    slave = await pairs.start("slave", **SLAVE, **settings, **log_of_master(master))
    await until(lambda: "it uses TLS for the log, and this broker does not" in caplog.text)
    await until(lambda: "haTlsEnable=false" in caplog.text)
    await pairs.stop(slave)
    slave = await pairs.start("slave", **SLAVE, **settings, **plain, **log_of_master(master))
    await followed(master, slave)


async def test_connections_that_finish_no_tls_handshake_keep_no_slave_out(
    pairs: Pairs,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(master_module, "NEWCOMERS_MAX", 3)
    monkeypatch.setattr(master_module, "HANDSHAKE_S", 2 * LIMIT_S)
    authority = Authority(tmp_path, "authority")
    master = await pairs.start("master", **sealed(authority, "master"))
    peers = [await Peer.connect(master.features.replication.master.port) for _ in range(8)]
    for peer in peers[:5]:
        assert await peer.closed() == b""
    peers[5].write(b"\x16\x03\x01")  # the beginning of a handshake keeps no connection
    slave = await pairs.start(
        "slave", **SLAVE, **sealed(authority, "slave"), **log_of_master(master)
    )
    await until(lambda: master.features.replication.master.slaves)
    await followed(master, slave)
    assert "3 connections have not reported yet, this is the oldest" in caplog.text
    for peer in peers[5:]:
        peer.close()


async def test_a_tls_handshake_has_a_timeout(
    pairs: Pairs,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(master_module, "HANDSHAKE_S", 0.1)
    master = await pairs.start("master", **sealed(Authority(tmp_path, "authority"), "master"))
    silent = await Peer.connect(master.features.replication.master.port)
    assert await silent.closed() == b""
    await until(lambda: "its TLS handshake failed" in caplog.text)


async def test_the_log_may_use_tls_where_clients_need_none(pairs: Pairs, tmp_path: Path) -> None:
    authority = Authority(tmp_path, "authority")
    settings = sealed(authority, "both") | {
        "tls.server.mode": "permissive",
        "haTlsEnable": "true",
    }
    master = await pairs.start("master", **settings)
    append(master, b"first")
    slave = await pairs.start("slave", **SLAVE, **settings, **log_of_master(master))
    await followed(master, slave)
    assert await refuses_plain_slaves(master)


# --- the role changes while the broker runs -----------------------------------------------------


def topics_of_log(broker: Broker) -> list[bytes]:
    return [facts.topic for facts in broker.core.store.facts_from(0)]


async def test_a_slave_that_becomes_a_master_does_what_masters_do(pairs: Pairs) -> None:
    broker = await pairs.start("a", messageDelayLevel="1s 2s")
    async with Producer(pairs.name_server.address, group="p") as producer:
        await producer.send(Message("D", b"first", delay_level=1))
        await producer.send(Message("D", b"second", delay_level=2))
    broker.core.role.change("SLAVE", 1)
    registry = pairs.name_server.registry
    await until(lambda: registry.groups["pair"].addresses == {1: broker.address})
    assert not broker.features.transactions.half_queue.is_loaded
    await asyncio.sleep(1.2)  # the first message was due
    assert topics_of_log(broker) == [b"SCHEDULE_TOPIC_XXXX"] * 2

    broker.core.role.change("SYNC_MASTER", 0)
    await until(lambda: registry.groups["pair"].addresses == {0: broker.address})
    await until(lambda: topics_of_log(broker).count(b"D") == 2)
    assert broker.features.transactions.half_queue.is_loaded
    async with Producer(pairs.name_server.address, group="p") as producer:
        await producer.send(Message("D", b"third"))


async def test_a_new_master_delivers_nothing_that_the_old_one_has_delivered(pairs: Pairs) -> None:
    broker = await pairs.start("a", messageDelayLevel="1s 1h")
    core, delay = broker.core, broker.features.delay.delivery
    async with Producer(pairs.name_server.address, group="p") as producer:
        await producer.send(Message("D", b"before", delay_level=1))
        await until(lambda: delay.offsets().get(1) == 1)
        copied, log_end = delay.offsets(), core.store.written_to
        await producer.send(Message("D", b"after", delay_level=1))
        await until(lambda: delay.offsets().get(1) == 2)
    core.role.change("SLAVE", 1)
    delay.copy(copied, None, log_end)  # as the master has had it a while ago
    assert delay.offsets() == {1: 1}

    core.role.change("ASYNC_MASTER", 0)
    await until(lambda: delay.offsets().get(1) == 2)
    await asyncio.sleep(0.3)  # a second delivery would be in the log now
    assert topics_of_log(broker).count(b"D") == 2


async def test_a_slave_takes_the_place_of_its_master_at_run_time(pairs: Pairs) -> None:
    levels = {"messageDelayLevel": "1s 4s"}
    master = await pairs.start("master", **levels)
    async with Producer(pairs.name_server.address, group="p") as producer:
        await producer.send(Message("T", b"before"))
        await producer.send(Message("T", b"late", delay_level=2))
    slave = await pairs.start("slave", **SLAVE, **levels)
    await until(lambda: slave.core.store.written_to == master.core.store.written_to)
    await until(lambda: "T" in slave.core.topics)
    await pairs.stop(master)

    slave.core.role.change("ASYNC_MASTER", 0)
    registry = pairs.name_server.registry
    await until(lambda: registry.groups["pair"].addresses == {0: slave.address})
    async with Producer(pairs.name_server.address, group="p") as producer:
        await producer.send(Message("T", b"after"))
    await until(lambda: topics_of_log(slave).count(b"T") == 3)
    bodies = await pairs.consume("g", "T", 3)
    assert sorted(bodies) == [b"after", b"before", b"late"]

    await pairs.stop(slave)  # the log of both roles is one log
    again = await pairs.start("slave", **levels)
    assert topics_of_log(again).count(b"T") == 3
