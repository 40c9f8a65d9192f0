# cython: annotation_typing=False, cdivision=True
"""A consume queue: for each message of one topic queue, where its record is in the commit log.

    unit n (at byte 20 * n) := log_offset:i64 size:i32 tags_code:i64     filler := 0, 2**31 - 1, 0

``tags_code`` is the hash of the message's tags, a time of delivery in the delay topic, or the
address of an extension unit. All of it can be made again from the commit log.
Single writer. Source: ConsumeQueue, RocketMQ 5.3; a cut tail is zeroed, which is ours.
"""

from __future__ import annotations

import logging
from typing import Any

from cometmq.store import raw
from cometmq.store.consume_queue_ext import ConsumeQueueExt
from cometmq.store.segments import Segment, Segments

logger = logging.getLogger(__name__)

UNIT_BYTES = 20
FILLER_SIZE = 0x7FFFFFFF
_UNIT_BYTES = UNIT_BYTES  # a C number once compiled
_PAGE_BYTES = 4096
_RESERVE_BYTES = 16 * 1024


class ConsumeQueue:
    """The units of one queue of a topic.

    Args:
        topic: its name.
        queue_id: the queue's number.
        segments: the files, not yet loaded.
        ext: the queue's extension units, if it has any.
    """

    _memory: Any
    """Of the newest segment; set as soon as there is room in one."""

    def __init__(
        self, topic: str, queue_id: int, segments: Segments, ext: ConsumeQueueExt | None = None
    ) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.segments = segments
        self.ext = ext
        self.min_offset = 0
        self.max_offset = 0
        self.max_physical = 0
        self.flushed_offset = 0
        self._position = 0
        self._room_end = 0

    def load(self) -> None:
        """Map the files and find the last unit; see `Segments.load` for what it raises."""
        self.segments.load()
        if self.ext is not None:
            self.ext.load()
        self._find_end()

    def make_room(self, units: int) -> None:
        """Make sure that ``units`` more can be written without asking the disk.

        Raises:
            OSError: the disk is full or broken; nothing has changed.
        """
        if self._position + units * _UNIT_BYTES > self._room_end:
            self._reserve(units)

    def put(
        self, queue_offset: int, log_offset: int, size: int, tags_code: int, store_ms: int
    ) -> None:
        """Append the unit of a message; one that is already there is left as it is.

        Args:
            queue_offset: as in the record; the next one, unless the log is dispatched again.
            log_offset: where the record is.
            size: of the record.
            tags_code: what consumers filter by.
            store_ms: when it was stored.
        """
        if log_offset + size <= self.max_physical:
            return
        if queue_offset != self.max_offset:
            self._jump(queue_offset)
        if self._position + _UNIT_BYTES > self._room_end:
            self._reserve(1)
        if self.ext is not None:
            tags_code = self.ext.put(tags_code, store_ms)
        raw.write_unit(self._memory, self._position, log_offset, size, tags_code)
        self._position += _UNIT_BYTES
        self.max_offset += 1
        self.max_physical = log_offset + size

    def unit(self, queue_offset: int) -> tuple[int, int, int]:
        """Return log offset, size and tags code or address of a unit between the bounds."""
        segment = self.segments.find(queue_offset * _UNIT_BYTES)
        if segment is None:
            raise IndexError(f"{self.topic}-{self.queue_id} has no unit {queue_offset}")
        position = queue_offset * _UNIT_BYTES - segment.base_offset
        return raw.read_unit(segment.memory, position)

    def tags_code_of(self, code: int) -> int:
        """Return the tags code that a unit's last field stands for, an address resolved."""
        if self.ext is not None and code < 0:
            return self.ext.tags_code_of(code)
        return code

    def first_at_or_after(self, log_offset: int) -> int:
        """Return the first queue offset whose record is at ``log_offset`` or later."""
        first = self.segments.first()
        low = first.base_offset // _UNIT_BYTES if first is not None else self.max_offset
        high = self.max_offset
        while low < high:
            middle = (low + high) // 2
            found, size, _ = self.unit(middle)
            if found < log_offset or size == FILLER_SIZE:
                low = middle + 1
            else:
                high = middle
        return low

    def correct_min(self, log_min: int) -> None:
        """Move the least offset past the units whose records are gone from the log."""
        self.min_offset = self.first_at_or_after(log_min)
        if self.ext is not None and self.min_offset < self.max_offset:
            self.ext.cut_before(self.unit(self.min_offset)[2])

    def cut(self, log_end: int) -> None:
        """Take off the units of records that end after ``log_end``; the log does not have them.

        What follows the last unit becomes zero, files behind it go.
        """
        end = self.max_offset
        first = self.segments.first()
        least = first.base_offset // _UNIT_BYTES if first is not None else end
        while end > least:
            log_offset, size, _ = self.unit(end - 1)
            if size == FILLER_SIZE or log_offset + size <= log_end:
                break
            end -= 1
        erased = self._cut_files(end * _UNIT_BYTES)
        if end < self.max_offset or erased:
            logger.info(
                "queue truncated topic=%s queue=%d from=%d to=%d erased_bytes=%d",
                *(self.topic, self.queue_id, self.max_offset, end, erased),
            )
        self._find_end()
        if self.ext is not None and end > least:
            self.ext.cut_after(self.unit(end - 1)[2])

    def forget_beyond(self, log_end: int) -> None:
        """Show the units of records that end after ``log_end`` no more; nothing may follow.

        Unlike `cut` it asks nothing of the disk; the next start does.
        """
        while self.max_offset > self.min_offset:
            log_offset, size, _ = self.unit(self.max_offset - 1)
            if size == FILLER_SIZE or log_offset + size <= log_end:
                break
            self.max_offset -= 1

    def ends_in_last_file(self) -> bool:
        """Return whether no file follows the one that the last unit is in."""
        last = self.segments.last()
        return last is None or last.base_offset <= self.max_offset * _UNIT_BYTES

    def drop_before(self, log_min: int) -> int:
        """Delete the files whose records are all gone; the newest file stays.

        Returns:
            How many were deleted.
        """
        dropped = 0
        while len(self.segments.items) > 1:
            last_of_first = self.segments.items[0].end_offset // _UNIT_BYTES - 1
            log_offset, size, _ = self.unit(last_of_first)
            if log_offset >= log_min and size != FILLER_SIZE:
                break
            self.segments.drop_first()
            dropped += 1
        return dropped

    def flush(self, least_pages: int = 0) -> bool:
        """Sync what was written, if it is at least ``least_pages``; from any thread.

        Raises:
            OSError: the disk refused.
        """
        end = self.max_offset
        start = self.flushed_offset * _UNIT_BYTES
        stop = end * _UNIT_BYTES
        if stop // _PAGE_BYTES - start // _PAGE_BYTES < least_pages or start == stop:
            return False
        self.segments.sync(start, stop)
        if self.ext is not None:
            self.ext.flush()
        self.flushed_offset = end
        return True

    def delete(self) -> None:
        """Delete all files."""
        self.segments.drop_from(0)
        if self.ext is not None:
            self.ext.delete()
        self._find_end()

    def close(self) -> None:
        """Let go of all files."""
        self.segments.close()
        if self.ext is not None:
            self.ext.close()
        self._room_end = 0

    def _reserve(self, units: int) -> None:
        """Slow half of `make_room`: the next file, or the next blocks of this one."""
        segment = self.segments.last()
        end = self.max_offset * _UNIT_BYTES
        if segment is None or end >= segment.end_offset:
            segment = self.segments.add(end - end % self.segments.size_bytes)
            self._enter(segment, 0)
        if self._position + units * _UNIT_BYTES > self._room_end:
            target = self._position + max(units * _UNIT_BYTES, _RESERVE_BYTES)
            target = min(target, self.segments.size_bytes)
            segment.file.advise_random()  # or the first touch of a page brings in megabytes
            segment.file.reserve(self._position, target)
            self._room_end = target // _UNIT_BYTES * _UNIT_BYTES

    def _enter(self, segment: Segment, position: int) -> None:
        self._memory = segment.memory
        self._position = position
        self._room_end = position

    def _jump(self, queue_offset: int) -> None:
        """Meet a unit that is not the next one, which only a log dispatched again holds."""
        if queue_offset < self.max_offset:
            logger.warning(
                "queue has the offset already topic=%s queue=%d offset=%d next=%d",
                *(self.topic, self.queue_id, queue_offset, self.max_offset),
            )
            if queue_offset == 0:  # its topic was deleted and made again
                self.delete()
            return
        start = queue_offset * _UNIT_BYTES
        if not self.segments.items:
            base = start - start % self.segments.size_bytes
            self._enter(self.segments.add(base), 0)
            self.max_offset = base // _UNIT_BYTES
            self.min_offset = queue_offset
        elif start - self.max_offset * _UNIT_BYTES > self.segments.size_bytes:
            logger.error(
                "queue lost too many units topic=%s queue=%d offset=%d next=%d",
                *(self.topic, self.queue_id, queue_offset, self.max_offset),
            )
            return
        self._fill(queue_offset)

    def _fill(self, queue_offset: int) -> None:
        while self.max_offset < queue_offset:
            if self._position + _UNIT_BYTES > self._room_end:
                self._reserve(1)
            raw.write_unit(self._memory, self._position, 0, FILLER_SIZE, 0)
            self._position += _UNIT_BYTES
            self.max_offset += 1

    def _cut_files(self, end: int) -> int:
        """Zero what follows byte ``end``; a file stays where older ones have gone, to count on."""
        first = self.segments.first()
        if first is None or end > first.base_offset or end == 0:
            return self.segments.cut(end)
        self.segments.drop_from(end + 1)
        return self.segments.erase(first, 0)

    def _find_end(self) -> None:
        """Walk the newest files to the last unit and go on from there."""
        items = self.segments.items
        self.max_offset = self.max_physical = self.min_offset = 0
        self._position = self._room_end = 0
        if items:
            self.min_offset = items[0].base_offset // _UNIT_BYTES
        for segment in items[max(0, len(items) - 3) :]:
            count = raw.count_valid_units(segment.memory, 0, segment.size_bytes)
            self.max_offset = segment.base_offset // _UNIT_BYTES + count
            self._enter(segment, count * _UNIT_BYTES)
            if count * _UNIT_BYTES < segment.size_bytes:
                break
        self.flushed_offset = self.max_offset
        self._find_max_physical()

    def _find_max_physical(self) -> None:
        first = self.segments.first()
        end = self.max_offset
        least = first.base_offset // _UNIT_BYTES if first is not None else end
        while end > least:
            end -= 1
            log_offset, size, _ = self.unit(end)
            if size != FILLER_SIZE:
                self.max_physical = log_offset + size
                return
