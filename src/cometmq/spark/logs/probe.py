"""Reads single records of a log file, at any position."""

from __future__ import annotations

from struct import Struct

from cometmq.protocol.record import SYS_FLAG_AT, store_time_at
from cometmq.spark.logs.places import LogFile, LogPlace
from cometmq.spark.logs.resync import blank_size, next_record, record_size
from cometmq.spark.logs.windows import Window

_PROBE_BYTES = 64 * 1024
_I32, _I64 = Struct(">i"), Struct(">q")


class Probe:
    """Looks at single records of one file; closes the file in the end."""

    def __init__(self, place: LogPlace, file: LogFile) -> None:
        self._file = file
        self._opened = place.open(file)
        self._window = Window(self._opened, file.size, _PROBE_BYTES)

    def __enter__(self) -> Probe:
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    def begins_at(self, position: int) -> bool:
        """Return whether a record, or the blank at the file's end, begins at a position."""
        return self.next(position, position + 1) == position

    def next(self, position: int, stop: int) -> int:
        """Return where the next record or blank begins; ``stop`` if none does before."""
        self._window.move(position)
        return next_record(self._window, self._file.base_offset, self._file.size, position, stop)

    def size_at(self, position: int) -> int:
        """Return the size of the record that begins at a position; 0 if none does."""
        return record_size(self._window, position) if self.begins_at(position) else 0

    def record_at(self, position: int) -> memoryview | None:
        """Return the record that begins at a position, up to the next call; None if none does."""
        size, window = self.size_at(position), self._window
        if not size or blank_size(window, position):
            return None
        at = position - window.start
        return window.data[at : at + size]

    def store_time_ms(self, position: int) -> int | None:
        """Return when the record at a position was stored, None for a blank."""
        window = self._window
        if blank_size(window, position):
            return None
        at = position - window.start
        (sys_flag,) = _I32.unpack_from(window.data, at + SYS_FLAG_AT)
        return int(_I64.unpack_from(window.data, at + store_time_at(sys_flag))[0])
