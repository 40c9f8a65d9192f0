"""Pulls of messages that are on the disk only: read in a thread, answered in order."""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from cometmq.broker.clients.consumers import ConsumerRegistry
from cometmq.broker.cold_reads import ColdReads
from cometmq.broker.pulling.fast_path import PullFastPath
from cometmq.broker.pulling.handler import PullHandler
from cometmq.broker.pulling.long_polling import HeldPulls
from cometmq.broker.stats.counters import BrokerStats
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.command import Command, encode_command
from cometmq.protocol.record import decode_messages
from cometmq.store import MessageStore, StoreSettings
from cometmq.system.files import MappedFile, SystemFiles, SystemMappedFile
from support.fake_transport import Wired
from support.plain_ways import java_header
from unit.broker.conftest import Tables, open_store

HOST = bytes((127, 0, 0, 1, 0, 0, 42, 159))
WAIT_S = 60.0
FIELDS = {
    "consumerGroup": "g", "topic": "T", "queueId": "0", "queueOffset": "0", "maxMsgNums": "2",
    "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0", "subscription": "*",
    "subVersion": "0", "expressionType": "TAG",
}  # fmt: skip


class ColdDisk(SystemFiles):
    """A disk whose files are in memory only where they were read; the test lets reads go on."""

    def __init__(self) -> None:
        self.known: set[tuple[Path, int, int]] = set()
        self.go = threading.Event()
        self.go.set()
        self.is_broken = False

    def open_mapped(self, path: Path, size_bytes: int, **options: Any) -> MappedFile:
        options = {"create": False, "read_only": False, "keep_open": True} | options
        return ColdFile(self, path, size_bytes, **options)


class ColdFile(SystemMappedFile):
    def __init__(self, disk: ColdDisk, path: Path, size_bytes: int, **options: Any) -> None:
        super().__init__(path, size_bytes, **options)
        self._disk = disk

    def is_resident(self, start: int, stop: int) -> bool:
        return (self.path, start, stop) in self._disk.known

    def bring_in(self, start: int, stop: int) -> None:
        assert self._disk.go.wait(WAIT_S)
        if self._disk.is_broken:
            raise OSError(errno.EIO, "the disk is gone")
        super().bring_in(start, stop)
        self._disk.known.add((self.path, start, stop))


class Broker:
    """The part of a broker that pulls reach, with five messages of an earlier life in a queue."""

    def __init__(self, tables: Tables, folder: Path, *, fast: bool) -> None:
        tables.topic("T", queues=2)
        tables.group("g")
        store = open_store(folder, tables)
        for number in range(5):
            store.append(
                "T", 0, b"%d" % number, b"", born_time_ms=1, born_host=HOST, store_host=HOST
            )
        store.close()
        self.disk = ColdDisk()
        settings = StoreSettings(
            root=folder, commit_log_file_bytes=1 << 20, consume_queue_file_bytes=20_000,
            index_slots=100, index_entries=1000, flush_disk_type="ASYNC_FLUSH",
        )  # fmt: skip
        self.store = MessageStore(settings, clock=tables.clock, files=self.disk)
        self.store.open()
        self.reads = ColdReads()
        self.pulls = PullHandler(
            store=self.store,
            topics=tables.topics,
            groups=tables.groups,
            consumers=ConsumerRegistry(tables.clock),
            offsets=tables.offsets,
            held=HeldPulls(),
            cold_reads=self.reads,
            settings=lambda: tables.settings,
            stats=BrokerStats("C", clock=tables.clock, is_system_topic=lambda _: False),
        )
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


def pull(opaque: int, offset: int = 0) -> bytes:
    header = java_header(FIELDS | {"queueOffset": str(offset)}, code="11", opaque=str(opaque))
    return (4 + len(header)).to_bytes(4) + len(header).to_bytes(4) + header


def bodies(answer: Command) -> list[bytes]:
    assert answer.code == 0, answer.remark
    return [message.body for message in decode_messages(answer.body)]


async def test_a_cold_pull_is_answered_when_it_was_read(broker: Broker) -> None:
    wired = broker.connect()
    wired.transport.send(pull(1))
    (answer,) = await wired.answered(1)
    assert bodies(answer) == [b"0", b"1"]
    assert {path.parent.name for path, _, _ in broker.disk.known} == {"0", "commitlog"}


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


async def test_a_broken_disk_refuses_the_pull_only(broker: Broker) -> None:
    wired = broker.connect()
    broker.disk.is_broken = True
    wired.transport.send(pull(1))
    (answer,) = await wired.answered(1)
    assert (answer.code, answer.remark) == (1, "OSError: [Errno 5] the disk is gone")
    broker.disk.is_broken = False
    wired.transport.send(pull(2))
    assert bodies((await wired.answered(2))[1]) == [b"0", b"1"]


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
    while wired.connection._frame_pauses:
        await asyncio.sleep(0)
    assert wired.answers == []


async def test_recent_messages_are_not_looked_for_on_the_disk(broker: Broker) -> None:
    broker.store.append("T", 0, b"5", b"", born_time_ms=1, born_host=HOST, store_host=HOST)
    wired = broker.connect()
    wired.transport.send(pull(1, 5))
    assert bodies(wired.answers[0]) == [b"5"]
    assert not broker.disk.known
