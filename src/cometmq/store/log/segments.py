# cython: annotation_typing=False
"""Streams: files of one fixed size, mapped as a whole, that form one growing stream of bytes.

    stream := segment segment ...      segment := file named by the offset of its first byte

The first segment may begin at any multiple of the size: older ones have been deleted. Slices of
a segment stay readable after it is closed or deleted; the last of them unmaps it.
Single writer. Source: MappedFile and MappedFileQueue, RocketMQ 5.3.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable
from pathlib import Path
from sys import intern
from time import monotonic
from typing import Any, Protocol

from cometmq.store.errors import StoreCorruptError
from cometmq.store.log import record_layout
from cometmq.store.paths import segment_name
from cometmq.system.files import Entry, Files, MappedFile

logger = logging.getLogger(__name__)

_NONE, _OWN, _WITH_PARENTS = 0, 1, 3
"""How many directories have names that are not synced: a stream's own, and the two above."""
_SIZE_BYTES_MIN = 64
"""Whole files are not smaller."""
_RELEASES_MAX = 8
"""Streams that are released at a time; streams that are being synced stay mapped."""
_handover = threading.Lock()
"""Held while the files of a stream are selected for a release or a sync."""
_BLOCK_BYTES = 1024 * 1024
RESIDENT_S = 0.25
"""The time for which pages found in memory count as in memory."""


