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

from cometmq.broker.failover.epochs.epoch_file import OFFSET_MAX, Epoch
from cometmq.broker.failover.epochs.wire import (
    CHUNK,
    EPOCH,
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
from golden.recordings import VECTORS
from support.controllers.epoch_replica import running

RECORDING = VECTORS / "ha/5.3.3-controller"
FILES = {"commit_log_file_bytes": 65536}
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

    @classmethod
    async def connect(cls, port: int) -> Slave:
        return cls(*await asyncio.open_connection("127.0.0.1", port))

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
    async with running(tmp_path, 9, store=FILES) as master:
        store = master.store
        store.replica.begin()
        *older, last = recorded.epochs
        for epoch in older:
            master.epochs.received(epoch)
        for header, data in before:
            if header.log_offset < last.start:
                store.replica.append(data)
        await master.lead(last.number)
        for header, data in before:
            if header.log_offset >= last.start:
                store.replica.append(data)
        slave = await Slave.connect(master.replication.master.port)
        slave.writer.write(Greeting(3).encode())
        told = await slave.epochs()
        assert told.epochs == recorded.epochs
        assert told.log_end == store.written_to
        slave.writer.write(REPORT.pack(TRANSFER, 0))
        for header, data in chunks:
            if (header, data) not in before:
                store.replica.append(data)
                master.replication.master.written()
            ours, ours_data = await slave.chunk()
            assert ours_data == data
            assert ours.log_offset == header.log_offset
            is_border = header.epoch.start == header.log_offset + header.size
            assert is_border or ours.epoch == header.epoch
            assert ours.epoch.start <= ours.log_offset
            slave.writer.write(REPORT.pack(TRANSFER, header.log_offset + header.size))
        slave.writer.transport.abort()


@pytest.mark.parametrize(
    "hostile",
    [
        Greeting(3).encode() + REPORT.pack(TRANSFER, 0),
        Greeting(0).encode(),
        Greeting(9).encode(),
        GREETING.pack(TRANSFER, 0, 0, 3),
    ],
)
async def test_a_slave_that_breaks_the_order_is_disconnected(
    tmp_path: Path, hostile: bytes
) -> None:
    async with running(tmp_path, 9) as master:
        await master.lead(1)
        slave = await Slave.connect(master.replication.master.port)
        slave.writer.write(hostile)
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await slave.read(EPOCHS.size + EPOCH.size + 1)
        slave.writer.transport.abort()


async def test_a_slave_that_needs_bytes_of_a_forgotten_epoch_is_disconnected(
    tmp_path: Path,
) -> None:
    _, chunks = sent(1)
    async with running(tmp_path, 9, store=FILES) as master:
        await master.lead(1)
        slave = await Slave.connect(master.replication.master.port)
        slave.writer.write(Greeting(3).encode())
        await slave.epochs()
        slave.writer.write(REPORT.pack(TRANSFER, 0))
        assert read_chunk(await slave.read(CHUNK.size), 0).size == 0  # the slave is connected
        master.epochs.keep([Epoch(5, OFFSET_MAX)])
        master.store.replica.begin()
        master.store.replica.append(chunks[0][1])
        master.replication.master.written()
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await slave.chunk()
        slave.writer.transport.abort()
