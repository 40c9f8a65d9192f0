"""The timer wheel: a ring of slots of time, each with the units that are due in it.

    slot  := time:i64 first:i64 last:i64 count:i32 check:u32  time = its beginning / precision
    wheel := slots for 14 days of seconds; the slot of a time is at time / precision modulo their
             number

A slot of another time is empty. `first` and `last` are positions in the timer log; `count` is one
more for each message, and one less for each recall. `check` is a checksum with the lowest bit set.
RocketMQ writes 0 in new slots, and leaves it as it is in others.

Changed slots stay in memory until `write` puts them into the file, once the units that they name
are on the disk. So no slot of the file ever names a unit that a crash has lost.

Source: TimerWheel and Slot, RocketMQ 5.3.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from struct import Struct
from typing import Final, NamedTuple
from zlib import crc32

from cometmq.system.files import Files, MappedFile

SLOT_MS_MAX: Final = 1000
"""The longest slot: TIMER_OUT_MS may be so much before the time of a message."""
SLOTS: Final = 2 * 7 * 24 * 3600
_SLOT: Final = Struct(">qqqiI")
_CHECKED_BYTES: Final = 28
WHEEL_BYTES: Final = SLOTS * _SLOT.size


class Slot(NamedTuple):
    """The units of one slot."""

    first: int
    last: int
    number: int


class TimerWheel:
    """The slots.

    Args:
        files: where the file is.
        path: ``timerwheel``.
        precision_ms: the length of a slot.
    """

    def __init__(self, files: Files, path: Path, precision_ms: int) -> None:
        self._files = files
        self._path = path
        self.precision_ms = precision_ms
        self._file: MappedFile | None = None
        self._changed: dict[int, bytes] = {}
        self._writing: dict[int, bytes] = {}
        self.is_damaged = False
        """Whether a slot of the file was not what was written."""

    def load(self) -> bool:
        """Map the file; return False if there is none of the right size.

        Raises:
            OSError: the disk refused.
        """
        found = {entry.name: entry for entry in self._files.entries(self._path.parent)}
        entry = found.get(self._path.name)
        if entry is None or entry.size_bytes != WHEEL_BYTES:
            return False
        self._file = self._files.open_mapped(self._path, WHEEL_BYTES)
        self._file.advise_random()
        return True

    def create(self) -> None:
        """Make an empty file.

        Raises:
            OSError: the disk refused.
        """
        self.close()
        self._forget()
        self._file = self._files.open_mapped(self._path, WHEEL_BYTES, create=True)
        self._files.sync_dir(self._path.parent)

    def remove(self) -> None:
        """Remove the file, if there is one, and all slots; no crash brings it back.

        Raises:
            OSError: the disk refused; another call tries again.
        """
        self.close()
        self._forget()
        self._files.remove(self._path)
        self._files.sync_dir(self._path.parent)

    def _forget(self) -> None:
        self._changed, self._writing = {}, {}
        self.is_damaged = False

    def floor(self, time_ms: int) -> int:
        """Return when the slot of a time begins."""
        return time_ms - time_ms % self.precision_ms

    def get(self, slot_ms: int) -> Slot | None:
        """Return the slot that begins at a time; None if it is empty."""
        if self._file is None:
            return None
        time = slot_ms // self.precision_ms
        index = time % SLOTS
        data = self._changed.get(index) or self._writing.get(index)
        if data is None:
            at = index * _SLOT.size
            data = bytes(self._file.map[at : at + _SLOT.size])
            if not _is_sound(data):
                self.is_damaged = True
                return None
        found = _SLOT.unpack(data)
        return Slot(*found[1:4]) if found[0] == time else None

    def is_checked(self, slot_ms: int) -> bool:
        """Return whether a slot has a checksum: RocketMQ has not made it."""
        if self._file is None:
            return False
        index = slot_ms // self.precision_ms % SLOTS
        data = self._changed.get(index) or self._writing.get(index)
        return data is not None or _SLOT.unpack_from(self._file.map, index * _SLOT.size)[-1] != 0

    def put(self, slot_ms: int, slot: Slot) -> None:
        """Set the slot that begins at a time; `write` puts it into the file."""
        time = slot_ms // self.precision_ms
        self._changed[time % SLOTS] = _encoded(time, slot)

    def clear(self, slot_ms: int) -> None:
        """Make a slot empty."""
        self._changed[slot_ms // self.precision_ms % SLOTS] = bytes(_SLOT.size)

    def take_changed(self) -> dict[int, bytes]:
        """Return the changed slots; they still count until `write` has them in the file."""
        self._writing = {**self._writing, **self._changed}
        self._changed = {}
        return self._writing

    def write(self, changed: dict[int, bytes]) -> None:
        """Put changed slots into the file, and sync it; from any thread.

        Raises:
            OSError: the disk refused; the next `take_changed` has them again.
        """
        if self._file is None or not changed:
            return
        run_at, run = -2, bytearray()
        for index in sorted(changed):
            if index != run_at + len(run) // _SLOT.size:
                if run:
                    self._file.write(run_at * _SLOT.size, bytes(run))
                run_at, run = index, bytearray()
            run += changed[index]
        self._file.write(run_at * _SLOT.size, bytes(run))
        self._file.sync()
        if self._writing is changed:
            self._writing = {}

    def sync(self) -> None:
        """Return when all that is in the file is on the disk.

        Raises:
            OSError: it may not be.
        """
        if self._file is not None:
            self._file.sync()

    def filled(self, from_ms: int) -> Iterator[tuple[int, Slot]]:
        """Yield the beginning and the units of each slot in the file from a time on."""
        if self._file is None:
            return
        for start, stop in self._file.data_ranges(0, WHEEL_BYTES):
            first, last = start // _SLOT.size, -(-stop // _SLOT.size)
            data = self._file.map[first * _SLOT.size : last * _SLOT.size]
            for time, *rest, _ in _SLOT.iter_unpack(data):
                if time * self.precision_ms >= from_ms > 0 < time:
                    yield time * self.precision_ms, Slot(*rest)

    def check_again(self) -> None:
        """Make the checksums again of slots that RocketMQ has changed."""
        if self._file is None:
            return
        for start, stop in self._file.data_ranges(0, WHEEL_BYTES):
            for index in range(start // _SLOT.size, -(-stop // _SLOT.size)):
                at = index * _SLOT.size
                data = bytes(self._file.map[at : at + _SLOT.size])
                if not _is_sound(data):
                    time, *rest, _ = _SLOT.unpack(data)
                    self._changed[index] = _encoded(time, Slot(*rest))

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None


def _encoded(time: int, slot: Slot) -> bytes:
    data = _SLOT.pack(time, *slot, 0)
    return data[:_CHECKED_BYTES] + _check_of(data).to_bytes(4, "big")


def _check_of(data: bytes) -> int:
    return crc32(data[:_CHECKED_BYTES]) | 1


def _is_sound(data: bytes) -> bool:
    """Return whether a slot is as it was written; one without a checksum counts as sound."""
    check = int.from_bytes(data[_CHECKED_BYTES:], "big")
    return check == 0 or check == _check_of(data)
