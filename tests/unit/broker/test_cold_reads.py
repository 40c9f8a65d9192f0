"""Pulls of messages that are on the disk only: read in a thread, responses in order."""

from __future__ import annotations

import asyncio
import errno
import struct
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from cometmq.broker import cold_reads
from cometmq.broker.cold_flow_control import DELAY_S_MAX, LIMIT_S, ColdFlowControl, Limits
from cometmq.broker.cold_reads import AHEAD_BYTES, BLOCK_BYTES, ColdReads
from cometmq.broker.delay import delivery as delivery_module
from cometmq.broker.delay.delivery import ScheduledDelivery
from cometmq.broker.maintenance.feature import SLOTS_FAILURE_S, SLOTS_S, IndexSlots
from cometmq.broker.prerequisites import PrerequisiteError, after_prerequisites
from cometmq.broker.pulling.fast_path import PullFastPath
from cometmq.model.delay import DelayLevels
from cometmq.model.errors import ResponseError, StoreError
from cometmq.model.topic import DELAY_TOPIC
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.command import Command, encode_command
from cometmq.protocol.record import MAGIC_V1, decode_messages
from cometmq.remoting.features import Deferred
from cometmq.remoting.slow_requests import SlowRequests
from cometmq.store import MessageStore, StoreSettings, message_store
from cometmq.store.queues.queue_reader import ColdPart
from support.stores.cold_files import ColdDisk, ColdRead
from support.stores.small_stores import put
from support.wire.fake_transport import Wired
from support.wire.request_variants import java_header
from unit.broker.conftest import Pulls, Tables, open_store

HOST = bytes((127, 0, 0, 1, 0, 0, 42, 159))
WAIT_S = 60.0
FIELDS = {
    "consumerGroup": "g", "topic": "T", "queueId": "0", "queueOffset": "0", "maxMsgNums": "2",
    "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0", "subscription": "*",
    "subVersion": "0", "expressionType": "TAG",
}  # fmt: skip


def limited(together: Callable[[], int | None]) -> ColdReads:
    """Reads with flow control that only limits all pulls together."""

    def limits() -> Limits | None:
        limit = together()
        return None if limit is None else Limits(limit, 1 << 40)

    flow = Deferred(lambda: ColdFlowControl(limits))
    return ColdReads(flow, lambda: together() is not None)


class HeldDisk(ColdDisk):
    """A disk whose reads the test lets go on, and whose parts of the log can be broken."""

    def __init__(self) -> None:
        super().__init__()
        self.go = threading.Event()
        self.go.set()
        self.is_read = threading.Event()
        """Set when a read begins."""
        self.broken_from = 1 << 62
        """Where the log can no longer be read."""
        self.bad_sectors: set[int] = set()
        """Where reads begin that fail."""
        self.forgets = False
        """Whether what was read leaves the memory at once."""

    def begin_read(self, path: Path, start: int, stop: int) -> None:
        self.is_read.set()
        assert self.go.wait(WAIT_S)
        super().begin_read(path, start, stop)
        is_log = path.parent.name == "commitlog"
        if is_log and (stop > self.broken_from or start in self.bad_sectors):
            raise OSError(errno.EIO, "a bad sector")

    def end_read(self, read: ColdRead) -> None:
        if not self.forgets:
            super().end_read(read)


def open_on(disk: HeldDisk, tables: Tables, folder: Path, **changes: Any) -> MessageStore:
    """Open a store of which nothing is in memory."""
    settings = StoreSettings(
        root=folder, commit_log_file_bytes=1 << 20, consume_queue_file_bytes=20_000,
        index_slots=100, index_entries=1000, flush_disk_type="ASYNC_FLUSH", **changes,
    )  # fmt: skip
    store = MessageStore(settings, clock=tables.clock, files=disk)
    store.open()
    return store


def put_delayed(tables: Tables, folder: Path) -> list[tuple[int, int, int]]:
    """Leave three messages of level 1 in a store that is closed; return their units."""
    store = open_store(folder, tables)
    properties = {"REAL_TOPIC": "T", "REAL_QID": "1", "DELAY": "1"}
    for number in range(3):
        put(store, b"%d" % number, topic=DELAY_TOPIC, properties=properties)
    units = store.consume_queue_units(DELAY_TOPIC, 0, 0, 3)
    store.close()
    return units


