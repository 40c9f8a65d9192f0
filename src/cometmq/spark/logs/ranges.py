"""Ranges of a log's bytes: what a batch reads, cut into what tasks read.

A range owns the records that begin in it, so any cut is a good one; no range crosses from one file
into the next. Source: ours.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import NamedTuple

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


def plan(place: LogPlace, start: int, end: int, max_bytes: int) -> list[ByteRange]:
    """Cut the bytes between two places in a log into ranges, in the order of the log.

    Args:
        place: the log.
        start: the first byte that is meant.
        end: the byte after the last one.
        max_bytes: how many bytes a range may have.

    Returns:
        Ranges of nearly one size within each file; bytes that no file holds are left out, see
        `missing`.
    """
    found: list[ByteRange] = []
    for file in place.files:
        low, high = max(start, file.base_offset), min(end, file.end_offset)
        if low < high:
            found += cut(ByteRange(place.name, low, high), -(-(high - low) // max_bytes))
    return found


def cut(each: ByteRange, parts: int) -> list[ByteRange]:
    """Cut a range into so many of nearly one size."""
    parts = max(1, min(parts, each.size))
    places = [each.start + each.size * i // parts for i in range(parts + 1)]
    return [ByteRange(each.broker, low, high) for low, high in itertools.pairwise(places)]


def at_least(ranges: Iterable[ByteRange], count: int) -> list[ByteRange]:
    """Cut ranges further, each in proportion to its size, until there are about so many."""
    ranges = [each for each in ranges if each.size]
    total = sum(each.size for each in ranges)
    if len(ranges) >= count or not total:
        return ranges
    return [part for each in ranges for part in cut(each, -(-each.size * count // total))]


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
