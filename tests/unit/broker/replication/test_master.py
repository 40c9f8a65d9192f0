"""A master whose log is on the disk only reads it in threads, and says what a slave cannot get."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cometmq.broker.config import BrokerSettings
from cometmq.broker.replication import slave_connection
from cometmq.broker.replication.master import Master
from cometmq.broker.replication.slave_connection import SlaveConnection
from cometmq.broker.replication.wire import REPORT
from cometmq.broker.role import Role
from cometmq.store import MessageStore
from support.brokers.replication_peer import WAIT_S, Peer
from support.stores.cold_files import ColdDisk
from support.stores.small_stores import LOG_FILE_BYTES, opened, put

COLD_BYTES = 4096


@pytest.fixture
async def master(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Master]:
    """A master whose log was written before its start."""
    monkeypatch.setattr(slave_connection, "COLD_BYTES", COLD_BYTES)
    monkeypatch.setattr(slave_connection, "UNSENT_BYTES_MAX", COLD_BYTES)
    store = opened(tmp_path)
    for number in range(40):
        put(store, b"%d" % number + b"x" * 1000)
    store.close()
    made = Master(
        Role(), opened(tmp_path, files=ColdDisk()), BrokerSettings, connect=SlaveConnection
    )
    await made.start("127.0.0.1", 0)
    yield made
    await made.close()
    made.store.abandon()


def disk_of(store: MessageStore) -> ColdDisk:
    disk = store._files
    assert isinstance(disk, ColdDisk)
    return disk


async def test_old_files_are_read_in_threads_a_part_at_a_time(master: Master) -> None:
    store = master.store
    first = store.log_bytes(0, 1 << 20)
    assert first is not None
    end = store.written_to
    assert end > 2 * LOG_FILE_BYTES
    peer = await Peer.connect(master.port)
    peer.write(REPORT.pack(1))  # as a slave that has received a part
    received = bytearray(first[:1])
    while len(received) < end:
        offset, data = await peer.chunk()
        assert offset == len(received)
        received += data
    reads = disk_of(store).reads
    assert len(reads) >= end // COLD_BYTES
    assert all(read.stop - read.start <= COLD_BYTES for read in reads)
    assert threading.main_thread().name not in {read.thread for read in reads}
    expected = b"".join(
        bytes(store.log_bytes(at, 1 << 20) or b"") for at in range(0, end, LOG_FILE_BYTES)
    )
    assert received == expected
    peer.close()


async def test_a_disk_that_cannot_read_ends_the_connection(
    master: Master, caplog: pytest.LogCaptureFixture
) -> None:
    disk_of(master.store).is_broken = True
    peer = await Peer.connect(master.port)
    peer.write(REPORT.pack(1))
    await peer.closed()
    assert "the log cannot be read: [Errno 5]" in caplog.text


async def test_a_slave_that_needs_deleted_files_is_named(
    master: Master, caplog: pytest.LogCaptureFixture
) -> None:
    logged = asyncio.Event()
    watch = logging.Handler()
    watch.emit = lambda record: logged.set()  # type: ignore[method-assign]
    watch.addFilter(lambda record: record.getMessage().startswith("slave needs deleted messages"))
    logging.getLogger(Master.__module__).addHandler(watch)
    master.store._log.segments.drop_first()
    peer = await Peer.connect(master.port)
    peer.write(REPORT.pack(5))
    try:
        await asyncio.wait_for(logged.wait(), WAIT_S)
    finally:
        logging.getLogger(Master.__module__).removeHandler(watch)
    assert f"needs=5 first={LOG_FILE_BYTES}" in caplog.text
    peer.close()