def delivery_of(store: MessageStore, tables: Tables, reads: ColdReads) -> ScheduledDelivery:
    """The delivery of scheduled messages, when all of them are due."""
    delivery = ScheduledDelivery(
        store,
        DelayLevels.parse(),
        tables.file("delayOffset"),
        queue_for=tables.topics.queue_for,
        clock=tables.clock,
        cold_reads=reads,
    )
    tables.topic("T", queues=2)
    delivery.load()
    tables.clock.advance(60_000)
    return delivery


class Broker:
    """The part of a broker that pulls reach, with five messages of an earlier life in a queue."""

    def __init__(self, tables: Tables, folder: Path, *, fast: bool) -> None:
        tables.topic("T", queues=2)
        tables.group("g")
        store = open_store(folder, tables)
        for number in range(5):
            put(store, b"%d" % number, topic="T")
        store.close()
        self.disk = HeldDisk()
        self.store = open_on(self.disk, tables, folder)
        self.limit: int | None = None
        self.reads = limited(lambda: self.limit)
        self.pulls = Pulls(tables, self.store, reads=self.reads).handler
        self._fast = fast

    def connect(self) -> Wired:
        fast_path = PullFastPath(self.pulls) if self._fast else None
        codes = {int(RequestCode.PULL_MESSAGE): self.pulls.handle, 9001: lambda _: None}
        return Wired(codes, fast_path=fast_path)

    def close(self) -> None:
        self.disk.go.set()
        self.reads.close()
        self.store.close()


@pytest.fixture(params=[False, True], ids=["general", "fast"])
async def broker(
    request: pytest.FixtureRequest, tables: Tables, tmp_path: Path
) -> AsyncIterator[Broker]:
    made = Broker(tables, tmp_path / "store", fast=request.param)
    yield made
    made.close()


def pull(opaque: int, offset: int = 0, **fields: str) -> bytes:
    fields = FIELDS | {"queueOffset": str(offset)} | fields
    header = java_header(fields, code="11", opaque=str(opaque))
    return (4 + len(header)).to_bytes(4) + len(header).to_bytes(4) + header


def bodies(answer: Command) -> list[bytes]:
    assert answer.code == 0, answer.remark
    return [message.body for message in decode_messages(answer.body)]


async def test_a_cold_pull_is_answered_when_it_was_read(broker: Broker) -> None:
    wired = broker.connect()
    wired.transport.send(pull(1))
    (answer,) = await wired.answered(1)
    assert bodies(answer) == [b"0", b"1"]
    assert {read.path.parent.name for read in broker.disk.reads} == {"0", "commitlog"}


@pytest.mark.parametrize(("limit", "what"), [(None, "disk"), (1 << 20, "flow-control")])
async def test_a_pull_that_waits_for_the_disk_for_long_is_logged(
    broker: Broker, caplog: pytest.LogCaptureFixture, limit: int | None, what: str
) -> None:
    broker.limit = limit
    wired = broker.connect()
    wired.connection.slow = SlowRequests(0, "broker")  # every request takes at least so long
    wired.transport.send(pull(1))
    await wired.answered(1)
    start = "slow request code=PULL_MESSAGE opaque=1 peer=10.0.0.9:51000 topic=T group=g ms="
    assert all(each.startswith(start) for each in caplog.messages)
    assert any(f"spent={what}:" in each for each in caplog.messages)


async def test_what_is_behind_a_cold_pull_waits_and_other_connections_do_not(
    broker: Broker,
) -> None:
    wired, other = broker.connect(), broker.connect()
    other.transport.send(pull(1, 4))
    await other.answered(1)
    broker.disk.go.clear()
    wired.transport.send(pull(1) + pull(2, 4) + pull(3, 2))
    other.transport.send(pull(2, 4))
    assert bodies((await other.answered(2))[1]) == [b"4"]
    assert wired.answers == []
    assert not wired.transport.reading
    broker.disk.go.set()
    answers = await wired.answered(3)
    assert [answer.opaque for answer in answers] == [1, 2, 3]
    assert [bodies(answer) for answer in answers] == [[b"0", b"1"], [b"4"], [b"2", b"3"]]
    assert wired.transport.reading


