# cython: annotation_typing=False, cdivision=True
"""The commit log: every message of every topic, one record after the other.

    log := segment of records, closed by a blank := left_bytes:i32 magic:i32 (the rest is left)

A record never spans two segments, and 8 bytes always remain for the blank. A record begins with
its size and its magic number, which says whether its topic's length takes one byte or two.

Records are put together in memory of our own and go to the file by `commit`, many at a time where
many are at hand: a write of fresh pages costs the kernel a fraction of what touching them one by
one in the mapping does, and never stalls for its read-ahead. Reading is by the mapping.

Single writer; `flush` may run in another thread. Source: CommitLog, RocketMQ 5.3; that the next
segment is made ahead of time is ours in the way it is done.
"""

from __future__ import annotations

import logging
from struct import Struct
from typing import Any

from cometmq.model.errors import StoreError
from cometmq.protocol import octets
from cometmq.protocol.record import MAGIC_BLANK
from cometmq.store import record_layout
from cometmq.store.errors import SegmentCreateError, StoreUnavailableError
from cometmq.store.record_scan import read_facts
from cometmq.store.segment_allocator import SegmentAllocator
from cometmq.store.segments import Segment, Segments
from cometmq.system.files import MappedFile, is_disk_full

logger = logging.getLogger(__name__)

_BLANK = Struct(">ii")
_BLANK_BYTES = 8
_PAGE_BYTES = 4096
_SPACE_BYTES = 256 * 1024
_RECENT_BYTES = 64 * 1024 * 1024
"""Of what was written last, which the page cache keeps longer than anything else."""
_FEW_BYTES = 4096


def segment_failure(problem: OSError) -> StoreError:
    """Return the error of an append whose next file cannot be made."""
    if is_disk_full(problem):
        return StoreUnavailableError(f"disk full: {problem}")
    return SegmentCreateError(f"the next commit-log file cannot be made: {problem}")


