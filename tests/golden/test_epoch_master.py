"""Our master sends what the recorded one sent, with epochs.

Heartbeats depend on the time and are left out, and so is the confirm offset, which the recorded
master has learned a moment before or after. A chunk that ends an epoch names it, and not the next.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from cometmq.broker.config import BrokerSettings
from cometmq.broker.replication.epoch_master import EpochSlaveConnection
from cometmq.broker.replication.epoch_wire import (
    CHUNK,
    EPOCHS,
    GREETING,
    REPORT,
    TRANSFER,
    ChunkHeader,
    Greeting,
    MasterEpochs,
    read_chunk,
    read_epochs,
)
from cometmq.broker.replication.epochs import OFFSET_MAX, Epoch, EpochFile
from cometmq.broker.replication.master import Master
from cometmq.broker.role import SYNC_MASTER, Role
from cometmq.system.files import SystemFiles
from golden.recordings import VECTORS
from support.stores import opened

RECORDING = VECTORS / "ha/5.3.3-controller"
FILE_BYTES = 65536
WAIT_S = 60.0


def sent(number: int) -> tuple[MasterEpochs, list[tuple[ChunkHeader, bytes]]]:
    """The epochs and the chunks of a recorded connection."""
    data = (RECORDING / f"ha-{number}.master.bin").read_bytes()
    found = read_epochs(data, len(data))
    assert found is not None
    messages: list[dict[str, Any]] = json.loads((RECORDING / f"ha-{number}.json").read_text())[
        "messages"
    ]
    chunks = []
    for message in messages:
        if message["kind"] == "data":
            at = message["at"]
            chunks.append((read_chunk(data, at), data[at + CHUNK.size : at + message["length"]]))
    return found[0], chunks


class Slave:
    """The slave's side of a connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def read(self, count: int) -> bytes:
        async with asyncio.timeout(WAIT_S):
            return await self.reader.readexactly(count)

    async def epochs(self) -> MasterEpochs:
        head = await self.read(EPOCHS.size)
        data = head + await self.read(EPOCHS.unpack(head)[1])
        found = read_epochs(data, len(data))
        assert found is not None
        return found[0]

    async def chunk(self) -> tuple[ChunkHeader, bytes]:
        while True:
            header = read_chunk(await self.read(CHUNK.size), 0)
            if header.size:
                return header, await self.read(header.size)


@pytest.mark.parametrize("number", [1, 3])
async def test_our_master_sends_what_the_recorded_one_sent(tmp_path: Path, number: int) -> None:
    recorded, chunks = sent(number)
    before = [(header, data) for header, data in chunks if header.log_offset < recorded.log_end]
    store = opened(tmp_path, commit_log_file_bytes=FILE_BYTES)
    store.replica.begin()
    for _, data in before:
        store.replica.append(data)
    epochs = EpochFile(tmp_path, SystemFiles())
    for epoch in recorded.epochs:
        epochs.received(*epoch)
    master = Master(
        Role(SYNC_MASTER),
        store,
        BrokerSettings,
        connect=lambda master: EpochSlaveConnection(master, epochs, lambda: store.written_to),
    )
    await master.start("127.0.0.1", 0)
    slave = Slave(*await asyncio.open_connection("127.0.0.1", master.port))
    try:
        slave.writer.write(Greeting(3).encode())
        told = await slave.epochs()
        assert told.epochs == recorded.epochs
        assert told.log_end == store.written_to
        slave.writer.write(REPORT.pack(TRANSFER, 0))
        for header, data in chunks:
            if (header, data) not in before:
                store.replica.append(data)
                master.written()
            ours, ours_data = await slave.chunk()
            assert ours_data == data
            assert ours.log_offset == header.log_offset
            is_border = header.epoch.start == header.log_offset + header.size
            assert is_border or ours.epoch == header.epoch
            assert ours.epoch.start <= ours.log_offset
            slave.writer.write(REPORT.pack(TRANSFER, header.log_offset + header.size))
    finally:
        slave.writer.transport.abort()
        await master.close()
        store.abandon()


@pytest.mark.parametrize(
    "hostile",
    [
        Greeting(3).encode() + REPORT.pack(TRANSFER, 0),
        Greeting(0).encode(),
        GREETING.pack(TRANSFER, 0, 0, 3),
    ],
)
async def test_a_slave_that_breaks_the_order_is_disconnected(
    tmp_path: Path, hostile: bytes
) -> None:
    store = opened(tmp_path)
    epochs = EpochFile(tmp_path, SystemFiles())
    epochs.begin(1, 0)
    master = Master(
        Role(SYNC_MASTER),
        store,
        BrokerSettings,
        connect=lambda master: EpochSlaveConnection(master, epochs, lambda: 0),
    )
    await master.start("127.0.0.1", 0)
    reader, writer = await asyncio.open_connection("127.0.0.1", master.port)
    try:
        writer.write(hostile)
        async with asyncio.timeout(WAIT_S):
            with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                await reader.readexactly(1)
    finally:
        writer.transport.abort()
        await master.close()
        store.abandon()


async def test_a_slave_that_needs_bytes_of_a_forgotten_epoch_is_disconnected(
    tmp_path: Path,
) -> None:
    _, chunks = sent(1)
    store = opened(tmp_path, commit_log_file_bytes=FILE_BYTES)
    store.replica.begin()
    epochs = EpochFile(tmp_path, SystemFiles())
    epochs.begin(1, 0)
    master = Master(
        Role(SYNC_MASTER),
        store,
        BrokerSettings,
        connect=lambda master: EpochSlaveConnection(master, epochs, lambda: 0),
    )
    await master.start("127.0.0.1", 0)
    slave = Slave(*await asyncio.open_connection("127.0.0.1", master.port))
    try:
        slave.writer.write(Greeting(3).encode())
        await slave.epochs()
        slave.writer.write(REPORT.pack(TRANSFER, 0))
        assert read_chunk(await slave.read(CHUNK.size), 0).size == 0  # the slave is connected
        epochs.keep([Epoch(5, OFFSET_MAX)])
        store.replica.append(chunks[0][1])
        master.written()
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await slave.chunk()
    finally:
        slave.writer.transport.abort()
        await master.close()
        store.abandon()
