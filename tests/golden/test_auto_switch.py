"""Replication under a controller as recorded from RocketMQ: the same messages, the same files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cometmq.broker.failover.epochs.epoch_file import (
    Epoch,
    EpochFile,
    common_point,
    file_text,
    parse,
)
from cometmq.broker.failover.epochs.wire import (
    CHUNK,
    EPOCHS,
    GREETING,
    REPORT,
    TRANSFER,
    ChunkHeader,
    Greeting,
    MasterEpochs,
    SlaveMessages,
    read_chunk,
    read_epochs,
)
from cometmq.system.files import Files
from golden.recordings import VECTORS

RECORDING = VECTORS / "ha/5.3.3-controller"
FILES = RECORDING / "files"
SESSIONS = range(1, 6)
EPOCH_FILES = sorted(path.name for path in FILES.glob("*epochFileCheckpoint*"))


def messages(number: int, sender: str) -> tuple[bytes, list[dict[str, Any]]]:
    """What one side of a recorded connection sent, and what the recorder made of it."""
    found = json.loads((RECORDING / f"ha-{number}.json").read_text())["messages"]
    data = (RECORDING / f"ha-{number}.{sender}.bin").read_bytes()
    return data, [message for message in found if message["from"] == sender]


@pytest.mark.parametrize("number", SESSIONS)
def test_the_messages_of_the_recorded_slave(number: int) -> None:
    data, (first, *reports) = messages(number, "slave")
    taken = SlaveMessages()
    assert taken.newest(data[: GREETING.size]) is None
    greeting = taken.greeting
    assert greeting == Greeting(
        first["brokerId"], bool(first["syncFromLastFile"]), bool(first["asyncLearner"])
    )
    assert greeting.encode() == data[: GREETING.size]
    assert reports
    for report in reports:
        part = data[report["at"] : report["at"] + report["length"]]
        assert taken.newest(part) == report["maxOffset"]
        assert REPORT.pack(TRANSFER, report["maxOffset"]) == part


@pytest.mark.parametrize("number", SESSIONS)
def test_the_messages_of_the_recorded_master(number: int) -> None:
    data, (first, *chunks) = messages(number, "master")
    found = read_epochs(data, len(data))
    assert found is not None
    epochs, length = found
    assert length == first["length"] == EPOCHS.size + first["bodySize"]
    assert epochs == MasterEpochs(
        first["maxOffset"],
        [Epoch(epoch["epoch"], epoch["startOffset"]) for epoch in first["epochEntries"]],
    )
    assert epochs.encode() == data[:length]
    assert chunks
    for chunk in chunks:
        header = read_chunk(data, chunk["at"])
        assert header == ChunkHeader(
            chunk["bodySize"],
            chunk["offset"],
            Epoch(chunk["epoch"], chunk["epochStartOffset"]),
            chunk["confirmOffset"],
        )
        assert header.encode() == data[chunk["at"] : chunk["at"] + CHUNK.size]


@pytest.mark.parametrize("name", EPOCH_FILES)
def test_the_recorded_epoch_files(name: str) -> None:
    data = (FILES / name).read_bytes()
    assert file_text(parse(data)).encode() == data


def test_the_epoch_file_and_its_backup_of_an_elected_broker(tmp_path: Path) -> None:
    epochs = EpochFile(tmp_path, Files())
    epochs.received(Epoch(1, 0))
    epochs.begin(5, 93229)
    for name in ("epochFileCheckpoint", "epochFileCheckpoint.bak"):
        recorded = FILES / f"3-second-master.broker2.{name}"
        assert (tmp_path / name).read_bytes() == recorded.read_bytes()


def test_the_old_master_truncates_where_the_recorded_one_did() -> None:
    own = parse((FILES / "3-second-master.broker1.epochFileCheckpoint").read_bytes())
    data, _ = messages(2, "master")
    found = read_epochs(data, len(data))
    assert found is not None
    master = found[0]
    assert master.log_end > 93229
    assert common_point(own, 96022, master.epochs, master.log_end) == (93229, [Epoch(1, 0)])
    _, (_, report, *_) = messages(2, "slave")
    assert report["maxOffset"] == 93229