class CommitLog:
    """The records of a store.

    Args:
        segments: the files, already loaded.
        allocator: makes segments ahead of need.
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
        self.last_store_ms = 0
        self.filled = 0
        self._began_at = 0
        self._staged_ms = 0
        self._base = 0
        self._start = 0
        self._limit = 0
        self._notice_at = 0
        self._file: MappedFile | None = None
        self._make_space(_SPACE_BYTES)

    def min_offset(self) -> int:
        """Return where the oldest record that is kept begins."""
        first = self.segments.first()
        return first.base_offset if first is not None else self.written_to

    def readable_to(self) -> int:
        """Return the log offset up to which readers see records."""
        return self.written_to if self.shows_unsynced else self.flushed_to

    def begin_at(self, offset: int) -> None:
        """Go on writing at ``offset``, all before it being on the disk."""
        self.written_to = self.flushed_to = self._began_at = offset
        segment = self.segments.find(offset)
        if segment is None:
            self._base, self._start, self._limit = offset, 0, 0
        else:
            self._enter(segment, offset - segment.base_offset)

    def allocate_first(self) -> None:
        """Have the first segment made, if there is none."""
        if self._limit == 0:
            self.allocator.want(self._next_base())

    def has_room(self, size: int) -> bool:
        """Return whether `make_room` has nothing to do, so that nothing needs to be committed."""
        return (
            self._start + self.filled + size + _BLANK_BYTES <= self._limit
            and self.filled + size <= self._space_bytes
        )

    def make_room(self, size: int) -> None:
        """Make sure that ``size`` bytes of records fit into the segment, rolling if they don't.

        Raises:
            StoreUnavailableError: the disk is full.
            SegmentCreateError: the next file cannot be made for another reason.
            OSError: what was written before cannot be committed.
        """
        if self._start + self.filled + size + _BLANK_BYTES > self._limit:
            self._roll(size)
        if self.filled + size > self._space_bytes:
            self.commit()
            if size > self._space_bytes:
                self._make_space(size)

    def write(
        self,
        total: int,
        magic: int,
        crc: int,
        queue_id: int,
        flag: int,
        queue_offset: int,
        sys_flag: int,
        born_ms: int,
        born_host: bytes,
        store_ms: int,
        store_host: bytes,
        reconsumed: int,
        prepared_offset: int,
        source: Any,
        body_at: int,
        body_bytes: int,
        topic_field: bytes,
        text: Any,
        text_at: int,
        text_bytes: int,
        more: bytes,
        properties_bytes: int,
    ) -> int:
        """Put together a record of ``total`` bytes, for which there is room; return where it goes.

        See `record_layout.write_record` for what it is made of. Until `commit`, the record lies
        before ``filled`` in ``memory``, and nowhere else.
        """
        log_offset = self._base + self._start + self.filled
        record_layout.write_record(
            self.memory,
            self.filled,
            total,
            magic,
            crc,
            queue_id,
            flag,
            queue_offset,
            log_offset,
            sys_flag,
            born_ms,
            born_host,
            store_ms,
            store_host,
            reconsumed,
            prepared_offset,
            source,
            body_at,
            body_bytes,
            topic_field,
            text,
            text_at,
            text_bytes,
            more,
            properties_bytes,
        )
        self.filled += total
        self._staged_ms = store_ms
        return log_offset

    def commit(self) -> None:
        """Write to the file what was put together since the last time.

        Raises:
            OSError: the disk refused; nobody must go on with this log.
        """
        if self.filled == 0:
            return
        assert self._file is not None
        try:
            if self.filled <= _FEW_BYTES:  # a copy of few is quicker than a view of them
                self._file.write(self._start, octets.copy_of(self._space, 0, self.filled))
            else:
                self._file.write(self._start, self._view[: self.filled])
        except OSError:  # no part of it may be found there later
            self._file.zero(self._start, self._start + self.filled)
            raise
        self._start += self.filled
        self.filled = 0
        self.written_to = self._base + self._start
        self.last_store_ms = self._staged_ms  # after it: a flush vouches for this time
        if self._start >= self._notice_at:
            self._notice_at = self._limit + 1
            self.allocator.want(self._base + self._limit)

    def discard(self) -> None:
        """Forget what was put together since the last commit."""
        self.filled = 0

    def record(self, log_offset: int, size: int) -> memoryview | None:
        """Return ``size`` bytes at an offset, or None where readers see no such run."""
        segment = self.segments.find(log_offset)
        if segment is None or size <= 0 or log_offset + size > self.readable_to():
            return None
        start = log_offset - segment.base_offset
        if start + size > segment.size_bytes:
            return None
        return segment.view[start : start + size]

    def slice(self, start: int, stop: int) -> memoryview:
        """Return the bytes between two offsets of one segment, known to be there."""
        segment = self.segments.find(start)
        assert segment is not None
        return segment.view[start - segment.base_offset : stop - segment.base_offset]

    def is_recent(self, log_offset: int) -> bool:
        """Return whether a record was written so recently that it is surely in memory."""
        return log_offset >= self._began_at and log_offset >= self.written_to - _RECENT_BYTES

    def next_base_after(self, offset: int) -> int:
        """Return where the segment after the one that ``offset`` is in begins."""
        size = self.segments.size_bytes
        return offset - offset % size + size

    def properties_at(self, log_offset: int, size: int) -> bytes:
        """Return the property string of the record at an offset; empty where it is none."""
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
            for at in range(max(0, start - segment.base_offset), stop, _SPACE_BYTES):
                data = bytes(segment.view[at : min(at + _SPACE_BYTES, stop)])
                segment.file.write(at, data)

    def due_pages(self) -> int:
        """Return how many pages wait for a flush."""
        return self.written_to // _PAGE_BYTES - self.flushed_to // _PAGE_BYTES

    def flush(self) -> int:
        """Sync what was written; return up to where. From any thread, one at a time.

        Raises:
            OSError: the disk refused; what was written may be lost.
        """
        target = self.written_to
        if target > self.flushed_to:
            self.segments.sync(self.flushed_to, target)
            self.flushed_to = target
        return target

    def _roll(self, size: int) -> None:
        """Close the segment with a blank and go on in the next one."""
        if size + _BLANK_BYTES > self.segments.size_bytes:
            raise SegmentCreateError(
                f"{size} bytes of records, at most {self.segments.size_bytes - _BLANK_BYTES}"
                " fit into one commit-log file"
            )
        self.commit()
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
        self.segments.adopt(segment)
        self.written_to = base
        self._enter(segment, 0)

    def _next_base(self) -> int:
        last = self.segments.last()
        return last.end_offset if last is not None else self._base

    def _enter(self, segment: Segment, position: int) -> None:
        self._file = segment.file
        self._base = segment.base_offset
        self._start = position
        self._limit = segment.size_bytes
        self._notice_at = self._limit // 8  # from there on, have the next segment made

    def _make_space(self, size: int) -> None:
        self._space_bytes = size
        self._space = bytearray(size)
        self._view = memoryview(self._space)
        self.memory: Any = record_layout.address_of(self._space)