class Segment:
    """One file of a stream.

    Args:
        file: the mapped file.
        base_offset: the offset in the stream of its first byte.
    """

    def __init__(self, file: MappedFile, base_offset: int) -> None:
        self.file = file
        self.base_offset = base_offset
        self.size_bytes = file.size_bytes
        self.end_offset = base_offset + file.size_bytes
        self.view = memoryview(file.map).toreadonly()
        self._pinned: Any = file.map
        self.memory: Any = record_layout.address_of(self._pinned)
        self._seen_in_memory: dict[int, float] = {}
        self._checked: dict[int, float] = {}
        """Until when it is not checked again whether a block is in memory as a whole."""

    def is_resident(self, start: int, stop: int) -> bool:
        """Return whether bytes ``start`` to ``stop`` can be read without waiting for the disk.

        A block that was in memory as a whole counts as such for a moment, so that the kernel is
        not asked for each read; what it drops meanwhile is waited for.
        """
        now_s = monotonic()
        for block in range(start // _BLOCK_BYTES, -(-stop // _BLOCK_BYTES)):
            if self._seen_in_memory.get(block, 0.0) >= now_s:
                continue
            if self._checked.get(block, 0.0) >= now_s:
                return self.file.is_resident(start, stop)
            self._checked[block] = now_s + RESIDENT_S
            first = block * _BLOCK_BYTES
            if not self.file.is_resident(first, min(first + _BLOCK_BYTES, self.size_bytes)):
                return self.file.is_resident(start, stop)
            self._seen_in_memory[block] = now_s + RESIDENT_S
        return True

    def bring_in_cold(self, start: int, stop: int) -> None:
        """Read bytes ``start`` to ``stop`` into memory if they are not there; from any thread.

        Raises:
            OSError: the disk is broken.
        """
        if not self.file.is_resident(start, stop):
            self.file.bring_in(start, stop)

    def close(self) -> None:
        """Close the file; the memory stays until this object and all slices are freed."""
        self.file.close()


class StreamUser(Protocol):
    """An object that keeps an address in the mapped files of a stream."""

    def leave_files(self) -> None:
        """Drop that address: the files are about to be unmapped."""


class MappingLimit:
    """Limits how many files of all streams are mapped at a time.

    A system grants a process some ten thousand mappings and descriptors, and Python keeps one of
    each for a mapped file. Beyond the limit another stream is released, and mapped again when it is
    used. It is chosen at random: if all are used in turn, the least recently used one is the worst
    choice.

    Args:
        files_max: how many files.
    """

    def __init__(self, files_max: int) -> None:
        self.files_max = files_max
        self.mapped = 0
        """Files that are mapped now."""
        self.restored = 0
        """How often a stream was mapped again."""
        self._streams: list[Segments] = []
        self._chance = 1

    def register(self, stream: Segments) -> None:
        """Register a stream that was just mapped; release others if too many are mapped."""
        for _ in range(_RELEASES_MAX):
            if self.mapped <= self.files_max or not self._streams:
                break
            self._chance = (self._chance * 1_103_515_245 + 12_345) % 2**31
            at = self._chance // 8 % len(self._streams)
            victim = self._streams[at]
            self._streams[at] = self._streams[-1]
            self._streams.pop()
            victim.is_noted = False
            if victim is not stream and not victim.release():
                self._add(victim)
        if not stream.is_noted:
            self._add(stream)

    def _add(self, stream: Segments) -> None:
        stream.is_noted = True
        self._streams.append(stream)


class Segments:
    """The files of one stream, in order.

    Args:
        files: where they are.
        directory: that holds them and nothing else.
        size_bytes: of each file.
        read_only: never write, create or delete any.
        keep_open: keep a descriptor of each file, for streams that are synced often.
        remove: deletes the oldest file; None for at once.
        limit: bounds the mapped files of all streams that have it; None for no limit.
        sync_names_later: leave the names of new files to `sync`, for streams that can be made
            again; else a new file's name is on disk before the file is used.
    """

    def __init__(
        self,
        files: Files,
        directory: Path | str,
        size_bytes: int,
        *,
        read_only: bool = False,
        keep_open: bool = False,
        remove: Callable[[Path], None] | None = None,
        limit: MappingLimit | None = None,
        sync_names_later: bool = False,
    ) -> None:
        self._files = files
        # Streams are many: a quarter of the memory of a path, and all queues of a topic share it.
        parent, _, name = str(directory).rpartition("/")
        self._parent, self._name = intern(parent), intern(name)
        self.size_bytes = size_bytes
        self.read_only = read_only
        self._keep_open = keep_open
        self._remove = remove or files.remove
        self._items: list[Segment] = []
        self._first_base = 0
        self._limit = limit
        self.is_noted = False
        self.user: StreamUser | None = None
        """Notified when the files are about to be unmapped; they are mapped again when used."""
        self._released = 0
        self._is_syncing = False
        self._sync_names_later = sync_names_later
        self._unsynced_names = _NONE

    @property
    def directory(self) -> Path:
        """The directory of the files."""
        return Path(self._parent, self._name)

    @property
    def items(self) -> list[Segment]:
        """All segments, the oldest first."""
        if self._released:
            self._restore()
        return self._items

    @property
    def count(self) -> int:
        """The number of segments."""
        return len(self._items) + self._released

    def is_beyond_map_limit(self) -> bool:
        """Return whether the files are not mapped and others would be released to map them."""
        limit = self._limit
        return limit is not None and not self._items and limit.mapped >= limit.files_max

    def end_base(self) -> int:
        """Return the offset behind the newest file; 0 if there is none."""
        count = self.count
        return self._first_base + count * self.size_bytes if count else 0

    def first_base(self) -> int:
        """Return the offset of the oldest file; -1 if there is none."""
        return self._first_base if self.count else -1

    def release(self) -> bool:
        """Unmap all files until their next use; return False while they are being synced."""
        with _handover:
            if self._is_syncing:
                return False
            items, self._items = self._items, []
            self._released += len(items)
        if self.user is not None:
            self.user.leave_files()
        self._close(items)
        return True

    def _restore(self) -> None:
        items: list[Segment] = []
        try:
            for number in range(self._released):
                items.append(self._map(self._first_base + number * self.size_bytes))
                items[-1].file.advise_random()  # or the first touch of a page reads megabytes
        except OSError:
            for segment in items:
                segment.close()
            raise
        with _handover:  # a sync from another thread sees all files, mapped or not
            self._items, self._released = items, 0
        if self._limit is not None:
            self._limit.restored += 1
            self._limit.mapped += len(items)
            self._limit.register(self)

    def _close(self, items: list[Segment]) -> None:
        if self._limit is not None:
            self._limit.mapped -= len(items)
        for segment in items:
            segment.close()

    def load(self, *, may_be_torn: bool = False, may_be_lost: bool = False) -> None:
        """Map all files; a missing directory is an empty stream.

        Args:
            may_be_torn: the machine stopped, and the files can be made again. Then a file without
                its size, or without the one before it, was never synced: it is deleted, as are
                those after it.
            may_be_lost: readers do without the files. Then one that is missing or cut off loses
                those before it, which are deleted, and is no error; files of another size than
                was given, all of the same, decide the size of further ones.

        Raises:
            StoreCorruptError: a file has another size or name than a segment has, or one is
                missing between others.
        """
        entries = [entry for entry in self._files.entries(self.directory) if not entry.is_dir]
        if entries and entries[-1].size_bytes == 0:
            # A crash may happen between the creation of a file and the setting of its size.
            if not self.read_only:
                self._files.remove(self.directory / entries[-1].name)
            entries.pop()
        if may_be_lost:
            self._take_size_of(entries)
            entries = self._unbroken(entries)
        for number, entry in enumerate(entries):
            if may_be_torn and self._was_never_synced(entry):
                logger.warning("unsynced files deleted path=%s", self.directory / entry.name)
                for torn in entries[number:]:
                    self._files.remove(self.directory / torn.name)
                return
            self.append(self._map(self._base_of(entry)))

    def _take_size_of(self, entries: list[Entry]) -> None:
        """Take the size of existing files, of which some may be cut off."""
        given = self.size_bytes
        largest = max((entry.size_bytes for entry in entries), default=0)
        if largest >= _SIZE_BYTES_MIN:
            self.size_bytes = largest
            if not all(self._may_be_ours(entry) for entry in entries):
                self.size_bytes = given

    def _unbroken(self, entries: list[Entry]) -> list[Entry]:
        """Return the newest files that are whole and have no gap; delete the others."""
        if not all(self._may_be_ours(entry) for entry in entries):
            return entries  # which is an error
        kept: list[Entry] = []
        for entry in reversed(entries):
            is_whole = entry.size_bytes == self.size_bytes
            if kept and not (is_whole and int(entry.name) + self.size_bytes == int(kept[-1].name)):
                break
            if is_whole:
                kept.append(entry)
        kept.reverse()
        lost = [entry for entry in entries if entry not in kept]
        if lost:
            logger.warning(
                "unusable files: one is missing or cut off directory=%s deleted=%s",
                *(self.directory, [entry.name for entry in lost[:10]]),
            )
        if not self.read_only:
            for entry in lost:
                self._files.remove(self.directory / entry.name)
        return kept

    def _may_be_ours(self, entry: Entry) -> bool:
        """Return whether a file was made for this size; it may be cut off."""
        return (
            entry.name.isascii()
            and entry.name.isdigit()
            and int(entry.name) % self.size_bytes == 0
            and entry.size_bytes <= self.size_bytes
        )

    def _was_never_synced(self, entry: Entry) -> bool:
        if entry.size_bytes == 0:
            return True
        if not self.items or not (entry.name.isascii() and entry.name.isdigit()):
            return False
        return int(entry.name) > self.items[-1].end_offset

    def find(self, offset: int) -> Segment | None:
        """Return the segment with the byte at ``offset``, or None."""
        if self._released:
            self._restore()
        index = (offset - self._first_base) // self.size_bytes
        if offset < self._first_base or index >= len(self._items):
            return None
        return self._items[index]

    def last(self) -> Segment | None:
        """Return the newest segment, or None."""
        if self._released:
            self._restore()
        return self._items[-1] if self._items else None

    def first(self) -> Segment | None:
        """Return the oldest segment, or None."""
        if self._released:
            self._restore()
        return self._items[0] if self._items else None

    def add(self, base_offset: int, *, reserve_bytes: int = 0) -> Segment:
        """Make the next segment and append it to the stream.

        Args:
            base_offset: where it begins: where the newest one ends, if there is one.
            reserve_bytes: reserve space on the disk for the first bytes.

        Raises:
            OSError: the disk is full or broken; nothing is left of the file.
        """
        segment = self.make(base_offset, reserve=False, reserve_bytes=reserve_bytes)
        self.append(segment)
        return segment

    def make(self, base_offset: int, *, reserve: bool, reserve_bytes: int = 0) -> Segment:
        """Make a segment that is not yet part of the stream; from any thread. See `add`.

        Args:
            base_offset, reserve_bytes: as for `add`.
            reserve: reserve space on the disk for all of it, and sync it.
        """
        directory = self.directory
        is_new = self._sync_names_later and not self._files.exists(directory)
        self._files.make_dirs(directory)
        path = directory / segment_name(base_offset)
        file = self._files.open_mapped(
            path, self.size_bytes, create=True, keep_open=self._keep_open
        )
        try:
            if reserve:
                file.reserve(0, self.size_bytes)
                file.sync()
            elif reserve_bytes:
                file.reserve(0, min(reserve_bytes, self.size_bytes))
            if not self._sync_names_later:
                self._files.sync_dir(directory)
        except OSError:
            file.close()
            self._files.remove(path)
            raise
        if self._sync_names_later:
            self.mark_names_unsynced(with_parents=is_new)
        return Segment(file, base_offset)

    def add_unmapped(self, base_offset: int, *, reserve_bytes: int) -> None:
        """Do as `add`, but do not map the file before it is read."""
        directory = self.directory
        is_new = not self._files.exists(directory)
        self._files.make_dirs(directory)
        path = self._path_of(base_offset)
        try:
            self._files.write_part(
                path, 0, b"", new_size_bytes=self.size_bytes, reserve_bytes=reserve_bytes
            )
        except OSError:
            self._files.remove(Path(path))
            raise
        self.mark_names_unsynced(with_parents=is_new)
        if self._items:
            self.append(self._map(base_offset))
        else:
            self.use_files(self._first_base if self._released else base_offset, self._released + 1)

    def use_files(self, first_base: int, count: int) -> None:
        """Use ``count`` files that exist in the directory; they are mapped when they are read."""
        self._first_base = first_base
        self._released = count

    def reserve(self, offset: int, size_bytes: int) -> None:
        """Reserve space on the disk for bytes that are inside one file, without mapping it.

        Raises:
            OSError: the disk is full or broken.
        """
        position = offset % self.size_bytes
        self._files.write_part(
            self._path_of(offset - position), position, b"", reserve_bytes=size_bytes
        )

    def write(self, offset: int, data: bytes) -> None:
        """Write bytes that are inside one file, without mapping it; from any thread.

        Raises:
            OSError: the disk is full or broken, or the file was deleted.
        """
        position = offset % self.size_bytes
        self._files.write_part(self._path_of(offset - position), position, data)

    def _path_of(self, base_offset: int) -> str:
        return f"{self._parent}/{self._name}/{segment_name(base_offset)}"

    def mark_names_unsynced(self, *, with_parents: bool = True) -> None:
        """Make the next `sync` sync the directories of the files.

        Args:
            with_parents: also the entries of the directory and of the one above.
        """
        self._unsynced_names = max(self._unsynced_names, _WITH_PARENTS if with_parents else _OWN)

    def discard(self, segment: Segment) -> None:
        """Delete a segment of `make` that was not appended."""
        segment.close()
        self._files.remove(segment.file.path)

    def drop_first(self) -> None:
        """Delete the oldest segment."""
        segment = self.items.pop(0)
        self._first_base = self._items[0].base_offset if self._items else 0
        self._close([segment])
        self._remove(segment.file.path)

    def drop_from(self, offset: int) -> None:
        """Delete the segments that begin at ``offset`` or later."""
        while self.items and self.items[-1].base_offset >= offset:
            segment = self.items.pop()
            self._close([segment])
            self._files.remove(segment.file.path)
        if not self.items:
            self._first_base = 0

    def truncate(self, offset: int) -> int:
        """Truncate the stream at ``offset``: delete later segments and zero the rest.

        Both are on the disk when this returns, or else a crash could restore the truncated bytes.

        Returns:
            How many bytes after the end were not zero.

        Raises:
            OSError: the disk refused.
        """
        count = len(self.items)
        # The oldest file stays: its name has the offset at which the stream continues.
        is_oldest = count > 0 and offset == self.items[0].base_offset > 0
        self.drop_from(offset + 1 if is_oldest else offset)
        if len(self.items) < count:
            self._files.sync_dir(self.directory)
        segment = self.last()
        if segment is None or offset >= segment.end_offset:
            return 0
        return self.erase(segment, offset - segment.base_offset)

    def erase(self, segment: Segment, position: int) -> int:
        """Make a segment zero from ``position`` on; on the disk when this returns."""
        erased = segment.file.zero(position, segment.size_bytes)
        if erased:
            segment.file.sync()
        return erased

    def defer_name_sync(self) -> None:
        """Leave directories to a sync of the whole file system; from any thread."""
        self._unsynced_names = _NONE

    def sync(self, start: int, stop: int) -> None:
        """Return when the bytes from ``start`` to ``stop`` are on the disk; from any thread.

        Raises:
            OSError: they may not be.
        """
        names, self._unsynced_names = self._unsynced_names, _NONE
        own = self.directory if names else Path()
        for directory in (own, own.parent, own.parent.parent)[:names]:
            with contextlib.suppress(FileNotFoundError):  # its topic was deleted
                self._files.sync_dir(directory)
        with _handover:
            self._is_syncing = True
            items, released = list(self._items), self._released
        try:
            if released:
                self._sync_released(start, stop)
            for segment in items:
                if segment.end_offset > start and segment.base_offset < stop:
                    segment.file.sync()
        finally:
            self._is_syncing = False

    def _sync_released(self, start: int, stop: int) -> None:
        """Sync files that are not mapped; from any thread."""
        size = self.size_bytes
        for base in range(start - start % size, stop, size):
            path = self.directory / segment_name(base)
            with contextlib.suppress(FileNotFoundError):  # its topic was deleted
                file = self._files.open_mapped(path, size, keep_open=True)
                try:
                    file.sync()
                finally:
                    file.close()

    def close(self) -> None:
        """Close all files."""
        items, self._items = self._items, []
        self._released = 0
        self._close(items)

    def _base_of(self, entry: Entry) -> int:
        path = self.directory / entry.name
        if entry.size_bytes != self.size_bytes:
            raise StoreCorruptError(
                path, None, f"a file of {entry.size_bytes} bytes", f"{self.size_bytes} bytes"
            )
        if not (entry.name.isascii() and entry.name.isdigit() and len(entry.name) == 20):
            raise StoreCorruptError(path, None, "an unexpected file", "files named by 20 digits")
        base = int(entry.name)
        if self.items and base != self.items[-1].end_offset:
            missing = segment_name(self.items[-1].end_offset)
            raise StoreCorruptError(path, None, "the next file", f"file {missing} before it")
        return base

    def _map(self, base: int) -> Segment:
        path = self.directory / segment_name(base)
        file = self._files.open_mapped(
            path, self.size_bytes, read_only=self.read_only, keep_open=self._keep_open
        )
        return Segment(file, base)

    def append(self, segment: Segment) -> None:
        """Append a segment, whose file exists."""
        if not self._items:
            self._first_base = segment.base_offset
        self._items.append(segment)
        if self._limit is not None:
            self._limit.mapped += 1
            self._limit.register(self)
