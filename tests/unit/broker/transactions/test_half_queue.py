"""Half messages, decisions about them, and checks of undecided ones."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import shutil
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cometmq.broker.clients.producers import ProducerRegistry
from cometmq.broker.cold_reads import ColdReads
from cometmq.broker.durability.acknowledgements import Acknowledgements
from cometmq.broker.durability.group_commit import GroupCommit
from cometmq.broker.durability.wait import DurabilityWait
from cometmq.broker.failover.topic_gap import FILE_NAME, TopicGap
from cometmq.broker.offsets.offset_store import OffsetStore
from cometmq.broker.role import ASYNC_MASTER, SLAVE, SYNC_MASTER
from cometmq.broker.stats.counters import BrokerStats
from cometmq.broker.transactions.check_service import UNSENT_MAX, CheckService
from cometmq.broker.transactions.half_message import HalfMessage, half_properties
from cometmq.broker.transactions.half_queue import GROUP, HalfMessageFigures, HalfQueue
from cometmq.broker.transactions.handler import TransactionHandler
from cometmq.model.errors import ResponseError, StoreError
from cometmq.model.message import StoredMessage
from cometmq.model.topic import (
    DELAY_TOPIC,
    HALF_TOPIC,
    OP_HALF_TOPIC,
    TRANSACTION_DISCARD_TOPIC,
)
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.command import Command
from cometmq.protocol.compression import compress_body
from cometmq.protocol.headers.transaction import CheckTransactionStateRequest
from cometmq.protocol.message_id import encode_offset_id
from cometmq.protocol.record import (
    BODY_CRC_AT,
    body_at,
    decode_record,
)
from cometmq.remoting import Connection, Request
from cometmq.store import Appended, MessageStore, NewRecord, SegmentNotReadyError
from cometmq.system.failure_log import LINES_MAX
from cometmq.system.files import DiskUsage, Files
from support.brokers.timers import timer_routing
from support.checks.waiting import Changes, until
from support.stores.faulty_files import FaultyFiles
from support.stores.small_stores import BROKER, all_messages, put
from support.wire.memory_link import link
from support.wire.message_records import record
from unit.broker.conftest import Tables, nothing_else, open_store

COMMIT, ROLLBACK, UNKNOWN = 8, 12, 0
TIMEOUT_MS = 6000
HOUR_MS = 3_600_000


class Asked(Changes):
    """A producer of a group; it keeps what it is asked."""

    def __init__(self, world: World, group: str = "shop") -> None:
        super().__init__()
        self.checks: list[tuple[CheckTransactionStateRequest, StoredMessage]] = []
        self.server, self.client = link(
            world.handlers, {RequestCode.CHECK_TRANSACTION_STATE: self._asked}
        )
        world.producers.register(self.server, f"client-{id(self)}", group)

    def _asked(self, request: Request) -> None:
        assert request.oneway
        header = request.header(CheckTransactionStateRequest)
        self.checks.append((header, decode_record(request.body, decompress=False)))
        self.moved.set()

    async def checked(self, count: int) -> list[tuple[CheckTransactionStateRequest, StoredMessage]]:
        await self.until(lambda: len(self.checks) >= count)
        return self.checks


class Slave:
    """A connected slave, of which a test moves the offset."""

    acknowledged_to = 0


class World:
    """A store with transactions, the clock they go by, and one client."""

    def __init__(
        self,
        folder: Path,
        tables: Tables,
        *,
        sync: bool = False,
        files: Files | None = None,
        **store: Any,
    ) -> None:
        self.folder, self.tables, self.clock = folder, tables, tables.clock
        self.sync, self.files = sync, files
        self.store_settings = {"flush_disk_type": "SYNC_FLUSH" if sync else "ASYNC_FLUSH"} | store
        self.producers = ProducerRegistry(self.clock)
        self.slaves: list[Slave] = []
        self.acknowledgements = Acknowledgements(
            tables.role, lambda: self.tables.settings, lambda: self.slaves
        )
        tables.topic("T", queues=4)
        self.keys = 0
        self._open()

    def _open(self) -> None:
        self.store = open_store(self.folder, self.tables, files=self.files, **self.store_settings)
        cold_reads = ColdReads()
        self.commit = GroupCommit(self.store, timeout_s=60) if self.sync else None
        self.durability = DurabilityWait(self.commit, self.acknowledgements)
        self.halves = HalfQueue(
            self.store,
            self.tables.offsets,
            timer_routing(self.clock, "1s 5s"),
            clock=self.clock,
            cold_reads=cold_reads,
        )
        self.stats = BrokerStats("C", clock=self.clock, is_system_topic=lambda _: False)
        core = self.tables.core(
            self.store, producers=self.producers, stats=self.stats, cold_reads=cold_reads
        )
        handler = TransactionHandler(core, self.halves, self.durability, self.commit)
        self.handlers = {
            RequestCode.END_TRANSACTION: handler.end,
            RequestCode.RESUME_CHECK_HALF_MESSAGE: handler.resume,
        }
        self.client: Connection = link(self.handlers)[1]
        self.checks = CheckService(core, self.halves, self.durability)
        self.tables.role.on_change(self.checks.role_changed)

    async def start(self, *, loads: bool = True) -> World:
        """Do what the broker does at its start, perhaps with a disk that cannot read."""
        if self.commit is not None:
            self.commit.start()
        if not loads:
            return self
        assert await self.halves.load()
        return self

    async def restart(self, *, from_rocketmq: bool = False, loads: bool = True) -> None:
        """Stop and start again, perhaps as if RocketMQ had had the store in between."""
        await self.stop()
        self.store.close()
        if from_rocketmq:
            (self.folder / "checkpoint").unlink()
        self._open()
        assert self.store.continues_rocketmq is from_rocketmq
        await self.start(loads=loads)

    async def lose_power(self, log_end: int, *, loads: bool = True) -> None:
        """Start again after a power cut that kept the log up to an offset, and no offsets."""
        await self.stop()
        end = self.store.written_to
        self.store.abandon()
        with (self.folder / "commitlog" / f"{0:020d}").open("r+b") as log:
            log.seek(log_end)
            log.write(bytes(end - log_end))
        (self.folder / "abort").write_bytes(b"1\n")
        self.tables.offsets = OffsetStore(self.tables.file("consumerOffset"), clock=self.clock)
        self._open()
        assert self.store.written_to == log_end
        await self.start(loads=loads)

    def damage(self, log_offset: int, data: bytes) -> None:
        """Overwrite bytes of the log."""
        with (self.folder / "commitlog" / f"{0:020d}").open("r+b") as log:
            log.seek(log_offset)
            log.write(data)

    async def stop(self) -> None:
        if self.commit is not None:
            await self.commit.stop()

    def become_slave(self) -> None:
        """Do what the broker does when another one becomes the master."""
        self.tables.role.change(SLAVE, 1)
        self.halves.unload()

    async def become_master(self) -> None:
        self.tables.role.change(ASYNC_MASTER, 0)
        self.halves.note_log_end()
        assert await self.halves.load()

    def settings(self, **changes: Any) -> None:
        self.tables.settings = dataclasses.replace(self.tables.settings, **changes)

    def half(self, body: bytes = b"half", *, queue: int = 0, **changes: Any) -> Appended:
        """Store a half message as a send does."""
        properties = {"TRAN_MSG": "true", "PGROUP": "shop", "TAGS": "t"}
        self.keys += 1
        properties["UNIQ_KEY"] = f"KEY{self.keys}"
        record = {"flag": 3, "sys_flag": 2, "born_time_ms": self.clock.now_ms()}
        record |= {name: changes.pop(name) for name in list(changes) if name in record}
        properties = half_properties("T", queue, properties | changes)
        stored = put(self.store, body, HALF_TOPIC, 0, properties, **record)
        if self.sync:
            self.store.flush()
        return stored

    def copy(self, key: str, born_ms: int, **properties: str) -> None:
        """Put a half message back as RocketMQ does, without an op message."""
        known = {"TRAN_MSG": "true", "PGROUP": "shop", "UNIQ_KEY": key}
        properties = half_properties("T", 0, known) | properties
        put(self.store, b"half", HALF_TOPIC, properties=properties, born_time_ms=born_ms)

    def fields(self, half: Any, decision: int, **changes: Any) -> dict[str, str]:
        fields = {
            "producerGroup": "shop",
            "tranStateTableOffset": half.queue_offset,
            "commitLogOffset": half.log_offset,
            "commitOrRollback": decision,
            "fromTransactionCheck": "false",
            "msgId": "id",
        }
        return {name: str(value) for name, value in (fields | changes).items()}

    async def end(self, half: Any, decision: int, **changes: Any) -> Command:
        fields = self.fields(half, decision, **changes)
        return await self.client.call(RequestCode.END_TRANSACTION, fields=fields, timeout=60)

    async def resume(self, log_offset: int) -> Command:
        fields = {"msgId": encode_offset_id(BROKER, log_offset)}
        code = RequestCode.RESUME_CHECK_HALF_MESSAGE
        return await self.client.call(code, fields=fields, timeout=60)

    async def round(self, after_ms: int = TIMEOUT_MS + 1) -> None:
        """Let time pass, and make one round of checks."""
        self.clock.advance(after_ms)
        await self.checks.run()

    def messages(self, topic: str = "T", queue: int = 0) -> list[StoredMessage]:
        if self.sync:
            self.store.flush()
        return all_messages(self.store, topic, queue)

    def bodies(self, topic: str = "T", queue: int = 0) -> list[bytes]:
        return [message.body for message in self.messages(topic, queue)]

    def ops(self) -> list[bytes]:
        return self.bodies(OP_HALF_TOPIC)

    def committed(self) -> tuple[int, int]:
        offsets = self.tables.offsets
        half, op = (offsets.committed(GROUP, topic, 0) for topic in (HALF_TOPIC, OP_HALF_TOPIC))
        return half or 0, op or 0


@pytest.fixture(params=[False, True], ids=["ASYNC_FLUSH", "SYNC_FLUSH"])
async def world(request: Any, tmp_path: Path, tables: Tables) -> AsyncIterator[World]:
    made = await World(tmp_path / "store", tables, sync=request.param).start()
    yield made
    await made.stop()
    made.store.close()


# --- decisions ----------------------------------------------------------------------------------


async def test_a_commit_stores_the_message_for_consumers(world: World) -> None:
    half = world.half(queue=2, KEYS="k")
    world.clock.advance(10)
    assert (await world.end(half, COMMIT)).code == 0

    (message,) = world.messages(queue=2)
    (before,) = world.messages(HALF_TOPIC)
    assert (message.body, message.flag, message.sys_flag) == (b"half", 3, 2 | COMMIT)
    assert message.prepared_offset == half.log_offset
    assert message.properties == before.properties
    assert (message.born_time_ms, message.born_host) == (before.born_time_ms, before.born_host)
    assert (message.store_time_ms, message.store_host) == (world.clock.now_ms(), "10.0.0.1:10911")
    assert world.store.consume_queue_units("T", 2, 0, 1)[0][2] == ord("t")


async def test_a_decision_is_an_op_message_right_behind_the_message(world: World) -> None:
    world.half()
    half = world.half()
    await world.end(half, COMMIT)

    (message,), (op,) = world.messages(), world.messages(OP_HALF_TOPIC)
    assert op.log_offset == message.log_offset + message.size_bytes
    assert (op.body, op.properties) == (b"1", {"TAGS": "d", "WAIT": "true"})
    assert (op.queue_id, op.sys_flag, op.prepared_offset) == (0, 0, 0)
    assert world.store.consume_queue_units(OP_HALF_TOPIC, 0, 0, 1)[0][2] == ord("d")


async def test_a_rollback_delivers_nothing(world: World) -> None:
    assert (await world.end(world.half(), ROLLBACK)).code == 0
    assert (world.bodies(), world.ops()) == ([], [b"0"])


@pytest.mark.parametrize("first", [COMMIT, ROLLBACK])
@pytest.mark.parametrize("second", [COMMIT, ROLLBACK])
async def test_only_the_first_decision_counts(world: World, first: int, second: int) -> None:
    half = world.half()
    assert (await world.end(half, first)).code == 0
    end = world.store.written_to
    assert (await world.end(half, second)).code == 0
    assert world.store.written_to == end
    assert len(world.bodies()) == (first == COMMIT)


async def test_a_decision_counts_after_a_restart(world: World) -> None:
    halves = [world.half() for _ in range(20)]
    for half in halves[::2]:
        await world.end(half, COMMIT)
    await world.restart()
    for half in halves:
        assert (await world.end(half, COMMIT)).code == 0
    assert len(world.bodies()) == 20
    assert sorted(map(int, world.ops())) == list(range(20))


async def test_an_unknown_state_gets_no_answer(world: World) -> None:
    half = world.half()
    unanswered = asyncio.ensure_future(world.end(half, UNKNOWN))
    assert (await world.end(half, COMMIT)).code == 0  # its answer comes behind
    assert not unanswered.done()
    unanswered.cancel()


async def test_a_oneway_decision_counts_without_an_answer(world: World) -> None:
    half = world.half()
    world.client.oneway(RequestCode.END_TRANSACTION, fields=world.fields(half, COMMIT))
    assert (await world.end(half, COMMIT)).code == 0
    assert world.bodies() == [b"half"]


async def test_a_delay_begins_with_the_commit(world: World) -> None:
    half = world.half(DELAY="2")
    world.clock.advance(1000)
    await world.end(half, COMMIT)

    assert world.bodies() == []
    (message,) = world.messages(DELAY_TOPIC, 1)
    due_ms = world.store.consume_queue_units(DELAY_TOPIC, 1, 0, 1)[0][2]
    assert due_ms == world.clock.now_ms() + 5000
    assert (message.properties["REAL_TOPIC"], message.properties["REAL_QID"]) == ("T", "0")
    assert (message.sys_flag, message.prepared_offset) == (2 | COMMIT, half.log_offset)


async def test_a_commit_to_a_deleted_topic_is_refused_until_the_topic_is_created_again(
    world: World,
) -> None:
    """RocketMQ stores it where no consumer reads it."""
    half, other = world.half(), world.half()
    await world.tables.topics.delete("T", nothing_else)
    for named in (half, half):
        response = await world.end(named, COMMIT)
        assert (response.code, (response.remark or "")[:20]) == (17, "topic[T] was deleted")
    assert (await world.end(other, ROLLBACK)).code == 0
    assert (world.bodies(), world.ops()) == ([], [b"1"])

    producer = Asked(world)
    await world.round()
    await producer.checked(1)
    world.tables.topic("T")
    assert (await world.end(half, COMMIT)).code == 0
    assert world.bodies() == [b"half"]


@pytest.mark.parametrize("checked", [False, True])
async def test_a_topic_that_was_not_copied_before_an_election_is_created_by_the_commit(
    world: World, checked: bool
) -> None:
    topics = world.tables.topics
    file = topics.file_beside(FILE_NAME)
    gap = TopicGap(topics, world.store, file, lambda: world.tables.settings)
    half = world.half(queue=3)
    await topics.delete("T", nothing_else)
    await gap.begin_epoch(1)
    if checked:
        producer = Asked(world)
        await world.round()
        await producer.checked(1)
        _, half = world.messages(HALF_TOPIC)

    fields = {"fromTransactionCheck": "true"} if checked else {}
    assert (await world.end(half, COMMIT, **fields)).code == 0

    assert world.bodies(queue=3) == [b"half"]
    await until(lambda: "T" in topics, timeout=60, pause_s=0)
    await gap.close()


async def test_a_commit_to_a_queue_that_the_topic_no_longer_has_goes_to_another(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    kept, moved = world.half(queue=1), world.half(queue=3)
    world.tables.topic("T", queues=2)
    assert (await world.end(kept, COMMIT)).code == 0
    assert "another queue" not in caplog.text
    assert (await world.end(moved, COMMIT)).code == 0
    assert world.bodies(queue=1) == [b"half"] * 2
    assert caplog.text.count("message committed to another queue") == 1
    assert "id='KEY2' sent_to=3 queue=1" in caplog.text


@pytest.mark.parametrize(
    ("changes", "code", "remark"),
    [
        ({"commitOrRollback": 4}, 1, "commitOrRollback field wrong"),
        ({"commitLogOffset": 1 << 60}, 1, "Find prepared transaction message failed"),
        ({"commitLogOffset": -1}, 1, "Find prepared transaction message failed"),
        ({"producerGroup": "thieves", "tranStateTableOffset": 9}, 1, "The producer group wrong"),
        ({"tranStateTableOffset": 9}, 1, "The transaction state table offset wrong"),
        ({"msgId": "null", "producerGroup": "null"}, 1, "The producer group wrong"),
    ],
)
async def test_a_wrong_decision_is_refused(
    world: World, changes: dict[str, Any], code: int, remark: str
) -> None:
    answer = await world.end(world.half(), COMMIT, **changes)
    assert answer.code == code
    assert (answer.remark or "").startswith(remark)
    assert (world.bodies(), world.ops()) == ([], [])


async def test_a_message_that_is_no_half_message_cannot_be_committed(world: World) -> None:
    """RocketMQ stores it again."""
    half = world.half()
    await world.end(half, COMMIT)
    (message,) = world.messages()
    answer = await world.end(message, COMMIT)
    assert (answer.code, answer.remark) == (1, "Find prepared transaction message failed")
    assert len(world.bodies()) == 1


@pytest.mark.parametrize("queue_offset", [0, 50_000_000])
async def test_a_body_that_imitates_a_half_message_cannot_be_decided(
    world: World, queue_offset: int
) -> None:
    """It would decide about others, and its offset would take any amount of memory."""
    half = world.half()
    imitated = half.log_offset + half.size_bytes + body_at(0)
    properties = {"TRAN_MSG": "true", "PGROUP": "shop", "UNIQ_KEY": "x"}
    fields = {"queue_id": 0, "queue_offset": queue_offset, "log_offset": imitated}
    fields |= dict.fromkeys(("born_time_ms", "store_time_ms"), world.clock.now_ms())
    more = half_properties("T", 0, properties)
    body = record(b"imitated", HALF_TOPIC.encode(), more, **fields)
    put(world.store, body, topic="T", queue_id=1)
    if world.sync:
        world.store.flush()
    named = SimpleNamespace(log_offset=imitated, queue_offset=queue_offset)
    for decision in (COMMIT, ROLLBACK):
        response = await world.end(named, decision)
        assert (response.code, response.remark) == (1, "Find prepared transaction message failed")
    assert (await world.resume(imitated)).code == 1
    assert (world.bodies(), world.ops()) == ([], [])
    assert (await world.end(half, COMMIT)).code == 0
    assert world.bodies() == [b"half"]


async def test_a_slave_ends_no_transactions(world: World) -> None:
    half = world.half()
    world.tables.role.change("SLAVE", 1)
    assert (await world.end(half, UNKNOWN)).code == 11


@pytest.mark.parametrize("decision", [COMMIT, ROLLBACK])
async def test_too_few_replicas_refuse_decisions(world: World, decision: int) -> None:
    half = world.half()
    world.acknowledgements.refusal = ResponseError(1, "in-sync replicas not enough")
    answer = await world.end(half, decision)
    assert (answer.code, answer.remark) == (1, "in-sync replicas not enough")
    assert world.bodies() == []
    world.acknowledgements.refusal = None
    assert (await world.end(half, decision)).code == 0


async def test_offsets_are_committed_when_their_decisions_are_confirmed(
    tmp_path: Path, tables: Tables
) -> None:
    """Else a master that is elected would take half messages for decided, and lack why."""
    world = await World(tmp_path, tables, confirms=True).start()
    halves = [world.half() for _ in range(2)]
    world.store.confirm(world.store.written_to)
    await world.end(halves[0], COMMIT)
    await world.round(0)
    await world.round(0)
    assert world.committed() == (0, 0)
    world.store.confirm(world.store.written_to)
    await world.round(0)
    await world.round(0)
    assert world.committed() == (1, 1)
    await world.stop()
    world.store.close()


async def test_a_decision_of_an_earlier_mastership_is_not_acknowledged(
    tmp_path: Path, tables: Tables
) -> None:
    """The log of the master in between may lack it, and then a check decides."""
    world = await World(tmp_path / "store", tables, sync=True).start()
    half = world.half()
    assert (await world.end(half, COMMIT)).code == 0
    assert world.commit is not None
    again = asyncio.ensure_future(world.end(half, COMMIT))
    while not len(world.commit):  # it looks the newest copy up
        await asyncio.sleep(0)
    world.become_slave()
    await world.become_master()
    assert (await again).code == ResponseCode.SERVICE_NOT_AVAILABLE
    await world.stop()
    world.store.close()


async def test_a_half_message_whose_decision_is_truncated_is_checked_again(
    tmp_path: Path, tables: Tables
) -> None:
    """Else it would never be decided if this broker is elected again soon."""
    world = await World(tmp_path, tables).start()
    halves = [world.half() for _ in range(3)]
    await world.end(halves[0], ROLLBACK)
    end = world.store.written_to
    for half in halves[1:]:
        await world.end(half, COMMIT)
    await world.round(0)
    await world.round(0)
    assert world.committed() == (3, 3)
    world.become_slave()
    world.store.truncate_log(end, world.halves.take_back)
    await world.become_master()
    assert [world.halves.is_decided(half.queue_offset) for half in halves] == [True, False, False]

    asked = Asked(world)
    await world.round()
    assert len(await asked.checked(2)) == 2
    assert world.bodies() == []
    await world.stop()
    world.store.close()


@pytest.mark.parametrize("target", [{"REAL_TOPIC": "../T"}, {"REAL_QID": "x"}])
async def test_a_half_message_without_a_target_cannot_be_committed(
    world: World, target: dict[str, str]
) -> None:
    properties = {"TRAN_MSG": "true", "PGROUP": "shop", "REAL_TOPIC": "T", "REAL_QID": "0"}
    born_ms = world.clock.now_ms()
    half = put(world.store, b"x", HALF_TOPIC, 0, properties | target, born_time_ms=born_ms)
    world.store.flush()
    assert (await world.end(half, COMMIT)).code == 13
    assert (await world.end(half, ROLLBACK)).code == 0


async def test_a_refused_decision_without_a_response_is_logged(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    half = world.half()
    fields = world.fields(half, COMMIT, producerGroup="thieves")
    world.client.oneway(RequestCode.END_TRANSACTION, fields=fields)
    assert (await world.end(half, COMMIT)).code == 0
    assert "decision refused decision=8 group='thieves'" in caplog.text
    assert "The producer group wrong" in caplog.text


async def test_refused_decisions_of_many_transactions_are_few_lines(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(LINES_MAX + 5):
        await world.end(world.half(), COMMIT, producerGroup="thieves")
    assert caplog.text.count("decision refused") == LINES_MAX


async def test_a_full_store_refuses_and_a_later_decision_counts(world: World) -> None:
    half = world.half()
    world.store.appender.refusal = "the disk is full"
    answer = await world.end(half, COMMIT)
    assert (answer.code, answer.remark) == (14, "Service not available now. the disk is full")
    world.store.appender.refusal = None
    assert (await world.end(half, COMMIT)).code == 0
    assert world.bodies() == [b"half"]


@pytest.mark.parametrize(("immunity_s", "late_ms"), [(1, TIMEOUT_MS + 1), (10, 10_001)])
async def test_a_decision_after_the_immunity_time_is_left_to_a_check(
    world: World, immunity_s: int, late_ms: int
) -> None:
    half = world.half(CHECK_IMMUNITY_TIME_IN_SECONDS=str(immunity_s))
    world.clock.advance(late_ms)
    assert (await world.end(half, COMMIT)).code == 604
    assert (await world.end(half, COMMIT, fromTransactionCheck="true")).code == 0
    timely = world.half(CHECK_IMMUNITY_TIME_IN_SECONDS=str(immunity_s))
    world.clock.advance(late_ms - 1)
    assert (await world.end(timely, COMMIT)).code == 0


# --- checks -------------------------------------------------------------------------------------


async def test_an_undecided_half_message_is_put_back_and_its_producer_asked(world: World) -> None:
    producer = Asked(world)
    half = world.half(b"paid", queue=3)
    await world.round()

    ((asked, shown),) = await producer.checked(1)
    _, copy = world.messages(HALF_TOPIC)
    assert (asked.tran_state_table_offset, asked.commit_log_offset) == (1, copy.log_offset)
    assert asked.msg_id == asked.transaction_id == "KEY1"
    assert asked.offset_msg_id == encode_offset_id(BROKER, copy.log_offset)
    assert (asked.topic, asked.bname) == (HALF_TOPIC, "b")
    assert (shown.topic, shown.queue_id, shown.body) == ("T", 3, b"paid")
    assert shown.properties == copy.properties
    assert copy.properties["TRANSACTION_CHECK_TIMES"] == "1"
    assert copy.properties["WAIT"] == "false"
    assert "TRAN_PREPARED_QUEUE_OFFSET" not in copy.properties
    assert (copy.born_time_ms, copy.flag) == (world.messages(HALF_TOPIC)[0].born_time_ms, 3)
    assert world.ops() == [b"%d" % half.queue_offset]

    assert (await world.end(copy, COMMIT, fromTransactionCheck="true")).code == 0
    assert world.bodies(queue=3) == [b"paid"]


async def test_each_check_is_counted_until_the_half_message_is_discarded(world: World) -> None:
    world.settings(transaction_check_max=3)
    producer = Asked(world)
    world.half(b"lost")
    for _ in range(3):
        await world.round()
    await producer.checked(3)
    times = [m.properties.get("TRANSACTION_CHECK_TIMES") for m in world.messages(HALF_TOPIC)]
    assert times == [None, "1", "2", "3"]

    await world.round()
    assert world.bodies(TRANSACTION_DISCARD_TOPIC) == [b"lost"]
    topic = world.tables.topics.get(TRANSACTION_DISCARD_TOPIC)
    assert topic is not None
    assert (topic.read_queue_nums, topic.write_queue_nums, topic.perm) == (1, 1, 6)
    await world.round()
    assert len(producer.checks) == 3
    assert len(world.messages(HALF_TOPIC)) == 4
    assert world.committed() == (4, 4)


async def test_a_half_message_as_old_as_log_files_may_become_is_discarded(world: World) -> None:
    world.half(b"old")
    await world.round(world.store.settings.file_reserved_hours * HOUR_MS + 1)
    assert world.bodies(TRANSACTION_DISCARD_TOPIC) == [b"old"]


async def test_it_is_known_that_there_never_was_a_half_message(world: World) -> None:
    assert world.halves.is_unused
    world.halves.unload()
    assert not world.halves.is_unused
    assert await world.halves.load()
    half = world.half()
    assert not world.halves.is_unused
    await world.end(half, ROLLBACK)
    assert not world.halves.is_unused  # its offsets are committed by the next round


async def test_a_young_half_message_ends_the_round(world: World) -> None:
    producer = Asked(world)
    world.half(b"old")
    world.clock.advance(TIMEOUT_MS)
    world.half(b"young")
    await world.round(1)
    ((_, shown),) = await producer.checked(1)
    assert shown.body == b"old"
    assert world.committed() == (1, 1)
    await world.round()
    assert {shown.body for _, shown in await producer.checked(3)} == {b"old", b"young"}


async def test_a_producer_with_a_clock_ahead_is_asked_at_once(world: World) -> None:
    producer = Asked(world)
    world.half(born_time_ms=world.clock.now_ms() + HOUR_MS)
    await world.round(1)
    assert len(await producer.checked(1)) == 1


async def test_decided_half_messages_are_passed_over(world: World) -> None:
    producer = Asked(world)
    halves = [world.half(b"%d" % number) for number in range(100)]
    for number, half in enumerate(halves):
        if number not in (40, 77):
            await world.end(half, COMMIT if number % 2 else ROLLBACK)
    await world.round()
    assert [shown.body for _, shown in await producer.checked(2)] == [b"40", b"77"]
    assert world.committed() == (100, 100)


async def test_an_immune_half_message_is_not_checked_and_holds_up_no_other(world: World) -> None:
    producer = Asked(world)
    half = world.half(b"immune", CHECK_IMMUNITY_TIME_IN_SECONDS="60")
    world.half(b"other")
    await world.round()
    assert [shown.body for _, shown in await producer.checked(1)] == [b"other"]
    assert world.committed() == (0, 0)
    assert (await world.end(half, COMMIT, fromTransactionCheck="true")).code == 0
    assert world.bodies() == [b"immune"]
    await world.round(60_000)
    assert world.bodies(HALF_TOPIC)[2:] == [b"other", b"other"]


async def test_an_immune_half_message_is_checked_when_its_time_is_over(world: World) -> None:
    producer = Asked(world)
    world.half(b"immune", CHECK_IMMUNITY_TIME_IN_SECONDS="60")
    await world.round(60_000)
    assert producer.checks == []
    await world.round(1)
    assert [shown.body for _, shown in await producer.checked(1)] == [b"immune"]
    assert world.committed() == (1, 1)


async def test_an_immunity_time_over_a_restart(world: World) -> None:
    producer = Asked(world)
    world.half(b"immune", CHECK_IMMUNITY_TIME_IN_SECONDS="60")
    await world.round()
    await world.restart()
    await world.round(53_000)
    assert producer.checks == []
    await world.round(1000)
    assert [shown.body for _, shown in await producer.checked(1)] == [b"immune"]


@pytest.mark.parametrize("born_time_ms", [2**63 - 1, -(2**63)])
async def test_an_immune_half_message_with_a_wrong_clock_holds_up_no_other(
    world: World, born_time_ms: int
) -> None:
    producer = Asked(world)
    world.half(b"wrong", born_time_ms=born_time_ms, CHECK_IMMUNITY_TIME_IN_SECONDS="9" * 18)
    world.half(b"right")
    for count in (1, 2):
        await world.round()
        assert [shown.body for _, shown in await producer.checked(count)] == [b"right"] * count


async def test_members_of_a_group_are_asked_in_turn(world: World) -> None:
    first, second, stranger = Asked(world), Asked(world), Asked(world, "other")
    for _ in range(4):
        world.half()
    await world.round()
    await first.checked(2)
    await second.checked(2)
    assert stranger.checks == []


async def test_without_a_producer_the_check_is_counted_all_the_same(world: World) -> None:
    world.half()
    await world.round()
    producer = Asked(world)
    await world.round()
    ((_, shown),) = await producer.checked(1)
    assert shown.properties["TRANSACTION_CHECK_TIMES"] == "2"


@pytest.mark.usefixtures("virtual_time")
async def test_groups_that_read_no_requests_hold_up_no_other(
    tmp_path: Path, tables: Tables, caplog: pytest.LogCaptureFixture
) -> None:
    world = await World(tmp_path / "store", tables).start()
    for number in range(80):
        Asked(world, f"slow-{number}").server.pause_writing()
        world.half(PGROUP=f"slow-{number}")
    world.half()
    producer = Asked(world)
    began_s = asyncio.get_running_loop().time()
    await world.round()
    assert asyncio.get_running_loop().time() - began_s < 15
    await producer.checked(1)
    assert caplog.text.count("gets no checks in this round") == 80
    world.store.close()


async def test_a_compressed_body_is_shown_plain(world: World) -> None:
    producer = Asked(world)
    body = compress_body(b"plain" * 9000, 0x300, 5)
    world.half(body, sys_flag=0x301)
    await world.round()
    ((_, shown),) = await producer.checked(1)
    assert (shown.body, shown.sys_flag & 1) == (b"plain" * 9000, 0)


@pytest.mark.parametrize("kind", [0x100, 0x200, 0x300], ids=["lz4", "zstd", "zlib"])
async def test_a_body_that_no_frame_has_room_for_is_sent_compressed(
    world: World, kind: int
) -> None:
    """Its producers would close their connections, and get no other check."""
    producer = Asked(world)
    body = compress_body(bytes(20 * 1024 * 1024), kind, 5)
    world.half(body, sys_flag=kind | 1)
    await world.round()
    ((_, shown),) = await producer.checked(1)
    assert (shown.body, shown.sys_flag & 1) == (body, 1)


async def test_a_body_that_cannot_be_decompressed_is_shown_as_it_is(world: World) -> None:
    producer = Asked(world)
    world.half(b"broken", sys_flag=0x301)
    await world.round()
    ((_, shown),) = await producer.checked(1)
    assert shown.body == b"broken"


async def test_a_check_waits_until_a_slave_has_what_was_put_back(world: World) -> None:
    asked = Asked(world)
    world.tables.role.change(SYNC_MASTER, 0)
    world.slaves.append(Slave())
    world.half()
    world.clock.advance(TIMEOUT_MS + 1)
    checking = asyncio.create_task(world.checks.run())
    async with asyncio.timeout(60):
        while not len(world.acknowledgements) or world.store.bounds(HALF_TOPIC, 0) != (0, 2):
            await asyncio.sleep(0)  # with synchronous flush, the copy is shown after the sync
    assert not checking.done()
    assert not asked.checks

    world.slaves[0].acknowledged_to = world.store.written_to
    world.acknowledgements.reported()
    await checking
    ((header, _),) = await asked.checked(1)
    assert header.tran_state_table_offset == 1


async def test_late_slaves_delay_a_round_of_checks_once(world: World) -> None:
    asked = Asked(world)
    world.tables.role.change(SYNC_MASTER, 0)
    world.settings(slave_timeout_ms=20)
    world.slaves.append(Slave())
    waits = 0
    wait = world.acknowledgements.wait

    def count_and_wait(end: int, on_outcome: Callable[[int], None]) -> None:
        nonlocal waits
        waits += 1
        wait(end, on_outcome)

    world.acknowledgements.wait = count_and_wait  # type: ignore[method-assign]
    for _ in range(UNSENT_MAX + 10):
        world.half()
    await world.round()
    await asked.checked(UNSENT_MAX + 10)
    assert waits == 1
    await world.round()
    assert waits == 2


async def test_without_slaves_checks_are_sent_all_the_same(world: World) -> None:
    asked = Asked(world)
    world.tables.role.change(SYNC_MASTER, 0)
    world.half()
    await world.round()
    await asked.checked(1)
    world.store.flush()
    assert world.messages(HALF_TOPIC, 0)[-1].properties["TRANSACTION_CHECK_TIMES"] == "1"


async def test_checks_count_only_while_decisions_are_accepted(world: World) -> None:
    """Else transactionCheckMax of them pass, and the message is discarded though it is decided."""
    asked = Asked(world)
    world.half()
    world.acknowledgements.refusal = ResponseError(1, "in-sync replicas not enough")
    await world.round()
    assert (len(world.messages(HALF_TOPIC)), asked.checks) == (1, [])

    world.acknowledgements.refusal = None
    await world.round()
    await asked.checked(1)
    assert world.messages(HALF_TOPIC, 0)[-1].properties["TRANSACTION_CHECK_TIMES"] == "1"


async def test_a_slave_checks_nothing(world: World) -> None:
    world.half()
    world.tables.role.change("SLAVE", 1)
    await world.round()
    assert len(world.messages(HALF_TOPIC)) == 1


async def test_checks_wait_for_a_full_store(world: World, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    producer = Asked(world)
    world.half()
    world.store.appender.refusal = "the disk is full"
    await world.round()
    await world.round()
    assert caplog.text.count("transaction checks failed") == 1
    assert "transaction checks work again" not in caplog.text
    assert world.committed() == (0, 0)
    world.store.appender.refusal = None
    await world.round()
    assert caplog.text.count("transaction checks work again") == 1
    ((_, shown),) = await producer.checked(1)
    assert shown.properties["TRANSACTION_CHECK_TIMES"] == "1"


async def test_what_cannot_be_stored_again_holds_up_no_other(world: World) -> None:
    producer = Asked(world)
    world.half(b"large" * 1000)
    world.half(b"small")
    world.store.appender.message_bytes_max = 100
    await world.round()
    assert [shown.body for _, shown in await producer.checked(1)] == [b"small"]
    assert world.committed() == (0, 0)
    world.store.appender.message_bytes_max = 10_000
    await world.round()
    assert {shown.body[:5] for _, shown in await producer.checked(3)} == {b"small", b"large"}
    assert world.committed()[0] == 3


async def test_what_cannot_be_stored_again_is_logged_once(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    Asked(world)
    world.half(b"large" * 1000)
    world.store.appender.message_bytes_max = 100
    await world.round()
    await world.round()
    assert caplog.text.count("a half message cannot be stored again") == 1
    assert world.committed() == (0, 0)


@pytest.mark.parametrize("damage", [bytes(120), b"\x7f\xff", b"\0\0\0\x60"])
async def test_a_damaged_half_message_holds_up_no_other(
    world: World, caplog: pytest.LogCaptureFixture, damage: bytes
) -> None:
    producer = Asked(world)
    world.half(b"first")
    damaged = world.half(b"damaged")
    world.half(b"last")
    with (world.folder / "commitlog" / f"{0:020d}").open("r+b") as log:
        log.seek(damaged.log_offset)
        log.write(damage)
    await world.round()
    assert [shown.body for _, shown in await producer.checked(2)] == [b"first", b"last"]
    await world.round()
    assert len(await producer.checked(4)) == 4
    assert world.committed()[0] == 5
    assert caplog.text.count("cannot be read") == 1


# --- decisions about what was put back ----------------------------------------------------------


@pytest.mark.parametrize("rounds", [1, 3])
async def test_a_late_decision_counts_for_the_newest_copy(world: World, rounds: int) -> None:
    half = world.half()
    for _ in range(rounds):
        await world.round()
    assert (await world.end(half, COMMIT)).code == 0
    copy = world.messages(HALF_TOPIC)[-1]
    (message,) = world.messages()
    assert message.prepared_offset == copy.log_offset
    assert world.ops()[-1] == b"%d" % copy.queue_offset

    for again in (half, copy, *world.messages(HALF_TOPIC)):
        assert (await world.end(again, COMMIT)).code == 0
    assert len(world.bodies()) == 1


@pytest.mark.parametrize("born_time_ms", [1, 2**50])
async def test_a_late_decision_of_a_producer_whose_clock_is_wrong(
    world: World, born_time_ms: int
) -> None:
    world.store.reconfigure(dataclasses.replace(world.store.settings, file_reserved_hours=10**7))
    half = world.half(born_time_ms=born_time_ms)
    await world.round()
    assert (await world.end(half, COMMIT)).code == 0
    assert world.messages()[0].prepared_offset == world.messages(HALF_TOPIC)[1].log_offset


async def test_a_late_decision_counts_after_a_restart(world: World) -> None:
    half = world.half()
    await world.round()
    await world.restart()
    assert (await world.end(half, COMMIT)).code == 0
    await world.round()
    assert world.bodies() == [b"half"]
    assert len(world.messages(HALF_TOPIC)) == 2


async def test_a_second_send_of_a_message_is_another_transaction(world: World) -> None:
    """A producer that got no answer sends the same unique id again."""
    first = world.half(UNIQ_KEY="same")
    world.clock.advance(1)
    world.half(UNIQ_KEY="same")
    assert (await world.end(first, COMMIT)).code == 0
    assert (await world.end(first, COMMIT)).code == 0
    assert len(world.bodies()) == 1
    assert len(world.ops()) == 1


async def test_without_an_index_a_late_decision_is_left_to_the_next_check(
    tmp_path: Path, tables: Tables
) -> None:
    world = await World(tmp_path / "store", tables, index_enabled=False).start()
    producer = Asked(world)
    half = world.half()
    await world.round()
    assert (await world.end(half, COMMIT)).code == 604
    assert world.bodies() == []
    ((asked, _),) = await producer.checked(1)
    changes = {
        "tranStateTableOffset": asked.tran_state_table_offset,
        "commitLogOffset": asked.commit_log_offset,
    }
    assert (await world.end(half, COMMIT, **changes)).code == 0
    assert world.bodies() == [b"half"]
    world.store.close()


async def test_a_commit_of_what_was_discarded_is_delivered_once(world: World) -> None:
    world.settings(transaction_check_max=1)
    half = world.half()
    await world.round()
    await world.round()
    assert world.bodies(TRANSACTION_DISCARD_TOPIC) == [b"half"]
    for late in (half, *world.messages(HALF_TOPIC)):
        assert (await world.end(late, COMMIT)).code == 0
    await world.restart()
    assert (await world.end(half, COMMIT)).code == 0
    await world.round()
    assert world.bodies() == [b"half"]


async def test_a_rollback_of_what_was_discarded_changes_nothing(world: World) -> None:
    world.settings(transaction_check_max=1)
    half = world.half()
    await world.round()
    await world.round()
    end = world.store.written_to
    assert (await world.end(half, ROLLBACK)).code == 0
    assert world.store.written_to == end


async def test_two_commits_at_a_time_of_what_was_discarded_are_one(world: World) -> None:
    world.settings(transaction_check_max=1)
    half = world.half()
    await world.round()
    await world.round()
    other = link(world.handlers)[1]
    code, fields = RequestCode.END_TRANSACTION, world.fields(half, COMMIT)
    answers = await asyncio.gather(
        *(side.call(code, fields=fields, timeout=60) for side in (world.client, other))
    )
    assert [answer.code for answer in answers] == [0, 0]
    assert world.bodies() == [b"half"]


async def test_a_commit_that_waits_for_a_file_counts_for_a_copy_that_is_put_back_meanwhile(
    tmp_path: Path, tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_allocated, waits = threading.Event(), threading.Event()

    def wait_for_segment(_: MessageStore) -> None:
        waits.set()
        is_allocated.wait(30)

    monkeypatch.setattr(MessageStore, "wait_for_segment", wait_for_segment)
    world = await World(tmp_path / "store", tables).start()
    append_all = world.store.append_all

    def refuse_commits(messages: list[NewRecord]) -> list[Appended]:
        if messages[0].topic == "T" and not is_allocated.is_set():
            raise SegmentNotReadyError("the next file is being allocated")
        return append_all(messages)

    monkeypatch.setattr(world.store, "append_all", refuse_commits)
    half = world.half()
    ended = asyncio.ensure_future(world.end(half, COMMIT))
    assert await asyncio.to_thread(waits.wait, 30)
    await world.round()
    assert len(world.messages(HALF_TOPIC)) == 2
    is_allocated.set()
    assert (await ended).code == 0
    assert world.bodies() == [b"half"]
    world.store.close()


@pytest.mark.parametrize("decision", [COMMIT, ROLLBACK])
async def test_a_decision_counts_if_a_check_puts_back_the_copy_that_was_looked_up(
    world: World, monkeypatch: pytest.MonkeyPatch, decision: int
) -> None:
    newest_copy = world.halves.newest_copy
    rounds = iter(range(2))

    async def then_check(half: HalfMessage, topic: str = HALF_TOPIC) -> HalfMessage | None:
        found = await newest_copy(half, topic)
        if next(rounds, None) is not None:
            await world.round()
        return found

    half = world.half()
    await world.round()
    monkeypatch.setattr(world.halves, "newest_copy", then_check)
    assert (await world.end(half, decision)).code == 0
    assert len(world.messages(HALF_TOPIC)) == 4
    assert len(world.ops()) == 4
    assert len(world.bodies()) == (decision == COMMIT)


# --- resume -------------------------------------------------------------------------------------


async def test_an_undecided_half_message_is_put_back_once(world: World) -> None:
    half = world.half()
    assert (await world.resume(half.log_offset)).code == 0
    first, copy = world.messages(HALF_TOPIC)
    assert copy.properties["TRANSACTION_CHECK_TIMES"] == "0"
    assert (await world.end(first, COMMIT)).code == 0
    assert (await world.end(copy, COMMIT)).code == 0
    assert len(world.bodies()) == 1


async def test_a_message_that_was_discarded_is_checked_again(world: World) -> None:
    world.settings(transaction_check_max=1)
    producer = Asked(world)
    world.half()
    await world.round()
    await world.round()
    (discarded,) = world.messages(TRANSACTION_DISCARD_TOPIC)
    assert (await world.resume(discarded.log_offset)).code == 0
    assert (await world.resume(discarded.log_offset)).code == 0
    await world.round()
    asked, _ = (await producer.checked(2))[-1]
    changes = {
        "tranStateTableOffset": asked.tran_state_table_offset,
        "commitLogOffset": asked.commit_log_offset,
    }
    assert (await world.end(discarded, COMMIT, **changes)).code == 0
    answer = await world.resume(discarded.log_offset)
    assert answer.code == 1
    assert (answer.remark or "").startswith(f"Put message back to {HALF_TOPIC} failed. it is")
    await world.round()
    assert len(world.bodies()) == 1


async def test_nothing_is_decided_or_put_back_until_the_decisions_are_known(world: World) -> None:
    half = world.half()
    assert (await world.end(half, COMMIT)).code == 0
    await world.restart(loads=False)
    end = world.store.written_to
    for response in (await world.end(half, COMMIT), await world.resume(half.log_offset)):
        assert response.code == 14
        assert "not known yet" in (response.remark or "")
    assert world.store.written_to == end
    assert await world.halves.load()
    assert (await world.resume(half.log_offset)).code == 1
    assert (await world.end(half, COMMIT)).code == 0
    assert world.bodies() == [b"half"]


async def test_half_messages_are_counted_by_what_became_of_them(world: World) -> None:
    halves = [world.half() for _ in range(20)]
    for half in halves[:6]:
        await world.end(half, COMMIT)
        await world.end(half, COMMIT)
    for half in halves[6:10]:
        await world.end(half, ROLLBACK)
    assert world.halves.figures() == HalfMessageFigures(10, committed=6, rolled_back=4)

    world.settings(transaction_check_max=1)
    await world.round()
    assert world.halves.figures() == HalfMessageFigures(10, 6, 4, put_back=10)
    await world.restart()
    assert world.halves.figures() == HalfMessageFigures(10)
    await world.round()
    assert world.halves.figures() == HalfMessageFigures(discarded=10)


async def test_a_message_that_no_half_message_is_cannot_be_put_back(world: World) -> None:
    half = world.half()
    await world.end(half, COMMIT)
    (message,) = world.messages()
    for log_offset in (message.log_offset, half.log_offset, 1 << 60):
        answer = await world.resume(log_offset)
        assert answer.code == 1
        assert (answer.remark or "").startswith("Put message back to RMQ_SYS_TRANS_HALF_TOPIC")
    code = RequestCode.RESUME_CHECK_HALF_MESSAGE
    answer = await world.client.call(code, fields={"msgId": "junk"}, timeout=60)
    assert answer.code == 1


# --- the role changes ---------------------------------------------------------------------------


async def test_a_round_stores_nothing_once_the_broker_is_a_slave(world: World) -> None:
    world.half()
    world.half(CHECK_IMMUNITY_TIME_IN_SECONDS="300000")
    world.clock.advance(73 * HOUR_MS)
    checks = asyncio.ensure_future(world.checks.run())
    while TRANSACTION_DISCARD_TOPIC not in world.tables.topics:  # the round waits for it
        await asyncio.sleep(0)
    world.become_slave()
    end = world.store.written_to
    await checks

    assert world.store.written_to == end
    assert world.committed() == (0, 0)
    await world.become_master()
    await world.round()
    assert len(world.messages(TRANSACTION_DISCARD_TOPIC)) == 2
    assert world.committed()[0] == 2


@pytest.mark.parametrize("is_master_again", [False, True])
async def test_a_decision_stores_nothing_once_the_broker_is_a_slave(
    world: World, monkeypatch: pytest.MonkeyPatch, is_master_again: bool
) -> None:
    half = world.half()
    await world.round()
    end = world.store.written_to
    search = world.store.search

    def change_role(*arguments: Any) -> Any:
        """The role changes while the index is searched for the copy that was put back."""
        world.become_slave()
        if is_master_again:
            world.tables.role.change(ASYNC_MASTER, 0)
            loading.append(asyncio.ensure_future(world.halves.load()))
        monkeypatch.setattr(world.store, "search", search)
        return search(*arguments)

    loading: list[asyncio.Future[bool]] = []
    monkeypatch.setattr(world.store, "search", change_role)
    assert (await world.end(half, COMMIT)).code == 14
    assert (world.bodies(), world.store.written_to) == ([], end)
    if not is_master_again:
        await world.become_master()
    assert all([await each for each in loading])
    assert (await world.end(half, COMMIT)).code == 0
    assert world.bodies() == [b"half"]


async def test_what_is_read_counts_no_more_if_the_broker_is_a_slave_meanwhile(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    half = world.half()
    await world.end(half, COMMIT)
    (op,) = world.messages(OP_HALF_TOPIC)
    await world.lose_power(op.log_offset, loads=False)
    record_at = world.store.record_at

    def change_role(*arguments: Any) -> Any:
        world.become_slave()
        monkeypatch.setattr(world.store, "record_at", record_at)
        return record_at(*arguments)

    world.halves.note_log_end()
    monkeypatch.setattr(world.store, "record_at", change_role)
    end = world.store.written_to
    assert not await world.halves.load()
    assert (world.halves.is_loaded, world.store.written_to) == (False, end)
    await world.become_master()
    assert world.ops() == [b"0"]


async def test_a_slave_of_rocketmq_that_becomes_the_master_settles_what_it_left(
    world: World,
) -> None:
    producer = Asked(world)
    born_ms = world.clock.now_ms()
    world.half(UNIQ_KEY="same")
    await world.restart()
    world.copy("same", born_ms, TRANSACTION_CHECK_TIMES="1")
    world.become_slave()
    put(world.store, b"99,", topic=OP_HALF_TOPIC, properties=b"TAGS\x01d\x02")
    world.store.flush()
    await world.become_master()
    await world.round()

    ((_, shown),) = await producer.checked(1)
    assert shown.properties["TRANSACTION_CHECK_TIMES"] == "2"
    for half in world.messages(HALF_TOPIC):
        assert (await world.end(half, COMMIT)).code == 0
    assert len(world.bodies()) == 1


# --- crashes ------------------------------------------------------------------------------------


async def test_a_commit_whose_op_message_was_cut_off_is_not_repeated(world: World) -> None:
    half = world.half()
    await world.end(half, COMMIT)
    (op,) = world.messages(OP_HALF_TOPIC)
    await world.lose_power(op.log_offset)

    assert (await world.end(half, COMMIT)).code == 0
    await world.round()
    assert (world.bodies(), world.ops()) == ([b"half"], [b"0"])
    assert len(world.messages(HALF_TOPIC)) == 1


async def test_a_new_master_finds_the_missing_op_message_behind_other_messages(
    world: World,
) -> None:
    half = world.half()
    await world.end(half, COMMIT)
    (op,) = world.messages(OP_HALF_TOPIC)
    await world.lose_power(op.log_offset, loads=False)  # as much as the slave has got

    world.halves.note_log_end()
    world.half(b"other")
    assert await world.halves.load()
    assert (world.bodies(), world.ops()) == ([b"half"], [b"0"])


async def test_a_missing_op_message_is_found_though_the_first_reads_fail(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> tuple[int, int]:
        raise StoreError("the disk is gone")

    half = world.half()
    await world.restart()
    await world.end(half, COMMIT)
    (message,) = world.messages()
    await world.lose_power(message.log_offset + message.size_bytes, loads=False)
    assert not world.store.continues_rocketmq
    with monkeypatch.context() as disk:
        disk.setattr(world.store, "bounds", refuse)
        with pytest.raises(StoreError, match="gone"):
            await world.halves.load()
        with pytest.raises(StoreError, match="must be stored first: the disk is gone"):
            world.half(b"hides the last record")
    assert await world.halves.load()
    assert (await world.end(half, COMMIT)).code == 0
    assert (world.bodies(), world.ops()) == ([b"half"], [b"0"])


async def test_sends_go_on_if_the_first_reads_fail_and_no_op_message_can_be_missing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> tuple[int, int]:
        raise StoreError("the disk is gone")

    half = world.half()
    await world.end(half, COMMIT)
    world.half()
    await world.restart(loads=False)
    with monkeypatch.context() as disk:
        disk.setattr(world.store, "bounds", refuse)
        with pytest.raises(StoreError, match="gone"):
            await world.halves.load()
    world.half(b"sent meanwhile")
    assert await world.halves.load()
    assert (await world.end(half, COMMIT)).code == 0
    assert (world.bodies(), world.ops()) == ([b"half"], [b"0"])


async def test_a_full_disk_at_the_start_takes_no_message_before_a_missing_op_message(
    tmp_path: Path, tables: Tables
) -> None:
    files = FaultyFiles()
    world = await World(tmp_path / "store", tables, files=files).start()
    half = world.half()
    await world.end(half, COMMIT)
    (op,) = world.messages(OP_HALF_TOPIC)
    files.disk = DiskUsage(used_bytes=100, available_bytes=0)
    await world.lose_power(op.log_offset, loads=False)
    world.store.clean()
    with pytest.raises(StoreError, match="the disk is full"):
        await world.halves.load()

    assert world.bodies() == [b"half"]
    for response in (await world.end(half, COMMIT), await world.end(half, ROLLBACK)):
        assert response.code == 14
        assert "not known yet" in (response.remark or "")
    files.disk = None
    world.store.clean()
    with pytest.raises(StoreError, match="of a transaction must be stored first: the disk is full"):
        world.half()
    await world.checks.run()
    assert world.ops() == [b"0"]
    world.half()
    await world.lose_power(world.store.written_to)
    assert (await world.end(half, COMMIT)).code == 0
    assert (world.bodies(), world.ops()) == ([b"half"], [b"0"])
    world.store.close()


async def test_no_message_gets_ahead_of_a_missing_op_message_if_queues_have_no_room(
    tmp_path: Path, tables: Tables
) -> None:
    files = FaultyFiles()
    world = await World(tmp_path / "store", tables, files=files).start()
    half = world.half()
    await world.end(half, COMMIT)
    (op,) = world.messages(OP_HALF_TOPIC)
    shutil.rmtree(world.folder / "consumequeue" / "T")  # as if it was not on the disk yet
    files.room_bytes = 0
    await world.lose_power(op.log_offset, loads=False)
    assert world.store.dispatch_backlog_bytes
    assert not await world.halves.load()

    files.room_bytes = None
    with pytest.raises(StoreError, match="of a transaction must be stored first"):
        world.half()
    world.store.clean()
    await world.checks.run()
    assert (await world.end(half, COMMIT)).code == 0
    assert (world.bodies(), world.ops()) == ([b"half"], [b"0"])
    world.store.close()


@pytest.mark.parametrize("damage", [bytes(70), b"\x7f\xff", b"\0\0\0\x60", None], ids=str)
async def test_a_damaged_op_message_holds_up_no_transaction(
    world: World, caplog: pytest.LogCaptureFixture, damage: bytes | None
) -> None:
    halves = [world.half(b"%d" % number) for number in range(4)]
    for half in halves[:3]:
        await world.end(half, COMMIT)
    damaged = world.messages(OP_HALF_TOPIC)[1]
    await world.restart(loads=False)
    if damage is None:  # it names another half message
        data = world.store.record_at(damaged.log_offset)
        assert data is not None
        world.damage(damaged.log_offset + data.index(b"1", BODY_CRC_AT + 76), b"3")
    else:
        world.damage(damaged.log_offset, damage)
    assert await world.halves.load()

    assert caplog.text.count("passed over damaged op messages count=1") == 1
    for half in halves:
        assert (await world.end(half, COMMIT)).code == 0
    assert sorted(world.bodies()) == [b"0", b"1", b"2", b"3"]
    ops = world.store.bounds(OP_HALF_TOPIC, 0)[1]
    await world.round()
    assert world.committed() == (4, ops)


async def test_a_delayed_commit_whose_op_message_is_damaged_is_not_repeated(world: World) -> None:
    half = world.half(DELAY="1")
    await world.end(half, COMMIT)
    (op,) = world.messages(OP_HALF_TOPIC)
    world.half(b"behind it")
    await world.restart(loads=False)
    world.damage(op.log_offset, bytes(70))
    assert await world.halves.load()
    assert (await world.end(half, COMMIT)).code == 0
    assert len(world.messages(DELAY_TOPIC, 0)) == 1


async def test_a_damaged_half_message_keeps_no_start_from_the_others(world: World) -> None:
    damaged, half = world.half(b"damaged"), world.half()
    await world.restart(from_rocketmq=True, loads=False)
    world.damage(damaged.log_offset, bytes(120))
    assert await world.halves.load()
    assert (await world.end(half, COMMIT)).code == 0
    assert world.bodies() == [b"half"]


async def test_a_commit_that_was_cut_off_is_undecided(world: World) -> None:
    producer = Asked(world)
    half = world.half()
    await world.end(half, COMMIT)
    (message,) = world.messages()
    await world.lose_power(message.log_offset)

    assert (world.bodies(), world.ops()) == ([], [])
    await world.round()
    await producer.checked(1)
    assert (await world.end(half, COMMIT)).code == 0
    assert len(world.bodies()) == 1


async def test_a_delayed_commit_whose_op_message_was_cut_off_is_not_repeated(world: World) -> None:
    half = world.half(DELAY="1")
    await world.end(half, COMMIT)
    (op,) = world.messages(OP_HALF_TOPIC)
    await world.lose_power(op.log_offset)
    assert (await world.end(half, COMMIT)).code == 0
    assert len(world.messages(DELAY_TOPIC, 0)) == 1


@pytest.mark.parametrize("rounds", [1, 2])
async def test_a_copy_whose_op_message_was_cut_off_is_the_only_one(
    world: World, rounds: int
) -> None:
    world.half(b"other")
    half = world.half()
    await world.end(world.messages(HALF_TOPIC)[0], ROLLBACK)
    for _ in range(rounds):
        await world.round()
    op = world.messages(OP_HALF_TOPIC)[-1]
    await world.lose_power(op.log_offset)

    copies = world.messages(HALF_TOPIC)[1:]
    assert len(copies) == 1 + rounds
    for copy in (half, *copies):
        assert (await world.end(copy, COMMIT)).code == 0
    assert len(world.bodies()) == 1
    assert len(world.ops()) == 2 + rounds


async def test_a_message_discarded_whose_op_message_was_cut_off_is_discarded_once(
    world: World,
) -> None:
    world.settings(transaction_check_max=1)
    world.half()
    await world.round()
    await world.round()
    op = world.messages(OP_HALF_TOPIC)[-1]
    await world.lose_power(op.log_offset)
    await world.round()
    assert len(world.messages(TRANSACTION_DISCARD_TOPIC)) == 1
    assert world.ops() == [b"0", b"1"]


async def test_a_message_that_a_client_flags_as_committed_decides_nothing(world: World) -> None:
    half = world.half()
    put(world.store, b"not a commit", topic="T", properties={"UNIQ_KEY": "KEY1"}, sys_flag=COMMIT)
    world.store.flush()
    await world.lose_power(world.store.written_to)
    assert (await world.end(half, COMMIT)).code == 0
    assert world.bodies() == [b"not a commit", b"half"]


async def test_the_missing_op_message_is_appended_once(world: World) -> None:
    half = world.half()
    await world.end(half, COMMIT)
    (op,) = world.messages(OP_HALF_TOPIC)
    await world.lose_power(op.log_offset)
    end = world.store.written_to
    assert end > op.log_offset
    await world.round()
    await world.restart()
    assert world.store.written_to == end


# --- stores of others ---------------------------------------------------------------------------


async def test_op_messages_of_rocketmq_5_name_several_half_messages(world: World) -> None:
    halves = [world.half() for _ in range(5)]
    put(world.store, b"0,3,99999999999,junk,", topic=OP_HALF_TOPIC, properties=b"TAGS\x01d\x02")
    await world.restart()
    for half in halves:
        assert (await world.end(half, COMMIT)).code == 0
    assert sorted(message.prepared_offset for message in world.messages()) == sorted(
        halves[number].log_offset for number in (1, 2, 4)
    )


async def test_a_copy_that_rocketmq_put_back_unchecked_is_decided_with_its_first(
    world: World,
) -> None:
    world.half()
    await world.end(world.messages(HALF_TOPIC)[0], COMMIT)
    properties = {"TRAN_MSG": "true", "PGROUP": "shop", "UNIQ_KEY": "KEY1"}
    copied = {"TRAN_PREPARED_QUEUE_OFFSET": "0", "CHECK_IMMUNITY_TIME_IN_SECONDS": "1"}
    copied |= half_properties("T", 0, properties)
    put(world.store, b"half", HALF_TOPIC, 0, copied, born_time_ms=world.clock.now_ms())
    world.tables.offsets.commit(GROUP, HALF_TOPIC, 0, 1)
    await world.restart()
    await world.round()
    assert len(world.messages(HALF_TOPIC)) == 2
    assert world.committed() == (2, 1)


@pytest.mark.parametrize("copies", [1, 3])
async def test_of_the_copies_that_a_killed_rocketmq_put_back_only_the_newest_is_open(
    world: World, copies: int
) -> None:
    producer = Asked(world)
    born_ms = world.clock.now_ms()
    world.half(UNIQ_KEY="same")
    for number in range(copies):
        world.copy("same", born_ms, TRANSACTION_CHECK_TIMES=str(number + 1))
    world.half(UNIQ_KEY="same", born_time_ms=born_ms - 1)  # sent again
    await world.restart(from_rocketmq=True)
    await world.round()

    asked = [shown for _, shown in await producer.checked(2)]
    assert sorted(m.properties["TRANSACTION_CHECK_TIMES"] for m in asked) == ["1", str(copies + 1)]
    for half in world.messages(HALF_TOPIC):
        assert (await world.end(half, COMMIT)).code == 0
    assert len(world.bodies()) == 2


async def test_an_immune_copy_of_a_killed_rocketmq_is_not_lost(world: World) -> None:
    producer = Asked(world)
    born_ms = world.clock.now_ms()
    immune = {"CHECK_IMMUNITY_TIME_IN_SECONDS": "1"}
    world.half(UNIQ_KEY="same", **immune)
    world.copy("same", born_ms, TRAN_PREPARED_QUEUE_OFFSET="0", **immune)
    for _ in range(2):
        await world.restart(from_rocketmq=True)
    await world.round()
    await producer.checked(1)
    for half in world.messages(HALF_TOPIC):
        assert (await world.end(half, COMMIT, fromTransactionCheck="true")).code == 0
    assert len(world.bodies()) == 1


async def test_two_loads_at_the_same_time_store_once_what_is_missing(world: World) -> None:
    born_ms = world.clock.now_ms()
    immune = {"CHECK_IMMUNITY_TIME_IN_SECONDS": "1"}
    world.half(UNIQ_KEY="same", **immune)
    world.copy("same", born_ms, TRAN_PREPARED_QUEUE_OFFSET="0", **immune)
    await world.restart(from_rocketmq=True, loads=False)
    assert all(await asyncio.gather(world.halves.load(), world.halves.load()))
    assert len(world.messages(HALF_TOPIC)) == 3


async def test_what_a_slave_has_read_by_mistake_counts_no_more_once_it_is_elected(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    half = world.half()
    await world.end(half, COMMIT)
    await world.restart(loads=False)
    get = world.store.get

    def change_role(*arguments: Any, **more: Any) -> Any:
        """The role changes while the first of two loads reads; the second one begins after it."""
        monkeypatch.setattr(world.store, "get", get)
        world.become_slave()
        return get(*arguments, **more)

    monkeypatch.setattr(world.store, "get", change_role)
    assert await asyncio.gather(world.halves.load(), world.halves.load()) == [False, True]
    world.halves.elected()
    assert not world.halves.is_loaded
    assert not await world.halves.load()
    world.halves.confirmed()
    assert await world.halves.load()


async def test_a_commit_of_a_killed_rocketmq_without_its_op_message_is_not_repeated(
    world: World,
) -> None:
    delivered, undecided = world.half(), world.half()
    properties = {"TRAN_MSG": "true", "PGROUP": "shop", "UNIQ_KEY": "KEY1"}
    for flag, key in ((COMMIT, "KEY1"), (0, "KEY2")):
        more = half_properties("T", 0, properties | {"UNIQ_KEY": key})
        facts = {"born_time_ms": world.clock.now_ms(), "prepared_offset": delivered.log_offset}
        put(world.store, b"half", "T", 0, more, sys_flag=flag, **facts)
    world.half()
    await world.restart(from_rocketmq=True)
    assert world.ops() == [b"0"]
    assert (await world.end(delivered, COMMIT)).code == 0
    assert len(world.bodies()) == 2
    assert (await world.end(undecided, COMMIT)).code == 0
    assert len(world.bodies()) == 3


async def test_committed_offsets_outside_their_queues_are_corrected(world: World) -> None:
    half = world.half()
    world.tables.offsets.commit(GROUP, HALF_TOPIC, 0, 99)
    world.tables.offsets.commit(GROUP, OP_HALF_TOPIC, 0, 99)
    await world.restart()
    assert not world.halves.is_decided(half.queue_offset + 1)
    await world.round()
    assert world.committed() == (1, 0)


async def test_a_broker_without_transactions_commits_no_offsets(world: World) -> None:
    await world.round()
    assert world.tables.offsets.keys() == []


async def test_op_messages_are_committed_up_to_the_first_that_is_needed(world: World) -> None:
    halves = [world.half() for _ in range(4)]
    for number in (1, 0, 3):
        await world.end(halves[number], ROLLBACK)
    world.settings(transaction_timeout_ms=HOUR_MS)
    await world.round()
    assert world.committed() == (2, 2)