async def test_a_cold_pull_that_waits_takes_no_later_commit_back(
    broker: Broker, tables: Tables
) -> None:
    broker.limit = 1 << 20  # frames behind a pull do not wait then
    wired = broker.connect()
    broker.disk.go.clear()
    wired.transport.send(pull(1, sysFlag="5", commitOffset="1"))
    tables.offsets.commit("g", "T", 0, 2)
    broker.disk.go.set()
    await wired.answered(1)
    assert tables.offsets.committed("g", "T", 0) == 2


async def test_a_cold_pull_counts_for_the_limit_of_its_group(broker: Broker) -> None:
    broker.limit = 1 << 20
    wired = broker.connect()
    wired.transport.send(pull(1))
    await wired.answered(1)

    assert broker.reads.flow is not None
    groups = broker.reads.flow.get().groups(asyncio.get_running_loop().time())
    assert list(groups) == ["g"]
    assert groups["g"].size_bytes > 0


async def test_a_broken_disk_refuses_the_pull_only(broker: Broker) -> None:
    wired = broker.connect()
    broker.disk.is_broken = True
    wired.transport.send(pull(1))
    (answer,) = await wired.answered(1)
    problem = "StoreError: cannot read from the disk: [Errno 5] the disk is gone"
    assert (answer.code, answer.remark) == (1, problem)
    broker.disk.is_broken = False
    wired.transport.send(pull(2))
    assert bodies((await wired.answered(2))[1]) == [b"0", b"1"]


async def test_an_error_behind_its_messages_does_not_fail_a_pull(broker: Broker) -> None:
    (first,) = broker.store.consume_queue_units("T", 0, 1, 1)
    broker.disk.broken_from = first[0] + first[1]
    wired = broker.connect()
    wired.transport.send(pull(1))
    assert bodies((await wired.answered(1))[0]) == [b"0", b"1"]
    wired.transport.send(pull(2, 2))
    assert (await wired.answered(2))[1].code == 1


async def test_pages_that_leave_the_memory_again_are_never_read_by_the_event_loop(
    broker: Broker,
) -> None:
    broker.disk.forgets = True
    wired = broker.connect()
    wired.transport.send(pull(1))
    (answer,) = await wired.answered(1)
    assert answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY
    assert answer.fields["nextBeginOffset"] == "0"
    broker.disk.forgets = False
    wired.transport.send(pull(2))
    assert bodies((await wired.answered(2))[1]) == [b"0", b"1"]


