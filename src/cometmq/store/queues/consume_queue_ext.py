"""Extension units of a consume queue: tags code, store time and a filter's bit map per message.

    unit := size:i16 tags_code:i64 store_ms:i64 bitmap_bytes:i16 bitmap      end of file := -1:i16
    address in a queue unit := position in the stream of units - 2**63

A unit leaves at least 4 bytes in its file. Source: ConsumeQueueExt, RocketMQ 5.3.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from struct import Struct

import msgspec

from cometmq.store.log.segments import Segment, Segments
from cometmq.system.files import reserve_ahead

logger = logging.getLogger(__name__)

ADDRESS_MAX = -(2**31) - 1
"""The largest number that is an address; hashes and times are above it."""

_UNIT = Struct(">hqqh")
_END_MARK = Struct(">h")
_FIXED_BYTES = _UNIT.size
_END_MARK_BYTES = 4
_MIN_ADDRESS = -(2**63)
_UNIT_BYTES_MAX = 32767
_RESERVE_BYTES_MIN = 4096
_RESERVE_BYTES_MAX = 64 * 1024
"""Space on the disk is reserved in steps: of a file's size so far, between these two."""


class ExtUnit(msgspec.Struct, frozen=True):
    """One extension unit."""

    tags_code: int
    store_ms: int
    bitmap: bytes = b""

    def encode(self) -> bytes:
        """Return the unit's bytes.

        Raises:
            ValueError: the bit map is too long.
        """
        size = _FIXED_BYTES + len(self.bitmap)
        if size > _UNIT_BYTES_MAX:
            raise ValueError(f"an extension unit of {size} bytes, at most {_UNIT_BYTES_MAX}")
        return _UNIT.pack(size, self.tags_code, self.store_ms, len(self.bitmap)) + self.bitmap


def is_address(code: int) -> bool:
    """Return whether a queue unit's last field is an address."""
    return code <= ADDRESS_MAX


def address_of(real_offset: int) -> int:
    """Return the address of the unit at ``real_offset`` in the stream of units."""
    return real_offset + _MIN_ADDRESS


def real_offset_of(address: int) -> int:
    """Return the position in the stream of an address."""
    return address - _MIN_ADDRESS


