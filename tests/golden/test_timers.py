"""The files of the timers that RocketMQ 5.3.3 wrote: they are read, and continued."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cometmq.protocol.hashing import java_hash
from cometmq.protocol.recall_handle import RecallHandle, decode_handle
from cometmq.protocol.record import split_record
from cometmq.store import MessageStore, StoreSettings
from cometmq.store.timers.checkpoint import decode_checkpoint
from cometmq.store.timers.index import TimerIndex
from cometmq.store.timers.timer_log import NONE, TimerLog
from cometmq.store.timers.wheel import Slot, TimerWheel
from cometmq.system.files import Files
from support.checks.manual_clock import ManualClock
from support.wire.recorded import STORES, VECTORS, unpack_store

LOG_FILE_BYTES = 100 * 1024 * 1024
RECORDED: dict[str, Any] = json.loads((STORES / "5.3.3-timer.json").read_text())["timer"]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack_store("5.3.3-timer", tmp_path_factory.mktemp("timer"))


def test_units_and_slots_are_read(root: Path) -> None:
    log = TimerLog(Files(), root / "timerlog", LOG_FILE_BYTES)
    log.load()
    for row in RECORDED["log_units"]:
        unit = log.unit(row["pos"])
        assert unit is not None
        assert unit == (
            *(row["prev_pos"], row["magic"], row["curr_write_time"], row["delay_ms"]),
            *(row["phy_offset"], row["record_size"], row["topic_hash"], row["reserved"]),
        )
    assert log.unit(RECORDED["check"]["last_timer_log_flush_pos"]) is None
    log.close()
    wheel = TimerWheel(Files(), root / "timerwheel", 1000)
    assert wheel.load()
    slots = {row["time"] * 1000: row for row in RECORDED["wheel_slots"]}
    for slot_ms, row in slots.items():
        assert wheel.get(slot_ms) == Slot(row["first_pos"], row["last_pos"], row["num"])
    assert {slot_ms for slot_ms, _ in wheel.filled(1)} == slots.keys()
    wheel.close()


def test_the_checkpoint_is_read_and_written(root: Path) -> None:
    data = (root / "config" / "timercheck").read_bytes()
    found, row = decode_checkpoint(data), RECORDED["check"]
    assert found.passed.read_ms == row["last_read_time_ms"]
    assert found.log_end == row["last_timer_log_flush_pos"]
    assert found.queue_offset == row["last_timer_queue_offset"]
    assert found.version == (row["state_version"], row["timestamp"], row["counter"])
    assert found.encode()[:512] == data[:512]


def test_messages_that_wait_in_a_store_of_rocketmq_are_found(root: Path) -> None:
    clock = ManualClock(RECORDED["check"]["last_read_time_ms"])
    store = MessageStore(
        StoreSettings(
            root=root,
            commit_log_file_bytes=1048576,
            consume_queue_file_bytes=6000,
            index_slots=1000,
            index_entries=4000,
            flush_disk_type="ASYNC_FLUSH",
        ),
        clock=clock,
    )
    store.open()
    index = TimerIndex(
        Files(),
        root,
        log_file_bytes=LOG_FILE_BYTES,
        precision_ms=1000,
        roll_slots=172_800,
    )

    def offset_of(log_offset: int, size: int) -> int | None:
        data = store.written_record_at(log_offset, size)
        return None if data is None else split_record(data).queue_offset

    index.load(offset_of)

    assert index.was_rocketmq
    assert index.queue_offset == RECORDED["check"]["last_timer_queue_offset"]
    pending = [row for row in RECORDED["wheel_slots"] if row["time"] * 1000 >= clock.now_ms()]
    assert [row["time"] for row in pending] == [1795255868, 1795257668, 1795261268, 1795340468]
    assert index.latest_ms == 1795340468_000
    found = []
    for row in pending:
        (position,) = index.positions(row["time"] * 1000)
        unit = index.unit(position)
        assert (unit.previous, unit.topic_hash) == (NONE, java_hash("TopicTimer"))
        data = store.record_at(unit.log_offset, unit.record_bytes)
        assert data is not None
        found.append(unit.rolls)
    assert found == [False, False, False, True]
    index.close()
    store.close()


def test_recall_handles_are_read_and_written() -> None:
    path = VECTORS / "values" / "5.3.3" / "misc.json"
    for row in json.loads(path.read_text())["recall_handles"]:
        handle = RecallHandle(row["topic"], row["broker"], row["timestamp"], row["id"])
        assert decode_handle(row["handle"]) == handle
        assert handle.encode() == row["handle"]
