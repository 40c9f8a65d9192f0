"""The index of the timer topic: which of its messages are due in each slot of time.

    slot of a message  := its time of delivery, rounded down, if that is not too far away
                          else one from which it is stored again: it rolls

The slot follows from the record alone, from TIMER_OUT_MS and the store time: all copies of the log
have the same index, also one that is made again. RocketMQ counts from the time at which it reads
the record. A message that comes when its slot is passed is due in the first slot that is not.

`save` writes what `snapshot` has taken: units, then slots, then the checkpoint, each on the disk
before the next. What removes units goes the other way: checkpoint, slots, units. So at any crash
the checkpoint counts only slots that are on the disk, and slots name only such units. After a crash
units and slots are taken back to the checkpoint, and the queue is read from there on. Files that
RocketMQ wrote are used as they are. Without usable files the whole queue is read again: a message
waits if its slot is not passed.

Used in the event loop's thread; `save` may run in any. Source: TimerMessageStore, RocketMQ 5.3.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from cometmq.model import property_names as names
from cometmq.model.errors import StoreError
from cometmq.model.numbers import number_of
from cometmq.protocol.hashing import java_hash
from cometmq.protocol.properties import marker, value_of
from cometmq.store.config_files import JsonFile
from cometmq.store.errors import StoreUnavailableError
from cometmq.store.timers.checkpoint import Passed, TimerCheckpoint, decode_checkpoint
from cometmq.store.timers.timer_log import (
    AGAIN,
    DEFAULT,
    DELETE,
    NONE,
    ROLL,
    UNIT_BYTES,
    TimerLog,
    Unit,
)
from cometmq.store.timers.wheel import SLOT_MS_MAX, SLOTS, Slot, TimerWheel
from cometmq.system.files import Files

log = logging.getLogger(__name__)

_OUT = marker(names.TIMER_OUT_MS.encode())
_DELIVER = marker(names.TIMER_DELIVER_MS.encode())
_DELAY_MS = marker(names.TIMER_DELAY_MS.encode())
_DELAY_SEC = marker(names.TIMER_DELAY_SEC.encode())
_DEL_KEY = marker(names.TIMER_DEL_UNIQKEY.encode())
_REAL_TOPIC = marker(names.REAL_TOPIC.encode())
_BLANK_SLOTS: Final = 60
"""The ring keeps so many slots free."""
_SAVE_AFTER_MS: Final = 10_000
"""Passed slots without messages are saved so seldom: a start passes them again."""


class Waiting(NamedTuple):
    """A message of the queue, as far as the index needs it."""

    queue_offset: int
    log_offset: int
    record_bytes: int
    properties: bytes
    store_ms: int


class Count(NamedTuple):
    """How many messages of a topic wait."""

    topic: str
    waiting: int
    changed_ms: int


class Snapshot(NamedTuple):
    """What is to be written to the disk."""

    checkpoint: TimerCheckpoint
    slots: dict[int, bytes]
    counts: dict[str, Any]
    term: int
    """How often the index was truncated before."""


class TimerIndex:
    """Wheel, log and checkpoint of the timers.

    Args:
        files: the file system.
        root: the directory of the store.
        log_file_bytes: the size of a file of the timer log.
        precision_ms: the length of a slot.
        roll_slots: a message that is further away than this rolls.
    """

    def __init__(
        self, files: Files, root: Path, *, log_file_bytes: int, precision_ms: int, roll_slots: int
    ) -> None:
        self._files = files
        self.precision_ms = precision_ms
        if not 2 <= roll_slots <= SLOTS // 2 - _BLANK_SLOTS:
            roll_slots = SLOTS // 2 - _BLANK_SLOTS
        self._roll_slots = roll_slots
        self._wheel = TimerWheel(files, root / "timerwheel", precision_ms)
        self._log = TimerLog(files, root / "timerlog", log_file_bytes)
        self._checkpoint_file = JsonFile(root / "config" / "timercheck", files)
        self._counts_file = JsonFile(root / "config" / "timermetrics", files)
        self._has_files = False
        self.passed = Passed()
        self.queue_offset = 0
        """The next message of the queue that is read."""
        self.latest_ms = 0
        """The last slot with a unit."""
        self._synced_to = 0
        self._counts: dict[int, list[Any]] = {}
        """Topic, number and time of the last change, by the hash of the topic."""
        self._counted_to: int | None = None
        """Slots from here on are not counted yet; None if all are."""
        self._version = (0, 0, 0)
        self._saved: TimerCheckpoint | None = None
        self._written = TimerCheckpoint()
        """What the file has."""
        self._counts_changed = False
        self._saving = threading.Lock()
        self._term = 0
        self.was_rocketmq = False
        """Whether RocketMQ wrote the files last, before `load`."""
        self._lacks_units = False

    @property
    def is_damaged(self) -> bool:
        """Whether the files are not what was written: `make_again` helps."""
        return self._lacks_units or self._wheel.is_damaged

    # --- start ----------------------------------------------------------------------------------

    def load(self, queue_offset_of: Callable[[int, int], int | None]) -> None:
        """Read the files, and take them back to the checkpoint.

        Args:
            queue_offset_of: returns the queue offset of the record with a log offset and a size;
                None if there is none.

        Raises:
            StoreError: the disk refused.
        """
        try:
            self._load(queue_offset_of)
        except OSError as problem:
            raise StoreError(f"cannot read the files of the timers: {problem}") from problem

    def _load(self, queue_offset_of: Callable[[int, int], int | None]) -> None:
        data = self._checkpoint_file.read()
        self._written = checkpoint = decode_checkpoint(data)
        if any(data) and checkpoint == TimerCheckpoint():
            log.error(
                "the checkpoint of timer messages is damaged: their queue is read again, and some"
                " may be delivered again path=%s",
                self._checkpoint_file.path,
            )
        self.passed, self._version = checkpoint.passed, checkpoint.version
        self.was_rocketmq = checkpoint.precision_ms == 0 and checkpoint.version[2] > 0
        self._log.load()
        has_wheel = self._wheel.load()
        self._load_counts(checkpoint)
        if not has_wheel or not self._has_units_to(checkpoint.log_end):
            self._has_files = False
        elif self.was_rocketmq:
            self._has_files = self._continue_rocketmq(checkpoint, queue_offset_of)
        elif checkpoint.precision_ms == self.precision_ms:
            self._has_files = self._take_back(checkpoint)
        if self._has_files:
            self._synced_to = self._log.end
        else:
            self._begin_anew(had_files=has_wheel)
        self._counts_changed = self._has_files or self.passed.read_ms > 0

    def _begin_anew(self, *, had_files: bool) -> None:
        """Let the queue be read again from its beginning; which slots are passed stays.

        The new wheel is empty: a checkpoint that counts what the old one had would hide that.
        """
        if had_files:
            log.warning("the index of timer messages is made again from their queue")
        self._wheel.close()
        if had_files or self._written != TimerCheckpoint():
            self._wheel.remove()
        self._log.truncate(self._log.start)
        start = self._log.end
        if self._written != TimerCheckpoint():
            self._count_to(start, 0)
        self.queue_offset = self.latest_ms = 0
        self._counts, self._counted_to = {}, None
        self._synced_to = start
        self._has_files = self._lacks_units = False

    def _count_to(self, log_end: int, queue_offset: int) -> None:
        """Let the checkpoint in the file count no units from a position on."""
        checkpoint = self._written._replace(
            log_end=log_end,
            queue_offset=queue_offset,
            master_queue_offset=queue_offset,
            precision_ms=self.precision_ms,
        )
        self._checkpoint_file.overwrite(checkpoint.encode())
        self._written = checkpoint

    def make_again(self) -> None:
        """Forget all units: the queue, which has their messages, is to be read again.

        Raises:
            StoreError: the disk refused; call it again.
        """
        with self._saving:
            self._term += 1
        try:
            self._begin_anew(had_files=True)
        except OSError as problem:
            raise StoreError(f"cannot make the timer index again: {problem}") from problem

    def _take_back(self, checkpoint: TimerCheckpoint) -> bool:
        """Take units and slots back to the checkpoint; False if they cannot be used."""
        end = checkpoint.log_end
        self.queue_offset, self.latest_ms = checkpoint.queue_offset, checkpoint.latest_ms
        self._synced_to = end
        self._cut(end, end, checkpoint.queue_offset)
        return not self.is_damaged

    def _has_units_to(self, position: int) -> bool:
        """Return whether the log has the unit before a position, or begins there."""
        if position < self._log.start:
            return False
        before = self._log.previous_position(position)
        return before == NONE or self._log.unit(before) is not None

    def _cut(self, end: int, counted_to: int, queue_offset: int) -> None:
        """Remove the units from a position on, each step on the disk before the next.

        Also what is read may not be on the disk: a process was killed before it synced that.

        Args:
            end: the position.
            counted_to, queue_offset: what the checkpoint counts then.
        """
        position = self._log.fitting(end)
        if self._log.unit(position) is not None:
            self._count_to(counted_to, queue_offset)
            while (unit := self._log.unit(position)) is not None:
                self._cut_slot(unit.slot_ms, end)
                position = self._log.fitting(position + UNIT_BYTES)
            if self._synced_to < end:
                self._log.sync(self._synced_to, end)
            self._wheel.write(self._wheel.take_changed())
            self._wheel.sync()
        self._log.truncate(end)
        self._synced_to = end

    def _cut_slot(self, slot_ms: int, end: int) -> None:
        slot = self._wheel.get(slot_ms)
        if slot is None:
            return
        last, count = slot.last, slot.number
        while last >= end:
            unit = self._log.unit(last)
            if unit is None:
                self._lacks_units = True
                return
            last = unit.previous
            count -= -1 if unit.magic & DELETE else 1
        if last == NONE:
            self._wheel.clear(slot_ms)
        elif last != slot.last:
            self._wheel.put(slot_ms, Slot(min(slot.first, last), last, count))

    def _continue_rocketmq(
        self, checkpoint: TimerCheckpoint, queue_offset_of: Callable[[int, int], int | None]
    ) -> bool:
        """Continue with the files of RocketMQ, whose log may be ahead of its wheel."""
        timer_log, wheel = self._log, self._wheel
        wheel.check_again()
        position = max(timer_log.start, checkpoint.log_end - timer_log.file_bytes)
        position -= position % timer_log.file_bytes
        position = max(timer_log.start, position)
        last_unit = None
        while (unit := timer_log.unit(position)) is not None:
            last_unit = unit
            slot = wheel.get(unit.slot_ms)
            if slot is None or slot.last < position:
                first = position if slot is None else slot.first
                count = 0 if slot is None else slot.number
                count += -1 if unit.magic & DELETE else 1
                wheel.put(unit.slot_ms, Slot(first, position, count))
                self.latest_ms = max(self.latest_ms, unit.slot_ms)
            position = timer_log.fitting(position + UNIT_BYTES)
        timer_log.truncate(position)
        self.queue_offset = checkpoint.queue_offset
        if last_unit is not None:
            offset = queue_offset_of(last_unit.log_offset, last_unit.record_bytes)
            if offset is not None:  # the checkpoint is older, and RocketMQ would read them twice
                self.queue_offset = offset + 1
        for slot_ms, slot in wheel.filled(self.passed.read_ms):
            if slot.last >= position:
                return False
            self.latest_ms = max(self.latest_ms, slot_ms)
        self._counted_to = self.passed.read_ms
        self._counts = {key: [row[0], 0, row[2]] for key, row in self._counts.items()}
        return True

    def _load_counts(self, checkpoint: TimerCheckpoint) -> None:
        try:
            content = self._counts_file.load() or {}
            counts = content.get("timingCount") or {}
            self._counts = {
                java_hash(topic): [topic, int(row["count"]), int(row.get("timeStamp", 0))]
                for topic, row in counts.items()
            }
        except (StoreError, TypeError, ValueError, KeyError, AttributeError) as problem:
            log.warning("timer messages are counted again: %s", problem)
            content = {}
        if content.get("countsAt") != [*checkpoint.passed, checkpoint.queue_offset]:
            self._counted_to = self.passed.read_ms
            self._counts = {key: [row[0], 0, row[2]] for key, row in self._counts.items()}

    # --- the messages that wait -----------------------------------------------------------------

    def add(self, waiting: Waiting, now_ms: int) -> bool:
        """Put a message of the queue into its slot; the messages come in the order of the queue.

        Returns:
            False if the ring has no slot for it before others are passed; add it again then.

        Raises:
            StoreUnavailableError: the disk refused; add it again.
        """
        if self.passed.read_ms == 0:  # nothing was delivered before there was a message
            began_ms = self._wheel.floor(waiting.store_ms)
            self.passed = Passed(began_ms, waiting.log_offset, 0)
        placed = self._unit_of(waiting, now_ms)
        if placed is not None:
            unit, topic = placed
            slot_ms = unit.slot_ms
            if slot_ms - self.passed.read_ms >= (SLOTS - _BLANK_SLOTS) * self.precision_ms:
                return False
            self._put(slot_ms, unit)
            self._count(unit, topic, now_ms, slot_ms, -1 if unit.magic & DELETE else 1)
        self.queue_offset = waiting.queue_offset + 1
        return True

    def is_late(self, waiting: Waiting) -> bool:
        """Return whether a message came after its slot was passed."""
        return (
            waiting.queue_offset >= self.passed.queue_offset
            and self.slot_of(waiting)[0] < self.passed.read_ms
        )

    def add_late(self, waiting: Waiting, now_ms: int) -> None:
        """Put a late message into the first slot that is not passed, beside its own slot.

        Raises:
            StoreUnavailableError: the disk refused.
        """
        placed = self._unit_of(waiting, now_ms)
        if placed is not None:
            unit, topic = placed
            self._put(unit.slot_ms, unit._replace(magic=unit.magic | AGAIN))
            self._count(unit, topic, now_ms, unit.slot_ms, -1 if unit.magic & DELETE else 1)

    def _unit_of(self, waiting: Waiting, now_ms: int) -> tuple[Unit, str] | None:
        """Return the unit of a message and its topic; None if it does not wait."""
        properties = waiting.properties
        out_ms = number_of(value_of(properties, _OUT))
        topic = value_of(properties, _REAL_TOPIC)
        if out_ms is None or topic is None or out_ms < 0:
            log.error("passed over a record of the timer topic log_offset=%d", waiting.log_offset)
            return None
        slot_ms, magic = self.slot_of(waiting)
        read_ms = self.passed.read_ms
        if slot_ms < read_ms:
            if waiting.queue_offset < self.passed.queue_offset:
                return None
            slot_ms = read_ms
        due_ms = 0
        if not magic & ROLL:
            wanted = _due_ms(properties, waiting.store_ms, out_ms)
            is_in_slot = wanted <= slot_ms + SLOT_MS_MAX
            due_ms = wanted if is_in_slot and wanted != slot_ms + self.precision_ms else 0
        if value_of(properties, _DEL_KEY) is not None:
            magic |= DELETE
        text = topic.decode("utf-8", "replace")
        written_ms = min(self._wheel.floor(now_ms), slot_ms)
        delay_ms = min(slot_ms - written_ms, 2**31 - 1)
        unit = Unit(
            *(NONE, magic, slot_ms - delay_ms, delay_ms, waiting.log_offset),
            *(waiting.record_bytes, java_hash(text), due_ms),
        )
        return unit, text

    def slot_of(self, waiting: Waiting) -> tuple[int, int]:
        """Return the slot of a message, and the magic number of its unit."""
        floor, precision = self._wheel.floor, self.precision_ms
        slot_ms = floor(number_of(value_of(waiting.properties, _OUT)) or 0)
        since_ms = floor(waiting.store_ms)
        beyond_ms = slot_ms - since_ms - self._roll_slots * precision
        if beyond_ms < 0:
            return slot_ms, DEFAULT
        is_little_more = beyond_ms < self._roll_slots // 3 * precision
        slots = self._roll_slots // 2 if is_little_more else self._roll_slots
        return since_ms + slots * precision, DEFAULT | ROLL

    def is_unit_of(self, unit: Unit, waiting: Waiting) -> bool:
        """Return whether a unit may be that of a message, and delivers it at no other time."""
        out_ms = number_of(value_of(waiting.properties, _OUT)) or 0
        if unit.rolls:
            return True
        is_due = self._wheel.floor(out_ms) <= unit.slot_ms
        wanted = _due_ms(waiting.properties, waiting.store_ms, out_ms)
        return is_due and unit.due_ms in (0, wanted)

    @property
    def roll_ms(self) -> int:
        """How far from now a message may be due without rolling."""
        return self._roll_slots * self.precision_ms

    def put_again(self, unit: Unit, slot_ms: int) -> None:
        """Put a message into a later slot, too.

        Raises:
            StoreUnavailableError: the disk refused.
        """
        delay_ms = min(slot_ms - unit.slot_ms, 2**31 - 1)
        written_ms = slot_ms - delay_ms
        self._put(slot_ms, unit._replace(previous=NONE, written_ms=written_ms, delay_ms=delay_ms))
        self._counts_changed = True
        row = self._counts.get(unit.topic_hash)
        if row is not None and (self._counted_to is None or slot_ms < self._counted_to):
            row[1] += -1 if unit.magic & DELETE else 1

    def _put(self, slot_ms: int, unit: Unit) -> None:
        if not self._has_files:
            try:
                self._wheel.create()
            except OSError as problem:
                raise StoreUnavailableError(f"cannot make the timer wheel: {problem}") from problem
            self._has_files = True
        slot = self._wheel.get(slot_ms)
        at = self._log.append(unit if slot is None else unit._replace(previous=slot.last))
        first, count = (at, 0) if slot is None else (slot.first, slot.number)
        self._wheel.put(slot_ms, Slot(first, at, count + (-1 if unit.magic & DELETE else 1)))
        self.latest_ms = max(self.latest_ms, slot_ms)

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits."""
        return self.latest_ms < self.passed.read_ms or self.latest_ms == 0

    def last_position(self, slot_ms: int) -> int:
        """Return the position of the newest unit of a slot; -1 for none."""
        slot = self._wheel.get(slot_ms)
        return NONE if slot is None else slot.last

    def count_in(self, slot_ms: int) -> int:
        """Return how many messages are in a slot, less its recalls."""
        slot = self._wheel.get(slot_ms)
        return 0 if slot is None else slot.number

    def positions(self, slot_ms: int, behind: int = NONE) -> Iterator[int]:
        """Yield the positions of the units of a slot, the newest first.

        Args:
            slot_ms: when the slot begins.
            behind: the last position that is not wanted.
        """
        position = self.last_position(slot_ms)
        while position > behind and position >= self._log.start:
            unit = self._log.unit(position)
            if unit is None or self._wheel.floor(unit.slot_ms) != slot_ms:
                log.error(
                    "the timer wheel names a lost unit slot_ms=%d position=%d, making the index"
                    " again",
                    *(slot_ms, position),
                )
                self._lacks_units = True
                return
            yield position
            position = unit.previous

    def compare(self, slot_ms: int, count: int, counted: int, oldest: int) -> None:
        """Note damage if a slot counts something else than its units are.

        Args:
            slot_ms: the slot.
            count: what `count_in` has returned.
            counted: its units, less its recalls.
            oldest: the position of the oldest one; others before it may be deleted.
        """
        is_whole = self.unit(oldest).previous == NONE and self._wheel.is_checked(slot_ms)
        if is_whole and count != counted:
            log.error(
                "a slot of the timer wheel counts %d messages and has %d, making the index again"
                " slot_ms=%d",
                *(count, counted, slot_ms),
            )
            self._lacks_units = True

    def require(self, unit: Unit, is_sound: bool) -> None:
        """Check what was found out about a unit.

        Raises:
            StoreError: it is damaged.
        """
        if not is_sound:
            log.error(
                "a unit of the timer log is damaged, making the index again slot_ms=%d"
                " log_offset=%d",
                *(unit.slot_ms, unit.log_offset),
            )
            self._lacks_units = True
            raise StoreError(f"no timer message of slot {unit.slot_ms} at {unit.log_offset}")

    def counts_in(self, slot_ms: int) -> Counter[int]:
        """Return how many messages of each topic are in a slot, by the hash of the topic."""
        counts: Counter[int] = Counter()
        for position in self.positions(slot_ms):
            unit = self.unit(position)
            counts[unit.topic_hash] += -1 if unit.magic & DELETE else 1
        return counts

    def unit(self, position: int) -> Unit:
        """Return a unit that `positions` yields.

        Raises:
            StoreError: it is damaged.
        """
        found = self._log.unit(position)
        if found is None:
            self._lacks_units = True
            raise StoreError(f"no unit of the timer log at {position}")
        return found

    # --- passing slots --------------------------------------------------------------------------

    def pass_to(self, slot_ms: int, log_offset: int) -> None:
        """Note that all slots before one are passed.

        Args:
            slot_ms: the first slot that is not.
            log_offset: the end of the log now.
        """
        self.passed = Passed(slot_ms, log_offset, self.queue_offset)

    def follow(self, passed: Passed) -> None:
        """Take over which slots the master has passed."""
        self.passed = passed

    def forget_units(self, slot_ms: int, counts: Mapping[int, int], now_ms: int) -> None:
        """Count the units of a slot that is passed no more.

        Args:
            slot_ms: the slot.
            counts: the sum of the units by the hash of their topic, a recall counting -1.
            now_ms: the wall clock.
        """
        self._counts_changed = True
        if self._counted_to is not None and slot_ms >= self._counted_to:
            return
        for topic_hash, number in counts.items():
            row = self._counts.get(topic_hash)
            if row is not None:
                row[1] -= number
                row[2] = now_ms

    def _count(self, unit: Unit, topic: str, now_ms: int, slot_ms: int, number: int) -> None:
        row = self._counts.setdefault(unit.topic_hash, [topic, 0, now_ms])
        if self._counted_to is None or slot_ms < self._counted_to:
            row[1] += number
            row[2] = now_ms

    @property
    def uncounted_from(self) -> int | None:
        """The first slot that has to be counted again; None if all are counted."""
        if self._counted_to is None:
            return None
        return max(self._counted_to, self.passed.read_ms)

    def count_slot(self, slot_ms: int, counts: Mapping[int, int], names: Mapping[int, str]) -> None:
        """Count the units of a slot again, the first one that is not counted."""
        for topic_hash, number in counts.items():
            row = self._counts.setdefault(topic_hash, [names.get(topic_hash, ""), 0, 0])
            row[1] += number
        self._counted_to = slot_ms + self.precision_ms
        if self._counted_to > self.latest_ms:
            self._counted_to = None

    def counts(self) -> list[Count]:
        """Return how many messages of each topic wait; topics without any are left out."""
        return [Count(*row) for row in self._counts.values() if row[0] and row[1] > 0]

    # --- the disk -------------------------------------------------------------------------------

    @property
    def has_changed(self) -> bool:
        """Whether there is something to `save`; a damaged index is not saved."""
        last = self._written
        return not self.is_damaged and (
            self._counts_changed
            or self.queue_offset != last.queue_offset
            or self._log.end != last.log_end
            or not 0 <= self.passed.read_ms - last.passed.read_ms < _SAVE_AFTER_MS
        )

    def checkpoint(self, state: int, now_ms: int) -> TimerCheckpoint:
        """Return the checkpoint of now."""
        checkpoint = TimerCheckpoint(
            *(self.passed, self._log.end, self.queue_offset, self.queue_offset, self._version),
            *(self.latest_ms, self.precision_ms),
        )
        saved = self._saved
        if saved is None or saved._replace(version=self._version) != checkpoint:
            self._version = (state, now_ms, self._version[2] + 1)
            checkpoint = checkpoint._replace(version=self._version)
            self._saved = checkpoint
        return checkpoint

    def snapshot(self, state: int, now_ms: int) -> Snapshot:
        """Return what `save` writes."""
        checkpoint = self.checkpoint(state, now_ms)
        moment = {"stateVersion": state, "timestamp": now_ms, "counter": checkpoint.version[2]}
        counts: dict[str, Any] = {
            "timingCount": {
                each.topic: {"count": each.waiting, "timeStamp": each.changed_ms}
                for each in self.counts()
            },
            "dataVersion": moment,
        }
        if self._counted_to is None:
            counts["countsAt"] = [*self.passed, self.queue_offset]
        self._counts_changed = False
        return Snapshot(checkpoint, self._wheel.take_changed(), counts, self._term)

    def save(self, snapshot: Snapshot) -> None:
        """Write a snapshot; from any thread. The log of the store is on the disk before.

        Raises:
            StoreError: the disk refused.
        """
        with self._saving:
            if snapshot.term != self._term:
                return
            try:
                end = snapshot.checkpoint.log_end
                if end > self._synced_to:
                    self._log.sync(self._synced_to, end)
                    self._synced_to = end
                self._wheel.write(snapshot.slots)
            except OSError as problem:
                raise StoreError(f"cannot write the files of the timers: {problem}") from problem
            self._checkpoint_file.overwrite(snapshot.checkpoint.encode())
            self._written = snapshot.checkpoint
            self._counts_file.save(snapshot.counts)

    def truncate(self, log_offset: int, queue_end: int, passed: Passed) -> None:
        """Forget the messages of records that are about to be truncated.

        Args:
            log_offset: the end that the log of the store gets.
            queue_end: the end that the queue gets.
            passed: which slots are passed then.

        Raises:
            StoreError: the disk refused.
        """
        with self._saving:
            self._term += 1
        try:
            position = end = self._log.end
            while (before := self._log.previous_position(position)) != NONE:
                unit = self._log.unit(before)
                if unit is None:
                    break
                if unit.log_offset >= log_offset:
                    end = before
                elif not unit.magic & AGAIN:  # units before it are of older records
                    break
                position = before
            if end < self._log.end:
                last = self._written
                self._cut(end, min(last.log_end, end), min(last.queue_offset, queue_end))
                self._counted_to = passed.read_ms
                self._counts = {key: [row[0], 0, row[2]] for key, row in self._counts.items()}
            if self.is_damaged:
                self._begin_anew(had_files=True)
        except OSError as problem:
            self._lacks_units = True  # slots may be cut already, and the queue is not
            raise StoreError(f"cannot truncate the timer log: {problem}") from problem
        self.queue_offset = min(self.queue_offset, queue_end)
        self.passed = passed._replace(queue_offset=min(passed.queue_offset, queue_end))

    def delete_before(self, log_offset: int) -> bool:
        """Delete a file of the timer log that names only deleted records; see `TimerLog`."""
        return self._log.delete_before(log_offset)

    def close(self) -> None:
        """Close the files."""
        self._checkpoint_file.close()
        self._counts_file.close()
        self._wheel.close()
        self._log.close()


def _due_ms(properties: bytes, store_ms: int, out_ms: int) -> int:
    """Return when a message is to be delivered, behind its TIMER_OUT_MS."""
    return min(max(_wanted_ms(properties, store_ms), out_ms + 1), 2**62)


def _wanted_ms(properties: bytes, store_ms: int) -> int:
    """Return when a message is to be delivered; the end of its slot is not known here."""
    seconds = number_of(value_of(properties, _DELAY_SEC))
    if seconds is not None:
        return store_ms + seconds * 1000
    millis = number_of(value_of(properties, _DELAY_MS))
    if millis is not None:
        return store_ms + millis
    at_ms = number_of(value_of(properties, _DELIVER))
    return 2**62 if at_ms is None else at_ms
