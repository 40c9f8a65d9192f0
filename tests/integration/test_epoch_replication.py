"""Replicas of one log under a controller that the tests script."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from cometmq.broker.failover.epochs import replication as module
from cometmq.broker.failover.epochs.epoch_file import Epoch
from cometmq.broker.failover.epochs.replication import EpochError
from cometmq.broker.failover.epochs.wire import (
    CHUNK,
    EPOCH,
    EPOCHS,
    REPORT,
    TRANSFER,
    ChunkHeader,
    Greeting,
    MasterEpochs,
    read_chunk,
)
from cometmq.broker.replication import slave as slave_module
from cometmq.broker.replication import slave_connection
from cometmq.broker.replication.greeting import SlaveNames, greeting_of
from cometmq.model.errors import StoreError
from cometmq.protocol.codes import ResponseCode
from support.brokers.replication_peer import Peer, listening
from support.checks.waiting import until
from support.controllers.epoch_replica import EpochReplica, running
from support.stores.small_stores import bodies, put

Start = Callable[..., Awaitable[EpochReplica]]


@pytest.fixture(autouse=True)
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slave_module, "RETRY_S", 0.05)
    monkeypatch.setattr(module, "ASK_AGAIN_S", 0.05)


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Start]:
    """Starts replicas that are closed after the test; one of the same number has its store."""
    async with contextlib.AsyncExitStack() as stack:

        async def start(number: int, **settings: Any) -> EpochReplica:
            replica = running(tmp_path / str(number), number, **settings)
            return await stack.enter_async_context(replica)

        yield start


def log_of(replica: EpochReplica) -> bytes:
    store, found = replica.store, bytearray()
    while (data := store.log_bytes(store.min_log_offset + len(found), 1 << 20)) is not None:
        found += data
    return bytes(found)


async def equal(*replicas: EpochReplica) -> None:
    """Wait until replicas have the same log."""
    await until(lambda: len({log_of(replica) for replica in replicas}) == 1)


async def member(master: EpochReplica, slave: EpochReplica, in_sync_epoch: int = 2) -> None:
    """Let a slave follow a master until the controller has made it a member."""
    slave.follow(master.ha_address)
    await until(lambda: master.asked)
    master.replication.adopt(master.asked.pop(), in_sync_epoch)


def shown(replica: EpochReplica) -> list[bytes]:
    """What consumers see."""
    return bodies(replica.store)


# --- the in-sync set ----------------------------------------------------------------------------


async def test_a_slave_that_has_caught_up_becomes_a_member(start: Start) -> None:
    master, slave = await start(1), await start(2)
    await master.lead(1)
    put(master.store, b"before")
    assert shown(master) == [b"before"]
    slave.follow(master.ha_address)
    await until(lambda: master.asked == [frozenset({1, 2})])
    assert not master.replication.is_in_sync(2)
    master.replication.adopt(master.asked.pop(), 2)
    assert master.replication.is_in_sync(2)
    assert master.replication.master.status()[0].in_sync
    put(master.store, b"after")
    await until(lambda: shown(master) == [b"before", b"after"])
    await equal(master, slave)
    assert slave.epochs.epochs == master.epochs.epochs == [Epoch(1, 0)]


async def test_a_slave_shows_what_is_confirmed(start: Start) -> None:
    master, slave = await start(1), await start(2)
    await master.lead(1)
    await member(master, slave)
    put(master.store, b"a")
    put(master.store, b"b")
    await until(lambda: shown(master) == [b"a", b"b"])
    assert shown(slave) in ([], [b"a"])  # the last bytes are confirmed with the next ones
    put(master.store, b"c")
    await until(lambda: shown(slave)[:2] == [b"a", b"b"])


async def test_a_slave_shows_nothing_that_its_master_may_lose_with_the_power(start: Start) -> None:
    files = {"flush_disk_type": "SYNC_FLUSH"}
    master, slave = await start(1, store=files), await start(2, store=files)
    await master.lead(1)
    slave.follow(master.ha_address)
    for body in (b"a", b"b", b"c"):  # the master does not sync them
        put(master.store, body)
        await equal(master, slave)
    assert slave.store.confirmed_to == 0
    assert shown(slave) == []
    master.store.flush()
    put(master.store, b"d")
    await until(lambda: shown(slave) == [b"a", b"b", b"c"])


async def test_nothing_is_shown_that_a_member_lacks(start: Start) -> None:
    master, slave = await start(1), await start(2)
    await master.lead(1)
    await member(master, slave)
    master.replication.adopt(frozenset({1, 2, 3}), 3)
    put(master.store, b"unconfirmed")
    await equal(master, slave)
    await until(lambda: master.replication.master.slaves[0].acknowledged_to > 0)
    assert shown(master) == []
    master.replication.adopt(frozenset({1, 2}), 4)
    assert shown(master) == [b"unconfirmed"]


async def test_a_send_is_acknowledged_when_all_members_have_it(start: Start) -> None:
    master, slave = await start(1), await start(2)
    await master.lead(1)
    await member(master, slave)
    master.replication.adopt(frozenset({1, 2, 3}), 3)
    outcomes: list[int] = []
    end = put(master.store, b"m")
    assert master.replication.acknowledgements.are_needed()
    master.replication.acknowledgements.wait(end.log_offset + end.size_bytes, outcomes.append)
    await equal(master, slave)
    await until(lambda: master.replication.master.slaves[0].acknowledged_to > 0)
    assert outcomes == []
    master.replication.adopt(frozenset({1, 2}), 4)
    assert outcomes == [ResponseCode.SUCCESS]


async def test_a_member_that_disconnects_is_removed_at_once(start: Start) -> None:
    master, slave = await start(1), await start(2)
    await master.lead(1)
    await member(master, slave)
    slave.follow("")
    await until(lambda: master.asked == [frozenset({1})])
    put(master.store, b"m")
    assert shown(master) == []
    master.replication.adopt(master.asked.pop(), 3)
    assert shown(master) == [b"m"]


async def connected(master: EpochReplica, acknowledged_to: int) -> Peer:
    """Connect as slave 2, and report what it has."""
    peer = await Peer.connect(master.replication.master.port)
    peer.write(Greeting(2).encode())
    await peer.read(EPOCHS.size + EPOCH.size)
    peer.write(REPORT.pack(TRANSFER, acknowledged_to))
    return peer


@pytest.mark.parametrize("is_refused", [False, True])
async def test_a_member_that_returns_without_confirmed_messages_is_removed_at_once(
    start: Start, is_refused: bool
) -> None:
    master = await start(1, ha_max_time_slave_not_catchup_ms=600_000)
    await master.lead(1)
    before = await connected(master, 0)
    await until(lambda: master.asked == [frozenset({1, 2})])
    master.replication.adopt(master.asked.pop(), 2)
    put(master.store, b"m")
    before.write(REPORT.pack(TRANSFER, master.store.written_to))
    await until(lambda: shown(master) == [b"m"])
    assert master.asked == []
    after = await connected(master, 0)  # before the end of the other connection is met
    await until(lambda: master.asked == [frozenset({1})])
    if is_refused:
        master.asked.clear()
        master.replication.refused(2)
        await until(lambda: master.asked == [frozenset({1})])
    after.close()
    before.close()


@pytest.mark.parametrize("answer", ["refused", "unanswered"])
async def test_a_request_that_fails_is_repeated(start: Start, answer: str) -> None:
    master, slave = await start(1), await start(2)
    await master.lead(1)
    await member(master, slave)
    slave.follow("")
    await until(lambda: master.asked == [frozenset({1})])
    master.asked.clear()
    in_sync = master.replication.in_sync
    assert in_sync is not None
    getattr(master.replication, answer)(in_sync.in_sync_epoch)
    await until(lambda: master.asked == [frozenset({1})])


async def test_a_master_whose_request_is_lost_and_whose_slave_is_gone_goes_on(
    start: Start,
) -> None:
    """The slave may become a member at any time, until the set of this master has a new number."""
    master, slave = await start(1), await start(2)
    await master.lead(1)
    slave.follow(master.ha_address)
    await until(lambda: master.asked == [frozenset({1, 2})])
    master.asked.clear()
    slave.follow("")
    await until(lambda: not master.replication.master.slaves)
    put(master.store, b"m")
    master.replication.unanswered(1)
    await until(lambda: master.asked == [frozenset({1})])
    assert shown(master) == []
    master.replication.adopt(frozenset({1}), 2)
    assert shown(master) == [b"m"]
    assert master.asked == [frozenset({1})]


async def test_a_member_that_leaves_during_a_request_is_removed_after_it(start: Start) -> None:
    master, slave, other = await start(1), await start(2), await start(3)
    await master.lead(1)
    await member(master, slave)
    other.follow(master.ha_address)
    await until(lambda: master.asked == [frozenset({1, 2, 3})])
    slave.follow("")
    await until(lambda: len(master.replication.master.slaves) == 1)
    assert len(master.asked) == 1
    master.replication.adopt(frozenset({1, 2, 3}), 3)
    assert master.asked[1:] == [frozenset({1, 3})]


async def test_a_silent_member_is_removed_after_the_limit(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FIRST_CHECK_S", 0.05)
    monkeypatch.setattr(module, "CHECK_S", 0.05)
    master = await start(1, ha_max_time_slave_not_catchup_ms=200)
    await master.lead(1, 2, 3)
    assert master.asked == []
    await until(lambda: master.asked == [frozenset({1})])


async def test_a_learner_does_not_become_a_member(start: Start) -> None:
    master, learner = await start(1), await start(2, async_learner=True)
    await master.lead(1)
    learner.follow(master.ha_address)
    put(master.store, b"m")
    await equal(master, learner)
    assert shown(master) == [b"m"]
    assert master.asked == []
    assert not master.replication.master.status()[0].in_sync


async def test_sends_do_not_wait_long_for_a_slave_that_joins(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "JOIN_S", 0.1)
    master = await start(1)
    await master.lead(1)
    put(master.store, b"a")
    peer = await Peer.connect(master.replication.master.port)
    peer.write(Greeting(2).encode())
    await peer.read(EPOCHS.size + EPOCH.size)
    peer.write(REPORT.pack(TRANSFER, 0))
    in_sync = master.replication.in_sync
    assert in_sync is not None
    await until(lambda: in_sync.joining == 2)
    put(master.store, b"b")
    assert shown(master) == [b"a"]  # it has been confirmed before
    await until(lambda: in_sync.joining is None)
    assert shown(master) == [b"a", b"b"]
    assert master.asked == []
    peer.close()


@pytest.mark.parametrize("has_all", [False, True], ids=["it stands still", "it is refused"])
async def test_a_slave_that_cannot_become_a_member_keeps_out_no_other_one(
    start: Start, monkeypatch: pytest.MonkeyPatch, *, has_all: bool
) -> None:
    monkeypatch.setattr(module, "JOIN_S", 0.05)
    master, slave = await start(1), await start(2)
    await master.lead(1)
    put(master.store, b"a")
    peer = await Peer.connect(master.replication.master.port)
    peer.write(Greeting(9).encode())
    await peer.read(EPOCHS.size + EPOCH.size)
    peer.write(REPORT.pack(TRANSFER, master.store.written_to if has_all else 0))
    in_sync = master.replication.in_sync
    assert in_sync is not None
    await until(lambda: in_sync.joining == 9 or master.asked)
    slave.follow(master.ha_address)

    def is_admitted() -> bool:
        if master.asked == [frozenset({1, 9})]:
            master.asked.clear()
            master.replication.refused(1)
        return master.asked == [frozenset({1, 2})]

    await until(is_admitted)
    peer.close()


async def test_a_slave_has_one_connection(start: Start) -> None:
    master = await start(1)
    await master.lead(1)
    older, newer = [await Peer.connect(master.replication.master.port) for _ in range(2)]
    for peer in (older, newer):
        peer.write(Greeting(2).encode())
        await peer.read(EPOCHS.size + EPOCH.size)
    await older.closed()
    newer.write(REPORT.pack(TRANSFER, 0))
    await until(lambda: master.asked == [frozenset({1, 2})])
    newer.close()


async def greeted(master: EpochReplica, incarnation: str) -> Peer:
    """Connect as slave 2, as a process."""
    names = SlaveNames(2, "", "a" * 32, incarnation)
    peer = await Peer.connect(master.replication.master.port)
    ticket = master.replication.master.tickets.give(names)
    peer.write(greeting_of(names, ticket) + Greeting(2).encode())
    return peer


async def test_a_connected_slave_is_replaced_by_its_own_process_only(start: Start) -> None:
    """Of two copies of a store, each would acknowledge what the other one lacks."""
    master = await start(1)
    await master.lead(1)
    first = await greeted(master, "b" * 32)
    await first.read(EPOCHS.size + EPOCH.size)
    await (await greeted(master, "c" * 32)).closed()
    first.write(REPORT.pack(TRANSFER, 0))
    await until(lambda: master.asked == [frozenset({1, 2})])
    assert master.replication.incarnations(frozenset({2})) == {2: "b" * 32}
    again = await greeted(master, "b" * 32)
    await first.closed()
    await again.read(EPOCHS.size + EPOCH.size)
    again.close()


async def test_too_few_members_refuse_sends_and_acknowledge_none(start: Start) -> None:
    master, slave = await start(1, min_in_sync_replicas=2), await start(2)
    acknowledgements = master.replication.acknowledgements
    refusals: list[str] = []
    acknowledgements.on_refusal = lambda: refusals.append(f"{acknowledgements.refusal}")
    await master.lead(1)
    assert acknowledgements.refusal is not None
    assert acknowledgements.refusal.code == ResponseCode.SYSTEM_ERROR
    assert acknowledgements.refusal.remark == "in-sync replicas not enough"
    await member(master, slave)
    assert acknowledgements.refusal is None
    assert len(refusals) == 2
    end = put(master.store, b"m")
    slave.follow("")
    await until(lambda: master.asked == [frozenset({1})])
    outcomes: list[int] = []
    acknowledgements.wait(end.log_offset + end.size_bytes, outcomes.append)
    master.replication.adopt(master.asked.pop(), 3)
    assert shown(master) == [b"m"]
    assert outcomes == []  # RocketMQ acknowledges it, with one copy
    assert acknowledgements.refusal is not None
    master.follow("")
    assert outcomes == [ResponseCode.SERVICE_NOT_AVAILABLE]
    assert acknowledgements.refusal is None


async def test_a_master_that_is_cut_off_refuses_sends_until_all_members_report(
    start: Start,
) -> None:
    master, slave = await start(1, slave_timeout_ms=100), await start(2)
    acknowledgements = master.replication.acknowledgements
    acknowledgements.is_cut_off = lambda: True
    await master.lead(1)
    await member(master, slave)
    put(master.store, b"a")
    acknowledgements.refresh()
    assert acknowledgements.refusal is None  # nothing is missing at the member yet
    await until(lambda: shown(master) == [b"a"])

    slave.follow("")
    end = put(master.store, b"b")
    outcomes: list[int] = []
    acknowledgements.wait(end.log_offset + end.size_bytes, outcomes.append)
    await until(lambda: outcomes == [ResponseCode.FLUSH_SLAVE_TIMEOUT])
    assert acknowledgements.refusal is not None
    assert acknowledgements.refusal.code == ResponseCode.SERVICE_NOT_AVAILABLE

    slave.follow(master.ha_address)
    await until(lambda: acknowledgements.refusal is None)
    assert shown(master) == [b"a", b"b"]


async def test_a_send_waits_for_so_many_members(start: Start) -> None:
    master = await start(1, all_ack_in_sync_state_set=False, in_sync_replicas=2)
    slave = await start(2)
    acknowledgements = master.replication.acknowledgements
    await master.lead(1)
    assert acknowledgements.are_needed()
    outcomes: list[int] = []
    end = put(master.store, b"m")
    acknowledgements.wait(end.log_offset + end.size_bytes, outcomes.append)
    assert shown(master) == [b"m"]
    slave.follow(master.ha_address)
    await until(lambda: master.asked == [frozenset({1, 2})])
    assert outcomes == []  # one that is not elected does not count
    master.replication.adopt(master.asked.pop(), 2)
    assert outcomes == [ResponseCode.SUCCESS]


async def test_by_default_a_send_waits_for_no_member(start: Start) -> None:
    master = await start(1, all_ack_in_sync_state_set=False)
    await master.lead(1)
    assert not master.replication.acknowledgements.are_needed()


# --- elections ----------------------------------------------------------------------------------


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
async def test_an_old_master_loses_what_the_new_one_lacks(start: Start, flush: str) -> None:
    files = {"flush_disk_type": flush}
    old, new = await start(1, store=files), await start(2, store=files)
    await old.lead(1)
    for number in range(20):
        put(old.store, b"both %d" % number)
    await member(old, new)
    await equal(old, new)
    point = old.store.written_to
    new.follow("")
    for number in range(20):
        put(old.store, b"old %d" % number)
    await new.lead(2)
    put(new.store, b"new")
    old.follow(new.ha_address)
    await equal(old, new)
    assert old.truncated == [point]
    assert old.epochs.epochs == new.epochs.epochs == [Epoch(1, 0), Epoch(2, point)]
    await until(lambda: new.asked == [frozenset({1, 2})])
    new.replication.adopt(new.asked.pop(), 9)
    put(new.store, b"both")
    await equal(old, new)
    expected = [b"both %d" % number for number in range(20)] + [b"new", b"both"]
    await until(lambda: new.store.flush() and shown(new) == expected)


async def test_a_disk_that_refuses_the_offsets_does_not_cost_confirmed_records(
    start: Start,
) -> None:
    """They are truncated only where no record ends at the common point."""
    old, new = await start(1), await start(2)
    await old.lead(1)
    put(old.store, b"both")
    await member(old, new)
    await equal(old, new)
    point = old.store.written_to
    new.follow("")
    put(old.store, b"old")
    await new.lead(2)

    def refuse_once(log_end: int) -> None:
        old.truncated.append(log_end)
        if len(old.truncated) == 1:
            raise StoreError("the disk refuses")

    old.replication.copy.before_truncation = refuse_once
    old.follow(new.ha_address)
    await equal(old, new)
    assert old.truncated == [point, point]


async def test_masters_that_begin_at_the_same_offset_do_not_diverge(start: Start) -> None:
    """The case in which replicas of RocketMQ 5.3.3 have different logs and do not notice."""
    old, new = await start(1), await start(2)
    await old.lead(1)
    new.follow(old.ha_address)
    await until(lambda: new.epochs.epochs == [Epoch(1, 0)])
    new.follow("")
    put(old.store, b"o" * 300)
    await new.lead(5)
    put(new.store, b"n" * 900)
    old.follow(new.ha_address)
    await equal(old, new)
    assert old.truncated == [0]
    assert old.epochs.epochs == new.epochs.epochs == [Epoch(1, 0), Epoch(5, 0)]


async def test_a_master_goes_on_in_a_newer_epoch(start: Start) -> None:
    master, slave = await start(1), await start(2)
    await master.lead(1)
    await member(master, slave)
    put(master.store, b"a")
    await equal(master, slave)
    border = master.store.written_to
    await master.replication.lead(1, 4, frozenset({1}), 7)
    assert shown(master) == [b"a"]
    put(master.store, b"b")
    await until(lambda: master.asked == [frozenset({1, 2})])  # its connection has stayed
    await until(lambda: shown(master) == [b"a", b"b"])
    await equal(master, slave)
    assert slave.epochs.epochs == master.epochs.epochs == [Epoch(1, 0), Epoch(4, border)]


async def test_an_empty_member_has_the_epoch_of_its_master(start: Start) -> None:
    """Else it could be elected, and have no epoch in common with what its master wrote."""
    old, new = await start(1), await start(2)
    await old.lead(1)
    await member(old, new)
    assert new.epochs.epochs == [Epoch(1, 0)]
    new.follow("")
    put(old.store, b"o")
    await new.lead(2)
    put(new.store, b"n")
    old.follow(new.ha_address)
    await equal(old, new)
    assert shown(new) == [b"n"]


@pytest.mark.parametrize("power_lost", [False, True])
async def test_an_epoch_is_led_by_the_process_that_has_begun_it(
    start: Start, tmp_path: Path, power_lost: bool
) -> None:
    """Slaves may have bytes that an earlier process lost, and its requests may arrive late."""
    async with running(tmp_path / "1", 1) as first:
        await first.lead(3)
        put(first.store, b"a")
        await first.lead(3)
        first.follow("")
        with pytest.raises(EpochError, match="cannot lead epoch 3 again"):
            await first.lead(3)
    if power_lost:
        (tmp_path / "1/abort").write_text("another boot")
    again = await start(1)
    with pytest.raises(EpochError, match="cannot lead epoch 2: the log has epoch 3 already"):
        await again.lead(2)
    with pytest.raises(EpochError, match="cannot lead epoch 3 again: requests that were sent"):
        await again.lead(3)
    await again.lead(4)
    await again.lead(4)
    assert again.epochs.epochs == [Epoch(3, 0), Epoch(4, again.store.written_to)]
    assert shown(again) == [b"a"]


async def test_a_master_shows_its_log_when_its_members_are_back(
    start: Start, tmp_path: Path
) -> None:
    slave = await start(2)
    async with running(tmp_path / "1", 1) as first:
        await first.lead(3)
        await member(first, slave)
        put(first.store, b"a")
        await equal(first, slave)
        slave.follow("")
    again = await start(1)
    await again.lead(4, 2, in_sync_epoch=3)
    waiting = asyncio.ensure_future(again.replication.wait_confirmed())
    slave.follow(again.ha_address)
    async with asyncio.timeout(60):
        await waiting
    assert shown(again) == [b"a"]


async def test_sends_that_wait_end_when_another_master_is_elected(start: Start) -> None:
    master = await start(1, store={"flush_disk_type": "SYNC_FLUSH"})
    await master.lead(1, 2)
    end = put(master.store, b"m").log_offset + 1
    slaves: list[int] = []
    disks: list[tuple[bool, StoreError | None]] = []
    master.replication.acknowledgements.wait(end, slaves.append)
    master.commit.wait(end, lambda *outcome: disks.append(outcome))
    master.follow("")
    assert slaves == [ResponseCode.SERVICE_NOT_AVAILABLE]  # clients send it to the new master
    assert disks == [(False, None)]


async def test_sends_that_wait_when_a_master_stops_are_sent_to_the_next_one(start: Start) -> None:
    """Which may lack the message: with FLUSH_SLAVE_TIMEOUT a client takes it for sent."""
    master = await start(1)
    await master.lead(1, 2)
    end = put(master.store, b"m").log_offset + 1
    outcomes: list[int] = []
    acknowledgements = master.replication.acknowledgements
    acknowledgements.wait(end, outcomes.append)
    assert outcomes == []
    await acknowledgements.stop(0.0)
    assert outcomes == [ResponseCode.SERVICE_NOT_AVAILABLE]


async def test_what_was_stored_last_is_not_acknowledged_by_a_slave(start: Start) -> None:
    """A send whose response is due after the change of the role."""
    master = await start(1)
    await master.lead(1, 2)
    end = put(master.store, b"m").log_offset + 1
    master.follow("")
    acknowledgements = master.replication.acknowledgements
    assert acknowledgements.are_needed()
    outcomes: list[int] = []
    acknowledgements.wait(end, outcomes.append)
    assert outcomes == [ResponseCode.SERVICE_NOT_AVAILABLE]


# --- masters that are refused -------------------------------------------------------------------


async def refusal(caplog: pytest.LogCaptureFixture) -> str:
    """Wait until a replica logs why it does not copy; return that."""
    await until(lambda: "the log is not copied" in caplog.text)
    return caplog.text


async def test_a_master_of_an_older_epoch_is_refused(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    old, new = await start(1), await start(2)
    await old.lead(1)
    await new.lead(5)
    put(new.store, b"n")
    before = new.store.written_to
    new.follow(old.ha_address)
    assert "the master knows epochs up to 1, expected 5" in await refusal(caplog)
    assert new.store.written_to == before
    assert new.truncated == []


async def test_a_connection_that_was_being_accepted_at_a_stop_is_closed(start: Start) -> None:
    master = await start(1)
    await master.lead(1)
    side = master.replication.master
    slaves = []
    for closes in (True, False):  # after this accept; and before the next one
        slave, accepted = socket.socketpair()
        slaves.append(slave)
        accepted.setblocking(False)
        side.accepted(accepted, ("127.0.0.1", 1))
        if closes:
            await side.close()
    for slave in slaves:
        slave.setblocking(False)
        with slave:
            async with asyncio.timeout(10):  # a silent connection is closed after 20 s
                assert await asyncio.get_running_loop().sock_recv(slave, 1) == b""


async def test_a_log_without_a_common_epoch_is_left_as_it_is(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    own, other = await start(1), await start(2)
    await own.lead(1)
    put(own.store, b"own")
    await other.lead(2)
    put(other.store, b"other")
    own.follow(other.ha_address)
    text = await refusal(caplog)
    assert "no epoch in common with the master: met 1-0, expected one of 2-0; empty" in text
    assert shown(own) == [b"own"]


@pytest.mark.parametrize(
    ("own_bodies", "master_bodies", "reason"),
    [
        ([b"own"], [], "no epoch in common with the master: met 0-0, expected one of 1-0; empty"),
        ([b"own", b"own"], [b"own"], "the log here has no epochs and ends at"),
        ([b"own"], [b"old"], "differs from the master's, and the log here has no epochs; empty"),
        ([b"own"], [b"old", b"old"], "differs from the master's, and the log here has no epochs"),
    ],
)
async def test_a_log_without_epochs_that_the_master_lacks_is_left_as_it_is(
    start: Start,
    caplog: pytest.LogCaptureFixture,
    own_bodies: list[bytes],
    master_bodies: list[bytes],
    reason: str,
) -> None:
    own, master = await start(1), await start(2, ha_transfer_batch_size=16)
    for replica, found in ((own, own_bodies), (master, master_bodies)):
        for body in found:
            put(replica.store, body)
    before = log_of(own)
    await master.lead(1)
    for _ in range(3):
        put(master.store, b"later")
    own.follow(master.ha_address)
    await until(lambda: reason in caplog.text)  # on a busy machine a connection may fail before
    await until(lambda: not master.replication.master.slaves)
    assert log_of(own) == before
    assert own.epochs.epochs == []
    assert own.truncated == []


@pytest.mark.parametrize("has", [1, 2, 3])
async def test_a_log_without_epochs_that_the_master_has_is_continued(
    start: Start, has: int
) -> None:
    own, master = await start(1), await start(2, ha_transfer_batch_size=16)
    own.store.replica.begin()
    for number in range(3):
        put(master.store, b"before %d" % number)
        if number < has:
            own.store.replica.append(log_of(master)[own.store.written_to :])
    border = master.store.written_to
    await master.lead(1)
    put(master.store, b"after")
    own.follow(master.ha_address)
    await equal(own, master)
    assert own.epochs.epochs == master.epochs.epochs == [Epoch(0, 0), Epoch(1, border)]
    assert own.truncated == []


async def test_epochs_of_a_log_that_is_gone_do_not_count(start: Start) -> None:
    own, master = await start(1), await start(2)
    own.epochs.begin(7, 0)
    own.epochs.begin(8, 500)
    await master.lead(9)
    put(master.store, b"m")
    own.follow(master.ha_address)
    await equal(own, master)
    assert own.epochs.epochs == [Epoch(9, 0)]


@pytest.mark.parametrize(
    ("chunk", "reason"),
    [
        (ChunkHeader(10, 0, Epoch(1, 0), 0), "a chunk of epoch 1, expected 2 or more"),
        (
            ChunkHeader(10, 7, Epoch(2, 0), 0),
            "the log from offset 7 on, expected the start of a file",
        ),
        (ChunkHeader(10, 0, Epoch(3, 11), 0), "starts before the end of the chunk"),
        (
            ChunkHeader(10, 7, Epoch(3, 6), 0),
            "a chunk from log offset 7 on in epoch 3, which begins at 6",
        ),
        (
            ChunkHeader(0, 7, Epoch(3, 6), 0),
            "a chunk from log offset 7 on in epoch 3, which begins at 6",
        ),
    ],
)
async def test_a_chunk_that_cannot_be_right_ends_the_connection(
    start: Start, caplog: pytest.LogCaptureFixture, chunk: ChunkHeader, reason: str
) -> None:
    slave = await start(1)
    slave.store.replica.begin()
    async with listening() as masters:
        slave.follow(masters.address)
        master = await masters.accept()
        epochs = [Epoch(1, 0), Epoch(2, 0)]
        master.write(MasterEpochs(500, epochs).encode())
        master.write(ChunkHeader(0, 0, Epoch(2, 0), 0).encode())
        await until(lambda: slave.epochs.last == 2)
        master.write(chunk.encode() + bytes(10))
        assert reason in await refusal(caplog)
        await master.closed()
    assert slave.store.written_to == 0
    assert slave.epochs.last == 2


async def test_a_slow_slave_gets_no_log_but_the_one_it_has_asked_for(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would take bytes of another log for the end of the one it has."""
    monkeypatch.setattr(slave_connection, "UNSENT_BYTES_MAX", 1 << 16)
    master = await start(1, store={"commit_log_file_bytes": 1 << 20})
    await master.lead(1)
    peer = await Peer.connect(master.replication.master.port, room_bytes=4096)
    peer.write(Greeting(2).encode())
    await peer.read(EPOCHS.size + EPOCH.size)
    peer.write(REPORT.pack(TRANSFER, 0))
    await until(lambda: master.replication.master.slaves)
    for _ in range(2000):
        put(master.store, b"o" * 4000)
    end = master.store.written_to
    (slave,) = master.replication.master.slaves
    await until(lambda: slave.sent_to > 0)
    master.follow("")
    master.store.truncate_log(0)
    await master.lead(2)
    for _ in range(2000):
        put(master.store, b"n" * 4000)
    data, at, epochs = await peer.closed(), 0, set()
    while at + CHUNK.size <= len(data):
        header = read_chunk(data, at)
        epochs.add(header.epoch.number)
        at += CHUNK.size + header.size
    assert epochs == {1}
    assert slave.sent_to < end


