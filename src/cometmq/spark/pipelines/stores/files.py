"""The files of a store that are derived from its log, as arrays: queues, extensions, index.

    consumequeue/<topic>/<queue>/<20 digits>       units
    consumequeue_ext/<topic>/<queue>/<20 digits>   what units with an address lead to
    index/<digits>                                 header, slots, entries

Only the parts that are asked for are read, on a disk or in object storage.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from struct import Struct
from typing import Any

import numpy as np

from cometmq.model.errors import InvalidNameError
from cometmq.spark.logs.places import LogPlace
from cometmq.spark.logs.queue_files import (
    QUEUES,
    QueueDirectory,
    QueueFile,
    queue_directories,
    queue_files,
    read_units,
)
from cometmq.spark.logs.storage import Storage
from cometmq.spark.logs.watermark import Follower, watermark
from cometmq.store.paths import directory_name
from cometmq.store.queues.consume_queue import FILLER_SIZE, UNIT_BYTES
from cometmq.store.queues.consume_queue_ext import ADDRESS_MAX, real_offset_of

ENTRY = np.dtype([("hash", ">i4"), ("phy", ">i8"), ("seconds", ">i4"), ("previous", ">i4")])
"""An entry of an index file."""
_HEADER = Struct(">qqqqii")
HEADER_BYTES = _HEADER.size
_SLOT_BYTES = 4
_EXT_HEAD = Struct(">hqq")
_CHUNK_ENTRIES = 1 << 20
_ENTRIES_PER_SLOT = 4


@dataclass(frozen=True)
class StoreFiles:
    """A store's directory, wherever it is."""

    storage: Storage
    root: str

    @classmethod
    def of(cls, place: LogPlace) -> StoreFiles | None:
        """Return the store that a log is in; None if only its segments are there."""
        return None if place.store is None else cls(*place.store)

    def queues(self, topics: frozenset[str] = frozenset()) -> list[QueueDirectory]:
        """Return the queues with units of 20 bytes, by topic and number."""
        found = queue_directories(self.storage, self.root, topics)
        return sorted(queue for queue in found if queue.unit_bytes == UNIT_BYTES)

    def queue(self, topic: str, queue_id: int) -> QueueUnits:
        """Return the units of one queue; it has none if there is no such queue."""
        try:
            directory_name(topic)
        except InvalidNameError:
            return QueueUnits(self, topic, queue_id, ())
        path = f"{self.root}/{QUEUES}/{topic}/{queue_id}"
        files = queue_files(self.storage, QueueDirectory(topic, queue_id, path, UNIT_BYTES))
        return QueueUnits(self, topic, queue_id, tuple(files))

    def index_files(self, slots: int) -> list[IndexFile]:
        """Return the index files, oldest first, without those that are empty.

        Args:
            slots: how many hash slots each has; 0 for what RocketMQ's proportion gives.
        """
        entries = self.storage.entries(f"{self.root}/index")
        files = [
            IndexFile(
                self.storage, entry.path, entry.size_bytes, slots or slots_of(entry.size_bytes)
            )
            for entry in entries
            if not entry.is_dir and entry.size_bytes and entry.name.isdigit()
        ]
        return sorted(files, key=lambda file: file.path)

    def ext_codes(self, topic: str, queue_id: int) -> dict[int, int]:
        """Return the tags codes of a queue's extension units, by their place in the stream."""
        path = f"{self.root}/consumequeue_ext/{topic}/{queue_id}"
        found: dict[int, int] = {}
        for entry in self.storage.entries(path):
            if entry.name.isdigit() and entry.size_bytes:
                data = read_bytes(self.storage, entry.path, 0, entry.size_bytes)
                found |= _ext_codes(data, int(entry.name))
        return found


