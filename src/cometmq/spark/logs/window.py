"""A part of a log file in memory, which moves over the file as records are read.

Memory is bounded by the window, not by the file: one record that is larger makes the window as
large as the record. Files are read, not mapped, so that one that is truncated while it is read is
an error and not the end of the process.

Every record carries its own physical offset, so four bytes of magic and eight of the right offset
are found only where a record begins, unless a body was made to look like one on purpose. The layout
is that of `cometmq.protocol.record`.
"""

from __future__ import annotations

from struct import Struct

from cometmq.protocol.record import (
    LOG_OFFSET_AT,
    MAGIC_AT,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    RECORD_BYTES_MIN,
    SYS_FLAG_AT,
    RecordError,
    split_record,
    store_time_at,
)
from cometmq.spark.batches import Decoded, RecordDecoder
from cometmq.spark.logs.files import LogFile, is_remote

PROBE_BYTES = 64 * 1024
"""Enough for most single records."""
WINDOW_BYTES = {False: 1024 * 1024, True: 16 * 1024 * 1024}
"""Local: small enough to stay in the processor's cache between reading and decoding. Remote: large
enough for object storage to deliver at full speed."""
_START = Struct(">ii")
_I32, _I64 = Struct(">i"), Struct(">q")
_MAGIC_COMMON = (MAGIC_V1 & 0xFFFFFFFF).to_bytes(4, "big")[:3]
_BLANK = (MAGIC_BLANK & 0xFFFFFFFF).to_bytes(4, "big")
_MAGIC_END = MAGIC_AT + 4


class Window:
    """The bytes of a file from ``start`` to ``end``; closes the file in the end.

    Positions are counted from the begin of the file.

    Args:
        file: to read from.
        window_bytes: how much to read at once; what suits the file system by default.
    """

    def __init__(self, file: LogFile, window_bytes: int | None = None) -> None:
        self.file = file
        self.start = 0
        self.data = b""
        self._window_bytes = window_bytes or WINDOW_BYTES[is_remote(file.filesystem)]
        self._opened = file.filesystem.open_input_file(file.path)

    def __enter__(self) -> Window:
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    @property
    def end(self) -> int:
        """The position after the window."""
        return self.start + len(self.data)

    def holds(self, position: int, size: int) -> bool:
        """Return whether so many bytes at a position are all in the window."""
        return self.start <= position and position + size <= self.end

    def move(self, position: int, least_bytes: int = 0) -> None:
        """Read from a position on; less than ``least_bytes`` only at the file's end."""
        size = min(max(least_bytes, self._window_bytes), self.file.size - position)
        self.data = b""  # before the next bytes are read, for there may be many
        self.data = self._opened.read_at(max(size, 0), position)
        self.start = position

    def load(self, position: int, size: int) -> bool:
        """Move if the window does not hold these bytes; return whether it does then."""
        if not self.holds(position, size):
            self.move(position, size)
        return self.holds(position, size)

    def load_record(self, position: int) -> bool:
        """Load the record that goes on behind the window; return False if the file ends before."""
        size = self.record_size(position) if self.end < self.file.size else self.file.size
        return position + size <= self.file.size and self.load(position, max(size, _START.size))

    def decode(
        self,
        decoder: RecordDecoder,
        position: int,
        stop: int,
        topics: frozenset[bytes] | None = None,
    ) -> Decoded:
        """Decode records of the window; also the position where to go on is one in the file."""
        start = self.start
        decoded = decoder.batch(
            self.data,
            position - start,
            stop - start,
            topics=topics,
            log_base=self.file.base_offset + start,
        )
        return decoded._replace(position=start + decoded.position)

    def record_size(self, position: int) -> int:
        """Return the size that stands at a position; 0 if the file ends before."""
        if not self.load(position, _I32.size):
            return 0
        return int(_I32.unpack_from(self.data, position - self.start)[0])

    def is_filler(self, position: int) -> bool:
        """Return whether the filler that closes a file begins at a position."""
        if not self.load(position, _START.size):
            return False
        size, magic = _START.unpack_from(self.data, position - self.start)
        return bool(magic == MAGIC_BLANK and size == self.file.size - position)

    def store_time_ms(self, position: int) -> int | None:
        """Return when the record that begins at a position was stored, None for a filler."""
        if self.is_filler(position):
            return None
        at = position - self.start
        (sys_flag,) = _I32.unpack_from(self.data, at + SYS_FLAG_AT)
        return int(_I64.unpack_from(self.data, at + store_time_at(sys_flag))[0])

    def begins_at(self, position: int) -> bool:
        """Return whether a whole record or the filler begins at a position."""
        return self.next_record(position, position + 1) == position

    def next_record(self, position: int, stop: int) -> int:
        """Return where the next record or the filler begins; ``stop`` if none does before."""
        while position < stop and self.load(position, _MAGIC_END):
            found = [self._find(magic, position) for magic in (_MAGIC_COMMON, _BLANK)]
            at = min((each for each in found if each >= 0), default=-1)
            if at >= stop or (at < 0 and self.end >= self.file.size):
                return stop
            if at < 0:
                position = self.end - _MAGIC_END + 1
                self.move(position)
            elif self._begins(at):
                return at
            else:
                position = at + 1
        return stop

    def _find(self, magic: bytes, position: int) -> int:
        """Return where something begins in the window that has a magic number, -1 for nowhere."""
        at = self.data.find(magic, position + MAGIC_AT - self.start)
        return at if at < 0 else self.start + at - MAGIC_AT

    def _begins(self, position: int) -> bool:
        if not self.load(position, _START.size):
            return False
        if self.is_filler(position):
            return True
        size, magic = _START.unpack_from(self.data, position - self.start)
        if magic not in (MAGIC_V1, MAGIC_V2) or size > self.file.size - position:
            return False
        if not self.load(position, RECORD_BYTES_MIN):
            return False
        (log_offset,) = _I64.unpack_from(self.data, position - self.start + LOG_OFFSET_AT)
        if log_offset != self.file.base_offset + position or not self.load(position, size):
            return False
        try:
            split_record(self.data, position - self.start)
        except RecordError:
            return False
        return True
