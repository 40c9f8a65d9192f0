"""The timer log: one unit for each message that waits, linked by the slot in which it is due.

    unit := size:i32 (52) previous:i64 magic:i32 written_ms:i64 delay_ms:i32 log_offset:i64
            record_size:i32 topic_hash:i32 due_ms:i64
    magic := 1, + 2 for a message that is stored again before it is due, + 4 for a recall,
             + 8 for a second unit of a message that came when its slot was passed elsewhere
    blank := rest:i32 0:i64 0xCBD43194:i32, at the end of a file, where no unit fits

`previous` is the position of the unit before it in its slot, -1 for none. The slot begins at
written_ms + delay_ms. RocketMQ reserves the last field and writes 0, which stands for the end of
the slot.

Source: TimerLog and TimerMessageStore.doEnqueue, RocketMQ 5.3.
"""

from __future__ import annotations

from pathlib import Path
from struct import Struct
from typing import Final, NamedTuple

from cometmq.store.errors import StoreUnavailableError
from cometmq.store.log.segments import Segment, Segments
from cometmq.system.files import Files, reserve_ahead

DEFAULT, ROLL, DELETE, AGAIN = 1, 2, 4, 8
UNIT_BYTES: Final = 52
NONE: Final = -1
"""The position of no unit."""
_UNIT: Final = Struct(">iqiqiqiiq")
_BLANK: Final = Struct(">iqI")
_BLANK_MAGIC: Final = 0xCBD43194
_MAGIC_MAX: Final = 0xF
_RESERVED_BYTES: Final = 1024 * 1024
"""Space on the disk is reserved in such steps."""
LOOKED_AT_MAX: Final = 5_000
"""Units that one call looks at: about a millisecond."""


class Unit(NamedTuple):
    """One unit of the timer log."""

    previous: int
    magic: int
    written_ms: int
    delay_ms: int
    log_offset: int
    record_bytes: int
    topic_hash: int
    due_ms: int

    @property
    def slot_ms(self) -> int:
        """When its slot begins."""
        return self.written_ms + self.delay_ms

    @property
    def rolls(self) -> bool:
        """Whether its message is stored again instead of delivered."""
        return self.magic & ROLL != 0

    @property
    def recalls(self) -> bool:
        """Whether its message recalls another one of the slot."""
        return self.magic & (ROLL | DELETE) == DELETE


class TimerLog:
    """The units of all messages, in the order of the queue.

    Args:
        files: where they are.
        directory: ``timerlog``.
        file_bytes: the size of new files; existing ones keep theirs.
    """

    def __init__(self, files: Files, directory: Path, file_bytes: int) -> None:
        self._segments = Segments(files, directory, file_bytes, keep_open=True)
        self.end = 0
        """The position of the next unit."""
        self._reserved_to = 0
        self._deletable_to = 0
        """All units before this position are of deleted records."""

    def load(self) -> None:
        """Map the files; damaged ones are deleted, because the queue has the messages."""
        self._segments.load(may_be_lost=True)
        self.end = self._reserved_to = self.start

    @property
    def start(self) -> int:
        """The position of the first unit."""
        return max(0, self._segments.first_base())

    @property
    def file_bytes(self) -> int:
        """The size of a file."""
        return self._segments.size_bytes

    def append(self, unit: Unit) -> int:
        """Append a unit; return its position.

        Raises:
            StoreUnavailableError: the disk is full or broken.
        """
        try:
            segment = self._room()
            at = self.end - segment.base_offset
            segment.file.map[at : at + UNIT_BYTES] = _UNIT.pack(UNIT_BYTES, *unit)
        except OSError as problem:
            raise StoreUnavailableError(f"cannot write the timer log: {problem}") from problem
        position = self.end
        self.end += UNIT_BYTES
        return position

    def _room(self) -> Segment:
        """Return the file of the next unit, with space on the disk for it."""
        segments = self._segments
        segment = segments.find(self.end)
        if segment is not None and segment.end_offset - self.end < UNIT_BYTES + _BLANK.size:
            rest = segment.end_offset - self.end
            if rest >= _BLANK.size:
                at = self.end - segment.base_offset
                segment.file.reserve(at, at + _BLANK.size)
                segment.file.map[at : at + _BLANK.size] = _BLANK.pack(rest, 0, _BLANK_MAGIC)
            self.end, segment = segment.end_offset, segments.find(segment.end_offset)
        if segment is None:
            segment = segments.add(self.end)
            self._reserved_to = self.end
        if self.end + UNIT_BYTES > self._reserved_to:
            base = segment.base_offset
            at = self.end - base
            ahead = min(at + _RESERVED_BYTES, segment.size_bytes)
            self._reserved_to = base + reserve_ahead(
                segment.file.reserve, at, at + UNIT_BYTES, ahead
            )
        return segment

    def unit(self, position: int) -> Unit | None:
        """Return the unit at a position; None if there is none."""
        segment = self._segments.find(position)
        if segment is None or position < 0 or position + UNIT_BYTES > segment.end_offset:
            return None
        size, *fields = _UNIT.unpack_from(segment.file.map, position - segment.base_offset)
        unit = Unit(*fields)
        if size != UNIT_BYTES or not 0 < unit.magic <= _MAGIC_MAX or unit.previous >= position:
            return None
        return unit

    def fitting(self, position: int) -> int:
        """Return where the first unit begins that may be at a position or behind it."""
        size = self.file_bytes
        rest = -position % size
        return position + rest if 0 < rest < UNIT_BYTES + _BLANK.size else position

    def previous_position(self, position: int) -> int:
        """Return where the unit before a position begins, over the end of a file; -1 for none."""
        if position <= self.start:
            return NONE
        size = self.file_bytes
        base = position - position % size
        if base == position:  # the last unit of the file before
            base -= size
            return base + ((size - _BLANK.size) // UNIT_BYTES - 1) * UNIT_BYTES
        return position - UNIT_BYTES

    def truncate(self, position: int) -> None:
        """Remove the units from a position on; they are removed on the disk, too.

        Raises:
            OSError: the disk refused.
        """
        self._segments.truncate(position)
        self.end = self._reserved_to = position
        self._deletable_to = min(self._deletable_to, position)

    def sync(self, start: int, stop: int) -> None:
        """Return when the units between two positions are on the disk; from any thread.

        Raises:
            OSError: they may not be.
        """
        self._segments.sync(start, stop)

    def delete_before(self, log_offset: int) -> bool:
        """Delete the oldest file if all its units are of records before a log offset.

        The records are not in the order of the units: a message may be put into a later slot again.

        Returns:
            Whether to call it again: it looks at some units only.
        """
        if self._segments.count <= 1:
            return False
        begin = max(self._deletable_to, self.start)
        stop = self.start + self.file_bytes
        count = min((stop - begin - _BLANK.size) // UNIT_BYTES, LOOKED_AT_MAX)
        if count <= 0:
            self._segments.drop_first()
            return True
        segment = self._segments.items[0]
        at = begin - segment.base_offset
        units = _UNIT.iter_unpack(segment.file.map[at : at + count * UNIT_BYTES])
        kept = (
            n for n, unit in enumerate(units) if unit[0] == UNIT_BYTES and unit[5] >= log_offset
        )
        found = next(kept, None)
        self._deletable_to = begin + (count if found is None else found) * UNIT_BYTES
        return found is None

    def close(self) -> None:
        """Close the files."""
        self._segments.close()
