# cython: annotation_typing=False, cdivision=True
"""The index: hash files that map a key to its messages.

    file  := begin_ms:i64 end_ms:i64 begin_log:i64 end_log:i64 slots_used:i32 next_entry:i32
             slot:i32 * slots   entry * entries
    entry := key_hash:i32 log_offset:i64 seconds:i32 previous:i32

A slot holds the number of the newest entry of its chain, 0 for none; entry 0 is never used.
``seconds`` counts from ``begin_ms``. Single writer. Source: IndexFile and IndexService,
RocketMQ 5.3.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from struct import Struct
from typing import Any

from cometmq.store.errors import StoreCorruptError
from cometmq.store.log import record_layout
from cometmq.store.log.segments import Segment
from cometmq.store.paths import index_name
from cometmq.system.files import Files, reserve_ahead

_HEADER = Struct(">qqqqii")
_HEADER_BYTES = 40
_ENTRY_BYTES = 20
_SLOTS_BYTES = 1024 * 1024
"""Bytes of slots that are read into memory at a time."""
_RESERVE_BYTES = 1024 * 1024
_INT_MAX = 2**31 - 1
_FILES_IN_ONE_MS = 1000
_STEP_ENTRIES = 1000
_NOTES_MAX = 128
_NOTE_BYTES = 20


class IndexFile:
    """One index file.

    Args:
        segment: the mapped file.
        slots: hash slots in it.
        entries: entries in it, the unused one included.
    """

    def __init__(self, segment: Segment, slots: int, entries: int) -> None:
        self.segment = segment
        self.path: Path = segment.file.path
        segment.file.advise_random()  # else the kernel reads megabytes at the first access
        self._attach(segment)
        self._slots = slots
        self._entries = entries
        self._entries_at = _HEADER_BYTES + slots * 4
        self._reserved = 0
        self._seconds_of = -1
        self._seconds = 0
        self._brought_in_at = -1
        self.ready = 0
        """Entries up to this number have space on the disk."""
        header = _HEADER.unpack_from(segment.view)
        self.begin_ms, self.end_ms, self.begin_log, self.end_log = header[:4]
        self.slots_used = header[4]
        self.next_entry = min(max(1, header[5]), entries)  # a damaged one stays within the file

    def _attach(self, segment: Segment) -> None:
        self._memory: Any = segment.memory

    def begin_after(self, log_offset: int, store_ms: int) -> None:
        """Begin the file where the previous one ended."""
        self.begin_ms = self.end_ms = store_ms
        self._seconds_of = -1
        self.begin_log = self.end_log = log_offset
        self.write_header()

    def count_unregistered(self) -> None:
        """Count the entries that a killed process wrote without updating the header.

        Holes are not read: on a full tmpfs that is a signal, which ends the process.
        """
        position, size_bytes = self._position(self.next_entry), self.segment.size_bytes
        for start, stop in self.segment.file.data_ranges(position, size_bytes)[:1]:
            end = (stop - self._entries_at) // _ENTRY_BYTES if start == position else 0
            while self.next_entry < end and any(
                record_layout.read_entry(self._memory, self._position(self.next_entry))
            ):
                self.next_entry += 1

    def is_full(self) -> bool:
        """Return whether no entry can be added."""
        return bool(self.next_entry >= self._entries)

    def reserve(self, entries: int) -> None:
        """Reserve space on the disk for the next entries.

        Raises:
            OSError: the disk is full or broken.
        """
        if self.next_entry + entries <= self.ready or self.ready == self._entries:
            return
        needed = min(self._position(self.next_entry + entries), self.segment.size_bytes)
        ahead = min(needed + _RESERVE_BYTES, self.segment.size_bytes)
        stop = reserve_ahead(self.segment.file.reserve, self._reserved, needed, ahead)
        self._reserved = stop
        self.ready = (stop - self._entries_at) // _ENTRY_BYTES

    def put(self, hashed: int, log_offset: int, store_ms: int) -> None:
        """Add one entry; the file must not be full. The header is not written yet."""
        number = self.next_entry
        if store_ms != self._seconds_of:
            self._count_seconds(store_ms)
        previous = record_layout.add_entry(
            self._memory,
            _HEADER_BYTES + hashed % self._slots * 4,
            self._entries_at + number * _ENTRY_BYTES,
            number,
            hashed,
            log_offset,
            self._seconds,
        )
        if number <= 1 or self.begin_ms == 0:  # 0: a killed process did not write the first header
            self.begin_log = log_offset
            self.begin_ms = store_ms
            self._seconds_of = -1
        if previous == 0:
            self.slots_used += 1
        self.next_entry = number + 1
        self.end_log = log_offset
        self.end_ms = store_ms

    def _count_seconds(self, store_ms: int) -> None:
        """Compute the seconds field of a store time; consecutive entries mostly share it."""
        self._seconds_of = store_ms
        self._seconds = 0
        if self.begin_ms > 0 and store_ms > self.begin_ms:
            self._seconds = min((store_ms - self.begin_ms) // 1000, _INT_MAX)

    def prefetch(self, hashed: int) -> None:
        """Prefetch the slot of a hash, which is written soon."""
        record_layout.prefetch_at(self._memory, _HEADER_BYTES + hashed % self._slots * 4)

    def write_header(self) -> None:
        """Write the header to the file; readers in other processes use it."""
        record_layout.write_index_header(
            self._memory,
            self.begin_ms,
            self.end_ms,
            self.begin_log,
            self.end_log,
            self.slots_used,
            self.next_entry,
        )

    def sync(self) -> None:
        """Return when everything written so far is on disk; from any thread."""
        self.segment.file.sync()

    def truncate_to(self, next_entry: int, end_log: int) -> None:
        """Remove all entries from a number on, and rebuild the hash slots.

        Args:
            next_entry: the number of the first entry that may not be on disk.
            end_log: the log offset of the newest record before it.
        """
        self.next_entry = min(max(1, next_entry), self._entries)
        self.segment.file.bring_in(0, self._position(self.next_entry))  # at once, not by pages
        self.segment.file.zero(self._position(self.next_entry), self.segment.size_bytes)
        self.segment.file.zero(_HEADER_BYTES, self._entries_at)
        self.slots_used = record_layout.rebuild_slots(
            self._memory, _HEADER_BYTES, self._slots, self._entries_at, self.next_entry
        )
        self.end_log = max(end_log, 0)
        if self.next_entry > 1:
            found = record_layout.read_entry(self._memory, self._position(self.next_entry - 1))
            self.end_ms = self.begin_ms + max(found[2], 0) * 1000
        else:
            self.end_ms = self.begin_ms
        self.write_header()

    def entry(self, number: int) -> tuple[int, int]:
        """Return the hash of the key of an entry, and the log offset of its record."""
        hashed, log_offset, _, _ = record_layout.read_entry(self._memory, self._position(number))
        return hashed, log_offset

    def newest_log(self) -> int:
        """Return the log offset of the newest record with an entry, or in the header."""
        newest = self.entry(self.next_entry - 1)[1] if self.next_entry > 1 else 0
        return int(max(newest, self.end_log))

    def position_of(self, number: int) -> int:
        """Return the position of an entry in the file."""
        return self._position(number)

    def remove_from(self, log_end: int) -> bool:
        """Remove the entries of records at ``log_end`` or later, the newest ones.

        Returns:
            Whether any entry is left.
        """
        number = self.next_entry
        log_offset = -1
        while number > 1:
            position = self._position(number - 1)
            hashed, log_offset, _, previous = record_layout.read_entry(self._memory, position)
            if log_offset < log_end:
                break
            number -= 1
            record_layout.put_i32(self._memory, _HEADER_BYTES + hashed % self._slots * 4, previous)
            if previous == 0:
                self.slots_used -= 1
            self.segment.file.zero(position, position + _ENTRY_BYTES)
        self.next_entry = number
        if number == 1:
            return False
        self.end_log = log_offset
        self.write_header()
        return True

    def newest_of(self, hashed: int) -> int:
        """Return the number of the newest entry in the chain of a hash; 0 for none."""
        return record_layout.get_i32(self._memory, _HEADER_BYTES + hashed % self._slots * 4)

    def follow(
        self, hashed: int, number: int, entries_max: int
    ) -> tuple[list[tuple[int, int]], int]:
        """Return the matching entries of a chain, newest first; it ends where it is broken.

        Args:
            hashed: the hash.
            number: of the entry to begin with.
            entries_max: how many entries to read.

        Returns:
            Log offset and nearly exact store time, up to a second early, of the entries with the
            hash, and the number of the next entry to read; 0 at the end of the chain.
        """
        matches: list[tuple[int, int]] = []
        while entries_max > 0 and 0 < number < self.next_entry:
            entries_max -= 1
            position = self._position(number)
            found, log_offset, seconds, previous = record_layout.read_entry(self._memory, position)
            if seconds < 0:
                return matches, 0
            if found == hashed:
                matches.append((log_offset, self.begin_ms + seconds * 1000))
            number = previous if previous < number else 0
        return matches, number if 0 < number < self.next_entry else 0

    def bring_in_slots(self) -> None:
        """Read what the next keys change into memory; from any thread.

        A key changes any one of the slots, so a slot that the kernel has dropped from memory would
        let its message wait for the disk.

        Raises:
            OSError: the disk is broken.
        """
        number = self.next_entry
        if number == self._brought_in_at:  # no key was added
            return
        self._brought_in_at = number
        for start in range(0, self._entries_at, _SLOTS_BYTES):
            self.segment.bring_in_cold(start, min(start + _SLOTS_BYTES, self._entries_at))
        if number < self._entries:
            self.bring_in_entry(number)

    def bring_in_newest(self, hashed: int) -> int:
        """Read the slot into memory, then return what `newest_of` returns; from any thread."""
        position = _HEADER_BYTES + hashed % self._slots * 4
        self.segment.bring_in_cold(position, position + 4)
        return self.newest_of(hashed)

    def bring_in_entry(self, number: int) -> None:
        """Read an entry into memory if it is not there; from any thread."""
        position = self._position(number)
        self.segment.bring_in_cold(position, position + _ENTRY_BYTES)

    def _position(self, number: int) -> int:
        """Return the position of an entry in the file."""
        return self._entries_at + number * _ENTRY_BYTES

    def has(self, hashed: int, log_offset: int) -> bool:
        """Return whether the file has an entry of a hash and a record."""
        number = self.newest_of(hashed)
        while number:
            matches, number = self.follow(hashed, number, _STEP_ENTRIES)
            if any(found == log_offset for found, _ in matches):
                return True
        return False


class Index:
    """All index files of a store, oldest first.

    Args:
        files: the file system.
        directory: their directory.
        slots: hash slots in each file.
        entries: entries in each file.
        now_ms: the clock that names new files.
        read_only: whether no file may be written, created or deleted.
        remove: deletes a file whose records are deleted; by default ``files`` does.
    """

    def __init__(
        self,
        files: Files,
        directory: Path,
        slots: int,
        entries: int,
        now_ms: Callable[[], int],
        *,
        read_only: bool = False,
        remove: Callable[[Path], object] | None = None,
    ) -> None:
        self._files = files
        self._remove = remove or files.remove
        self._directory = directory
        self._slots = slots
        self._entries = entries
        self._now_ms = now_ms
        self._read_only = read_only
        self.items: list[IndexFile] = []
        self.newest: Any = None
        self.filled: list[IndexFile] = []
        self._note_count = 0
        self._failure: OSError | None = None
        self._unregistered = False
        self._has_unsynced_names = False
        self._space = bytearray(_NOTES_MAX * _NOTE_BYTES)
        self._notes: Any = record_layout.address_of(self._space)

    def load(self) -> None:
        """Map all files whose names are digits.

        Raises:
            StoreCorruptError: a file has another size than an index file has.
        """
        size = self._size_bytes()
        for entry in self._files.entries(self._directory):
            if entry.is_dir or not (entry.name.isascii() and entry.name.isdigit()):
                continue
            path = self._directory / entry.name
            if entry.size_bytes == 0:
                # A crash may happen between the creation of a file and the setting of its size.
                if not self._read_only:
                    self._files.remove(path)
                continue
            if entry.size_bytes != size:
                met = f"a file of {entry.size_bytes} bytes"
                raise StoreCorruptError(path, None, met, f"{size} bytes")
            file = self._files.open_mapped(path, size, read_only=self._read_only, keep_open=False)
            self._append(IndexFile(Segment(file, 0), self._slots, self._entries))

    def drop_unsynced(self, synced_ms: int) -> int:
        """Delete files that may be incomplete after a power cut or a crash of the machine.

        Args:
            synced_ms: files that were full at this store time are on the disk.

        Returns:
            How many files were deleted.
        """
        kept = 0
        for item in self.items:
            if item.end_ms > synced_ms or not item.is_full():
                break
            kept += 1
        doubtful = self.items[kept:]  # and newer ones: redispatch makes them again from here on
        self._drop(doubtful)
        return len(doubtful)

    def is_beyond(self, log_end: int, synced_ms: int) -> bool:
        """Return whether a full file on disk has entries of records at a log offset or later.

        Args:
            log_end: the log offset.
            synced_ms: files that were full at this store time are on the disk.
        """
        return any(
            item.is_full() and item.end_ms <= synced_ms and item.end_log >= log_end
            for item in self.items
        )

    def truncate_to(self, name: int, next_entry: int, end_log: int) -> bool:
        """Truncate the index to the position of a checkpoint; see `Position`.

        Returns:
            Whether the file with that name exists; else nothing was changed.
        """
        kept = [item for item in self.items if int(item.path.name) <= name]
        if name and (not kept or int(kept[-1].path.name) != name):
            return False
        self._drop([item for item in self.items if item not in kept])
        if kept:
            kept[-1].truncate_to(next_entry, end_log)
        return True

    def position_before(self, log_end: int, name: int, next_entry: int) -> tuple[int, int, int]:
        """Return the position up to which all entries are of records before a log offset.

        Args:
            log_end: the log offset.
            name: of the file to begin with, going backwards.
            next_entry: the number of its entry to begin with.

        Returns:
            Name of a file, number of its next entry, and log offset of its newest record; three
            zeros if there is none.
        """
        for item in reversed(self.items):
            if int(item.path.name) > name:
                continue
            number = next_entry if int(item.path.name) == name else item.next_entry
            while number > 1:
                _, log_offset = item.entry(number - 1)
                if log_offset < log_end:
                    return int(item.path.name), number, log_offset
                number -= 1
        return 0, 0, 0

    def truncate(self, log_end: int) -> bool:
        """Remove the entries of records that are not in the log; return whether there were any.

        They are the newest ones, and their chains are complete. The header lacks those that a
        killed process wrote last.
        """
        changed = False
        while self.items and max(item.newest_log() for item in self.items[-2:]) >= log_end:
            newest = self.items[-1]
            if newest.newest_log() >= log_end and newest.remove_from(log_end):
                changed = True
                break
            self._drop([newest])
            changed = True
        return changed

    def mark_unsynced(self) -> None:
        """Let the next `flush` sync all files: their content may be in the page cache only."""
        self.filled = self.items[:-1]
        self._has_unsynced_names = bool(self.items)

    def count_unregistered(self) -> None:
        """Count entries that are missing in the headers; see `IndexFile`."""
        for item in self.items:
            item.count_unregistered()

    def drop_before(self, log_min: int) -> int:
        """Delete the files whose records are all deleted, except the newest; return how many."""
        older = [item for item in self.items[:-1] if item.end_log < log_min]
        self._drop(older, self._remove)
        return len(older)

    def make_room(self, entries: int) -> None:
        """Reserve space on the disk for ``entries`` more.

        Raises:
            OSError: the disk is full or broken.
        """
        newest = self.newest
        if newest is None or newest.next_entry >= self._entries:
            newest = self._roll()
        if newest.next_entry + entries > newest.ready:
            newest.reserve(entries)

    def bring_in_slots(self) -> None:
        """Read what the next keys change into memory; from any thread.

        Raises:
            OSError: the disk is broken.
        """
        newest = self.newest
        if newest is not None:
            newest.bring_in_slots()

    def end_log(self) -> int:
        """Return the log offset of the last record that is indexed; -1 if there is none."""
        return -1 if self.newest is None else self.newest.end_log

    def note(self, hashed: int, log_offset: int, store_ms: int) -> None:
        """Note the entry of one key of a record; `add_noted` adds it, or raises why it cannot.

        Meanwhile the processor prefetches its slot, which may be anywhere in the file.
        """
        if self._note_count == _NOTES_MAX:
            self._add_early()
        position = self._note_count * _NOTE_BYTES
        record_layout.put_i32(self._notes, position, hashed)
        record_layout.put_i64(self._notes, position + 4, log_offset)
        record_layout.put_i64(self._notes, position + 12, store_ms)
        self._note_count += 1
        if self.newest is not None:
            self.newest.prefetch(hashed)

    def add_noted(self) -> None:
        """Add the noted entries, and update the header.

        Their records must be in the log: a start after a crash rebuilds a file whose header counts
        records that are not in the log.

        Raises:
            OSError: the disk is full or broken, and `make_room` was not called before. The first
                entries are added, of one record perhaps not all; those after them are not.
        """
        try:
            self._add_notes()
        finally:
            if self._unregistered:
                self._unregistered = False
                self.newest.write_header()
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def drop_unlogged(self, log_end: int) -> None:
        """Remove the entries, noted or added, of records that are not in the log."""
        self._note_count = 0
        self._failure = None
        self._unregistered = False
        self.truncate(log_end)

    def _add_early(self) -> None:
        """Add the noted entries before `add_noted`, which raises the failure."""
        try:
            self._add_notes()
        except OSError as problem:
            self._failure = problem

    def _add_notes(self) -> None:
        count, self._note_count = self._note_count, 0
        if self._failure is not None:  # the index has the keys of the first records, without a gap
            return
        for number in range(count):
            position = number * _NOTE_BYTES
            self._add(
                record_layout.get_i32(self._notes, position),
                record_layout.get_i64(self._notes, position + 4),
                record_layout.get_i64(self._notes, position + 12),
            )

    def _add(self, hashed: int, log_offset: int, store_ms: int) -> None:
        newest = self.newest
        if newest is None or newest.next_entry >= self._entries:
            newest = self._roll()
        if newest.next_entry >= newest.ready:
            newest.reserve(1)  # more keys than expected, or a recovery
        newest.put(hashed, log_offset, store_ms)
        self._unregistered = True

    def flush(self) -> int:
        """Sync the files that have become full, and the names of all; from any thread.

        Returns:
            The store time up to which full files are on the disk, 0 if none was synced now.

        Raises:
            OSError: the disk refused.
        """
        if self._has_unsynced_names:
            self._has_unsynced_names = False
            try:
                for directory in (self._directory, self._directory.parent):
                    self._files.sync_dir(directory)
            except OSError:
                self._has_unsynced_names = True
                raise
        synced_ms = 0
        while self.filled:
            item = self.filled[0]
            item.sync()
            synced_ms = item.end_ms
            with contextlib.suppress(ValueError):  # dropped meanwhile
                self.filled.remove(item)
        return synced_ms

    def close(self) -> None:
        """Close all files."""
        for item in self.items:
            item.segment.close()
        self.items.clear()
        self.filled = []
        self.newest = None

    def _roll(self) -> Any:
        """Begin a new file where the newest one ends."""
        self._files.make_dirs(self._directory)
        full = self.newest
        path = self._unused_path()
        file = self._files.open_mapped(path, self._size_bytes(), create=True, keep_open=False)
        try:
            file.reserve(0, _HEADER_BYTES + self._slots * 4)
            item = IndexFile(Segment(file, 0), self._slots, self._entries)
            item.reserve(1)
        except OSError:
            file.close()
            self._files.remove(path)
            raise
        if full is not None:
            full.write_header()
            item.begin_after(full.end_log, full.end_ms)
            self.filled.append(full)
        self._append(item)
        self._has_unsynced_names = True
        return item

    def _unused_path(self) -> Path:
        now_ms = self._now_ms()
        for later in range(_FILES_IN_ONE_MS):
            path = self._directory / index_name(now_ms + later)
            newest = self.items[-1].path.name if self.items else ""
            if path.name > newest and not self._files.exists(path):
                return path
        last = int(self.items[-1].path.name) + 1 if self.items else now_ms
        return self._directory / str(last)

    def _size_bytes(self) -> int:
        return _HEADER_BYTES + self._slots * 4 + self._entries * _ENTRY_BYTES

    def _append(self, item: IndexFile) -> None:
        self.items.append(item)
        self.newest = item

    def _drop(self, items: list[IndexFile], remove: Callable[[Path], object] | None = None) -> None:
        for item in items:
            self.items.remove(item)
            item.segment.close()
            (remove or self._files.remove)(item.path)
        self.filled = [item for item in self.filled if item not in items]
        self.newest = self.items[-1] if self.items else None
