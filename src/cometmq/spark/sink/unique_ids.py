"""Generates the unique ids of written messages; a row that is written again has the same id.

An id depends on the row's content, not on its position: a repeated task may get its rows in another
order, for example after an unsorted shuffle, and must not give a row the id of another row. Equal
rows of a task are counted, so each has an id of its own. An id has the format of RocketMQ's unique
ids, 16 bytes in upper-case hexadecimal:

    digest   = blake2b-96(content and target, salt = blake2b-128(job | batch | partition))
    digest_n = blake2b-96(digest | n: i64), for the n-th equal row after the first
    id       = digest_n, first 10 bytes | 00000000 | last 2 bytes

The eight zeros stand where an id carries the milliseconds since the beginning of a month. So tools
that look up a message by its id search from the first of the month on, and find it. Two rows have
the same id only if 96 bits of two digests are equal.

Source: MessageClientIDSetter, RocketMQ 5.3, for the format.
"""

from __future__ import annotations

import itertools
import logging
from hashlib import blake2b
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

DISTINCT_MAX = 1 << 22
"""Limit on the distinct rows of a task that are remembered, in about 50 MiB."""
_DIGEST_BYTES = 12
_PREFIX_DIGITS = 20
_TIME_DIGITS = 8
_ID_DIGITS = 32
_BEYOND = 1 << 62

Numbers: TypeAlias = npt.NDArray[Any]

log = logging.getLogger(__name__)


class Origin(NamedTuple):
    """Identifies one partition of a write; a repetition of the write has equal origins."""

    job: str
    """The streaming query, or the job of a batch write."""
    batch: int
    """The number of the micro-batch; 0 for a batch write."""
    partition: int
    """The number of Spark's partition."""

    def position(self, row: int) -> str:
        """Return the name of a row for error messages."""
        return f"row {row} of partition {self.partition}, batch {self.batch} of job {self.job}"


class RowIds:
    """Generates the unique ids of the rows of one task.

    Args:
        origin: the origin of the rows.
        distinct_max: limit on the distinct rows that are remembered. The ids of later rows also
            depend on the row's number in the task: no row gets the id of another row, but a task
            that is repeated in another order gives these rows new ids.
    """

    def __init__(self, origin: Origin, distinct_max: int = DISTINCT_MAX) -> None:
        text = "\0".join(map(str, origin))
        self._salt = blake2b(text.encode(), digest_size=blake2b.SALT_SIZE).digest()
        self._origin = origin
        self._seen = _Seen()
        self._distinct_max = distinct_max
        self._rows = 0
        self._is_full = False

    def of(self, contents: pa.Array) -> pa.Array:
        """Return the ids of the next rows, as ASCII bytes.

        Args:
            contents: the content of each row, as bytes.
        """
        ends = np.frombuffer(contents.buffers()[1], np.int32)
        ends = ends[contents.offset : contents.offset + len(contents) + 1].tolist()
        data = memoryview(contents.buffers()[2] or b"")
        digests = [self._digest(data[low:high]) for low, high in itertools.pairwise(ends)]
        before = self._before(np.frombuffer(b"".join(digests), ">u8,>u4")["f0"].astype(np.uint64))
        for row in np.flatnonzero(before).tolist():
            digests[row] = self._digest(digests[row] + int(before[row]).to_bytes(8, "big"))
        return _shaped(b"".join(digests), len(digests))

    def _digest(self, data: bytes | memoryview) -> bytes:
        return blake2b(data, digest_size=_DIGEST_BYTES, salt=self._salt).digest()

    def _before(self, hashes: Numbers) -> Numbers:
        """Count the equal rows before each row; rows with equal hashes count as equal."""
        first, self._rows = self._rows, self._rows + len(hashes)
        if not self._is_full and self._seen.distinct + len(hashes) > self._distinct_max:
            self._is_full = True
            log.warning(
                "unique ids depend on the rows' order from %s on: the task has more than %d"
                " distinct rows; use more partitions, or the column msg_id",
                self._origin.position(first),
                self._distinct_max,
            )
        if self._is_full:
            return np.arange(_BEYOND + first, _BEYOND + self._rows)
        return self._seen.add(hashes)


class _Seen:
    """Counts hashes, in few sorted runs; each run is more than twice as long as the next."""

    def __init__(self) -> None:
        self._runs: list[tuple[Numbers, Numbers]] = []

    @property
    def distinct(self) -> int:
        """The number of remembered hashes; a hash in several runs counts several times."""
        return sum(len(hashes) for hashes, _ in self._runs)

    def add(self, hashes: Numbers) -> Numbers:
        """Count hashes; return how often each was counted before."""
        if not len(hashes):
            return np.zeros(0, np.int64)
        order = np.argsort(hashes, kind="stable")
        ordered = hashes[order]
        starts = _starts(ordered)
        counts = np.diff(np.append(starts, len(hashes)))
        distinct = ordered[starts]
        rank = np.arange(len(hashes)) - np.repeat(starts, counts)
        found = np.empty(len(hashes), np.int64)
        found[order] = rank + np.repeat(self._known(distinct), counts)
        self._runs.append((distinct, counts))
        while len(self._runs) > 1 and len(self._runs[-2][0]) <= 2 * len(self._runs[-1][0]):
            self._runs.append(_merged(self._runs.pop(), self._runs.pop()))
        return found

    def _known(self, distinct: Numbers) -> Numbers:
        known = np.zeros(len(distinct), np.int64)
        for hashes, counts in self._runs:
            at = np.minimum(np.searchsorted(hashes, distinct), len(hashes) - 1)
            known += np.where(hashes[at] == distinct, counts[at], 0)
        return known


def _merged(one: tuple[Numbers, Numbers], two: tuple[Numbers, Numbers]) -> tuple[Numbers, Numbers]:
    hashes, counts = (np.concatenate(both) for both in zip(one, two, strict=True))
    order = np.argsort(hashes, kind="stable")
    hashes, counts = hashes[order], counts[order]
    starts = _starts(hashes)
    return hashes[starts], np.add.reduceat(counts, starts)


def _starts(ordered: Numbers) -> Numbers:
    """Return the indexes at which runs of equal values begin."""
    return np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1]))


def _shaped(digests: bytes, count: int) -> pa.Array:
    """Return digests in the format of unique ids."""
    digits = np.frombuffer(digests.hex().upper().encode(), np.uint8)
    digits = digits.reshape(count, 2 * _DIGEST_BYTES)
    ids = np.full((count, _ID_DIGITS), ord("0"), np.uint8)
    ids[:, :_PREFIX_DIGITS] = digits[:, :_PREFIX_DIGITS]
    ids[:, _PREFIX_DIGITS + _TIME_DIGITS :] = digits[:, _PREFIX_DIGITS:]
    kind = pa.binary(_ID_DIGITS)
    buffers = [None, pa.py_buffer(np.ascontiguousarray(ids))]
    return pa.FixedSizeBinaryArray.from_buffers(kind, count, buffers).cast(pa.binary())
