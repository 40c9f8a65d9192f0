"""Finds the records of some topics by their consume queues, without a scan of the log.

Units are compared by the hash of their tags, records are read where units lead, close ones with
one read, and handed on back to back as brokers send them. Messages of a topic that was deleted
since have no units.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from cometmq.spark.errors import BadRecordError, DataLossError
from cometmq.spark.logs.places import LogFile, LogPlace
from cometmq.spark.logs.queue_files import (
    BATCH_QUEUES,
    QueueDirectory,
    QueueFile,
    UnitReader,
    for_each,
    queue_directories,
    queue_files,
    read_units,
)
from cometmq.spark.logs.ranges import ByteRange
from cometmq.spark.logs.reading import Damage
from cometmq.spark.logs.resync import is_whole, start_of
from cometmq.spark.logs.storage import OpenFile, Storage
from cometmq.store.queues.consume_queue import FILLER_SIZE
from cometmq.store.queues.consume_queue_ext import ADDRESS_MAX

GATHERED_BYTES = 1024 * 1024
_SPAN_BYTES_MAX = 8 * 1024 * 1024
_GAP_BYTES = {False: 4 * 1024, True: 256 * 1024}
"""How far apart two records may be to be read at once: on a disk of this machine, and remotely."""
_SAMPLE_UNITS = 256


class UnitRange(NamedTuple):
    """Units of one file, from ``first`` up to and without ``stop``."""

    file: QueueFile
    first: int
    stop: int

    def __str__(self) -> str:
        queue = self.file.queue
        base = self.file.base_offset // queue.unit_bytes
        places = f"units {base + self.first} to {base + self.stop}"
        return f"topic {queue.topic}, queue {queue.queue_id}, {places}"


def units_between(place: LogPlace, topics: frozenset[str], part: ByteRange) -> list[UnitRange]:
    """Return the units of topics whose records begin in a range of the log."""
    if place.store is None:
        return []
    storage, store = place.store

    def of_queue(queue: QueueDirectory) -> list[UnitRange]:
        files = queue_files(storage, queue)
        return [units for file in files for units in _between(storage, file, part)]

    queues = queue_directories(storage, store, topics)
    return [units for found in for_each(storage, of_queue, queues) for units in found]


def _between(storage: Storage, file: QueueFile, part: ByteRange) -> Iterator[UnitRange]:
    try:
        with UnitReader(storage, file) as reader:
            written = reader.written()
            first = reader.first_at_or_after(part.start, written)
            stop = reader.first_at_or_after(part.end, written)
    except FileNotFoundError:  # expired, and so are its records
        return
    if first < stop:
        yield UnitRange(file, first, stop)


def has_queues_of(place: LogPlace, topics: frozenset[str]) -> bool:
    """Return whether the store's directory has consume queues of all these topics.

    Units of batches stand for several messages, so their topics do not count.
    """
    if place.store is None:
        return False
    met = {
        queue.topic
        for queue in queue_directories(*place.store, topics)
        if f"/{BATCH_QUEUES}/" not in queue.path
    }
    return met == topics


def estimated_bytes(place: LogPlace, units: list[UnitRange]) -> int:
    """Return about how many bytes the records of these units have, from a sample of each file."""
    total = 0
    for each in units:
        last = min(each.stop, each.first + _SAMPLE_UNITS)
        sizes = read_units(_storage(place), each.file, each.first, last)["size"]
        sizes = sizes[sizes != FILLER_SIZE]
        total += int(sizes.mean() * (each.stop - each.first)) if len(sizes) else 0
    return total


def cut_units(units: UnitRange, most: int) -> list[UnitRange]:
    """Cut a range of units so that no part has more than ``most``."""
    bounds = [*range(units.first, units.stop, most), units.stop]
    return [units._replace(first=low, stop=high) for low, high in itertools.pairwise(bounds)]


def gathered(
    place: LogPlace,
    units: UnitRange,
    codes: frozenset[int] | None = None,
    damage: list[Damage] | None = None,
) -> Iterator[bytearray]:
    """Yield the records that units lead to, back to back, some at a time.

    Args:
        place: the log.
        units: the units.
        codes: hashes of tags that are wanted, None for all; other records may be among them.
        damage: where to note what is no record, to go on behind it; None to fail.

    Raises:
        BadRecordError: what stands where a unit leads is no record of that size.
        DataLossError: it is in no file any more.
    """
    places = read_units(_storage(place), units.file, units.first, units.stop)
    places = places[places["size"] != FILLER_SIZE]
    if codes is not None:
        tags = places["tags_code"]
        places = places[np.isin(tags, sorted(codes)) | (tags <= ADDRESS_MAX)]
    reader = _Spans(place, units, damage)
    try:
        yield from reader.gathered(places["phy_offset"].tolist(), places["size"].tolist())
    finally:
        reader.close()


class _Spans:
    """Reads records by their places, close ones together."""

    def __init__(self, place: LogPlace, units: UnitRange, damage: list[Damage] | None) -> None:
        self._place = place
        self._units = units
        self._damage = damage
        self._gap_bytes = _GAP_BYTES[place.remote]
        self._file: LogFile | None = None
        self._opened: OpenFile | None = None

    def close(self) -> None:
        if self._opened is not None:
            self._opened.close()

    def gathered(self, offsets: list[int], sizes: list[int]) -> Iterator[bytearray]:
        data = bytearray()
        for start, end, first, stop in self._spans(offsets, sizes):
            span = self._read(start, end)
            for index in range(first, stop):
                at = offsets[index] - start
                data += self._checked(span[at : at + sizes[index]], offsets[index])
                if len(data) >= GATHERED_BYTES:
                    yield data
                    data = bytearray()
        if data:
            yield data

    def _spans(self, offsets: list[int], sizes: list[int]) -> Iterator[tuple[int, int, int, int]]:
        """Yield the bounds of what is read at once, and which records are in it."""
        first = 0
        for index in range(1, len(offsets) + 1):
            if index < len(offsets) and self._joins(offsets, sizes, first, index):
                continue
            yield offsets[first], offsets[index - 1] + sizes[index - 1], first, index
            first = index

    def _joins(self, offsets: list[int], sizes: list[int], first: int, index: int) -> bool:
        end = offsets[index] + sizes[index]
        gap = offsets[index] - (offsets[index - 1] + sizes[index - 1])
        file = self._place.file_at(offsets[first])
        return (
            0 <= gap <= self._gap_bytes
            and end - offsets[first] <= _SPAN_BYTES_MAX
            and file is not None
            and end <= file.end_offset
        )

    def _read(self, start: int, end: int) -> memoryview:
        file = self._place.file_at(start)
        if file is None or end > file.end_offset:
            raise DataLossError(f"{self._units}: no file of the log holds bytes {start} to {end}")
        if self._opened is None or file != self._file:
            self._open(file)
        assert self._opened is not None
        buffer = memoryview(bytearray(end - start))
        if self._opened.read_into(start - file.base_offset, buffer) < len(buffer):
            raise DataLossError(f"{self._units}: {file.path} was truncated")
        return buffer

    def _open(self, file: LogFile) -> None:
        self.close()
        self._opened = None
        try:
            self._opened = self._place.open(file)
        except FileNotFoundError:
            raise DataLossError(f"{self._units}: {file.path} was deleted") from None
        self._file = file

    def _checked(self, record: memoryview, offset: int) -> memoryview | bytes:
        """Return the record if it is one; nothing where damage is noted."""
        met, size = start_of(record)
        if (met, size) == (offset, len(record)) and is_whole(record, 0):
            return record
        problem = f"{size} bytes that say they are at {met}, or lengths that do not add up"
        if self._damage is None:
            raise BadRecordError(
                f"{self._units}: met {problem}, expected a record of {len(record)} bytes at log"
                f" offset {offset}"
            )
        there = ByteRange(self._place.name, offset, offset + len(record))
        self._damage.append(Damage(there, problem))
        return b""


def _storage(place: LogPlace) -> Storage:
    assert place.store is not None
    return place.store[0]
