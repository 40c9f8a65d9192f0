"""Ranges of log bytes: what a batch reads, divided into the parts that tasks read.

A range owns the records that begin in it. Ranges that were planned begin and end where records do,
and none crosses from one file into the next.
"""

from __future__ import annotations

import itertools
from typing import NamedTuple

from cometmq.spark.logs.cuts import Piece, bounds_of
from cometmq.spark.logs.places import LogPlace


class ByteRange(NamedTuple):
    """Bytes of one broker's log, from ``start`` up to and without ``end``."""

    broker: str
    """What offset documents call the log, see `LogPlace.name`."""
    start: int
    end: int

    def __str__(self) -> str:
        return f"log of {self.broker}, bytes {self.start} to {self.end}"

    @property
    def size(self) -> int:
        """How many bytes the range has."""
        return max(self.end - self.start, 0)


def plan(
    place: LogPlace, start: int, end: int, max_bytes: int, *, least: int = 1
) -> list[ByteRange]:
    """Cut the bytes between two places in a log into ranges, in the order of the log.

    Args:
        place: the log.
        start: where a record begins, the first one that is meant.
        end: where the last one ends.
        max_bytes: about how many bytes a range may have; a range ends with a whole record.
        least: about how many ranges there should be at least.

    Returns:
        Ranges of nearly one size within each file; bytes that no file holds are left out, see
        `missing`.
    """
    held = [(file, max(start, file.base_offset), min(end, file.end_offset)) for file in place.files]
    held = [(file, low, high) for file, low, high in held if low < high]
    total = sum(high - low for _, low, high in held)
    pieces = []
    for file, low, high in held:
        count = max(-(-(high - low) // max_bytes), -(-least * (high - low) // total))
        pieces.append(Piece(file, low, high, count))
    return [
        ByteRange(place.name, low, high)
        for bounds in bounds_of(place, pieces)
        for low, high in itertools.pairwise(bounds)
    ]


def missing(place: LogPlace, start: int, end: int) -> list[ByteRange]:
    """Return the bytes between two places that no file holds, between or before the files."""
    gaps, at = [], start
    for file in place.files:
        if at < min(file.base_offset, end):
            gaps.append(ByteRange(place.name, at, min(file.base_offset, end)))
        at = max(at, file.end_offset)
    if at < end:
        gaps.append(ByteRange(place.name, at, end))
    return gaps