async def test_a_slave_reports_nothing_before_its_first_sync_has_ended(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = await start(2)
    put(other.store, b"m")
    data = log_of(other)
    slave = await start(
        1, store={"flush_disk_type": "SYNC_FLUSH"}, ha_send_heartbeat_interval_ms=10
    )
    may_end, flush = threading.Event(), slave.store.flush

    def flush_later(least_pages: int = 0) -> int:
        may_end.wait(60)
        return flush(least_pages)

    async with listening() as masters:
        slave.follow(masters.address)
        master = await masters.accept()
        await master.read(16)
        monkeypatch.setattr(slave.store, "flush", flush_later)
        chunk = ChunkHeader(len(data), 0, Epoch(1, 0), 0).encode() + data
        master.write(MasterEpochs(len(data), [Epoch(1, 0)]).encode() + chunk)
        try:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.2):
                    await master.read(1)
        finally:
            may_end.set()
        assert await master.read(REPORT.size) == REPORT.pack(TRANSFER, len(data))


async def test_reports_follow_the_epochs_of_the_master(start: Start) -> None:
    slave = await start(1, ha_send_heartbeat_interval_ms=10, sync_from_last_file=True)
    async with listening() as masters:
        slave.follow(masters.address)
        master = await masters.accept()
        assert await master.read(16) == Greeting(1, from_last_file=True).encode()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await master.read(1)
        data = MasterEpochs(0, [Epoch(1, 0)]).encode()
        for at in range(len(data)):
            master.write(data[at : at + 1])
        assert await master.read(REPORT.size) == REPORT.pack(TRANSFER, 0)


