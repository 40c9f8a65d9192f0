"""Our slave under the recorded master: the same greeting, the same reports, the same files.

The recorded slave sent its first report five seconds late, and others at intervals.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cometmq.broker.failover.epochs.epoch_file import Epoch, parse
from cometmq.broker.failover.epochs.wire import CHUNK, GREETING, REPORT, TRANSFER
from cometmq.store import MessageStore
from golden.recordings import VECTORS
from support.brokers.replication_peer import listening
from support.controllers.epoch_replica import running
from support.stores.small_stores import put

RECORDING = VECTORS / "ha/5.3.3-controller"
FILES = {"commit_log_file_bytes": 65536}
END_BEFORE = {1: 0, 2: 96022, 3: 0, 4: 187391, 5: 187391}
"""Where the log of the slave ended when it connected."""
FILES_AFTER = {
    1: "2-two-in-sync.broker2",
    2: "4-old-master-back.broker1",
    3: "5-three.broker3",
    4: "6-elected-by-admin.broker2",
    5: "6-elected-by-admin.broker3",
}


def recorded(number: int) -> tuple[list[dict[str, Any]], bytes, bytes]:
    """The messages of a connection, and the bytes of each side."""
    messages = json.loads((RECORDING / f"ha-{number}.json").read_text())["messages"]
    master, slave = (
        (RECORDING / f"ha-{number}.{side}.bin").read_bytes() for side in ("master", "slave")
    )
    return messages, master, slave


def log_to(offset: int) -> bytes:
    """The recorded log: what all slaves got of it."""
    log = bytearray()
    for number in (1, 2, 4):
        messages, master, _ = recorded(number)
        for message in messages:
            if message["kind"] == "data" and message["from"] == "master":
                assert message["offset"] == len(log)
                log += master[message["at"] + CHUNK.size : message["at"] + message["length"]]
    return bytes(log[:offset])


def fill(store: MessageStore, end: int) -> None:
    """Give a store the log up to an offset; behind what was recorded, messages of its own."""
    data = log_to(min(end, 93229) if end < 100_000 else end)
    store.replica.begin()
    size_bytes = FILES["commit_log_file_bytes"]
    while data:
        room = size_bytes - store.written_to % size_bytes
        store.replica.append(data[:room])
        data = data[room:]
    while (left := end - store.written_to) > 0:
        put(store, b"lost", topic="HaTopic", properties={"p": "x" * min(left, 500)})
        assert store.written_to <= end or left < 1000


@pytest.mark.parametrize("number", END_BEFORE)
async def test_our_slave_does_what_the_recorded_one_did(tmp_path: Path, number: int) -> None:
    messages, from_master, from_slave = recorded(number)
    greeting = from_slave[: GREETING.size]
    reports = [m["maxOffset"] for m in messages if m["kind"] == "report"]
    async with running(tmp_path, messages[0]["brokerId"], store=FILES) as slave:
        fill(slave.store, END_BEFORE[number])
        before = slave.store.written_to
        for epoch in (Epoch(1, 0), Epoch(5, 93229)):
            if (epoch.start < before and number != 2) or (epoch.number == 1 and before):
                slave.epochs.received(epoch)
        async with listening() as masters:
            slave.follow(masters.address)
            master = await masters.accept()
            assert await master.read(GREETING.size) == greeting
            told = next(m for m in messages if m["from"] == "master")
            master.write(from_master[: told["length"]])
            report = await master.read(REPORT.size)
            assert report == REPORT.pack(TRANSFER, reports[0])
            assert slave.truncated == ([93229] if number == 2 else [])
            found = [reports[0]]
            for message in messages:
                if message["from"] == "slave" or message is told or "cut" in message:
                    continue
                master.write(from_master[message["at"] : message["at"] + message["length"]])
                if message["kind"] == "data":
                    state, offset = REPORT.unpack(await master.read(REPORT.size))
                    assert state == TRANSFER
                    assert offset == message["offset"] + message["bodySize"]
                    end = slave.store.written_to  # whole records
                    assert slave.store.confirmed_to == min(message["confirmOffset"], end)
                    found.append(offset)
            assert set(reports) <= set(found)
            end = found[-1]
            assert slave.store.written_to == end
            log = b"".join(
                bytes(slave.store.log_bytes(at, FILES["commit_log_file_bytes"]) or b"")
                for at in range(0, end, FILES["commit_log_file_bytes"])
            )
            assert log == log_to(end)
            file = RECORDING / f"files/{FILES_AFTER[number]}.epochFileCheckpoint"
            assert (tmp_path / "epochFileCheckpoint").read_bytes() == file.read_bytes()
            assert parse(file.read_bytes()) == slave.epochs.epochs
