"""Divides a log file into pieces that begin at records.

Every reader of a piece walks from one certain place to another, so damage between them is met by
one reader, and by one only. Where the store's consume queues are on a disk of this machine, a cut
is where a unit leads; else it is where something begins that looks like a record and says that it
is there. A body may be made to look so, which the reader of the piece before finds out.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from cometmq.spark.logs.places import LogFile, LogPlace
from cometmq.spark.logs.probe import Probe
from cometmq.spark.logs.queue_files import (
    QUEUES,
    QueueFile,
    UnitReader,
    for_each,
    queue_directories,
    queue_files,
)
from cometmq.store.queues.consume_queue import FILLER_SIZE

_QUEUES_ASKED = 4


class Piece:
    """Bytes of one file, and into how many pieces they are to be cut."""

    def __init__(self, file: LogFile, start: int, end: int, count: int) -> None:
        self.file = file
        self.start = start
        self.end = end
        self.wanted = [
            start + (end - start) * number // count for number in range(1, min(count, end - start))
        ]
        """Log offsets behind which to cut."""


def bounds_of(place: LogPlace, pieces: Iterable[Piece]) -> list[list[int]]:
    """Return the bounds of the pieces that each one is cut into: from its start to its end.

    A piece whose file is gone stays whole; who reads it will tell.
    """
    units = _Units(place)
    return for_each(place, lambda piece: _bounds(place, units, piece), pieces)


def _bounds(place: LogPlace, units: _Units, piece: Piece) -> list[int]:
    inner: list[int] = []
    if piece.wanted:
        try:
            inner = _cuts(place, units, piece)
        except FileNotFoundError:
            inner = []
    return [piece.start, *inner, piece.end]


def _cuts(place: LogPlace, units: _Units, piece: Piece) -> list[int]:
    found: list[int] = []
    base = piece.file.base_offset
    with Probe(place, piece.file) as probe:
        for wanted in piece.wanted:
            if found and wanted <= found[-1]:
                continue
            at = units.first_at_or_after(wanted, piece.end)
            if at is None or not probe.begins_at(at - base):
                at = base + probe.next(wanted - base, piece.end - base)
            if at < piece.end:
                found.append(at)
    return found


class _Units:
    """Some consume queues of a store, the ones with the most units, to find records by.

    Args:
        place: the log; nothing is found if its store is not known, or far away.
    """

    def __init__(self, place: LogPlace) -> None:
        self._files: list[list[QueueFile]] = []
        if place.store is None or place.remote:
            return
        self._storage, store = place.store
        queues = [
            queue_files(self._storage, queue)
            for queue in queue_directories(self._storage, store, kinds=(QUEUES,))
        ]
        by_end = sorted(filter(None, queues), key=lambda files: files[-1].base_offset, reverse=True)
        self._files = [files for _, files in zip(range(_QUEUES_ASKED), by_end, strict=False)]

    def first_at_or_after(self, offset: int, stop: int) -> int | None:
        """Return where the next record begins of which a unit is known, None for nowhere."""
        found = (self._first(files, offset) for files in self._files)
        return min((at for at in found if at is not None and at < stop), default=None)

    def _first(self, files: list[QueueFile], offset: int) -> int | None:
        for file in itertools.islice(files, max(self._file_before(files, offset), 0), None):
            with UnitReader(self._storage, file) as reader:
                written = reader.written()
                number = reader.first_at_or_after(offset, written)
                unit = reader.unit(number) if number < written else None
            if unit is not None and unit.size != FILLER_SIZE:
                return unit.log_offset
        return None

    def _file_before(self, files: list[QueueFile], offset: int) -> int:
        """Return the last file whose first record is at an offset or before it."""
        low, high = 0, len(files)
        while low < high:
            middle = (low + high) // 2
            with UnitReader(self._storage, files[middle]) as reader:
                unit = reader.unit(0)
            if unit is not None and (unit.size == FILLER_SIZE or unit.log_offset <= offset):
                low = middle + 1
            else:
                high = middle
        return low - 1