async def test_a_broken_disk_is_logged_once(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    wired = broker.connect()
    broker.disk.is_broken = True
    for number in range(5):
        wired.transport.send(pull(number))
    await wired.answered(5)
    assert [record.message for record in caplog.records] == [
        "cannot read from the disk: [Errno 5] the disk is gone"
    ]


async def test_a_connection_that_closes_meanwhile_gets_nothing(broker: Broker) -> None:
    wired = broker.connect()
    broker.disk.go.clear()
    wired.transport.send(pull(1) + pull(2))
    wired.connection.abort()
    broker.disk.go.set()
    while wired.connection._frame_pauses:
        await asyncio.sleep(0)
    assert wired.answers == []


async def test_reading_stops_with_the_broker(broker: Broker) -> None:
    wired = broker.connect()
    broker.disk.go.clear()
    for _ in range(20):
        broker.connect().transport.send(pull(1))
    wired.transport.send(encode_command(Command(9001, opaque=1)) + pull(2))
    broker.reads.close()
    broker.disk.go.set()
    await wired.answered(1)
    assert [answer.code for answer in wired.answers] == [ResponseCode.SERVICE_NOT_AVAILABLE]
    assert not wired.connection.is_paused


async def test_a_record_is_read_by_a_thread_before_a_handler_needs_it(broker: Broker) -> None:
    offset = broker.store.consume_queue_units("T", 0, 2, 1)[0][0]
    found: list[bytes | None] = []

    def look() -> None:
        broker.reads.require_in_memory(broker.store.cold_record(offset))
        found.append(broker.store.record_at(offset))

    with pytest.raises(PrerequisiteError):
        look()
    assert not broker.disk.reads
    await after_prerequisites(look)
    assert [message.body for message in decode_messages(found[0] or b"")] == [b"2"]


async def test_a_record_that_cannot_be_read_is_refused(broker: Broker) -> None:
    offset = broker.store.consume_queue_units("T", 0, 2, 1)[0][0]
    broker.disk.is_broken = True
    with pytest.raises(ResponseError, match="the disk is gone") as refused:
        await after_prerequisites(
            lambda: broker.reads.require_in_memory(broker.store.cold_record(offset))
        )
    assert refused.value.code == ResponseCode.SERVICE_NOT_AVAILABLE


async def test_a_record_is_not_read_for_a_broker_that_stops(broker: Broker) -> None:
    offset = broker.store.consume_queue_units("T", 0, 2, 1)[0][0]
    broker.reads.close()
    with pytest.raises(StoreError, match="the broker is stopping"):
        await broker.reads.run(broker.store.cold_record(offset))


@pytest.mark.parametrize(
    ("size", "is_at_its_offset"), [(900_000, True), (500, False), (2**31 - 1, True)]
)
def test_a_body_that_imitates_a_record_is_not_read_as_one(
    tables: Tables,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    size: int,
    is_at_its_offset: bool,
) -> None:
    monkeypatch.setattr(message_store, "_REQUESTED_RECORD_BYTES", 0)
    store = open_store(tmp_path / "store", tables)
    forged_at = store.written_to + 88  # where the body begins
    offset = forged_at if is_at_its_offset else 0
    head = struct.pack(">iiiiiqq", size, MAGIC_V1, 0, 0, 0, 0, offset)
    put(store, head + bytes(400), topic="T")
    store.close()
    disk = HeldDisk()
    store = open_on(disk, tables, tmp_path / "store", message_bytes_max=1024)
    log_file = tmp_path / "store" / "commitlog" / f"{0:020}"
    assert log_file.read_bytes()[forged_at : forged_at + len(head)] == head
    read = store.cold_record(forged_at)
    assert read is not None
    disk.reads.clear()
    read()
    assert [each[:3] for each in disk.reads] == [(log_file, forged_at, forged_at + 256)]
    assert store.cold_record(forged_at) is None
    assert store.record_at(forged_at) is None
    store.close()


class Delayed(NamedTuple):
    """The delivery of three messages of level 1 that are on the disk only."""

    units: list[tuple[int, int, int]]
    disk: HeldDisk
    store: MessageStore
    delivery: ScheduledDelivery
    delivered: asyncio.Queue[str]


@pytest.fixture
def delayed(tables: Tables, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Delayed]:
    monkeypatch.setattr(delivery_module, "FAILURE_S", 0.01)
    units = put_delayed(tables, tmp_path / "store")
    disk, reads, delivered = HeldDisk(), ColdReads(), asyncio.Queue[str]()
    store = open_on(disk, tables, tmp_path / "store")
    delivery = delivery_of(store, tables, reads)
    delivery.on_delivery = lambda topic, *_: delivered.put_nowait(topic)
    yield Delayed(units, disk, store, delivery, delivered)
    delivery.stop()
    reads.close()
    store.close()


async def test_delayed_messages_are_read_by_a_thread_before_they_are_delivered(
    delayed: Delayed,
) -> None:
    delivery, delivered = delayed.delivery, delayed.delivered
    delayed.disk.go.clear()
    delivery.start()
    while not delivery._reading:
        await asyncio.sleep(0)
    delivery.arrived(0)  # meanwhile
    assert delivered.empty()
    delayed.disk.go.set()
    while delivery._reading or delivered.qsize() < 3:
        await asyncio.sleep(0)
    assert [delivered.get_nowait() for _ in range(delivered.qsize())] == ["T"] * 3
    assert {read.path.parent.name for read in delayed.disk.reads} == {"0", "commitlog"}


async def test_a_level_waits_for_a_disk_that_cannot_read(
    delayed: Delayed, caplog: pytest.LogCaptureFixture
) -> None:
    delayed.disk.broken_from = delayed.units[1][0]  # the second message cannot be read
    delayed.delivery.start()
    async with asyncio.timeout(WAIT_S):
        await delayed.delivered.get()
        while "cannot read from the disk" not in caplog.text:
            await asyncio.sleep(0)
        assert delayed.delivered.empty()
        delayed.disk.broken_from = 1 << 62
        await delayed.delivered.get()
        await delayed.delivered.get()


async def test_a_message_that_the_disk_cannot_read_does_not_stop_those_behind_it(
    delayed: Delayed, caplog: pytest.LogCaptureFixture
) -> None:
    delayed.disk.bad_sectors = {delayed.units[1][0]}
    delayed.delivery.start()
    async with asyncio.timeout(WAIT_S):
        await delayed.delivered.get()
        await delayed.delivered.get()
    found = delayed.store.get("T", 1, 0, 10)
    bodies = [each.body for part in found.slices for each in decode_messages(part)]
    assert bodies == [b"0", b"2"]
    assert delayed.delivery.offsets() == {1: 3}
    assert "level=1 offset=1 error=cannot read from the disk: [Errno 5] a bad sector" in caplog.text


async def test_a_disk_that_cannot_read_the_index_is_tried_less_often(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    keys = {"KEYS": "k"}
    put(broker.store, b"5", topic="T", properties=keys)
    slots = IndexSlots(broker.store)
    broker.disk.is_broken = True
    slots.read()
    assert slots.interval_s == SLOTS_FAILURE_S
    assert "cannot read the index: [Errno 5] the disk is gone" in caplog.text
    broker.disk.is_broken = False
    put(broker.store, b"6", topic="T", properties=keys)
    slots.read()
    assert slots.interval_s == SLOTS_S
    assert "index" in {read.path.parent.name for read in broker.disk.reads}


async def test_recent_messages_are_not_looked_for_on_the_disk(broker: Broker) -> None:
    put(broker.store, b"5", topic="T")
    wired = broker.connect()
    wired.transport.send(pull(1, 5))
    assert bodies(wired.answers[0]) == [b"5"]
    assert not broker.disk.reads


class SlowFile:
    """A file that is on the disk only; each read waits until the test lets it go on."""

    def __init__(self) -> None:
        self.reads: list[tuple[int, int]] = []
        self.go = threading.Semaphore(0)

    def is_resident(self, start: int, stop: int) -> bool:
        return any(first <= start and stop <= last for first, last in self.reads)

    def bring_in(self, start: int, stop: int) -> None:
        assert self.go.acquire(timeout=WAIT_S)
        self.reads.append((start, stop))


class Waiting:
    """A caller of `ColdReads.bring_in`."""

    def __init__(self, reads: ColdReads, *parts: ColdPart) -> None:
        self.done = asyncio.Event()
        self.problem: BaseException | None = None
        self.was_cancelled = False
        reads.bring_in(parts, self._note)

    def _note(self, outcome: asyncio.Future[None]) -> None:
        self.was_cancelled = outcome.cancelled()
        if not self.was_cancelled:
            self.problem = outcome.exception()
        self.done.set()


async def read_all(reads: ColdReads, file: SlowFile, count: int) -> None:
    """Let so many reads go on, and wait until nothing is under way."""
    for _ in range(count):
        file.go.release()
    while reads._blocks:
        await asyncio.sleep(0)


async def test_a_file_read_in_order_is_read_in_blocks_and_ahead() -> None:
    reads, file = ColdReads(), SlowFile()
    part = ColdPart(file, 10, 100, 20 * BLOCK_BYTES)  # type: ignore[arg-type]
    waiting = Waiting(reads, part)
    await read_all(reads, file, 1 + AHEAD_BYTES // BLOCK_BYTES)
    assert waiting.done.is_set()
    stops = range(BLOCK_BYTES, AHEAD_BYTES + 2 * BLOCK_BYTES, BLOCK_BYTES)
    assert file.reads == [(max(10, stop - BLOCK_BYTES), stop) for stop in stops]
    reads.close()


async def test_a_pull_that_begins_before_a_block_under_way_reads_what_is_before() -> None:
    reads, file = ColdReads(), SlowFile()
    later = Waiting(reads, ColdPart(file, 5000, 5100, 6000))  # type: ignore[arg-type]
    earlier = Waiting(reads, ColdPart(file, 100, 200, 6000))  # type: ignore[arg-type]
    await read_all(reads, file, 2)
    for each in (later, earlier):
        await asyncio.wait_for(each.done.wait(), WAIT_S)
    assert sorted(file.reads) == [(100, 5000), (5000, 6000)]
    reads.close()


async def test_reads_are_refused_beyond_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cold_reads, "WAITING_MAX", 3)
    reads, file = ColdReads(), SlowFile()
    waiting = [Waiting(reads, part_at(file, 1000 * number)) for number in range(4)]
    await asyncio.wait_for(waiting[3].done.wait(), WAIT_S)
    assert isinstance(waiting[3].problem, ResponseError)
    assert waiting[3].problem.code == ResponseCode.SYSTEM_BUSY
    with pytest.raises(ResponseError, match="3 reads wait"):
        await reads.run(lambda: None)
    for _ in range(3):
        file.go.release()
    for each in waiting[:3]:
        await asyncio.wait_for(each.done.wait(), WAIT_S)
    await reads.run(lambda: None)
    reads.close()


async def test_nothing_is_read_behind_the_end_of_what_is_written() -> None:
    reads, file = ColdReads(), SlowFile()
    Waiting(reads, ColdPart(file, 0, 100, BLOCK_BYTES + 7))  # type: ignore[arg-type]
    await read_all(reads, file, 2)
    assert file.reads == [(0, BLOCK_BYTES), (BLOCK_BYTES, BLOCK_BYTES + 7)]
    reads.close()


async def test_scattered_parts_are_read_exactly() -> None:
    reads, file = ColdReads(), SlowFile()
    parts = [ColdPart(file, at, at + 100, at + 100) for at in (5, 70_000)]  # type: ignore[arg-type]
    waiting = Waiting(reads, *parts)
    await read_all(reads, file, 2)
    await waiting.done.wait()
    assert file.reads == [(5, 105), (70_000, 70_100)]
    reads.close()


async def test_pulls_of_one_block_wait_for_one_read() -> None:
    reads, file = ColdReads(), SlowFile()
    part = ColdPart(file, 0, 100, BLOCK_BYTES)  # type: ignore[arg-type]
    waiting = [Waiting(reads, part), Waiting(reads, part._replace(start=100, stop=200))]
    await read_all(reads, file, 1)
    assert all(each.done.is_set() for each in waiting)
    assert file.reads == [(0, BLOCK_BYTES)]
    reads.close()


async def test_blocks_already_in_memory_are_not_read_again() -> None:
    reads, file = ColdReads(), SlowFile()
    file.reads.append((BLOCK_BYTES, 2 * BLOCK_BYTES))
    Waiting(reads, ColdPart(file, 0, 100, 3 * BLOCK_BYTES))  # type: ignore[arg-type]
    await read_all(reads, file, 2)
    assert file.reads[1:] == [(0, BLOCK_BYTES), (2 * BLOCK_BYTES, 3 * BLOCK_BYTES)]
    reads.close()


async def test_a_read_after_the_end_is_cancelled() -> None:
    reads, file = ColdReads(), SlowFile()
    reads.close()
    waiting = Waiting(reads, ColdPart(file, 0, 100, 100))  # type: ignore[arg-type]
    await asyncio.wait_for(waiting.done.wait(), WAIT_S)
    assert not file.reads


class NotedFile:
    """A file that is on the disk only, and notes when it is read."""

    def __init__(self) -> None:
        self.reads_s: list[float] = []

    def is_resident(self, start: int, stop: int) -> bool:
        return False

    def bring_in(self, start: int, stop: int) -> None:
        self.reads_s.append(time.monotonic())


def part_at(file: object, start: int, size: int = 100) -> ColdPart:
    return ColdPart(file, start, start + size, start + size)  # type: ignore[arg-type]


async def test_flow_control_spreads_reads_over_time() -> None:
    file = NotedFile()
    reads = limited(lambda: round(100 * LIMIT_S / 0.05))  # 100 bytes in 50 ms
    begin_s = time.monotonic()
    waiting = [Waiting(reads, part_at(file, at)) for at in (0, 1000, 2000, 3000)]
    for each in waiting:
        await asyncio.wait_for(each.done.wait(), WAIT_S)
    assert [not each.problem for each in waiting] == [True] * 4
    after_s = [at_s - begin_s for at_s in sorted(file.reads_s)]
    assert all(at_s >= 0.05 * index - 0.005 for index, at_s in enumerate(after_s))
    reads.close()


async def test_flow_control_refuses_a_read_that_would_wait_for_too_long() -> None:
    file = NotedFile()
    reads = limited(lambda: 1000)
    first = Waiting(reads, part_at(file, 0, round(1000 / LIMIT_S * DELAY_S_MAX) + 100))
    second = Waiting(reads, part_at(file, 10_000))
    in_order = ColdPart(file, 20_000, 20_100, 30_000)  # type: ignore[arg-type]
    third = Waiting(reads, in_order)
    for each in (first, second, third):
        await asyncio.wait_for(each.done.wait(), WAIT_S)
    assert first.problem is None
    for refused in (second, third):
        assert isinstance(refused.problem, ResponseError)
        assert refused.problem.code == ResponseCode.SYSTEM_BUSY
        assert "limited to 1000 bytes in 5 seconds" in refused.problem.remark
    assert len(file.reads_s) == 1
    reads.close()


async def test_a_new_limit_counts_at_once() -> None:
    file = NotedFile()
    limit: int | None = 1000
    reads = limited(lambda: limit)
    Waiting(reads, part_at(file, 0, 10_000_000))
    refused = Waiting(reads, part_at(file, 20_000_000))
    await asyncio.wait_for(refused.done.wait(), WAIT_S)
    assert isinstance(refused.problem, ResponseError)
    limit = 1_000_000
    begin_s = time.monotonic()
    allowed = Waiting(reads, part_at(file, 20_000_000))
    await asyncio.wait_for(allowed.done.wait(), WAIT_S)
    assert allowed.problem is None
    assert time.monotonic() - begin_s < LIMIT_S / 2
    limit = 1000
    Waiting(reads, part_at(file, 0, 10_000_000))
    limit = None
    await asyncio.wait_for(Waiting(reads, part_at(file, 30_000_000)).done.wait(), WAIT_S)
    limit = 1000
    after = Waiting(reads, part_at(file, 40_000_000))
    await asyncio.wait_for(after.done.wait(), WAIT_S)
    assert after.problem is None
    reads.close()


async def test_a_pull_that_waits_for_flow_control_lets_other_frames_pass(broker: Broker) -> None:
    broker.limit = 1 << 30
    wired, other = broker.connect(), broker.connect()
    other.transport.send(pull(1, 4))
    await other.answered(1)
    broker.disk.go.clear()
    wired.transport.send(pull(1) + pull(2, 4))
    (answer,) = await wired.answered(1)
    assert (answer.opaque, bodies(answer)) == (2, [b"4"])
    broker.disk.go.set()
    assert bodies((await wired.answered(2))[1]) == [b"0", b"1"]


async def test_a_delayed_read_ends_with_the_broker() -> None:
    file = NotedFile()
    reads = limited(lambda: 1000)
    Waiting(reads, part_at(file, 0, 100))
    delayed = Waiting(reads, part_at(file, 10_000))
    reads.close()
    await asyncio.wait_for(delayed.done.wait(), WAIT_S)
    assert delayed.was_cancelled


async def test_flow_control_can_be_switched_on_and_off() -> None:
    file = NotedFile()
    limit: int | None = 1000
    reads = limited(lambda: limit)
    Waiting(reads, part_at(file, 0, 10_000))
    limit = None
    free = Waiting(reads, part_at(file, 20_000))
    await asyncio.wait_for(free.done.wait(), WAIT_S)
    assert free.problem is None
    reads.close()


async def test_without_reading_ahead_only_the_messages_of_a_pull_are_read() -> None:
    class Block:
        def __init__(self) -> None:
            self.read: list[tuple[int, int]] = []

        def bring_in(self, start: int, stop: int) -> None:
            self.read.append((start, stop))

    file, ahead = Block(), True
    reads = ColdReads(reads_ahead=lambda: ahead)
    part = ColdPart(file, 0, 100, BLOCK_BYTES)  # type: ignore[arg-type]
    await asyncio.wait_for(Waiting(reads, part).done.wait(), WAIT_S)
    ahead = False
    await asyncio.wait_for(Waiting(reads, part).done.wait(), WAIT_S)

    assert file.read == [(0, BLOCK_BYTES), (0, 100)]
    reads.close()
