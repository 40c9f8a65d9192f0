# cython: annotation_typing=False, cdivision=True
"""The commit log: every message of every topic, one record after the other.

    log := segment of records, closed by a blank := left_bytes:i32 magic:i32 (the rest is unused)

A record never spans two segments, and 8 bytes always remain for the blank. A record begins with
its size and its magic number, which selects the size of its topic's length: one byte or two.

Records are encoded into a buffer, and `write_staged` writes them to the file, many at a time if it
can. Reads use the mapping. Writes do not, because a write of fresh pages costs the kernel a
fraction of touching them one by one in the mapping, and never waits for its read-ahead.

Single writer; `flush` may run in another thread. Source: CommitLog, RocketMQ 5.3.
"""

from __future__ import annotations

import logging
from struct import Struct
from typing import Any, Final

from cometmq.model.errors import StoreError
from cometmq.protocol import octets
from cometmq.protocol.record import MAGIC_BLANK
from cometmq.store.errors import SegmentCreateError, StoreUnavailableError
from cometmq.store.log import record_layout
from cometmq.store.log.new_record import NewRecord
from cometmq.store.log.record_scan import read_facts
from cometmq.store.log.segment_allocator import SegmentAllocator
from cometmq.store.log.segments import Segment, Segments
from cometmq.system.files import MappedFile, is_disk_full

logger = logging.getLogger(__name__)

_BLANK = Struct(">ii")
_BLANK_BYTES = 8
_PAGE_BYTES = 4096
_BUFFER_BYTES = 256 * 1024
_RECENT_BYTES = 64 * 1024 * 1024
"""The newest bytes of the log, which the page cache keeps longest."""
_FEW_BYTES = 4096
CONFIRMS_ALL: Final = 2**63 - 1
"""The confirm offset of a log whose readers wait for no replica."""


def segment_failure(problem: OSError) -> StoreError:
    """Return the error of an append whose next file cannot be created."""
    if is_disk_full(problem):
        return StoreUnavailableError(f"disk full: {problem}")
    return SegmentCreateError(f"the next commit-log file cannot be made: {problem}")


def room_failure(problem: OSError) -> StoreUnavailableError:
    """Return the error of an append for which queue or index cannot make room."""
    if is_disk_full(problem):
        return StoreUnavailableError(f"disk full: {problem}")
    return StoreUnavailableError(f"a file of a queue or of the index cannot be made: {problem}")


