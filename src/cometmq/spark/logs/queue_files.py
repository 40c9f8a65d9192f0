"""The consume queues of a store as files: the list of them, and the units in them.

    consumequeue/<topic>/<queue>/<20 digits>       unit := log_offset:i64 size:i32 tags_code:i64
    batchconsumequeue/<topic>/<queue>/<20 digits>  46 bytes, of which the first 20 are the same

Units that were not written yet are zero. The layouts are those of ConsumeQueue and
BatchConsumeQueue, RocketMQ 5.3.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from struct import Struct
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np

from cometmq.spark.logs.storage import Entry, OpenFile, Storage
from cometmq.store.queues.consume_queue import FILLER_SIZE, UNIT_BYTES

T = TypeVar("T")
U = TypeVar("U")
QUEUES = "consumequeue"
BATCH_QUEUES = "batchconsumequeue"
_WIDTHS = {QUEUES: UNIT_BYTES, BATCH_QUEUES: 46}
UNIT_TYPES = {
    width: np.dtype(
        {
            "names": ["phy_offset", "size", "tags_code"],
            "formats": [">i8", ">i4", ">i8"],
            "offsets": [0, 8, 12],
            "itemsize": width,
        }
    )
    for width in _WIDTHS.values()
}
_BLOCK_BYTES = {False: 4 * 1024, True: 64 * 1024}
"""How much is read for one unit: of a disk of this machine, and of a remote one."""
_REMOTE_THREADS = 16
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
    storage: Storage,
    store: str,
    topics: frozenset[str] = frozenset(),
    kinds: tuple[str, ...] = (QUEUES, BATCH_QUEUES),
) -> Iterator[QueueDirectory]:
    """Yield the queues of a store.

    Args:
        storage: the way to the files.
        store: the store's directory.
        topics: the topics that are meant, none for all.
        kinds: the directories of the store to look in.
    """
    for kind in kinds:
        width = _WIDTHS[kind]
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


class Distant(Protocol):
    """Something that may be far away."""

    @property
    def remote(self) -> bool:
        """Whether a small read costs as much as a large one."""


def for_each(storage: Distant, ask: Callable[[T], U], items: Iterable[T]) -> list[U]:
    """Ask about each of some things, several at a time where ``storage`` is far away."""
    items = list(items)
    if not storage.remote or len(items) < 2:
        return [ask(item) for item in items]
    with ThreadPoolExecutor(_REMOTE_THREADS) as threads:
        return list(threads.map(ask, items))


def read_units(storage: Storage, file: QueueFile, first: int, stop: int) -> Any:
    """Return units of a file as an array with the fields phy_offset, size and tags_code."""
    width = file.queue.unit_bytes
    buffer = bytearray((stop - first) * width)
    opened = storage.open(file.path)
    try:
        count = opened.read_into(first * width, memoryview(buffer)) // width
    finally:
        opened.close()
    return np.frombuffer(buffer, UNIT_TYPES[width], count)


class UnitReader:
    """Single units of a file, by number; closes the file in the end.

    A block around a unit is read at once and remembered, for whoever halves comes back to it.
    """

    def __init__(self, storage: Storage, file: QueueFile) -> None:
        self.file = file
        self._opened: OpenFile = storage.open(file.path)
        self._block_units = _BLOCK_BYTES[storage.remote] // file.queue.unit_bytes
        self._blocks: dict[int, bytes] = {}

    def __enter__(self) -> UnitReader:
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    def unit(self, index: int) -> Unit | None:
        """Return a unit, None where none was written yet."""
        number, place = divmod(index, self._block_units)
        block = self._blocks.get(number)
        if block is None:
            block = self._blocks[number] = self._block(number)
        place *= self.file.queue.unit_bytes
        if place + _UNIT.size > len(block):
            return None
        unit = Unit(*_UNIT.unpack_from(block, place))
        return unit if unit.log_offset >= 0 and unit.size > 0 else None

    def _block(self, number: int) -> bytes:
        size = self._block_units * self.file.queue.unit_bytes
        buffer = bytearray(size)
        count = self._opened.read_into(number * size, memoryview(buffer))
        return bytes(buffer[:count])

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

    def now(self) -> Unit | None:
        """Return the unit of the last record that some queue leads to; None for no unit at all."""
        queues = queue_directories(self._storage, self._store)
        last = for_each(self._storage, self._last_of, queues)
        return max((unit for unit in last if unit is not None), default=None)

    def _last_of(self, queue: QueueDirectory) -> Unit | None:
        for file in reversed(queue_files(self._storage, queue)):
            try:
                with UnitReader(self._storage, file) as reader:
                    unit = self._last_in(reader)
            except FileNotFoundError:
                continue
            if unit is not None:
                return unit
        return None

    def _last_in(self, reader: UnitReader) -> Unit | None:
        """Return the last unit of a file that leads to a record, None if none does."""
        path = reader.file.path
        self._written[path] = written = reader.written(self._written.get(path, 0))
        for index in range(written - 1, -1, -1):  # past what was cut since
            unit = reader.unit(index)
            if unit is not None and unit.size != FILLER_SIZE:
                return unit
        return None
