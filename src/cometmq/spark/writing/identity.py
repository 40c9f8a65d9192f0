"""The unique keys of written messages, which are the same however often a row is written.

A key has the shape of RocketMQ's own unique ids, 16 bytes in upper-case hexadecimal:

    sha256(job | batch | partition | row / 65536), first 10 bytes | 00000000 | row % 65536: u16

The four zeros stand where an id carries the milliseconds since the beginning of a month, so tools
that look a message up by its id search from the first of the month on, and find it. Two rows have
the same key only if 80 bits of two digests are equal.

Source: ours; the shape is that of MessageClientIDSetter, RocketMQ 5.3.
"""

from __future__ import annotations

import hashlib
from typing import NamedTuple

import pyarrow as pa

ROWS_PER_PREFIX = 1 << 16
_PREFIX_BYTES = 10
_NO_TIME = "0" * 8


class Origin(NamedTuple):
    """Where rows come from; the same rows have the same origin when they are written again."""

    job: str
    """The streaming query, or the job of a batch write."""
    batch: int
    """The micro-batch; 0 of a batch write."""
    partition: int
    """Spark's number of the partition."""

    def position(self, row: int) -> str:
        """Name a row in an error's text."""
        return f"row {row} of partition {self.partition}, batch {self.batch} of job {self.job}"


def unique_key(job: str, batch: int, partition: int, row: int) -> str:
    """Return the unique key of one row.

    Args:
        job: the streaming query, or the job of a batch write.
        batch: the micro-batch; 0 of a batch write.
        partition: Spark's number of the partition.
        row: the place in the partition, from 0.
    """
    high, low = divmod(row, ROWS_PER_PREFIX)
    return f"{_prefix(Origin(job, batch, partition), high)}{low:04X}"


def unique_keys(origin: Origin, first_row: int, count: int) -> pa.Array:
    """Return the unique keys of rows that follow each other, as binary texts."""
    parts = []
    row, end = first_row, first_row + count
    while row < end:
        high, low = divmod(row, ROWS_PER_PREFIX)
        stop = min(end, (high + 1) * ROWS_PER_PREFIX)
        prefix = _prefix(origin, high)
        parts += [f"{prefix}{low + number:04X}" for number in range(stop - row)]
        row = stop
    return pa.array(parts, pa.string()).cast(pa.binary())


def _prefix(origin: Origin, high: int) -> str:
    text = f"{origin.job}\0{origin.batch}\0{origin.partition}\0{high}"
    digest = hashlib.sha256(text.encode()).digest()[:_PREFIX_BYTES]
    return digest.hex().upper() + _NO_TIME
