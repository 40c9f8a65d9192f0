"""Ranges of log bytes: what a batch reads, divided into the parts that tasks read.

A range owns the records that begin in it. Planned ranges begin and end where records do, and none
crosses from one file into the next. So damage is met by one reader, and by one only.

Where the store's consume queues are on a disk of this machine, a range begins where a unit leads.
Elsewhere it begins where something looks like a record and has the right physical offset. A body
may be made to look so, which the reader of the range before finds out.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from typing import NamedTuple

from cometmq.spark.logs.files import Log, LogFile
from cometmq.spark.logs.queue_files import QUEUES, QueueFile, UnitReader, for_each, queue_files
from cometmq.spark.logs.window import PROBE_BYTES, Window
from cometmq.store.queues.consume_queue import FILLER_SIZE

_QUEUES_ASKED = 4


class ByteRange(NamedTuple):
    """Bytes of one broker's log, from ``start`` up to and without ``end``."""

    broker: str
    """The name of the log in offset documents, see `Log.name`."""
    start: int
    end: int

    def __str__(self) -> str:
        return f"log of {self.broker}, bytes {self.start} to {self.end}"

    @property
    def size(self) -> int:
        """How many bytes the range has."""
        return max(self.end - self.start, 0)


class _Piece(NamedTuple):
    """Bytes of one file, and into how many ranges to cut them."""

    file: LogFile
    start: int
    end: int
    ranges: int


def plan(log: Log, start: int, end: int, max_bytes: int, *, least: int = 1) -> list[ByteRange]:
    """Cut the bytes between two offsets of a log into ranges, in the order of the log.

    Args:
        log: the log.
        start: where the first record begins.
        end: where the last record ends.
        max_bytes: about how many bytes a range may have; a range ends with a whole record.
        least: about how many ranges there should be at least.

    Returns:
        Ranges of nearly one size within each file; bytes that no file holds are left out, see
        `missing`.
    """
    held = [(file, max(start, file.base_offset), min(end, file.end_offset)) for file in log.files]
    held = [(file, low, high) for file, low, high in held if low < high]
    total = sum(high - low for _, low, high in held)
    pieces = [
        _Piece(
            file, low, high, max(-(-(high - low) // max_bytes), -(-least * (high - low) // total))
        )
        for file, low, high in held
    ]
    queues = _longest_queues(log) if any(piece.ranges > 1 for piece in pieces) else []
    return [
        ByteRange(log.name, low, high)
        for cuts in for_each(log.remote, lambda piece: _cuts(queues, piece), pieces)
        for low, high in itertools.pairwise(cuts)
    ]


def missing(log: Log, start: int, end: int) -> list[ByteRange]:
    """Return the bytes between two offsets that no file holds, between or before the files."""
    gaps, at = [], start
    for file in log.files:
        if at < min(file.base_offset, end):
            gaps.append(ByteRange(log.name, at, min(file.base_offset, end)))
        at = max(at, file.end_offset)
    if at < end:
        gaps.append(ByteRange(log.name, at, end))
    return gaps


def _cuts(queues: list[list[QueueFile]], piece: _Piece) -> list[int]:
    """Return the bounds of the ranges of a piece; it stays whole if its file is gone."""
    file, start, end, count = piece
    cuts = [start]
    if count < 2:
        return [start, end]
    try:
        with Window(file, PROBE_BYTES) as window:
            for number in range(1, min(count, end - start)):
                wanted = start + (end - start) * number // count
                if wanted <= cuts[-1]:
                    continue
                known = (_first_record(queue, wanted) for queue in queues)
                at = min((at for at in known if at is not None and at < end), default=None)
                if at is None or not window.begins_at(at - file.base_offset):
                    at = file.base_offset + window.next_record(
                        wanted - file.base_offset, end - file.base_offset
                    )
                if at < end:
                    cuts.append(at)
    except FileNotFoundError:  # the reader of the range reports it
        return [start, end]
    return [*cuts, end]


def _longest_queues(log: Log) -> list[list[QueueFile]]:
    """Return the consume queues with the most units, if they are on a disk of this machine."""
    queues = [] if log.remote else queue_files(log.store, kinds=(QUEUES,))
    queues.sort(key=lambda files: files[-1].base_offset, reverse=True)
    return queues[:_QUEUES_ASKED]


def _first_record(queue: list[QueueFile], offset: int) -> int | None:
    """Return where the first record of a queue at an offset or after it begins."""
    before = bisect_left(queue, True, key=lambda file: _begins_behind(file, offset)) - 1
    for file in queue[max(before, 0) :]:
        with UnitReader(file) as reader:
            written = reader.written()
            number = reader.first_at_or_after(offset, written)
            unit = reader.unit(number) if number < written else None
        if unit is not None and unit.size != FILLER_SIZE:
            return unit.log_offset
    return None


def _begins_behind(file: QueueFile, offset: int) -> bool:
    """Return whether a file has no unit of a record at an offset or before it."""
    with UnitReader(file) as reader:
        unit = reader.unit(0)
    return unit is None or (unit.size != FILLER_SIZE and unit.log_offset > offset)
