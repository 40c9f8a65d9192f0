# cython: annotation_typing=False, cdivision=True
"""A consume queue: the log offset of each message of one queue.

    unit n (at byte 20 * n) := log_offset:i64 size:i32 tags_code:i64     filler := 0, 2**31 - 1, 0

``tags_code`` is the hash of the message's tags, a time of delivery in the delay topic, or the
address of an extension unit. It can be rebuilt from the commit log.
The number of a unit is its position in the files. Here it is also the queue offset of its message;
in `BatchConsumeQueue` one unit may stand for several messages.
A queue whose files are not mapped keeps its newest units in a buffer (`UnitBuffers`): units from
``_buffer_first`` on are there, the others in the files.
Single writer. Source: ConsumeQueue, RocketMQ 5.3; unlike there, a truncated tail is zeroed.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import Any

from cometmq.store.log import record_layout
from cometmq.store.log.segments import Segment, Segments
from cometmq.store.queues.consume_queue_ext import ConsumeQueueExt
from cometmq.store.queues.unit_buffers import BUFFER_BYTES, BUFFER_UNITS, UnitBuffers
from cometmq.system.files import reserve_ahead

try:
    import cython  # type: ignore[import-untyped]
except ImportError:  # interpreted, without Cython at hand
    from cometmq.system.uncompiled import cython

logger = logging.getLogger(__name__)

UNIT_BYTES = 20
FILLER_SIZE = 0x7FFFFFFF
_UNIT_BYTES, _FILLER_SIZE = UNIT_BYTES, FILLER_SIZE  # C numbers once compiled
_PAGE_BYTES = 4096
_BUFFER_BYTES = BUFFER_BYTES
_BUFFER_UNITS = BUFFER_UNITS
_NO_BUFFER = -1
_SIZE_AT = 8
_CODE_AT = 12
_ADDRESS_BYTE = 0x80
"""The first byte of the address of an extension unit; hashes and times begin with others."""
_RESERVE_BYTES = 16 * 1024
_RECENT_UNITS = 8192
_LOOKED_BACK_UNITS = 32
"""More than a sector, which may be damaged as a whole."""
_OFFSET_MAX = (2**63 - 1) // (2 * UNIT_BYTES)
"""The limit of queue offsets, whose units have positions of 64 bits."""
_WALKED_FILES = 3
"""The number of files that are walked if zeros need not follow the last unit."""


class ConsumeQueue:
    """The units of one queue of a topic.

    Args:
        topic: the name of the topic.
        queue_id: the number of the queue.
        segments: the files, not yet loaded.
        ext: the queue's extension units, if it has any.
        unsynced: the list that gets the queue as soon as it has unsynced units.
        buffers: for the newest units while no more files may be mapped; None for never.
    """

    _memory: Any
    """The memory of the newest segment, once it has room."""

    def __init__(
        self,
        topic: str,
        queue_id: int,
        segments: Segments,
        ext: ConsumeQueueExt | None = None,
        unsynced: deque[ConsumeQueue] | None = None,
        buffers: UnitBuffers | None = None,
    ) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.segments = segments
        self.ext = ext
        self.unit_bytes = _UNIT_BYTES
        self.holds_batches = False
        self.first_unit = 0
        """The number of the oldest unit whose record is there."""
        self.end_unit = 0
        """The number that the next unit gets."""
        self.min_offset = 0
        self.max_offset = 0
        self.max_physical = 0
        self.flushed_unit = 0
        self._unsynced = deque() if unsynced is None else unsynced
        self._is_listed = False
        self._position = 0
        self._room_end = 0
        self._loaded_to = 0
        self._buffers: Any = buffers
        self._buffer = _NO_BUFFER
        self._buffer_first = 0
        self._copied_to = 0
        self._reserved_to = 0
        self._sync_to = 0
        segments.user = self

    def load(self, *, may_be_torn: bool = False, is_zero_behind: bool = False) -> None:
        """Map the files and find the last unit.

        Args:
            may_be_torn: as for `Segments.load`.
            is_zero_behind: whether only zeros follow the last unit, so not all units are read.
        """
        self.segments.load(may_be_torn=may_be_torn)
        if self.ext is not None:
            self.ext.load(may_be_torn=may_be_torn)
        self._find_end(is_zero_behind)
        if self.ext is not None and self.end_unit > self.first_unit:
            self.ext.begin_behind(self.unit(self.end_unit - 1)[2])
        self._loaded_to = self.end_unit

    def load_from_ends(
        self, first_base: int, files: int, min_offset: int, max_offset: int, max_physical: int
    ) -> None:
        """Load the queue from the result of `ends` when it was closed; its files are not read."""
        self.segments.use_files(first_base, files)
        self.first_unit = self.min_offset = min_offset
        self.end_unit = self.max_offset = self.flushed_unit = self._loaded_to = max_offset
        self.max_physical = max_physical

    def ends(self) -> tuple[int, int, int, int, int]:
        """Return the arguments of `load_from_ends`: first base, number of files, and the bounds."""
        segments = self.segments
        bounds = self.min_offset, self.max_offset, self.max_physical
        return segments.first_base(), segments.count, *bounds

    def make_room(self, units: int) -> None:
        """Reserve space on the disk for ``units`` more.

        Raises:
            OSError: the disk is full or broken; nothing has changed.
        """
        if self._position + units * self.unit_bytes > self._room_end:
            self._reserve(units)

    def number_of(self, queue_offset: int) -> int:
        """Return the number of the unit with a message between the bounds, or of the next unit."""
        return queue_offset

    def offset_of(self, number: int) -> int:
        """Return the queue offset of the first message of a unit."""
        return number

    def offset_behind(self, number: int) -> int:
        """Return the queue offset behind the messages of a unit between the bounds."""
        return number + 1

    def put(
        self,
        queue_offset: int,
        log_offset: int,
        size: int,
        tags_code: int,
        store_ms: int,
        bitmap: bytes = b"",
    ) -> None:
        """Append the unit of a message; do nothing if the queue has it.

        Args:
            queue_offset: the offset of the record; the next one, unless the log is redispatched.
            log_offset: where the record is.
            size: of the record.
            tags_code: what consumers filter by.
            store_ms: when it was stored.
            bitmap: which SQL92 subscriptions it may match, for its extension unit.
        """
        if log_offset + size <= self.max_physical:
            return
        if queue_offset != self.max_offset and not self._jump(queue_offset):
            return
        if self._position + _UNIT_BYTES > self._room_end:
            self._reserve(1)
        if self.ext is not None:
            tags_code = self.ext.put(tags_code, store_ms, bitmap)
        record_layout.write_unit(self._memory, self._position, log_offset, size, tags_code)
        self._position += _UNIT_BYTES
        self.end_unit += 1
        self.max_offset = self.end_unit
        self.max_physical = log_offset + size
        if not self._is_listed:
            self._list()

    def unit(self, number: int) -> tuple[int, int, int]:
        """Return log offset, size and tags code or address of a unit between the bounds."""
        if self.is_buffered(number):
            return record_layout.read_unit(self._buffers.memory, self.buffer_position(number))
        segment = self._segment_of(number)
        return record_layout.read_unit(
            segment.memory, number * self.unit_bytes - segment.base_offset
        )

    def _segment_of(self, number: int) -> Segment:
        """Return the file with a unit that is not in the buffer."""
        segment = self.segments.find(number * self.unit_bytes)
        if segment is None:
            raise IndexError(f"{self.topic}-{self.queue_id} has no unit {number}")
        return segment

    def replace(self, number: int, log_offset: int, size: int, code: int) -> None:
        """Write another log offset, size and code into a unit between the bounds.

        It is on the disk after the next `flush`.
        """
        if self.is_buffered(number):
            memory = self._buffers.memory
            position = self.buffer_position(number)
        else:
            segment = self._segment_of(number)
            memory = segment.memory
            position = number * self.unit_bytes - segment.base_offset
        record_layout.write_unit(memory, position, log_offset, size, code)
        if number + 1 == self.end_unit and size != _FILLER_SIZE:
            self.max_physical = log_offset + size
        self.flushed_unit = min(self.flushed_unit, number)
        self._list()

    def is_buffered(self, number: int) -> bool:
        """Return whether a unit is in the buffer."""
        return self._buffer >= 0 and number >= self._buffer_first

    def buffer_position(self, number: int) -> int:
        """Return where a unit is in the memory of the buffers, if it is in this queue's."""
        return self._buffer * _BUFFER_BYTES + (number - self._buffer_first) * _UNIT_BYTES

    def buffered_log_offsets(self) -> dict[int, int]:
        """Return the log offsets of the units in the buffer, by their numbers."""
        first = self._buffer_first if self._buffer >= 0 else self.end_unit
        return {number: self.unit(number)[0] for number in range(first, self.end_unit)}

    def buffer_memory(self) -> Any:
        """Return the memory that `buffer_position` counts in."""
        return self._buffers.memory

    def end_in_file(self, segment: Segment) -> int:
        """Return the number up to which units are read from a file and not elsewhere."""
        end = segment.end_offset // self.unit_bytes
        return min(end, self._buffer_first) if self._buffer >= 0 else end

    def tags_code_of(self, code: int) -> int:
        """Return the tags code that a unit's last field stands for, an address resolved."""
        if self.ext is not None and code < 0:
            return self.ext.tags_code_of(code)
        return code

    def first_at_or_after(self, log_offset: int) -> int:
        """Return the number of the first unit whose record is at ``log_offset`` or later.

        A damaged unit may lead the search behind that one; the units before what was found show it.
        """
        least = self._first_in_files()
        low, high = least, self.end_unit
        while True:
            while low < high:
                middle = (low + high) // 2
                found, size, _ = self.unit(middle)
                if found < log_offset or size == FILLER_SIZE:
                    low = middle + 1
                else:
                    high = middle
            first = max(least, low - _LOOKED_BACK_UNITS)
            while first < low and not self._is_at_or_after(first, log_offset):
                first += 1
            if first >= low:
                break
            low, high = least, first
        while low > least and self._is_out_of_order(low - 1):
            low -= 1
        return low

    def _first_in_files(self) -> int:
        """Return the number of the first unit in the files; of the next unit if there are none."""
        base = self.segments.first_base()
        return base // self.unit_bytes if base >= 0 else self.end_unit

    def _is_out_of_order(self, number: int) -> bool:
        """Return whether a unit is before the one that it follows."""
        found, size, _ = self.unit(number)
        if found < 0 or size <= 0:
            return True
        least = self._first_in_files()
        return size != _FILLER_SIZE and number > least and found < self.unit(number - 1)[0]

    def _is_at_or_after(self, number: int, log_offset: int) -> bool:
        found, size, _ = self.unit(number)
        return found >= log_offset and 0 < size < _FILLER_SIZE

    def end_at(self, log_end: int) -> int:
        """Return the queue offset behind the last message whose record ends at ``log_end`` at most.

        The search begins at the newest unit: only the last few are not visible to readers yet.
        """
        if self.max_physical <= log_end:
            return self.max_offset
        high = self.end_unit
        low = high
        step = 1
        while low > self.first_unit:
            low = max(self.first_unit, high - step)
            if self._record_end(low) <= log_end:
                break
            high = low
            step *= 2
        while low < high:
            middle = (low + high) // 2
            if self._record_end(middle) <= log_end:
                low = middle + 1
            else:
                high = middle
        return self.offset_behind(high - 1) if high > self.first_unit else self.min_offset

    def _record_end(self, number: int) -> int:
        """Return where the record of a unit between the bounds ends; 0 for a filler."""
        if self.is_buffered(number):
            return _end_of(self._buffers.memory, self.buffer_position(number))
        segment = self.segments.find(number * self.unit_bytes)
        if segment is None:
            return 0
        return _end_of(segment.memory, number * self.unit_bytes - segment.base_offset)

    def correct_min(self, log_min: int) -> None:
        """Move the first offset behind the units of deleted records."""
        self.first_unit = self.first_at_or_after(log_min)
        self._set_offsets()
        if self.ext is not None and self.first_unit < self.end_unit:
            self.ext.drop_before(self.unit(self.first_unit)[2])

    def _set_offsets(self) -> None:
        """Set the bounds as queue offsets, after a change of the bounds as unit numbers."""
        self.min_offset, self.max_offset = self.first_unit, self.end_unit

    def drop_unused_ext(self) -> None:
        """Delete the extension units if no message has one and no further message gets one."""
        if self.ext is None or self.ext.writing:
            return
        low, high = self.first_unit * self.unit_bytes, self.end_unit * self.unit_bytes
        for segment in self.segments.items:
            start = max(low - segment.base_offset, 0) + _CODE_AT
            stop = min(high - segment.base_offset, segment.size_bytes)
            if start < stop and (
                segment.view[start] == _ADDRESS_BYTE
                or _ADDRESS_BYTE in bytes(segment.view[start : stop : self.unit_bytes])
            ):
                return
        self.ext.delete()
        self.ext = None

    def truncate(self, log_end: int, keeps: Callable[[int, int, int], bool] | None = None) -> None:
        """Remove the units of records that end after ``log_end``.

        What follows the last unit becomes zero, files behind it are deleted.

        Args:
            log_end: a log offset.
            keeps: decides instead whether a unit is the last one that stays, given its log offset,
                size and queue offset; called for the units from the end of the files on backwards.
        """
        self.write_and_release_buffer()
        end = self.end_unit if keeps is None else max(self.end_unit, self._end_of_bytes())
        first = self.segments.first()
        least = first.base_offset // self.unit_bytes if first is not None else end
        while end > least:
            log_offset, size, _ = self.unit(end - 1)
            if size == FILLER_SIZE:
                break
            if keeps is None:
                if log_offset + size <= log_end:
                    break
            elif not self._is_stray_unit(end - 1) and keeps(log_offset, size, end - 1):
                break
            end -= 1
        erased = self._truncate_files(end * self.unit_bytes)
        if end < self.end_unit or erased:
            logger.info(
                "queue truncated topic=%s queue=%d from=%d to=%d erased_bytes=%d",
                *(self.topic, self.queue_id, self.end_unit, end, erased),
            )
        self._find_end(True)
        if self.ext is None:
            return
        if end > least:
            self.ext.truncate_after(self.unit(end - 1)[2])
        else:
            self.ext.delete()

    def _is_stray_unit(self, number: int) -> bool:
        """Return whether a unit is nothing but one bit, which has changed on the disk."""
        segment = self._segment_of(number)
        return _is_stray(segment, number - segment.base_offset // self.unit_bytes, self.unit_bytes)

    def _end_of_bytes(self) -> int:
        """Return the number behind the last unit that is not zero."""
        for segment in reversed(self.segments.items):
            for start, stop in reversed(segment.file.data_ranges(0, segment.size_bytes)):
                for at in range(stop, start, -_PAGE_BYTES):
                    first = max(start, at - _PAGE_BYTES)
                    used = len(bytes(segment.view[first:at]).rstrip(b"\0"))
                    if used:
                        return (segment.base_offset + first + used - 1) // self.unit_bytes + 1
        return 0

    def rewind(self, log_end: int) -> None:
        """Set the end of the queue behind the last unit whose record ends by ``log_end``.

        The units after it become zero; their space is there, so a full disk does not matter.
        """
        if self.max_physical <= log_end:
            return
        stop = number = self.end_unit
        while number > self.first_unit:
            log_offset, size, _ = self.unit(number - 1)
            if size == FILLER_SIZE or log_offset + size <= log_end:
                break
            number -= 1
        if number < stop:
            self.max_offset = self.offset_of(number)
            self.end_unit = number
        end = self.end_unit * self.unit_bytes
        if self._buffer >= 0:
            self._truncate_buffer(stop)
        self.flushed_unit = min(self.flushed_unit, self.end_unit)
        self._sync_to = min(self._sync_to, self.end_unit)
        self.segments.drop_from(end + 1)
        segment = self.segments.find(end)
        if segment is not None:
            at = end - segment.base_offset
            limit = min(at + (stop - self.end_unit) * self.unit_bytes, segment.size_bytes)
            segment.file.zero(at, limit)
        if self._buffer >= 0:
            pass
        elif segment is None:
            self._position = self._room_end = 0
        else:
            self._attach(segment, end - segment.base_offset)
        self.max_physical = 0
        self._find_max_physical()

    def ends_in_last_file(self) -> bool:
        """Return whether the last unit is in the last file."""
        end_base = self.segments.end_base()
        return end_base - self.segments.size_bytes <= self.end_unit * self.unit_bytes

    def drop_before(self, log_min: int) -> int:
        """Delete the files whose records are all deleted, except the newest.

        Returns:
            How many were deleted.
        """
        dropped = 0
        while self.segments.count > 1:
            if (
                self.first_at_or_after(log_min) * self.unit_bytes
                < self.segments.items[0].end_offset
            ):
                break
            self.segments.drop_first()
            dropped += 1
        return dropped

    def recent_from(self) -> int:
        """Return the number of the unit from which on units were just written and are in memory."""
        return max(self._loaded_to, self.end_unit - _RECENT_UNITS)

    def due_pages(self) -> int:
        """Return how many pages wait for a sync."""
        stop = self.end_unit * self.unit_bytes
        return stop // _PAGE_BYTES - self.flushed_unit * self.unit_bytes // _PAGE_BYTES

    def mark_unsynced(self) -> None:
        """Make the next `flush` sync all files: their content may be in the page cache only."""
        self.flushed_unit = self.first_unit
        self.segments.mark_names_unsynced()
        if self.ext is not None:
            self.ext.mark_unsynced()
        if self.end_unit > self.first_unit:
            self._list()

    def _list(self) -> None:
        """Let the next flush of the store include this queue."""
        if not self._is_listed:
            self._is_listed = True
            self._unsynced.append(self)

    def unlist(self) -> None:
        """Clear the mark of an unsynced queue; call it before `flush`, from any thread."""
        self._is_listed = False

    def flush(self) -> None:
        """Sync the units; from any thread.

        Raises:
            OSError: the disk refused.
        """
        self._sync_to = self.end_unit  # `rewind` may lower it meanwhile
        self._copy_buffer()
        start = min(self.flushed_unit, self._sync_to) * self.unit_bytes
        self.segments.sync(start, self._sync_to * self.unit_bytes)
        if self.ext is not None:
            self.ext.flush()
        self.flushed_unit = self._sync_to

    def begin_sync(self) -> None:
        """Prepare for a sync of the whole file system; from any thread.

        Raises:
            OSError: the disk refused.
        """
        self._sync_to = self.end_unit
        self._copy_buffer()
        self.segments.defer_name_sync()

    def end_sync(self) -> None:
        """Note that this sync has succeeded."""
        if self.ext is not None:
            self.ext.flush()
        self.flushed_unit = self._sync_to

    def delete(self) -> None:
        """Delete all files."""
        self.release_buffer()
        self.segments.drop_from(0)
        if self.ext is not None:
            self.ext.delete()
        self._find_end(True)

    def close(self) -> None:
        """Close all files; the buffer's content stays, for the next start."""
        self._buffer = _NO_BUFFER
        self.segments.close()
        if self.ext is not None:
            self.ext.close()
        self.leave_files()

    def write_and_release_buffer(self) -> None:
        """Write the buffer out and release it.

        Raises:
            OSError: the disk is full or broken; nothing has changed.
        """
        if self._buffer >= 0:
            self._empty_buffer()
            self.release_buffer()

    def release_buffer(self) -> None:
        """Release the buffer, whose units are written out or not needed any more."""
        if self._buffer < 0:
            return
        with self._buffers.lock:
            self._buffers.release(self._buffer)
            self._buffer = _NO_BUFFER
        self._position = self._room_end = 0

    def _copy_buffer(self) -> None:
        """Write the units of the buffer to the file, without a sync; from any thread.

        Raises:
            OSError: the disk is full or broken.
        """
        if self._buffer >= 0:
            with self._buffers.lock:
                self._copy_buffer_locked()

    def _copy_buffer_locked(self) -> None:
        end = self.end_unit
        first = self._copied_to
        if self._buffer >= 0 and first < end:
            units = self._buffers.copy(self.buffer_position(first), (end - first) * self.unit_bytes)
            self.segments.write(first * self.unit_bytes, units)
            self._copied_to = end

    def _empty_buffer(self) -> None:
        with self._buffers.lock:
            self._copy_buffer_locked()
            self._buffers.empty(self._buffer)
            self._buffer_first = self.end_unit
        self._position = self._room_end = 0

    def _truncate_buffer(self, stop: int) -> None:
        """Make the units from the queue's end to ``stop`` zero, in the buffer."""
        if self.end_unit <= self._buffer_first:
            self.release_buffer()
            return
        with self._buffers.lock:
            self._copied_to = min(self._copied_to, self.end_unit)
            self._position = self.buffer_position(self.end_unit)
            self._buffers.clear(self._position, (stop - self.end_unit) * self.unit_bytes)

    def _use_buffer(self, units: int) -> bool:
        """Write the next units into an empty buffer, if no more files may be mapped.

        Their file exists then and has space for them, so that only a broken disk can refuse them.
        All of them belong to one file.

        Returns:
            Whether they are written into a buffer.
        """
        if self._buffer >= 0:
            self._empty_buffer()
        segments = self.segments
        end = self.end_unit * self.unit_bytes
        base = end - end % segments.size_bytes
        room = min(_BUFFER_UNITS * _UNIT_BYTES, base + segments.size_bytes - end)
        fits = self._buffers is not None and units * self.unit_bytes <= room
        if not fits or not segments.is_beyond_map_limit():
            self.release_buffer()
            return False
        if end >= segments.end_base():
            segments.add_unmapped(base, reserve_bytes=room)
            self._reserved_to = 0
        if end + room > self._reserved_to:
            ahead = min(end + _RESERVE_BYTES, base + segments.size_bytes)
            self._reserved_to = reserve_ahead(self._reserve_unmapped, end, end + room, ahead)
        if self._buffer < 0:
            number = self._buffers.take(self)
            self._buffer_first = self._copied_to = self.end_unit
            self._buffer = number  # last, because a flush in another thread looks at it first
        self._memory = self._buffers.memory
        self._position = self._buffer * _BUFFER_BYTES
        self._room_end = self._position + room
        return True

    def _reserve_unmapped(self, start: int, stop: int) -> None:
        self.segments.reserve(start, stop - start)

    def _reserve(self, units: int) -> None:
        """Reserve the next files, or the next blocks of this one: the slow path of `make_room`."""
        if self._buffers is not None and self._buffers.is_usable and self._use_buffer(units):
            return
        segments = self.segments
        end = self.end_unit * self.unit_bytes
        stop = end + units * self.unit_bytes
        segment = segments.find(end)
        if segment is None:
            base = end - end % segments.size_bytes
            segment = segments.add(base, reserve_bytes=self.unit_bytes)
            self._attach(segment, 0)
        elif end == segment.base_offset or self._room_end == 0:
            # The file was created before and is empty, or was unmapped meanwhile.
            self._attach(segment, end - segment.base_offset)
        position = self._position
        needed = min(stop - segment.base_offset, segments.size_bytes)
        if needed > self._room_end:
            ahead = min(max(needed, position + _RESERVE_BYTES), segments.size_bytes)
            segment.file.advise_random()  # else the kernel reads megabytes at the first access
            room_end = reserve_ahead(segment.file.reserve, position, needed, ahead)
            self._room_end = room_end // self.unit_bytes * self.unit_bytes
        while stop > segments.end_base():  # units of a batch, which must not find a full disk then
            segments.add(segments.end_base(), reserve_bytes=stop - segments.end_base())

    def leave_files(self) -> None:
        """Drop the mapping until the files are mapped again."""
        if self._buffer >= 0:
            return
        self._room_end = 0
        if not cython.compiled:
            self._memory = None  # it is the mapping itself

    def _attach(self, segment: Segment, position: int) -> None:
        self._memory = segment.memory
        self._position = position
        self._room_end = position

    def _jump(self, queue_offset: int) -> bool:
        """Handle a unit that is not the next one, which happens only in a redispatch.

        Returns:
            Whether the unit can be written now.
        """
        if queue_offset < self.max_offset:
            logger.warning(
                "queue has the offset already topic=%s queue=%d offset=%d next=%d",
                *(self.topic, self.queue_id, queue_offset, self.max_offset),
            )
            if queue_offset == 0:  # its topic was deleted and created again
                self.delete()
                return True
            return False
        if queue_offset > _OFFSET_MAX:  # a damaged record
            logger.error(
                "record has an impossible queue offset topic=%s queue=%d offset=%d next=%d",
                *(self.topic, self.queue_id, queue_offset, self.max_offset),
            )
            return False
        return self._continue_at(queue_offset)

    def _continue_at(self, queue_offset: int) -> bool:
        """Go on at an offset that is not the next one; return whether that is possible."""
        start = queue_offset * _UNIT_BYTES
        if self.segments.count == 0:
            base = start - start % self.segments.size_bytes
            self._attach(self.segments.add(base), 0)
            self.end_unit = base // _UNIT_BYTES
            self.first_unit = self.min_offset = queue_offset
        elif queue_offset - self.end_unit > self.segments.size_bytes // _UNIT_BYTES:
            logger.error(
                "queue lost too many units topic=%s queue=%d offset=%d next=%d",
                *(self.topic, self.queue_id, queue_offset, self.end_unit),
            )
            return False
        elif self.end_unit < queue_offset:
            logger.error(
                "queue lacks units, their messages are skipped topic=%s queue=%d from=%d to=%d",
                *(self.topic, self.queue_id, self.end_unit, queue_offset),
            )
        self._fill(queue_offset)
        return True

    def _fill(self, number: int) -> None:
        while self.end_unit < number:
            if self._position + _UNIT_BYTES > self._room_end:
                self._reserve(1)
            record_layout.write_unit(self._memory, self._position, 0, FILLER_SIZE, 0)
            self._position += _UNIT_BYTES
            self.end_unit += 1
            self.max_offset = self.end_unit

    def _truncate_files(self, end: int) -> int:
        """Zero the bytes from ``end`` on; keep one file if older ones are deleted."""
        first = self.segments.first()
        if first is None or end > first.base_offset or end == 0:
            return self.segments.truncate(end)
        self.segments.drop_from(end + 1)
        return self.segments.erase(first, 0)

    def _find_end(self, is_zero_behind: bool) -> None:
        """Find the last unit in the newest files and continue behind it."""
        items = self.segments.items
        unit_bytes = self.unit_bytes
        self.end_unit = self.max_physical = self.first_unit = 0
        self._position = self._room_end = 0
        if items:
            self.first_unit = items[0].base_offset // unit_bytes
        if is_zero_behind:
            while len(items) > 1 and not _count_by_halves(items[-1], unit_bytes):
                items = items[:-1]
            items = items[-1:]
        for segment in items[-_WALKED_FILES:]:
            segment.file.advise_random()  # else the kernel reads megabytes at the first access
            if is_zero_behind:
                count = _count_by_halves(segment, unit_bytes)
            else:
                count = record_layout.count_valid_units(
                    segment.memory, 0, segment.size_bytes, unit_bytes
                )
            self.end_unit = segment.base_offset // unit_bytes + count
            self._attach(segment, count * unit_bytes)
            if count * unit_bytes < segment.size_bytes:
                break
        self.flushed_unit = self.end_unit
        self._find_max_physical()
        self._set_offsets()

    def _find_max_physical(self) -> None:
        end = self.end_unit
        least = self._first_in_files()
        while end > least:
            end -= 1
            log_offset, size, _ = self.unit(end)
            if size != FILLER_SIZE:
                self.max_physical = log_offset + size
                return


def _has_unit(segment: Segment, number: int, unit_bytes: int) -> bool:
    """Return whether a file has a unit at a position, sound or damaged."""
    log_offset, size, code = record_layout.read_unit(segment.memory, number * unit_bytes)
    return log_offset != 0 or size != 0 or code != 0


def _is_stray(segment: Segment, number: int, unit_bytes: int) -> bool:
    """Return whether a unit is nothing but one bit, which has changed on the disk."""
    if number == 0 and segment.base_offset == 0:  # the unit of the first record of the log may be
        return False
    at = number * unit_bytes
    return int.from_bytes(segment.view[at : at + unit_bytes]).bit_count() == 1


def _count_by_halves(segment: Segment, unit_bytes: int) -> int:
    """Return how many units a file has, if only zeros follow them.

    The search begins in the first page: most of many queues have few units, and each further page
    that is looked at comes from the disk. Nor is a hole behind it read: on a full tmpfs that is a
    signal, which ends the process.
    """
    total = segment.size_bytes // unit_bytes
    low, high = 0, min(_PAGE_BYTES // unit_bytes, total)
    if high < total and _has_unit(segment, high - 1, unit_bytes):
        ranges = segment.file.data_ranges(high * unit_bytes, segment.size_bytes)
        total = ranges[-1][1] // unit_bytes if ranges else high
    while high < total and _has_unit(segment, high - 1, unit_bytes):
        low, high = high, min(4 * high, total)
    while True:
        while low < high:
            middle = (low + high) // 2
            if _has_unit(segment, middle, unit_bytes):
                low = middle + 1
            else:
                high = middle
        if low == 0 or not _is_stray(segment, low - 1, unit_bytes):
            return low
        low, high = 0, low - 1


def _end_of(memory: Any, at: int) -> int:
    """Return where the record of the unit at a position ends; 0 for a filler."""
    size = record_layout.get_i32(memory, at + _SIZE_AT)
    return 0 if size == _FILLER_SIZE else record_layout.get_i64(memory, at) + size
