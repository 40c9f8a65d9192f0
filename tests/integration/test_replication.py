"""Masters and slaves that replicate the log: acknowledgements, and the rights of peers."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import pytest

from cometmq.broker.app import Broker
from cometmq.broker.config import BrokerSettings
from cometmq.broker.replication import master as master_module
from cometmq.broker.replication import slave as slave_module
from cometmq.broker.replication import slave_connection
from cometmq.broker.replication.greeting import GREETING_BYTES, SlaveNames
from cometmq.broker.replication.master import Master
from cometmq.broker.replication.slave_connection import SlaveConnection
from cometmq.broker.replication.wire import HEADER, REPORT
from cometmq.broker.role import Role
from cometmq.client import (
    AdminClient,
    LocalState,
    Message,
    Producer,
    SendStatus,
    TransactionProducer,
)
from cometmq.model.message import StoredMessage
from cometmq.protocol.bodies.broker_admin import HARuntimeInfo
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.headers.broker_admin import ResetMasterFlushOffsetRequest
from cometmq.remoting import RemotingClient
from cometmq.system.clock import Clock
from cometmq.system.failure_log import LINES_MAX
from support.brokers.pairs import LIMIT_S, SLAVE, Pairs
from support.brokers.replication_peer import Peer, listening
from support.checks.waiting import until
from support.stores.small_stores import opened, put, split

SYNC = {"brokerRole": "SYNC_MASTER"}


@pytest.fixture
async def producer(pairs: Pairs) -> AsyncIterator[Producer]:
    async with Producer(pairs.name_server.address, group="p") as made:
        yield made


def log_of(broker: Broker) -> bytes:
    store = broker.core.store
    found = bytearray()
    while (data := store.log_bytes(store.min_log_offset + len(found), 1 << 20)) is not None:
        found += data
    return bytes(found)


async def copied(master: Broker, slave: Broker) -> None:
    """Wait until the slave has the whole log."""
    await until(lambda: slave.core.store.written_to == master.core.store.written_to)
    assert log_of(slave) == log_of(master)


def is_followed(master: Broker, slaves: int = 1) -> bool:
    end = master.core.store.written_to
    return [slave.acknowledged_to for slave in master.features.replication.master.slaves] == [
        end
    ] * slaves


def slave_of(master: Broker, number: int = 1) -> dict[str, str]:
    address = f"127.0.0.1:{master.features.replication.master.port}"
    return {"brokerRole": "SLAVE", "brokerId": str(number), "haMasterAddress": address}


async def topic(pairs: Pairs, name: str = "T") -> None:
    async with AdminClient(pairs.name_server.address) as admin:
        await admin.create_topic(name, queues=1)


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
async def test_a_send_is_acknowledged_when_a_slave_has_it(
    pairs: Pairs, producer: Producer, flush: str
) -> None:
    master = await pairs.start("master", **SYNC, flushDiskType=flush)
    await topic(pairs)
    slave = await pairs.start("slave", **slave_of(master), flushDiskType=flush)
    await until(lambda: is_followed(master))
    for number in range(20):
        sent = await producer.send(Message("T", b"%d" % number))
        assert sent.status is SendStatus.SEND_OK
        assert slave.core.store.written_to == master.core.store.written_to
        if flush == "SYNC_FLUSH":
            assert slave.core.store.flushed_to == master.core.store.written_to
    sent = await producer.send_batch([Message("T", b"a"), Message("T", b"b")])
    assert sent.status is SendStatus.SEND_OK
    await copied(master, slave)
    found = slave.core.store.get("T", 0, 0, 32)
    assert [message.body for message in split(b"".join(found.slices))][-2:] == [b"a", b"b"]


async def test_without_a_slave_the_producer_is_told_at_once(
    pairs: Pairs, producer: Producer
) -> None:
    master = await pairs.start("master", **SYNC)
    await topic(pairs)
    sent = await producer.send(Message("T", b"stored"))
    assert sent.status is SendStatus.SLAVE_NOT_AVAILABLE
    assert master.core.store.bounds("T", 0) == (0, 1)
    sent = await producer.send(Message("T", b"for nobody", wait_store=False))
    assert sent.status is SendStatus.SEND_OK


async def test_a_silent_slave_delays_a_send_by_the_timeout(
    pairs: Pairs, producer: Producer
) -> None:
    master = await pairs.start("master", **SYNC, slaveTimeout="100")
    await topic(pairs)
    peer = await Peer.connect(master.features.replication.master.port)
    peer.write(REPORT.pack(master.core.store.written_to))
    await until(lambda: master.features.replication.master.slaves)
    sent = await producer.send(Message("T", b"stored"))
    assert sent.status is SendStatus.FLUSH_SLAVE_TIMEOUT
    assert master.core.store.bounds("T", 0) == (0, 1)
    peer.close()


async def test_two_of_three_copies(pairs: Pairs, producer: Producer) -> None:
    master = await pairs.start("master", **SYNC, inSyncReplicas="3", slaveTimeout="300")
    await topic(pairs)
    slaves = [await pairs.start(f"s{n}", **slave_of(master, n)) for n in (1, 2)]
    await until(lambda: is_followed(master, 2))
    assert (await producer.send(Message("T", b"1"))).status is SendStatus.SEND_OK
    await pairs.stop(slaves[0])
    await until(lambda: is_followed(master, 1))
    assert (await producer.send(Message("T", b"2"))).status is SendStatus.FLUSH_SLAVE_TIMEOUT


async def test_the_end_of_a_transaction_waits_for_a_slave(pairs: Pairs) -> None:
    master = await pairs.start("master", **SYNC)
    await topic(pairs)
    slave = await pairs.start("slave", **slave_of(master))
    await until(lambda: is_followed(master))

    class Commits:
        async def execute(self, message: Message, argument: object) -> LocalState:
            return LocalState.COMMIT

        async def check(self, message: StoredMessage) -> LocalState:
            return LocalState.UNKNOWN

    async with TransactionProducer(
        pairs.name_server.address, group="tx", listener=Commits()
    ) as producer:
        await producer.send_in_transaction(Message("T", b"decided"))
    await until(lambda: slave.core.store.bounds("T", 0) == (0, 1))
    await copied(master, slave)


async def test_a_slave_continues_after_a_restart_of_either_side(
    pairs: Pairs, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slave_module, "RETRY_S", 0.05)
    master = await pairs.start("master")
    await topic(pairs)
    slave = await pairs.start("slave", **slave_of(master))
    for number in range(30):
        await producer.send(Message("T", b"%d" % number + b"x" * 3000))
    await copied(master, slave)
    await pairs.stop(slave)
    for number in range(30):
        await producer.send(Message("T", b"%d" % number + b"y" * 3000))
    slave = await pairs.start("slave", **slave_of(master))
    await copied(master, slave)
    await pairs.stop(master)
    master = await pairs.start("master")
    for number in range(30):
        await producer.send(Message("T", b"%d" % number + b"z" * 3000))
    await copied(master, slave)


async def test_a_lost_connection_is_logged_once_and_so_is_the_next_one(
    pairs: Pairs, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(slave_module, "RETRY_S", 0.05)
    async with listening() as masters:
        await pairs.start("slave", **SLAVE, haMasterAddress=masters.address)
        for _ in range(3):
            master = await masters.accept()
            assert await master.report() == 0
            master.close()
        master = await masters.accept()
        assert "is copied again" not in caplog.text
        assert "connected to the master" not in caplog.text
        master.write(HEADER.pack(0, 0))
        await until(lambda: "the log is copied again" in caplog.text)
        assert "connected to the master" in caplog.text
    assert caplog.text.count("the log is not copied") == 1
    assert "; the log of the master says why; if it has TLS" in caplog.text


async def test_a_slave_learns_the_address_from_the_name_server(
    pairs: Pairs, producer: Producer
) -> None:
    master = await pairs.start("master")
    await topic(pairs)
    await producer.send(Message("T", b"x"))
    slave = await pairs.start("slave", **SLAVE)
    await copied(master, slave)


async def test_a_master_that_keeps_its_log_port_keeps_the_connection(pairs: Pairs) -> None:
    async with listening() as masters:
        quick = {"haSendHeartbeatInterval": "50", "haMasterAddress": masters.address}
        slave = await pairs.start("slave", **SLAVE, **quick)
        master = await masters.accept()
        assert await master.report() == 0
        slave.core.role.follow("127.0.0.1:1", "127.0.0.1:2")  # the second is fixed
        assert [await master.report() for _ in range(2)] == [0, 0]


async def test_another_role_ends_the_copy_and_another_address_moves_it(
    pairs: Pairs, producer: Producer
) -> None:
    master = await pairs.start("master")
    await topic(pairs)
    slave = await pairs.start("slave", **SLAVE)
    await until(lambda: is_followed(master))
    async with listening() as others:
        slave.core.role.follow("", others.address)
        other = await others.accept()
        assert await other.report() == slave.core.store.written_to
        await until(lambda: not master.features.replication.master.slaves)
        slave.core.role.change("ASYNC_MASTER", 0)
        await other.closed()


async def test_the_status_shows_both_sides(pairs: Pairs) -> None:
    master = await pairs.start("master")
    slave = await pairs.start("slave", **slave_of(master))
    await topic(pairs)
    await until(lambda: is_followed(master))
    client = RemotingClient(name="test")
    try:
        found = []
        for broker in (master, slave):
            response = await client.call(
                broker.address, RequestCode.GET_BROKER_HA_STATUS, timeout=LIMIT_S
            )
            found.append(HARuntimeInfo.decode(response.body))
        resets = [
            await client.call(
                broker.address,
                RequestCode.RESET_MASTER_FLUSH_OFFSET,
                ResetMasterFlushOffsetRequest(master_flush_offset=1),
                timeout=LIMIT_S,
            )
            for broker in (master, slave)
        ]
    finally:
        await client.close()
    end = master.core.store.written_to
    ours, theirs = found
    assert (ours.master, ours.master_commit_log_max_offset, ours.in_sync_slave_nums) == (
        True,
        end,
        1,
    )
    assert [response.code for response in resets] == [0, ResponseCode.SYSTEM_ERROR]
    assert "keeps no flush offset" in str(resets[1].remark)
    (connection,) = ours.ha_connection_info
    assert (connection.slave_ack_offset, connection.diff, connection.in_sync) == (end, 0, True)
    assert connection.transfer_from_where == end
    assert not theirs.master
    assert (
        theirs.ha_client_runtime_info.master_addr
        == f"127.0.0.1:{master.features.replication.master.port}"
    )
    assert theirs.ha_client_runtime_info.max_offset == end
    assert theirs.ha_client_runtime_info.last_write_timestamp > 0


async def test_a_stop_of_the_master_waits_for_its_slaves(pairs: Pairs, producer: Producer) -> None:
    master = await pairs.start("master", **SYNC, slaveTimeout="60000")
    await topic(pairs)
    peer = await Peer.connect(master.features.replication.master.port)
    peer.write(REPORT.pack(master.core.store.written_to))
    await until(lambda: master.features.replication.master.slaves)
    sending = asyncio.ensure_future(producer.send(Message("T", b"stored")))
    await peer.chunk()
    stopping = asyncio.ensure_future(pairs.stop(master))
    await until(master.features.sending.flow.refusal)
    peer.write(REPORT.pack(master.core.store.written_to))
    assert (await sending).status is SendStatus.SEND_OK
    await stopping
    await peer.closed()


async def test_if_no_send_waits_for_slaves_what_is_written_shortly_after_shares_a_packet(
    pairs: Pairs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(master_module, "SHARED_S", 0.3)
    master = await pairs.start("master")
    store = master.core.store
    peer = await Peer.connect(master.features.replication.master.port)
    peer.write(REPORT.pack(store.written_to))
    await until(lambda: master.features.replication.master.slaves)
    start = store.written_to
    sizes = []
    for number in range(3):
        sizes.append(put(store, b"%d" % number).size_bytes)
        await asyncio.sleep(0)
    first_end = sizes[0]
    assert await peer.chunk() == (start, log_of(master)[start : start + first_end])
    assert await peer.chunk() == (start + first_end, log_of(master)[start + first_end :])
    peer.close()


async def test_each_write_of_a_synchronous_master_is_sent_at_once(
    pairs: Pairs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(master_module, "SHARED_S", 3600.0)
    master = await pairs.start("master", **SYNC)
    peer = await Peer.connect(master.features.replication.master.port)
    peer.write(REPORT.pack(master.core.store.written_to))
    await until(lambda: master.features.replication.master.slaves)
    for number in range(3):
        start = master.core.store.written_to
        put(master.core.store, b"%d" % number)
        assert (await peer.chunk())[0] == start
    peer.close()


# --- what peers may do ----------------------------------------------------------------------------


@pytest.mark.parametrize("offset", [-1, 10**12])
async def test_a_slave_that_has_more_than_its_master_is_disconnected(
    pairs: Pairs, offset: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    master = await pairs.start("master")
    peer = await Peer.connect(master.features.replication.master.port)
    peer.write(REPORT.pack(offset))
    await peer.closed()
    assert str(offset) in caplog.text
    assert not master.features.replication.master.slaves


@pytest.mark.parametrize("offset", [-1, 0])
async def test_the_log_stays_short_however_many_strangers_connect(
    pairs: Pairs, offset: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "cometmq.broker.replication")
    master = await pairs.start("master")
    caplog.clear()
    for _ in range(3 * LINES_MAX):
        peer = await Peer.connect(master.features.replication.master.port)
        peer.write(REPORT.pack(offset))
        if offset < 0:
            await peer.closed()
        else:
            await until(lambda: master.features.replication.master.slaves)
            peer.close()
            await until(lambda: not master.features.replication.master.slaves)
    lines = [each for each in caplog.records if each.name == "cometmq.broker.replication.master"]
    assert 0 < len(lines) <= LINES_MAX + 1


async def test_too_many_slaves_are_refused(
    pairs: Pairs, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(master_module, "SLAVES_MAX", 2)
    master = await pairs.start("master")
    peers = []
    for _ in range(3):
        peers.append(await Peer.connect(master.features.replication.master.port))
        peers[-1].write(REPORT.pack(0))
        await until(lambda: len(master.features.replication.master.slaves) == min(len(peers), 2))
    await peers[2].closed()
    assert "2 slaves are connected" in caplog.text
    slave = await pairs.start("slave", **SLAVE)  # it has a ticket
    await peers[1].closed()
    await until(lambda: any(one.slave for one in master.features.replication.master.slaves))
    assert slave.core.role.is_slave
    peers[0].close()


async def test_connections_that_report_nothing_keep_no_slave_out(
    pairs: Pairs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(master_module, "NEWCOMERS_MAX", 3)
    monkeypatch.setattr(slave_connection, "FIRST_REPORT_S", 1.0)
    master = await pairs.start("master")
    peers = [await Peer.connect(master.features.replication.master.port) for _ in range(4)]
    await peers[0].closed()
    peers[1].write(b"\0")
    await pairs.start("slave", **SLAVE)
    await until(lambda: len(master.features.replication.master.slaves) == 1)
    for peer in peers[1:]:  # a byte does not keep a connection
        await peer.closed()


async def test_connections_that_come_all_at_once_keep_the_limit(
    pairs: Pairs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(master_module, "NEWCOMERS_MAX", 3)
    monkeypatch.setattr(slave_connection, "FIRST_REPORT_S", 2 * LIMIT_S)
    master = await pairs.start("master")
    sockets = [
        socket.create_connection(("127.0.0.1", master.features.replication.master.port))
        for _ in range(40)
    ]
    peers = [Peer(*await asyncio.open_connection(sock=each)) for each in sockets]
    for peer in peers[:-3]:
        await peer.closed()
    for peer in peers[-3:]:
        peer.close()


async def test_single_bytes_keep_no_connection(pairs: Pairs) -> None:
    master = await pairs.start("master", haHousekeepingInterval="400")
    peer = await Peer.connect(master.features.replication.master.port)
    peer.write(REPORT.pack(master.core.store.written_to))
    closed = asyncio.create_task(peer.closed())
    async with asyncio.timeout(LIMIT_S):
        while not closed.done():
            peer.write(b"\0")
            await asyncio.wait([closed], timeout=0.05)


async def fill(pairs: Pairs, name: str, bodies: Iterable[bytes]) -> None:
    """Give a broker a log, as it was when it was a master."""
    broker = await pairs.start(name)
    for body in bodies:
        put(broker.core.store, body)
    await pairs.stop(broker)


async def test_a_slave_does_not_follow_a_master_whose_last_record_is_another(
    pairs: Pairs, caplog: pytest.LogCaptureFixture
) -> None:
    """The master lost its newest messages with the power, and stored others in their place."""
    await fill(pairs, "slave", (b"1", b"stale"))
    await fill(pairs, "master", (b"1", b"other", b"more"))
    master = await pairs.start("master")
    slave = await pairs.start("slave", **slave_of(master))
    end = slave.core.store.written_to
    await until(lambda: "differs from the master's" in caplog.text)
    assert slave.core.store.written_to == end
    assert "empty the store of the other broker" in caplog.text


@pytest.mark.parametrize("count", [1, 2])
async def test_a_slave_follows_on_when_its_last_record_is_that_of_the_master(
    pairs: Pairs, count: int
) -> None:
    master = await pairs.start("master")
    for number in range(count):
        put(master.core.store, b"%d" % number)
    slave = await pairs.start("slave", **slave_of(master))
    await copied(master, slave)
    await pairs.stop(slave)
    put(master.core.store, b"more")
    slave = await pairs.start("slave", **slave_of(master))
    await copied(master, slave)
    await until(lambda: is_followed(master))


async def test_a_broker_id_that_is_connected_is_not_taken_over(
    pairs: Pairs, caplog: pytest.LogCaptureFixture
) -> None:
    master = await pairs.start("master")
    await pairs.start("slave", **SLAVE)
    await until(lambda: len(master.features.replication.master.slaves) == 1)
    [first] = master.features.replication.master.slaves
    await pairs.start("copy", **SLAVE)
    await until(lambda: "another process with that id is connected" in caplog.text)
    assert master.features.replication.master.slaves == [first]


async def test_a_new_connection_of_a_slave_counts_in_place_of_the_old_one(pairs: Pairs) -> None:
    """Together they would be two slaves that have a record."""
    master = await pairs.start("master", **SYNC, inSyncReplicas="3", slaveTimeout="60000")
    log, store = master.features.replication.master, master.core.store
    slave = SlaveNames(1, "", "", "ab" * 16)
    greeting = (
        b"CMQL"
        + b"".join(size.to_bytes(2, "big") for size in (1, GREETING_BYTES - 8))
        + slave.encode()
        + bytes.fromhex(log.tickets.give(slave))
    )
    put(store, b"1")
    outcomes: list[int] = []
    end = store.written_to
    log.acknowledgements.wait(end, outcomes.append)
    older, newer, other = [await Peer.connect(log.port) for _ in range(3)]
    older.write(greeting + REPORT.pack(end))
    await until(lambda: len(log.slaves) == 1)
    newer.write(greeting + REPORT.pack(end))
    await older.closed()
    await until(lambda: len(log.slaves) == 1)
    assert not outcomes
    other.write(REPORT.pack(end))
    await until(lambda: outcomes == [ResponseCode.SUCCESS])
    other.close()
    newer.close()


async def test_a_slave_says_that_its_master_lost_its_last_record(
    pairs: Pairs, caplog: pytest.LogCaptureFixture
) -> None:
    await fill(pairs, "slave", (b"1", b"2"))
    await fill(pairs, "master", (b"1",))
    often = {"haHousekeepingInterval": "500", "haSendHeartbeatInterval": "50"}
    master = await pairs.start("master", **often)
    end = master.core.store.written_to
    await pairs.start("slave", **slave_of(master), **often)
    await until(lambda: f"it sent nothing from log offset {end} on" in caplog.text)


@pytest.mark.parametrize(
    ("allowed", "is_taken"), [("127.0.0.0/8", True), ("::1", False), ("10.0.0.1", False)]
)
async def test_addresses_of_a_socket_for_both_kinds_are_those_that_are_allowed(
    pairs: Pairs, allowed: str, is_taken: bool
) -> None:
    broker = await pairs.start("master", haUnsignedSlaves=allowed)
    core, settings = broker.core, broker.configuration
    log = Master(core.role, core.store, lambda: settings[BrokerSettings], connect=SlaveConnection)
    await log.start("::", 0, needs_greeting=True)
    peer = await Peer.connect(log.port)
    peer.write(REPORT.pack(0))
    if is_taken:
        await until(lambda: len(log.slaves) == 1)
    else:
        await peer.closed()
    peer.close()
    await log.close()


async def test_a_slave_has_no_slaves(pairs: Pairs) -> None:
    slave = await pairs.start("slave", **SLAVE)
    peer = await Peer.connect(slave.features.replication.master.port)
    await peer.closed()


async def test_heartbeats_and_the_end_of_a_silent_connection(pairs: Pairs) -> None:
    quick = {"haSendHeartbeatInterval": "50", "haHousekeepingInterval": "400"}
    master = await pairs.start("master", **quick)
    peer = await Peer.connect(master.features.replication.master.port)
    end = master.core.store.written_to
    peer.write(REPORT.pack(end))
    began_s = time.monotonic()
    assert await peer.header() == (end, 0)
    assert await peer.header() == (end, 0)
    await peer.closed()
    assert time.monotonic() - began_s > 0.39


async def test_a_slave_reports_at_intervals_and_leaves_a_silent_master(
    pairs: Pairs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slave_module, "RETRY_S", 0.05)
    quick = {"haSendHeartbeatInterval": "50", "haHousekeepingInterval": "400"}
    async with listening() as masters:
        await pairs.start("slave", **SLAVE, **quick, haMasterAddress=masters.address)
        master = await masters.accept()
        assert [await master.report() for _ in range(3)] == [0, 0, 0]
        await master.closed()
        again = await masters.accept()
        again.close()


@pytest.mark.parametrize(
    ("data", "named"),
    [
        (HEADER.pack(5, 0), "offset 5 on, expected the start of a file"),
        (HEADER.pack(0, 5 << 20), "a chunk of 5242880 bytes"),
        (HEADER.pack(0, 40) + b"\xff" * 40, "no record for log offset 0"),
    ],
)
async def test_a_slave_takes_nothing_but_the_log(
    pairs: Pairs,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    data: bytes,
    named: str,
) -> None:
    monkeypatch.setattr(slave_module, "RETRY_S", 0.05)
    async with listening() as masters:
        slave = await pairs.start("slave", **SLAVE, haMasterAddress=masters.address)
        for _ in range(3):
            master = await masters.accept()
            assert await master.report() == 0
            master.write(data)
            await master.closed()
        assert slave.core.store.written_to == 0
        assert caplog.text.count(named) == 1  # logged once, however often it is tried


async def test_a_port_that_is_taken_is_named(pairs: Pairs) -> None:
    first = await pairs.start("master")
    with pytest.raises(Exception, match="haListenPort chooses another port"):
        await pairs.start("other", haListenPort=str(first.features.replication.master.port))


async def test_a_connection_that_is_made_while_the_role_changes_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a new master would go on to copy the log of the old one."""
    store = opened(tmp_path)
    loop = asyncio.get_running_loop()
    connect = loop.create_connection
    async with listening() as masters:
        role = Role("SLAVE", 1, ha_address=masters.address)

        async def change_meanwhile(*args: Any, **options: Any) -> Any:
            made = await connect(*args, **options)
            role.change("ASYNC_MASTER", 0)
            return made

        monkeypatch.setattr(loop, "create_connection", change_meanwhile)
        copy = slave_module.LogCopy(role, store, BrokerSettings, commit=None, clock=Clock())
        role.on_change(copy.role_changed)
        copy.start()
        master = await masters.accept()
        await master.closed()
        await copy.close()
    store.close()