@dataclass(frozen=True)
class QueueUnits:
    """The units of one queue."""

    store: StoreFiles
    topic: str
    queue_id: int
    files: tuple[QueueFile, ...]

    @property
    def first(self) -> int:
        """The queue offset of the first unit there is room for."""
        return self.files[0].base_offset // UNIT_BYTES if self.files else 0

    @property
    def stop(self) -> int:
        """The queue offset behind the last unit there is room for."""
        last = self.files[-1] if self.files else None
        return (last.base_offset // UNIT_BYTES + last.units) if last else 0

    def read(self, first: int, stop: int) -> Any:
        """Return units between two queue offsets; zeros where no file holds them.

        Returns:
            An array with ``phy_offset``, ``size`` and ``tags_code``, addresses resolved.
        """
        kind = np.dtype([("phy_offset", "<i8"), ("size", "<i4"), ("tags_code", "<i8")])
        found = np.zeros(max(0, stop - first), kind)
        for file in self.files:
            base = file.base_offset // UNIT_BYTES
            low, high = max(first, base), min(stop, base + file.units)
            if low < high:
                units = read_units(self.store.storage, file, low - base, high - base)
                found[low - first : low - first + len(units)] = units.astype(kind)
        return self._resolved(found)

    def written(self) -> int:
        """Return the queue offset behind the last unit that was written."""
        for file in reversed(self.files):
            units = read_units(self.store.storage, file, 0, file.units)
            there = np.flatnonzero((units["phy_offset"] >= 0) & (units["size"] > 0))
            if len(there):
                return file.base_offset // UNIT_BYTES + int(there[-1]) + 1
        return self.first

    def _resolved(self, units: Any) -> Any:
        addressed = np.flatnonzero(units["tags_code"] <= ADDRESS_MAX)
        if len(addressed):
            codes = self.store.ext_codes(self.topic, self.queue_id)
            for row in addressed.tolist():
                real = real_offset_of(int(units["tags_code"][row]))
                units["tags_code"][row] = codes.get(real, units["tags_code"][row])
        return units


@dataclass(frozen=True)
class IndexHeader:
    """The first bytes of an index file."""

    begin_ms: int
    end_ms: int
    begin_log: int
    end_log: int
    slots_used: int
    next_entry: int


@dataclass(frozen=True)
class IndexFile:
    """One index file."""

    storage: Storage
    path: str
    size: int
    slots: int

    @property
    def room(self) -> int:
        """How many entries it holds, the unused first one included."""
        return (self.size - HEADER_BYTES - self.slots * _SLOT_BYTES) // ENTRY.itemsize

    def header(self) -> IndexHeader:
        """Return the file's header; a damaged count leads nowhere else."""
        fields = _HEADER.unpack(read_bytes(self.storage, self.path, 0, HEADER_BYTES))
        met = IndexHeader(*fields)
        return replace(met, next_entry=min(max(1, met.next_entry), self.room))

    def slot_values(self) -> Any:
        """Return the number of the newest entry of each slot."""
        data = read_bytes(self.storage, self.path, HEADER_BYTES, self.slots * _SLOT_BYTES)
        return np.frombuffer(data, ">i4")

    def entries(self, first: int, stop: int) -> Any:
        """Return entries by number as an array of `ENTRY`."""
        start = HEADER_BYTES + self.slots * _SLOT_BYTES + first * ENTRY.itemsize
        data = read_bytes(self.storage, self.path, start, (stop - first) * ENTRY.itemsize)
        return np.frombuffer(data, ENTRY)

    def entries_of(self, header: IndexHeader, start: int, end: int) -> Any:
        """Return the entries of the records between two log offsets.

        Entries are in the order of the log, so they are found by halving.
        """
        low = self._first_from(start, 1, header.next_entry)
        return self.entries(low, self._first_from(end, low, header.next_entry))

    def _first_from(self, log_offset: int, low: int, high: int) -> int:
        while low < high:
            middle = (low + high) // 2
            if int(self.entries(middle, middle + 1)["phy"][0]) < log_offset:
                low = middle + 1
            else:
                high = middle
        return low

    def chunks(self, header: IndexHeader) -> Iterator[tuple[int, Any]]:
        """Yield the number of a first entry and entries, until all were yielded."""
        for first in range(1, header.next_entry, _CHUNK_ENTRIES):
            yield first, self.entries(first, min(first + _CHUNK_ENTRIES, header.next_entry))


def log_end(place: LogPlace, *, closed: bool = False) -> int:
    """Return the log offset up to which a log is to be read.

    The log of a store that was closed in order, or of one that ``closed`` says is not running, is
    read to its last record. Otherwise it is read as far as its queues lead.
    """
    if place.store is not None and not closed:
        storage, root = place.store
        closed = storage.entry(f"{root}/abort") is None
    return Follower().of_closed(place) if closed else watermark(place)


def slots_of(size: int) -> int:
    """Return how many slots an index file of this size has if nobody changed the proportion."""
    return (size - HEADER_BYTES) // (_SLOT_BYTES + _ENTRIES_PER_SLOT * ENTRY.itemsize)


def read_bytes(storage: Storage, path: str, start: int, size: int) -> bytearray:
    """Return a part of a file; shorter only at its end."""
    buffer = bytearray(size)
    opened = storage.open(path)
    try:
        count = opened.read_into(start, memoryview(buffer))
    finally:
        opened.close()
    return buffer[:count]


def is_filler(units: Any) -> Any:
    """Return which units stand for no record."""
    return units["size"] == FILLER_SIZE


def _ext_codes(data: bytearray, base: int) -> dict[int, int]:
    found: dict[int, int] = {}
    at = 0
    while at + _EXT_HEAD.size <= len(data):
        size, code, _ = _EXT_HEAD.unpack_from(data, at)
        if size < _EXT_HEAD.size:
            break
        found[base + at] = code
        at += size
    return found
