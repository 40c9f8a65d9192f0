"""The consume queues of a store as files: the list of them, and the units in them.

    consumequeue/<topic>/<queue>/<20 digits>       unit := log_offset:i64 size:i32 tags_code:i64
    batchconsumequeue/<topic>/<queue>/<20 digits>  46 bytes, of which the first 20 are the same

Units that were not written yet are zero. The layouts are those of ConsumeQueue and
BatchConsumeQueue, RocketMQ 5.3.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from struct import Struct
from typing import NamedTuple, TypeVar

from pyarrow import fs

from cometmq.spark.logs.files import Folder, files_in, is_remote
from cometmq.store.queues.consume_queue import FILLER_SIZE, UNIT_BYTES

T = TypeVar("T")
U = TypeVar("U")
QUEUES = "consumequeue"
BATCH_QUEUES = "batchconsumequeue"
_WIDTHS = {QUEUES: UNIT_BYTES, BATCH_QUEUES: 46}
_BLOCK_BYTES = {False: 4 * 1024, True: 64 * 1024}
"""How much is read for one unit: of a disk of this machine, and of a remote one."""
_REMOTE_THREADS = 16
_UNIT = Struct(">qiq")
_PATH = re.compile(rf"({QUEUES}|{BATCH_QUEUES})/([^/]+)/([0-9]{{1,9}})/([0-9]{{20}})")


class Unit(NamedTuple):
    """Where the record of one message is."""

    log_offset: int
    size: int
    tags_code: int

    @property
    def end(self) -> int:
        """The physical offset after the record."""
        return self.log_offset + self.size


class QueueFile(NamedTuple):
    """One file of units."""

    filesystem: fs.FileSystem
    path: str
    size: int
    topic: str
    queue_id: int
    unit_bytes: int
    base_offset: int
    """The position of its first byte in the queue's stream of units."""


def queue_files(
    store: Folder | None, kinds: tuple[str, ...] = (QUEUES, BATCH_QUEUES)
) -> list[list[QueueFile]]:
    """Return the files of each consume queue of a store, oldest first.

    Args:
        store: the store's directory, None for none.
        kinds: the directories of the store to list.
    """
    if store is None:
        return []
    found: dict[str, list[QueueFile]] = {}
    for each in kinds:
        folder = Folder(store.filesystem, f"{store.path}/{each}")
        for info in files_in(folder, recursive=True):
            match = _PATH.fullmatch(info.path.removeprefix(f"{store.path}/"))
            if match is not None:
                kind, topic, queue_id, name = match.groups()
                where = store.filesystem, info.path, info.size
                file = QueueFile(*where, topic, int(queue_id), _WIDTHS[kind], int(name))
                found.setdefault(info.path.rpartition("/")[0], []).append(file)
    return list(found.values())


def for_each(remote: bool, ask: Callable[[T], U], items: Iterable[T]) -> list[U]:
    """Call a function for each item, several at a time if they are read from a remote disk."""
    items = list(items)
    if not remote or len(items) < 2:
        return [ask(item) for item in items]
    with ThreadPoolExecutor(_REMOTE_THREADS) as threads:
        return list(threads.map(ask, items))


class UnitReader:
    """Single units of a file, by number; closes the file in the end.

    A block around a unit is read at once and remembered, because a search by halving comes back.
    """

    def __init__(self, file: QueueFile) -> None:
        self._file = file
        self._opened = file.filesystem.open_input_file(file.path)
        self._block_units = _BLOCK_BYTES[is_remote(file.filesystem)] // file.unit_bytes
        self._blocks: dict[int, bytes] = {}

    def __enter__(self) -> UnitReader:
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    def unit(self, index: int) -> Unit | None:
        """Return a unit, None where none was written yet."""
        number, place = divmod(index, self._block_units)
        if number not in self._blocks:
            size = self._block_units * self._file.unit_bytes
            self._blocks[number] = self._opened.read_at(size, number * size)
        block, place = self._blocks[number], place * self._file.unit_bytes
        if place + _UNIT.size > len(block):
            return None
        unit = Unit(*_UNIT.unpack_from(block, place))
        return unit if unit.log_offset >= 0 and unit.size > 0 else None

    def written(self, least: int = 0) -> int:
        """Return how many units were written, which is at least ``least``."""
        units = range(self._file.size // self._file.unit_bytes)
        return bisect_left(units, True, least, key=lambda index: self.unit(index) is None)

    def first_at_or_after(self, log_offset: int, written: int) -> int:
        """Return the first of the written units whose record is at an offset or after it."""
        return bisect_left(range(written), True, key=lambda index: self._is_at(index, log_offset))

    def _is_at(self, index: int, log_offset: int) -> bool:
        unit = self.unit(index)
        return unit is not None and unit.size != FILLER_SIZE and unit.log_offset >= log_offset


def last_unit(store: Folder | None, written: dict[str, int]) -> Unit | None:
    """Return the unit of the last record that some queue leads to; None for no unit at all.

    The log up to there is complete and readable.

    Args:
        store: the store's directory, None for none.
        written: remembers how many units each file had, so that asking again costs a few reads.
    """

    def last_of(queue: list[QueueFile]) -> Unit | None:
        for file in reversed(queue):
            try:
                with UnitReader(file) as reader:
                    count = written[file.path] = reader.written(written.get(file.path, 0))
                    for index in range(count - 1, -1, -1):  # past what was truncated since
                        unit = reader.unit(index)
                        if unit is not None and unit.size != FILLER_SIZE:
                            return unit
            except FileNotFoundError:
                continue
        return None

    remote = store is not None and is_remote(store.filesystem)
    last = for_each(remote, last_of, queue_files(store))
    return max((unit for unit in last if unit is not None), default=None)