class CommitLog:
    """The records of a store.

    Args:
        segments: the files, already loaded.
        allocator: allocates segments ahead of need.
        shows_unsynced: whether readers see records that no sync has covered.
    """

    def __init__(
        self, segments: Segments, allocator: SegmentAllocator, *, shows_unsynced: bool = True
    ) -> None:
        self.segments = segments
        self.allocator = allocator
        self.shows_unsynced = shows_unsynced
        self.written_to = 0
        self.flushed_to = 0
        self.confirmed_to = CONFIRMS_ALL
        """Readers see no record behind it."""
        self.last_store_ms = 0
        self.filled = 0
        self._began_at = 0
        self._staged_ms = 0
        self._base = 0
        self._start = 0
        self._limit = 0
        self._allocate_next_at = 0
        self._file: MappedFile | None = None
        self._allocate_buffer(_BUFFER_BYTES)

    def min_offset(self) -> int:
        """Return the log offset of the oldest record."""
        first = self.segments.first()
        return first.base_offset if first is not None else self.written_to

    def readable_to(self) -> int:
        """Return the log offset up to which readers see records."""
        end = self.written_to if self.shows_unsynced else self.flushed_to
        return end if end < self.confirmed_to else self.confirmed_to

    def begin_at(self, offset: int) -> None:
        """Begin to write at ``offset``; all before it is on the disk."""
        self.written_to = self.flushed_to = self._began_at = offset
        segment = self.segments.find(offset)
        if segment is None:
            self._base, self._start, self._limit = offset, 0, 0
        else:
            self._write_to(segment, offset - segment.base_offset)

    def allocate_first(self) -> None:
        """Request the first segment, if there is none."""
        if self._limit == 0:
            self.allocator.request(self._next_base())

    def has_room(self, size: int) -> bool:
        """Return whether ``size`` more bytes fit, so that `make_room` need not commit."""
        return (
            self._start + self.filled + size + _BLANK_BYTES <= self._limit
            and self.filled + size <= self._buffer_bytes
        )

    def make_room(self, size: int) -> None:
        """Make room for ``size`` bytes of records; begin the next segment if they do not fit.

        Raises:
            StoreUnavailableError: the disk is full.
            SegmentCreateError: the next file cannot be created for another reason.
            OSError: earlier records cannot be committed.
        """
        if self._start + self.filled + size + _BLANK_BYTES > self._limit:
            self._roll(size)
        if self.filled + size > self._buffer_bytes:
            self.write_staged()
            if size > self._buffer_bytes:
                self._allocate_buffer(size)

    def write(self, record: NewRecord, source: Any, text: Any) -> None:
        """Encode a record for which there is room, and set its log offset.

        Until `write_staged`, it is only in ``memory``, before ``filled``.
        """
        record.log_offset = self._base + self._start + self.filled
        record_layout.write_record(self.memory, self.filled, record, source, text)
        self.filled += record.size_bytes
        self._staged_ms = record.store_time_ms

    def write_staged(self) -> None:
        """Write the staged records to the file.

        Raises:
            OSError: the disk refused; the log must not be used any more.
        """
        if self.filled == 0:
            return
        assert self._file is not None
        try:
            if self.filled <= _FEW_BYTES:  # a copy of few bytes is faster than a view
                self._file.write(self._start, octets.copy_of(self._buffer, 0, self.filled))
            else:
                self._file.write(self._start, self._view[: self.filled])
        except OSError:  # so that a later start finds no part of it
            self._file.zero(self._start, self._start + self.filled)
            raise
        self._start += self.filled
        self.filled = 0
        self.written_to = self._base + self._start
        self.last_store_ms = self._staged_ms  # after written_to: a flush records this time
        if self._start >= self._allocate_next_at:
            self._allocate_next_at = self._limit + 1
            self.allocator.request(self._base + self._limit)

    def discard(self) -> None:
        """Discard the staged records."""
        self.filled = 0

    def receive(self, offset: int, data: bytes | memoryview) -> None:
        """Write bytes of another log behind the end; they count only after `advance`.

        Args:
            offset: where they go: at ``written_to`` or behind, without a gap.
            data: the bytes, inside one file.

        Raises:
            StoreUnavailableError: the disk is full.
            SegmentCreateError: the next file cannot be created for another reason.
            OSError: the disk refused.
        """
        segment = self.segments.find(offset)
        if segment is None:
            try:
                segment = self.allocator.take(offset)
            except OSError as problem:
                raise segment_failure(problem) from problem
            self.segments.append(segment)
            self._allocate_next_at = segment.size_bytes // 8
        position = offset - segment.base_offset
        segment.file.write(position, data)
        if position >= self._allocate_next_at:
            self._allocate_next_at = segment.size_bytes + 1
            self.allocator.request(segment.end_offset)

    def advance(self, offset: int, store_ms: int) -> None:
        """Count received bytes up to ``offset``, where a record ends; appends continue there."""
        segment = self.segments.find(offset)
        if segment is None:
            self._base, self._start, self._limit = offset, 0, 0
        else:
            allocate_next_at = self._allocate_next_at
            self._write_to(segment, offset - segment.base_offset)
            self._allocate_next_at = allocate_next_at
        self.written_to = offset
        if store_ms:
            self.last_store_ms = store_ms  # after written_to: a flush records this time

    def record(self, log_offset: int, size: int) -> memoryview | None:
        """Return ``size`` bytes at an offset, or None if readers do not see all of them."""
        segment = self.segments.find(log_offset)
        if segment is None or size <= 0 or log_offset + size > self.readable_to():
            return None
        start = log_offset - segment.base_offset
        if start + size > segment.size_bytes:
            return None
        return segment.view[start : start + size]

    def slice(self, start: int, stop: int) -> memoryview:
        """Return the bytes between two offsets of one segment, which must exist."""
        segment = self.segments.find(start)
        assert segment is not None
        return segment.view[start - segment.base_offset : stop - segment.base_offset]

    def is_recent(self, log_offset: int) -> bool:
        """Return whether a record was written so recently that it is in memory."""
        return log_offset >= self._began_at and log_offset >= self.written_to - _RECENT_BYTES

    def may_be_damaged(self, log_offset: int) -> bool:
        """Return whether a record was read from the disk, which may have changed it.

        Else this process has written it, and it was in memory ever since.
        """
        if log_offset < self._began_at:
            return True
        segment = self.segments.find(log_offset)
        return segment is not None and bool(segment.file.was_brought_in)

    def properties_at(self, log_offset: int, size: int) -> bytes:
        """Return the property string of the record at an offset; empty if there is none."""
        segment = self.segments.find(log_offset)
        if segment is None:
            return b""
        facts = read_facts(segment, log_offset - segment.base_offset, False)
        return facts.properties if facts.problem is None and facts.total == size else b""

    def write_again(self, start: int) -> None:
        """Write the bytes from ``start`` on to the log once more, so that a sync covers them.

        Raises:
            OSError: the disk refused.
        """
        for segment in self.segments.items:
            stop = min(self.written_to, segment.end_offset) - segment.base_offset
            for at in range(max(0, start - segment.base_offset), stop, _BUFFER_BYTES):
                data = bytes(segment.view[at : min(at + _BUFFER_BYTES, stop)])
                segment.file.write(at, data)

    def due_pages(self) -> int:
        """Return how many pages wait for a flush."""
        return self.written_to // _PAGE_BYTES - self.flushed_to // _PAGE_BYTES

    def flush(self) -> int:
        """Sync the log; return up to which offset. From any thread, one at a time.

        Raises:
            OSError: the disk refused; what was written may be lost.
        """
        target = self.written_to
        if target > self.flushed_to:
            self.segments.sync(self.flushed_to, target)
            self.flushed_to = target
        return target

    def close(self) -> None:
        """Close all files."""
        self._file = None
        self.segments.close()

    def _roll(self, size: int) -> None:
        """Close the segment with a blank and begin the next one."""
        if size + _BLANK_BYTES > self.segments.size_bytes:
            raise SegmentCreateError(
                f"{size} bytes of records, at most {self.segments.size_bytes - _BLANK_BYTES}"
                " fit into one commit-log file"
            )
        self.write_staged()
        base = self._next_base()
        try:
            segment = self.allocator.take(base)
        except OSError as problem:
            raise segment_failure(problem) from problem
        if self._limit:
            assert self._file is not None
            try:
                self._file.write(self._start, _BLANK.pack(self._limit - self._start, MAGIC_BLANK))
            except OSError:
                self.segments.discard(segment)
                raise
        self.segments.append(segment)
        self.written_to = base
        self._write_to(segment, 0)

    def _next_base(self) -> int:
        last = self.segments.last()
        return last.end_offset if last is not None else self._base

    def _write_to(self, segment: Segment, position: int) -> None:
        self._file = segment.file
        self._base = segment.base_offset
        self._start = position
        self._limit = segment.size_bytes
        self._allocate_next_at = self._limit // 8  # beyond it the next segment is allocated

    def _allocate_buffer(self, size: int) -> None:
        self._buffer_bytes = size
        self._buffer = bytearray(size)
        self._view = memoryview(self._buffer)
        self.memory: Any = record_layout.address_of(self._buffer)
