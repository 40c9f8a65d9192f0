"""Finds the records of some topics by their consume queues, without a scan of the log.

Units are compared by the hash of their tags. Records are read where units lead, close ones with
one read, and are returned back to back as brokers send them. Messages of a deleted topic have no
units.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any, NamedTuple

import numpy as np

from cometmq.spark.errors import BadRecordError, DataLossError
from cometmq.spark.logs.files import Log, LogFile
from cometmq.spark.logs.queue_files import (
    QUEUES,
    QueueFile,
    UnitReader,
    for_each,
    queue_files,
    read_units,
)
from cometmq.spark.logs.ranges import ByteRange
from cometmq.spark.logs.reading import Damage
from cometmq.spark.logs.window import is_whole, start_of
from cometmq.store.queues.consume_queue import FILLER_SIZE, UNIT_BYTES
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
        base = self.file.base_offset // self.file.unit_bytes
        units = f"units {base + self.first} to {base + self.stop}"
        return f"topic {self.file.topic}, queue {self.file.queue_id}, {units}"


def units_between(log: Log, topics: frozenset[str], part: ByteRange) -> list[UnitRange]:
    """Return the units of topics whose records begin in a range of the log."""

    def between(file: QueueFile) -> UnitRange | None:
        try:
            with UnitReader(file) as reader:
                written = reader.written()
                first = reader.first_at_or_after(part.start, written)
                stop = reader.first_at_or_after(part.end, written)
        except FileNotFoundError:  # expired, and so are its records
            return None
        return UnitRange(file, first, stop) if first < stop else None

    files = itertools.chain.from_iterable(queue_files(log.store, topics))
    return [units for units in for_each(log.remote, between, files) if units is not None]


def has_queues_of(log: Log, topics: frozenset[str]) -> bool:
    """Return whether the store has consume queues of all these topics.

    Units of batches stand for several messages, so their topics do not count.
    """
    return {files[0].topic for files in queue_files(log.store, topics, (QUEUES,))} == topics


def estimated_bytes(units: list[UnitRange]) -> int:
    """Return about how many bytes the records of these units have, from a sample of each file."""
    total = 0
    for file, first, stop in units:
        sizes = read_units(file, first, min(stop, first + _SAMPLE_UNITS))["size"]
        sizes = sizes[sizes != FILLER_SIZE]
        total += int(sizes.mean() * (stop - first)) if len(sizes) else 0
    return total


def cut_units(units: UnitRange, most: int) -> list[UnitRange]:
    """Cut a range of units so that no part has more than ``most``."""
    bounds = [*range(units.first, units.stop, most), units.stop]
    return [units._replace(first=low, stop=high) for low, high in itertools.pairwise(bounds)]


def gathered(
    log: Log,
    units: UnitRange,
    codes: frozenset[int] | None = None,
    damage: list[Damage] | None = None,
) -> Iterator[bytearray]:
    """Yield the records that units lead to, back to back, some at a time.

    Args:
        log: the log.
        units: the units.
        codes: hashes of tags that are wanted, None for all; other records may be among them.
        damage: where to note what is no record, to go on behind it; None to fail.

    Raises:
        BadRecordError: a unit leads to bytes that are no record of its size.
        DataLossError: the record is in no file any more.
    """
    found = read_units(units.file, units.first, units.stop)
    found = found[found["size"] != FILLER_SIZE]
    if codes is not None:
        tags = found["tags_code"]
        chosen = np.isin(tags, sorted(codes)) | (tags <= ADDRESS_MAX)
        if units.file.unit_bytes != UNIT_BYTES:  # a batch without tags may have messages with tags
            chosen |= tags == 0
        found = found[chosen]
    data = bytearray()
    for offset, record in _records(log, units, found):
        met, size = start_of(record)
        if (met, size) == (offset, len(record)) and is_whole(record, 0):
            data += record
            if len(data) >= GATHERED_BYTES:
                yield data
                data = bytearray()
            continue
        problem = f"{size} bytes that say they are at {met}, or lengths that do not add up"
        if damage is None:
            raise BadRecordError(
                f"{units}: met {problem}, expected a record of {len(record)} bytes at log offset"
                f" {offset}"
            )
        damage.append(Damage(ByteRange(log.name, offset, offset + len(record)), problem))
    if data:
        yield data


def _records(log: Log, units: UnitRange, found: Any) -> Iterator[tuple[int, memoryview]]:
    """Yield the offset and the bytes of each record."""
    offsets, ends = found["phy_offset"].tolist(), (found["phy_offset"] + found["size"]).tolist()
    spans = _spans(log, offsets, ends)
    for file, in_file in itertools.groupby(spans, lambda span: log.file_at(offsets[span[0]])):
        with _opened(file, units) as opened:
            for span in in_file:
                start, end = offsets[span[0]], ends[span[-1]]
                if file is None or end > file.end_offset:
                    raise DataLossError(f"{units}: no file of the log holds bytes {start} to {end}")
                data = memoryview(opened.read_at(end - start, start - file.base_offset))
                if len(data) < end - start:
                    raise DataLossError(f"{units}: {file.path} was truncated")
                for index in span:
                    yield offsets[index], data[offsets[index] - start : ends[index] - start]


def _opened(file: LogFile | None, units: UnitRange) -> Any:
    if file is None:
        return nullcontext()
    try:
        return file.filesystem.open_input_file(file.path)
    except FileNotFoundError:
        raise DataLossError(f"{units}: {file.path} was deleted") from None


def _spans(log: Log, offsets: list[int], ends: list[int]) -> Iterator[range]:
    """Yield the numbers of records that are read at once: close ones of one file."""
    first = 0
    for index in range(1, len(offsets) + 1):
        if index < len(offsets):
            file = log.file_at(offsets[first])
            is_near = 0 <= offsets[index] - ends[index - 1] <= _GAP_BYTES[log.remote]
            is_short = ends[index] - offsets[first] <= _SPAN_BYTES_MAX
            if is_near and is_short and file is not None and ends[index] <= file.end_offset:
                continue
        yield range(first, index)
        first = index
