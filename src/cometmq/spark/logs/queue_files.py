"""The consume queues of a store as files: which there are, and the units in them.

    consumequeue/<topic>/<queue>/<20 digits>       unit := log_offset:i64 size:i32 tags_code:i64
    batchconsumequeue/<topic>/<queue>/<20 digits>  46 bytes, of which the first 20 are the same

Units that were not written yet are zero. Source: ours; the layouts are those of ConsumeQueue and
BatchConsumeQueue, RocketMQ 5.3.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from struct import Struct
from typing import NamedTuple

from cometmq.spark.logs.storage import Entry, OpenFile, Storage
from cometmq.store.consume_queue import FILLER_SIZE, UNIT_BYTES

QUEUES = "consumequeue"
BATCH_QUEUES = "batchconsumequeue"
_WIDTHS = {QUEUES: UNIT_BYTES, BATCH_QUEUES: 46}
_UNIT = Struct(">qiq")
_NUMBER = re.compile(r"[0-9]{1,9}")
_NAME = re.compile(r"[0-9]{20}")


class Unit(NamedTuple):
    """Where the record of one message is."""

    log_offset: int
    size: int
    tags_code: int

    @property
    def end(self) -> int:
        """The log offset after the record."""
        return self.log_offset + self.size


class QueueDirectory(NamedTuple):
    """The directory of one queue of a topic."""

    topic: str
    queue_id: int
    path: str
    unit_bytes: int


class QueueFile(NamedTuple):
    """One file of units."""

    queue: QueueDirectory
    path: str
    base_offset: int
    """The place of its first byte in the queue's stream of units."""
    size: int

    @property
    def units(self) -> int:
        """How many units fit into it."""
        return self.size // self.queue.unit_bytes


def queue_directories(
    storage: Storage, store: str, topics: frozenset[str] = frozenset()
) -> Iterator[QueueDirectory]:
    """Yield the queues of a store.

    Args:
        storage: the way to the files.
        store: the store's directory.
        topics: the topics that are meant, none for all.
    """
    for kind, width in _WIDTHS.items():
        for topic in _directories(storage, f"{store}/{kind}"):
            if topics and topic.name not in topics:
                continue
            for queue in _directories(storage, topic.path):
                if _NUMBER.fullmatch(queue.name):
                    yield QueueDirectory(topic.name, int(queue.name), queue.path, width)


def queue_files(storage: Storage, queue: QueueDirectory) -> list[QueueFile]:
    """Return the files of a queue, oldest first."""
    return [
        QueueFile(queue, entry.path, int(entry.name), entry.size_bytes)
        for entry in storage.entries(queue.path)
        if not entry.is_dir and entry.size_bytes and _NAME.fullmatch(entry.name)
    ]


def _directories(storage: Storage, path: str) -> list[Entry]:
    return [entry for entry in storage.entries(path) if entry.is_dir]


class UnitReader:
    """Single units of a file, by number; closes the file in the end."""

    def __init__(self, storage: Storage, file: QueueFile) -> None:
        self.file = file
        self._opened: OpenFile = storage.open(file.path)
        self._buffer = memoryview(bytearray(_UNIT.size))

    def __enter__(self) -> UnitReader:
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    def unit(self, index: int) -> Unit | None:
        """Return a unit, None where none was written yet."""
        place = index * self.file.queue.unit_bytes
        if self._opened.read_into(place, self._buffer) < len(self._buffer):
            return None
        unit = Unit(*_UNIT.unpack(self._buffer))
        return unit if unit.log_offset >= 0 and unit.size > 0 else None

    def written(self, least: int = 0) -> int:
        """Return how many units were written; units are written from the first one on.

        Args:
            least: how many surely were.
        """
        low, high = least, self.file.units
        while low < high:
            middle = (low + high) // 2
            if self.unit(middle) is None:
                high = middle
            else:
                low = middle + 1
        return low

    def first_at_or_after(self, log_offset: int, written: int) -> int:
        """Return the first of the written units whose record is at a log offset or later."""
        low, high = 0, written
        while low < high:
            middle = (low + high) // 2
            unit = self.unit(middle)
            if unit is None or unit.log_offset < log_offset or unit.size == FILLER_SIZE:
                low = middle + 1
            else:
                high = middle
        return low


class DispatchedEnd:
    """How far a store's consume queues lead: the log up to there is complete and readable.

    Keeps for every queue which file was its last, so that asking again costs a few small reads.

    Args:
        storage: the way to the files.
        store: the store's directory.
    """

    def __init__(self, storage: Storage, store: str) -> None:
        self._storage = storage
        self._store = store
        self._written: dict[str, int] = {}

    def now(self) -> int | None:
        """Return the end of the last record that some queue leads to; None for no unit at all."""
        ends = (self._end_of(queue) for queue in queue_directories(self._storage, self._store))
        return max((end for end in ends if end is not None), default=None)

    def _end_of(self, queue: QueueDirectory) -> int | None:
        for file in reversed(queue_files(self._storage, queue)):
            try:
                with UnitReader(self._storage, file) as reader:
                    end = self._last_end(reader)
            except FileNotFoundError:
                continue
            if end is not None:
                return end
        return None

    def _last_end(self, reader: UnitReader) -> int | None:
        """The end of the last record that a file leads to, None if it leads to none."""
        path = reader.file.path
        known = self._written.get(path, 0)
        if known and reader.unit(known - 1) is None:  # cut since
            known = 0
        self._written[path] = written = reader.written(known)
        for index in range(written - 1, -1, -1):
            unit = reader.unit(index)
            if unit is not None and unit.size != FILLER_SIZE:
                return unit.end
        return None