async def test_a_disk_that_refuses_the_epoch_leaves_the_log_without_a_master(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    master = await start(1)
    begin = master.epochs.begin

    def refuse(*_: int) -> None:
        raise StoreError("the disk is full")

    monkeypatch.setattr(master.epochs, "begin", refuse)
    with pytest.raises(StoreError, match="the disk is full"):
        await master.lead(1)
    assert master.replication.in_sync is None
    monkeypatch.setattr(master.epochs, "begin", begin)
    await master.lead(1)
    assert master.replication.in_sync is not None


# --- logs that differ though their epochs do not -------------------------------------------------


async def diverged(start: Start, own: list[int], other: list[int]) -> tuple[EpochReplica, ...]:
    """A slave and a master that wrote messages of these sizes in the same epoch, behind another.

    Masters of RocketMQ 5.3 make such logs.
    """
    slave, master = await start(1), await start(2)
    await master.lead(1)
    slave.follow(master.ha_address)
    put(master.store, b"common")
    await equal(slave, master)
    slave.follow("")
    border = master.store.written_to
    await master.lead(2)
    slave.epochs.received(Epoch(2, border))
    for replica, name, sizes in ((slave, b"s", own), (master, b"m", other)):
        for size in sizes:
            put(replica.store, name * size)
    return slave, master


@pytest.mark.parametrize(
    ("own", "other"),
    [
        ([50], [50]),
        ([50], [50, 70]),
        ([50], [500]),  # the common point is inside a record of the master
        ([500], [50]),  # it is inside a record of the slave
        ([50, 60, 70], [70, 60, 50]),
        ([40] * 9, [70] * 200),
    ],
)
async def test_logs_that_differ_in_the_last_epoch_become_equal(
    start: Start, caplog: pytest.LogCaptureFixture, own: list[int], other: list[int]
) -> None:
    slave, master = await diverged(start, own, other)
    slave.follow(master.ha_address)
    await equal(slave, master)
    assert slave.truncated[-1] == master.epochs.epochs[-1].start
    assert "copied again from" in caplog.text
    assert slave.epochs.epochs == master.epochs.epochs
    master.asked.clear()
    master.replication.adopt(frozenset({1, 2}), 2)
    put(master.store, b"after")
    await equal(slave, master)


async def test_equal_logs_are_compared_and_stay(start: Start) -> None:
    master, slave = await start(1, ha_transfer_batch_size=16), await start(2)
    await master.lead(1)
    for number in range(10):
        put(master.store, b"%d" % number)
    slave.follow(master.ha_address)
    await equal(master, slave)
    slave.follow("")
    put(master.store, b"more")
    slave.follow(master.ha_address)
    await equal(master, slave)
    assert slave.truncated == []


async def test_one_message_is_compared_though_a_new_slave_would_begin_elsewhere(
    start: Start,
) -> None:
    files = {"commit_log_file_bytes": 4096}
    master = await start(1, store=files)
    slave = await start(2, store=files, sync_from_last_file=True)
    await master.lead(1)
    put(master.store, b"first")
    slave.follow(master.ha_address)
    await equal(master, slave)
    slave.follow("")
    for _ in range(20):
        put(master.store, b"x" * 900)
    slave.follow(master.ha_address)
    await equal(master, slave)
