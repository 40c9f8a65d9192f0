"""The index of the timer topic: its files, and what a crash leaves of them."""

from __future__ import annotations

import errno
import struct
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from cometmq.model.errors import StoreError
from cometmq.model.numbers import number_of
from cometmq.protocol.hashing import java_hash
from cometmq.protocol.properties import encode_properties
from cometmq.store.timers.checkpoint import Passed, TimerCheckpoint, decode_checkpoint
from cometmq.store.timers.index import TimerIndex, Waiting
from cometmq.store.timers.timer_log import (
    DEFAULT,
    DELETE,
    NONE,
    ROLL,
    UNIT_BYTES,
    TimerLog,
    Unit,
)
from cometmq.store.timers.wheel import SLOTS, WHEEL_BYTES, Slot, TimerWheel
from cometmq.system.files import Files
from support.checks.randomness import SeededRandomness
from support.runner.tiers import rounds
from support.stores.power_files import Fault, PowerCutError, PowerFiles
from support.stores.timer_stores import shrink_wheel

CASES = rounds(test=150, long=10_000)
NOW_MS = 1_700_000_000_000
FILE_BYTES = 52 * 4 + 16
"""Four units fill a file of the timer log."""


class Index:
    """An index in a folder, and the messages that it gets."""

    def __init__(self, root: Path, files: Files | None = None) -> None:
        self.root = root
        self.files = files or Files()
        self.files.make_dirs(root / "config")
        self.open()

    def open(self, precision_ms: int = 1000) -> TimerIndex:
        self.index = TimerIndex(
            self.files,
            self.root,
            log_file_bytes=FILE_BYTES,
            precision_ms=precision_ms,
            roll_slots=100,
        )
        self.index.load(lambda log_offset, size: log_offset // 100)
        return self.index

    def add(self, after_ms: int, *, topic: str = "T", **more: str) -> bool:
        out_ms = (NOW_MS + after_ms - 1) // 1000 * 1000
        properties = {"REAL_TOPIC": topic, "REAL_QID": "0", "TIMER_OUT_MS": str(out_ms)}
        properties |= {"TIMER_DELIVER_MS": str(NOW_MS + after_ms)} | more
        waiting = Waiting(
            self.index.queue_offset,
            self.index.queue_offset * 100,
            100,
            encode_properties(properties),
            NOW_MS,
        )
        return self.index.add(waiting, NOW_MS)

    def save(self) -> None:
        self.index.save(self.index.snapshot(0, NOW_MS))

    def units(self, after_ms: int) -> list[Unit]:
        return [self.index.unit(at) for at in self.index.positions(NOW_MS + after_ms)]

    def offsets(self, after_ms: int) -> list[int]:
        return [unit.log_offset // 100 for unit in self.units(after_ms)]


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Index]:
    index = Index(tmp_path / "store")
    yield index
    index.index.close()


def test_units_of_a_slot_are_linked_over_the_files_of_the_log(made: Index) -> None:
    for _ in range(5):
        made.add(3_500)
        made.add(4_500)
    assert made.offsets(3_000) == [8, 6, 4, 2, 0]
    assert made.offsets(4_000) == [9, 7, 5, 3, 1]
    assert made.index.count_in(NOW_MS + 3_000) == 5
    assert [file.name for file in sorted((made.root / "timerlog").iterdir())] == [
        f"{n * FILE_BYTES:020d}" for n in range(3)
    ]
    (unit, *_) = made.units(3_000)
    assert unit.slot_ms == NOW_MS + 3_000
    assert unit.due_ms == NOW_MS + 3_500
    assert unit.topic_hash == java_hash("T")


def test_the_end_of_a_slot_is_zero_as_rocketmq_writes_it(made: Index) -> None:
    made.add(4_000)
    (unit,) = made.units(3_000)
    assert unit == Unit(NONE, DEFAULT, NOW_MS, 3_000, 0, 100, java_hash("T"), 0)


def test_a_blank_fills_the_end_of_a_file(made: Index) -> None:
    for _ in range(5):
        made.add(3_500)
    made.save()
    data = (made.root / "timerlog" / f"{0:020d}").read_bytes()
    assert struct.unpack(">iqI", data[-16:]) == (16, 0, 0xCBD43194)


@pytest.mark.parametrize("saves", [0, 1, 2], ids=["never", "once", "twice"])
def test_a_crash_takes_back_what_was_not_saved(made: Index, saves: int) -> None:
    for number in range(3):
        made.add(3_500)
        made.add(7_500)
        if number < saves:
            made.save()
    made.index.close()

    index = made.open()

    assert index.queue_offset == 2 * saves
    assert made.offsets(3_000) == [4, 2, 0][3 - saves :]
    assert index.count_in(NOW_MS + 3_000) == saves
    while index.queue_offset < 6:  # the queue still has the others
        made.add(7_500 if index.queue_offset % 2 else 3_500)
    assert made.offsets(3_000) == [4, 2, 0]
    assert [each.waiting for each in index.counts()] == [6]


def test_a_slot_that_was_written_without_its_checkpoint_is_taken_back(made: Index) -> None:
    made.add(3_500)
    made.save()
    before = (made.root / "config" / "timercheck").read_bytes()
    made.add(3_500)
    made.add(9_500)
    made.save()
    made.index.close()
    (made.root / "config" / "timercheck").write_bytes(before)

    index = made.open()

    assert (index.queue_offset, made.offsets(3_000), made.offsets(9_000)) == (1, [0], [])


@pytest.mark.parametrize("lost", ["timerwheel", "timerlog", "config/timercheck", "precision"])
def test_without_usable_files_the_queue_is_read_again(made: Index, lost: str) -> None:
    made.add(3_500)
    made.save()
    made.index.close()
    if lost == "timerlog":
        for file in (made.root / lost).iterdir():
            file.unlink()
    elif lost != "precision":
        (made.root / lost).unlink()

    index = made.open(precision_ms=500 if lost == "precision" else 1000)

    assert (index.queue_offset, index.is_empty, index.counts()) == (0, True, [])


@pytest.mark.parametrize(
    "content",
    [b"xx", b"\xff" * 4096, struct.pack(">7q", 2**62, 0, 0, 0, 0, 0, 1).ljust(4096, b"\0")],
    ids=["short", "negative", "late"],
)
def test_a_damaged_checkpoint_keeps_no_message_from_its_slot(
    made: Index, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    made.add(3_500)
    made.save()
    made.index.close()
    (made.root / "config" / "timercheck").write_bytes(content)

    index = made.open()

    assert (index.passed, index.queue_offset, index.is_empty) == (Passed(), 0, True)
    assert "the checkpoint of timer messages is damaged" in caplog.text
    made.add(3_500)


def test_a_crash_before_the_next_save_leaves_no_slot_without_its_units(made: Index) -> None:
    made.add(3_500)
    made.save()
    before = (made.root / "config" / "timercheck").read_bytes()
    made.add(9_500)
    made.save()
    made.index.close()
    (made.root / "config" / "timercheck").write_bytes(before)  # the crash came before it

    made.open().close()
    made.open()
    made.add(9_500)

    assert (made.offsets(3_000), made.offsets(9_000)) == ([0], [1])


def test_an_index_that_is_made_again_does_not_count_before_it_is_saved(made: Index) -> None:
    for _ in range(3):
        made.add(3_500)
    made.save()
    made.index.close()
    (made.root / "timerwheel").unlink()
    made.open()
    for _ in range(3):
        made.add(3_500)
    made.index.close()  # a kill leaves the units in the file

    assert made.open().queue_offset == 0
    for _ in range(3):
        made.add(3_500)
    assert made.offsets(3_000) == [2, 1, 0]


def test_no_slot_of_an_index_before_is_in_one_that_is_made_again(made: Index) -> None:
    made.add(3_500)
    made.save()
    made.index.close()
    for file in (made.root / "timerlog").iterdir():
        file.unlink()
    made.open()
    made.save()
    made.index.close()

    made.open()
    made.add(3_500)

    assert made.offsets(3_000) == [0]


def test_a_passed_slot_takes_no_message_again(made: Index) -> None:
    made.add(3_500)
    made.add(3_500)
    made.index.pass_to(NOW_MS + 5_000, 1_234)
    assert made.index.passed == Passed(NOW_MS + 5_000, 1_234, 2)
    made.index.queue_offset = 0

    made.add(3_500)
    made.add(3_500)
    assert made.offsets(5_000) == []
    made.add(3_500)

    assert made.offsets(5_000) == [2], "a new one is due at once"


def test_a_message_far_away_rolls_by_its_store_time(made: Index) -> None:
    made.add(99_500)
    made.add(100_500)
    made.add(132_500)
    made.add(133_500)
    assert [unit.magic for unit in made.units(99_000)] == [DEFAULT]
    assert [unit.magic for unit in made.units(50_000)] == [DEFAULT | ROLL] * 2
    assert [unit.magic for unit in made.units(100_000)] == [DEFAULT | ROLL]


def test_recalls_are_marked_and_counted(made: Index) -> None:
    made.add(3_500)
    made.add(3_500)
    made.add(3_500, TIMER_DEL_UNIQKEY="T+K")
    recall, *_ = made.units(3_000)
    assert (recall.magic, recall.recalls) == (DEFAULT | DELETE, True)
    assert made.index.count_in(NOW_MS + 3_000) == 1
    assert [each.waiting for each in made.index.counts()] == [1]


def test_the_ring_takes_no_slot_twice(made: Index) -> None:
    made.add(1_500)
    made.index.pass_to(NOW_MS, 0)
    far_ms = NOW_MS + SLOTS * 1000
    properties = encode_properties({"REAL_TOPIC": "T", "TIMER_OUT_MS": str(far_ms)})
    waiting = Waiting(1, 100, 100, properties, far_ms)
    assert not made.index.add(waiting, far_ms)
    assert made.index.queue_offset == 1

    made.index.pass_to(far_ms, 0)

    assert made.index.add(waiting, far_ms)


def test_truncation_forgets_records_of_the_log(made: Index) -> None:
    for after_ms in (3_500, 7_500, 3_500, 7_500, 3_500, 7_500):
        made.add(after_ms)
    made.save()

    made.index.truncate(350, 4, made.index.passed)
    made.save()
    made.index.close()
    index = made.open()

    assert index.queue_offset == 4
    assert (made.offsets(3_000), made.offsets(7_000)) == ([2, 0], [3, 1])


def delete_before(made: Index, log_offset: int) -> None:
    while made.index.delete_before(log_offset):
        pass


def test_a_truncation_that_fails_asks_for_another_index(tmp_path: Path) -> None:
    files = PowerFiles(SeededRandomness(1))
    made = Index(tmp_path / "store", files)  # type: ignore[arg-type]
    for _ in range(3):
        made.add(3_500)
    made.save()
    files.fault = Fault(files.operations + 2, errno.EIO, lasts=False)  # behind the checkpoint
    with pytest.raises(StoreError, match="cannot truncate the timer log"):
        made.index.truncate(100, 1, made.index.passed)
    assert made.index.is_damaged
    assert not made.index.has_changed

    made.index.make_again()

    assert made.index.queue_offset == 0
    for _ in range(3):
        made.add(3_500)
    assert made.offsets(3_000) == [2, 1, 0]


def test_files_of_deleted_records_are_deleted(made: Index) -> None:
    for _ in range(10):
        made.add(3_500)
    delete_before(made, 300)
    assert made.offsets(3_000) == [9, 8, 7, 6, 5, 4, 3, 2, 1, 0]
    delete_before(made, 400)
    assert made.offsets(3_000) == [9, 8, 7, 6, 5, 4]
    delete_before(made, 10_000)
    assert made.offsets(3_000) == [9, 8], "the newest file stays"


def test_a_file_stays_as_long_as_one_of_its_messages_may_wait(made: Index) -> None:
    """Its last unit is of an older record, which is put into a later slot, too, or is damaged."""
    for _ in range(3):
        made.add(3_500)
    made.index.put_again(made.units(3_000)[-1], NOW_MS + 8_000)
    for _ in range(3):
        made.add(3_500)
    made.index._log._segments.items[1].file.map[3 * UNIT_BYTES : 4 * UNIT_BYTES] = bytes(UNIT_BYTES)
    made.index._log.end += UNIT_BYTES
    for _ in range(2):
        made.add(3_500)

    delete_before(made, 200)
    assert (made.offsets(3_000), made.offsets(8_000)) == ([7, 6, 5, 4, 3, 2, 1, 0], [0])
    delete_before(made, 300)
    assert made.offsets(3_000) == [7, 6, 5, 4, 3]
    delete_before(made, 500)
    assert made.offsets(3_000) == [7, 6, 5, 4, 3]
    delete_before(made, 600)
    assert made.offsets(3_000) == [7, 6]


def test_only_records_of_timer_messages_count(made: Index) -> None:
    for properties in (b"", b"TIMER_OUT_MS\x01soon\x02REAL_TOPIC\x01T\x02"):
        offset = made.index.queue_offset
        assert made.index.add(Waiting(offset, 0, 100, properties, NOW_MS), NOW_MS)
    assert made.index.is_empty
    assert made.index.queue_offset == 2


def test_numbers_are_read_as_java_reads_them() -> None:
    texts = [b"5", b"-5", b"+5", b"", None, b"5 ", b"1.5", b"-", b"9" * 21]
    assert [number_of(text) for text in texts] == [5, -5, 5, *[None] * 6]


# --- the checkpoint -------------------------------------------------------------------------------


def test_a_checkpoint_is_read_as_it_was_written() -> None:
    checkpoint = TimerCheckpoint(Passed(5, 6, 7), 8, 9, 10, (1, 2, 3), 11, 1000)
    data = checkpoint.encode()
    assert len(data) == 4096
    assert decode_checkpoint(data) == checkpoint
    assert decode_checkpoint(b"") == TimerCheckpoint()


@pytest.mark.parametrize("at", [7, 15, 23, 31], ids=["read", "log", "queue", "master"])
def test_what_rocketmq_wrote_since_counts(at: int) -> None:
    data = bytearray(TimerCheckpoint(Passed(5, 6, 7), 8, 9, 9, (1, 2, 3), 11, 1000).encode())
    data[at] += 1
    found = decode_checkpoint(bytes(data))
    assert (found.precision_ms, found.latest_ms, found.passed.log_offset) == (0, 0, 0)


# --- the wheel ------------------------------------------------------------------------------------


def test_changed_slots_count_before_they_are_in_the_file(tmp_path: Path) -> None:
    wheel = TimerWheel(Files(), tmp_path / "timerwheel", 1000)
    assert not wheel.load()
    wheel.create()
    for number in range(5):
        wheel.put(NOW_MS + number * 1000, Slot(number, number, 1))
    changed = wheel.take_changed()
    wheel.put(NOW_MS, Slot(7, 8, 2))
    wheel.write(changed)
    assert wheel.get(NOW_MS) == Slot(7, 8, 2)
    assert wheel.get(NOW_MS + 1000) == Slot(1, 1, 1)
    assert wheel.get(NOW_MS + SLOTS * 1000) is None, "another time of the same place"
    assert len(list(wheel.filled(NOW_MS))) == 5
    wheel.write(wheel.take_changed())
    wheel.close()

    assert wheel.load()
    assert wheel.get(NOW_MS) == Slot(7, 8, 2)
    assert (tmp_path / "timerwheel").stat().st_size == WHEEL_BYTES
    wheel.close()


def test_positions_lead_over_the_ends_of_files(tmp_path: Path) -> None:
    log = TimerLog(Files(), tmp_path / "timerlog", FILE_BYTES)
    log.load()
    unit = Unit(NONE, DEFAULT, NOW_MS, 1000, 0, 100, 0, 0)
    positions = [log.append(unit) for _ in range(9)]
    assert positions == [0, 52, 104, 156, *(FILE_BYTES + n * 52 for n in range(4)), 2 * FILE_BYTES]
    assert [log.previous_position(at) for at in positions] == [NONE, *positions[:-1]]
    assert [log.fitting(at + 52) for at in positions[:-1]] == positions[1:]
    log.close()


# --- crashes --------------------------------------------------------------------------------------


class Crashes:
    """An index on a disk that refuses and loses its power, and the queue that it is made from."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.chance = SeededRandomness(seed)
        self.files = PowerFiles(SeededRandomness(seed + 1), has_journal=self.chance.below(4) > 0)
        self.made = Index(folder, self.files)  # type: ignore[arg-type]
        self.queue: list[int] = []
        """After how many ms each message is due."""
        self.has_faults = self.chance.below(2) > 0
        """Whether the disk refuses, and may write a part of a slot then."""

    def run(self) -> None:
        """Use the index, cut the power, open the index again, several times."""
        for _ in range(4):
            self.files.cut_at = self.files.operations + 1 + self.chance.below(30)
            with suppress(PowerCutError):
                while True:
                    if self.has_faults and self.chance.below(4) == 0:
                        at = self.files.operations + 1 + self.chance.below(6)
                        self.files.fault = Fault(at, errno.EIO, lasts=False)
                    with suppress(StoreError):
                        self.step()
            self.open()
        self.check()

    def step(self) -> None:
        """Do what a broker does with its index."""
        kind, index = self.chance.below(8), self.made.index
        if index.is_damaged:
            index.make_again()
        elif kind == 0:
            count = self.chance.below(len(self.queue) + 1)
            index.truncate(count * 100, count, index.passed)
            self.made.save()
            del self.queue[count:]
        elif kind < 3:
            self.made.save()
        elif kind < 5:
            self.queue += [self.chance.below(6) * 1000 + 500 for _ in range(self.chance.below(4))]
        else:
            self.read(self.chance.below(8))

    def read(self, count: int) -> None:
        """Put messages of the queue into the index."""
        for after_ms in self.queue[self.made.index.queue_offset :][:count]:
            assert self.made.add(after_ms)

    def open(self) -> None:
        """Start again, which may be cut, too; sometimes an operator deletes the files before."""
        is_open = False
        while not is_open:
            self.files.power_on() if self.chance.below(3) else self.files.kill()
            if self.chance.below(8) == 0:
                for path in self.files.image():
                    if path.name == "timerwheel" or path.parent.name == "timerlog":
                        self.files.remove(path)
                        self.files.sync_dir(path.parent)
            if self.chance.below(2):
                self.files.cut_at = self.files.operations + 1 + self.chance.below(12)
            with suppress(PowerCutError):
                self.made.open()
                self.read(self.chance.below(8))
                is_open = self.chance.below(2) > 0
        if self.chance.below(2):
            self.check()

    def check(self) -> None:
        """Check that each slot has its messages once the queue is read."""
        self.files.cut_at = self.files.fault = None
        assert self.made.index.queue_offset <= len(self.queue)
        self.read(len(self.queue))
        due: dict[int, list[int]] = {slot_ms: [] for slot_ms in range(0, 6_000, 1000)}
        for number, after_ms in enumerate(self.queue):
            due[after_ms - 500].insert(0, number)
        found = {slot_ms: self.made.offsets(slot_ms) for slot_ms in due}
        if self.has_faults and self.made.index.is_damaged:
            self.made.index.make_again()
            self.read(len(self.queue))
            found = {slot_ms: self.made.offsets(slot_ms) for slot_ms in due}
        assert not self.made.index.is_damaged
        assert found == due


def test_the_queue_completes_the_index_after_each_crash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shrink_wheel(monkeypatch, 400)
    for seed in range(CASES):
        try:
            Crashes(seed, tmp_path / "store").run()
        except AssertionError as problem:
            raise AssertionError(f"seed {seed}") from problem