class ConsumeQueueExt:
    """The extension units of one queue.

    Args:
        segments: the files, not yet loaded.
        writing: whether new messages get a unit.
    """

    def __init__(self, segments: Segments, *, writing: bool) -> None:
        self.segments = segments
        self.writing = writing
        self.end_offset = 0
        self.flushed_offset = 0
        self._reserved_to = 0
        """The offset up to which the newest file has its space on the disk."""

    def load(self, *, may_be_torn: bool = False) -> None:
        """Map the files and find the end in the newest one; see `Segments.load`.

        A file that is missing or cut off is no error: readers do without the units.
        """
        self.segments.load(may_be_torn=may_be_torn, may_be_lost=True)
        items = self.segments.items
        self.end_offset = items[0].base_offset if items else 0
        for segment in reversed(items):
            position, closed = _walk(segment.view)
            self.end_offset = segment.end_offset if closed else segment.base_offset + position
            if position > 0:
                break
        self.flushed_offset = self.end_offset

    def begin_behind(self, address: int) -> None:
        """Go on in a new file if the unit at an address is lost.

        Another unit with its address would filter its message by other tags.
        """
        lost = real_offset_of(address) if is_address(address) else -1
        if lost >= self.end_offset:
            logger.warning(
                "extension units lost: their messages are filtered without bit maps, and by tags"
                " at the client directory=%s offset=%d",
                *(self.segments.directory, self.end_offset),
            )
            size_bytes = self.segments.size_bytes
            self.end_offset = self.flushed_offset = (lost // size_bytes + 1) * size_bytes

    def put(self, tags_code: int, store_ms: int, bitmap: bytes = b"") -> int:
        """Append a unit; return its address, or the tags code itself if it is not written."""
        if not self.writing:
            return tags_code
        unit = ExtUnit(tags_code, store_ms, bitmap).encode()
        if len(unit) > self.segments.size_bytes - _END_MARK_BYTES:
            return tags_code  # files of the least size, bit maps of the largest
        try:
            segment = self._file_for(len(unit))
        except OSError as problem:
            logger.warning("cannot allocate an extension unit error=%s", problem)
            return tags_code
        offset = self.end_offset
        start = offset - segment.base_offset
        segment.file.map[start : start + len(unit)] = unit
        self.end_offset = offset + len(unit)
        return address_of(offset)

    def get(self, address: int) -> ExtUnit | None:
        """Return the unit at an address, or None if there is none."""
        offset = real_offset_of(address)
        segment = self.segments.find(offset) if is_address(address) else None
        if segment is None or offset + _FIXED_BYTES > min(self.end_offset, segment.end_offset):
            return None
        start = offset - segment.base_offset
        size, tags_code, store_ms, length = _UNIT.unpack_from(segment.view, start)
        if size != _FIXED_BYTES + length or length < 0 or start + size > segment.size_bytes:
            return None
        return ExtUnit(
            tags_code, store_ms, bytes(segment.view[start + _FIXED_BYTES : start + size])
        )

    def files_between(self, first: int, last: int) -> Iterator[tuple[Segment, int, int]]:
        """Yield the files of the units between two addresses, both included: file, start, stop."""
        if not is_address(first) or not is_address(last):
            return
        at = real_offset_of(first)
        end = min(real_offset_of(last) + _UNIT_BYTES_MAX, self.end_offset)
        while at < end:
            segment = self.segments.find(at)
            if segment is None:
                return
            stop = min(end, segment.end_offset)
            yield segment, at - segment.base_offset, stop - segment.base_offset
            at = stop

    def tags_code_of(self, code: int) -> int:
        """Return the tags code of a code that is one, or the address of one."""
        unit = self.get(code) if is_address(code) else None
        return unit.tags_code if unit is not None else code

    def drop_before(self, address: int) -> None:
        """Delete the files that end before an address."""
        if is_address(address):
            while len(self.segments.items) > 1 and (
                self.segments.items[0].end_offset <= real_offset_of(address)
            ):
                self.segments.drop_first()

    def truncate_after(self, address: int) -> None:
        """Truncate the stream after the unit at an address."""
        unit = self.get(address) if is_address(address) else None
        if unit is not None:
            self.end_offset = real_offset_of(address) + _FIXED_BYTES + len(unit.bitmap)
            self._reserved_to = 0
            self.segments.truncate(self.end_offset)

    def flush(self) -> None:
        """Sync the units; from any thread."""
        end = self.end_offset
        if end > self.flushed_offset:
            self.segments.sync(self.flushed_offset, end)
            self.flushed_offset = end

    def mark_unsynced(self) -> None:
        """Let the next `flush` sync all files."""
        first = self.segments.first()
        self.flushed_offset = 0 if first is None else first.base_offset
        self.segments.mark_names_unsynced()

    def delete(self) -> None:
        """Delete all files."""
        self.segments.drop_from(0)
        self.end_offset = self.flushed_offset = self._reserved_to = 0

    def close(self) -> None:
        """Close all files."""
        self.segments.close()

    def _file_for(self, size: int) -> Segment:
        """Return the file of the next unit of ``size``; begin one if the last has no room.

        The units before may be in a file of RocketMQ, which leaves its files sparse: on a full
        disk a write to the mapping of such a file is a signal that ends the process.
        """
        segment = self.segments.last()
        if segment is not None and segment.base_offset <= self.end_offset < segment.end_offset:
            if size <= segment.end_offset - self.end_offset - _END_MARK_BYTES:
                self._reserve(segment, self.end_offset + size + _END_MARK_BYTES)
                return segment
            self._reserve(segment, self.end_offset + _END_MARK.size)
            _END_MARK.pack_into(segment.file.map, self.end_offset - segment.base_offset, -1)
            self.end_offset = segment.end_offset
        elif segment is not None and self.end_offset > segment.end_offset:  # those before are lost
            self.segments.drop_from(0)
        elif segment is not None:  # the newest file is empty, and the one before has no end mark
            self.end_offset = segment.end_offset
        fresh = self.segments.add(self.end_offset, reserve_bytes=size + _END_MARK_BYTES)
        self._reserve(fresh, self.end_offset + size + _END_MARK_BYTES)
        return fresh

    def _reserve(self, segment: Segment, stop: int) -> None:
        """Reserve space on the disk up to ``stop``, an offset in the newest file.

        More than what is there is not reserved at once: queues are many, and most have few units.
        """
        if stop <= self._reserved_to:
            return
        start = self.end_offset
        step = min(max(start - segment.base_offset, _RESERVE_BYTES_MIN), _RESERVE_BYTES_MAX)
        base = segment.base_offset
        ahead = min(max(stop, start + step), segment.end_offset)
        end = reserve_ahead(segment.file.reserve, start - base, stop - base, ahead - base)
        self._reserved_to = base + end


def _walk(view: memoryview) -> tuple[int, bool]:
    """Return where the units of a file end, and whether an end mark follows."""
    position = 0
    while position + _END_MARK_BYTES <= len(view):
        (size,) = _END_MARK.unpack_from(view, position)
        if size < _FIXED_BYTES or position + size > len(view):
            return position, size == -1
        position += size
    return position, True
