# cython: annotation_typing=False
"""Buffers of the newest units of queues whose files are not mapped.

    file   := buffer buffer ...
    buffer := up to 25 units of 20 bytes, then zeros; 512 bytes in all

A process can map only some ten thousand files. The queues beyond that have a buffer each, in one
mapped file, and write a full buffer to their own file with one call. The file has no other content:
the record of a unit names its queue. After a kill the next start dispatches these records again;
after a power cut it ignores the file, because a sync of a queue writes its buffer out first.
RocketMQ ignores the file and dispatches again what a queue lacks.
"""

from __future__ import annotations

import logging
import mmap
import threading
from pathlib import Path
from typing import Any

from cometmq.store.log import record_layout
from cometmq.system.files import Files, MappedFile

try:
    import cython  # type: ignore[import-untyped]
except ImportError:  # interpreted, without Cython at hand
    from cometmq.system.uncompiled import cython

logger = logging.getLogger(__name__)

BUFFER_BYTES = 512
BUFFER_UNITS = 25
_BUFFER_BYTES = BUFFER_BYTES  # a C number once compiled
_UNIT_BYTES = 20
_EMPTY = bytes(BUFFER_BYTES)
BUFFERS_MAX = 131_072
"""64 MiB."""
_BUFFERS_PER_STEP = 2048
"""Buffers whose space on the disk is reserved at a time: 1 MiB."""


class UnitBuffers:
    """The buffers of all queues of a store.

    During recovery they are unusable, or in memory only, because the file still has the units of
    the last process; `begin` replaces the file.

    Args:
        files: the file system.
        path: of the file.
        buffers_max: limit of buffers; at the limit, another queue writes its buffer out.
    """

    def __init__(self, files: Files, path: Path, *, buffers_max: int) -> None:
        self.lock = threading.Lock()
        """Held while a buffer is written to the file of a queue, emptied or released."""
        self.buffers_max = buffers_max
        self.is_usable = False
        """Whether queues may use buffers now."""
        self._files = files
        self._path = path
        self._has_file = False
        self._file: MappedFile | None = None
        self._users: list[Any] = []
        self._free: list[int] = []
        self._next_victim = 0
        self._view: Any = None
        self._pinned: Any = None
        self.memory: Any

    @property
    def in_use(self) -> int:
        """The number of queues with a buffer."""
        return len(self._users) - len(self._free)

    def begin(self) -> None:
        """Replace the file; no queue has a buffer at this moment."""
        assert self.in_use == 0
        self._files.remove(self._path)
        self._has_file = True
        self.is_usable = True
        self._users, self._free = [], []
        self._view = self._pinned = None

    def close(self, *, keep_file: bool) -> None:
        """Close the file; without ``keep_file`` it is deleted, as all units are in their queues."""
        with self.lock:
            file, self._file = self._file, None
            self._users, self._free = [], []
            self._view = self._pinned = None
            if not cython.compiled:
                self.memory = None  # it is the mapping itself
        if file is not None:
            file.close()
        if self._has_file and not keep_file:
            try:
                self._files.remove(self._path)
            except OSError as problem:  # the next start removes it
                logger.warning("cannot remove path=%s: %s", self._path, problem)

    def take(self, user: Any) -> int:
        """Return the number of an empty buffer.

        Args:
            user: the queue; its ``write_and_release_buffer`` is called when another one needs the
                buffer.

        Raises:
            OSError: the disk is full or broken; nothing has changed.
        """
        if not self._free:
            if len(self._users) < self.buffers_max:
                self._add_buffers()
            else:
                self._evict()
        number = self._free.pop()
        self._users[number] = user
        return number

    def release(self, number: int) -> None:
        """Release a buffer whose units are written or not needed any more."""
        self.empty(number)
        self._users[number] = None
        self._free.append(number)

    def empty(self, number: int) -> None:
        """Zero a buffer."""
        self.clear(number * _BUFFER_BYTES, _BUFFER_BYTES)

    def clear(self, position: int, size_bytes: int) -> None:
        """Zero bytes of the file."""
        self._view[position : position + size_bytes] = bytes(size_bytes)

    def copy(self, position: int, size_bytes: int) -> bytes:
        """Return bytes of the file."""
        return bytes(self._view[position : position + size_bytes])

    def _add_buffers(self) -> None:
        first = len(self._users)
        if first == 0:
            self._map()
        last = min(first + _BUFFERS_PER_STEP, self.buffers_max)
        if self._file is not None:
            self._file.reserve(first * _BUFFER_BYTES, last * _BUFFER_BYTES)
        self._users.extend([None] * (last - first))
        self._free.extend(range(last - 1, first - 1, -1))

    def _map(self) -> None:
        size_bytes = self.buffers_max * _BUFFER_BYTES
        if self._has_file:
            self._file = self._files.open_mapped(
                self._path, size_bytes, create=True, keep_open=False
            )
            mapping = self._file.map
        else:
            mapping = mmap.mmap(-1, size_bytes)
        self._view = memoryview(mapping)
        self._pinned = self._view
        self.memory = record_layout.address_of(self._pinned)

    def _evict(self) -> None:
        """Free a buffer: the next queue in turn writes its units to its file."""
        for _ in range(len(self._users)):
            number = self._next_victim
            self._next_victim = (number + 1) % len(self._users)
            user = self._users[number]
            if user is not None:
                user.write_and_release_buffer()
                return


def unwritten_units(files: Files, path: Path) -> list[tuple[int, int]]:
    """Return log offset and size of the units that were in buffers when a process was killed.

    Args:
        files: the file system.
        path: of the file.
    """
    data = (files.read(path) or b"")[: BUFFERS_MAX * BUFFER_BYTES]
    found = []
    for start in range(0, len(data), BUFFER_BYTES):
        if data[start : start + BUFFER_BYTES] == _EMPTY:
            continue
        for at in range(start, start + BUFFER_UNITS * _UNIT_BYTES, _UNIT_BYTES):
            log_offset = int.from_bytes(data[at : at + 8], signed=True)
            size = int.from_bytes(data[at + 8 : at + 12], signed=True)
            if size == 0:
                break
            if log_offset >= 0:
                found.append((log_offset, size))
    found.sort()
    return found
