"""Replication as recorded from RocketMQ: our master sends those bytes, our slave those reports.

Heartbeats, and reports that repeat an offset, depend on the time and are left out.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

import pytest

from cometmq.broker.config import BrokerSettings
from cometmq.broker.replication.master import Master
from cometmq.broker.replication.slave import LogCopy
from cometmq.broker.replication.slave_connection import SlaveConnection
from cometmq.broker.replication.wire import HEADER, REPORT
from cometmq.broker.role import ASYNC_MASTER, SLAVE, Role
from cometmq.store import MessageStore
from cometmq.system.clock import Clock
from support.brokers.replication_peer import Peer, listening
from support.stores.small_stores import opened
from support.wire.recorded import VERSIONS

VECTORS = Path(__file__).resolve().parents[1] / "vectors" / "ha"
FILE_BYTES = 65536


class Chunk(NamedTuple):
    """What a recorded master sent at a time, and what the slave reported then."""

    offset: int
    data: bytes
    reports: list[int]


class Session:
    """A recorded connection, without heartbeats and the reports that repeat an offset."""

    def __init__(self, version: str, number: int) -> None:
        folder = VECTORS / f"{version}-default"
        messages = json.loads((folder / f"ha-{number}.json").read_text())["messages"]
        sent = (folder / f"ha-{number}.master.bin").read_bytes()
        reports = [m["maxOffset"] for m in messages if m["kind"] == "report"]
        self.first = reports[0]
        self.chunks = [
            Chunk(m["phyOffset"], sent[m["at"] + HEADER.size : m["at"] + m["length"]], [])
            for m in messages
            if m["kind"] == "data"
        ]
        self.reports = sorted(set(reports) - {self.first})

    @property
    def start(self) -> int:
        return self.chunks[0].offset


SESSIONS = [(version, number) for version in VERSIONS for number in (1, 2, 3)]


def log_before(version: str, offset: int, stop: int) -> bytes:
    """The recorded log from an offset on: what all sessions carried."""
    log = bytearray()
    for number in (1, 2):
        for chunk in Session(version, number).chunks:
            assert chunk.offset == len(log)
            log += chunk.data
    return bytes(log[offset:stop])


def copied(folder: Path, data: bytes) -> MessageStore:
    """A store with this log."""
    store = opened(folder, commit_log_file_bytes=FILE_BYTES)
    store.replica.begin()
    add(store, data)
    return store


def add(store: MessageStore, data: bytes) -> None:
    while data:
        room = FILE_BYTES - store.replica.received_to % FILE_BYTES
        store.replica.append(data[:room])
        data = data[room:]


@pytest.mark.parametrize(("version", "number"), SESSIONS)
async def test_our_master_sends_what_the_recorded_one_sent(
    tmp_path: Path, version: str, number: int
) -> None:
    session = Session(version, number)
    first, *others = session.chunks
    # What was there at the first report came in chunks that meet at the ends of files.
    store = copied(tmp_path, log_before(version, 0, first.offset + len(first.data)))
    role = Role(ASYNC_MASTER)
    master = Master(role, store, BrokerSettings, connect=SlaveConnection)
    await master.start("127.0.0.1", 0)
    slave = await Peer.connect(master.port)
    slave.write(REPORT.pack(session.first))
    try:
        assert await slave.chunk() == (first.offset, first.data)
        for chunk in others:
            add(store, chunk.data)
            master.written()
            assert await slave.chunk() == (chunk.offset, chunk.data)
            slave.write(REPORT.pack(chunk.offset + len(chunk.data)))
    finally:
        slave.close()
        await master.close()
        store.abandon()


@pytest.mark.parametrize(("version", "number"), SESSIONS)
async def test_our_slave_reports_what_the_recorded_one_reported(
    tmp_path: Path, version: str, number: int
) -> None:
    session = Session(version, number)
    store = copied(tmp_path, log_before(version, 0, session.first))
    async with listening() as masters:
        role = Role(SLAVE, 1, ha_address=masters.address)
        copy = LogCopy(role, store, BrokerSettings, commit=None, clock=Clock())
        copy.start()
        master = await masters.accept()
        first = await master.report()
        if record := store.last_record():  # unlike the recorded one, ours compares it first
            assert first == session.first - len(record)
            master.write(HEADER.pack(first, len(record)) + record)
            first = await master.report()
        assert first == session.first
        reported = []
        for offset, data, _ in session.chunks:
            master.write(HEADER.pack(offset, len(data)) + data)
            reported.append(await master.report())
        assert reported == [offset + len(data) for offset, data, _ in session.chunks]
        assert set(session.reports) - {session.start} <= set(reported)
        stop = reported[-1]
        assert store.written_to == stop
        found = b"".join(
            bytes(store.log_bytes(at, FILE_BYTES) or b"")
            for at in range(store.min_log_offset, stop, FILE_BYTES)
        )
        assert found == log_before(version, store.min_log_offset, stop)
        await copy.close()
        master.close()
    store.close()
