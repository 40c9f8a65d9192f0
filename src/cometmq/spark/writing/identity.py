"""The unique ids of written messages, equal for each repetition of a row.

A key is made of what the row says, not of where it stands: a task that is tried again may get its
rows in another order, as behind an unsorted shuffle, and no row may get the key of another one.
Equal rows are counted, so that each of them has a key of its own. A key has the shape of RocketMQ's
own unique ids, 16 bytes in upper-case hexadecimal:

    digest   = blake2b-96(message and destination, salt = blake2b-128(job | batch | partition))
    digest_n = blake2b-96(digest | n: i64), of the n-th equal row behind the first
    key      = digest_n, first 10 bytes | 00000000 | last 2 bytes

The four zeros stand where an id carries the milliseconds since the beginning of a month, so tools
that look a message up by its id search from the first of the month on, and find it. Two rows have
the same key only if 96 bits of two digests are equal.

The shape is that of MessageClientIDSetter, RocketMQ 5.3.
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
"""So many distinct rows of a task are remembered, in about 50 MiB."""
_DIGEST_BYTES = 12
_PREFIX_DIGITS = 20
_TIME_DIGITS = 8
_KEY_DIGITS = 32
_BEYOND = 1 << 62

Numbers: TypeAlias = npt.NDArray[Any]

log = logging.getLogger(__name__)


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


class RowKeys:
    """Makes the unique ids of the rows of one task.

    Args:
        origin: where the rows come from.
        distinct_max: how many distinct rows are remembered. The keys of later rows also depend on
            the row's place in the task: no row gets the key of another one, but a task that is
            tried again in another order gives them new keys.
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
        """Return the keys of the next rows, as binary texts.

        Args:
            contents: the bytes that a row stands for.
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
        """Count the equal rows before each; two that only have equal hashes count as equal."""
        first, self._rows = self._rows, self._rows + len(hashes)
        if not self._is_full and self._seen.distinct + len(hashes) > self._distinct_max:
            self._is_full = True
            log.warning(
                "unique ids depend on the rows' order from %s on: met more than %d distinct rows;"
                " use more partitions, or the column msg_id",
                self._origin.position(first),
                self._distinct_max,
            )
        if self._is_full:
            return np.arange(_BEYOND + first, _BEYOND + self._rows)
        return self._seen.add(hashes)


class _Seen:
    """How often each hash was met: few sorted runs, each more than twice as long as the next."""

    def __init__(self) -> None:
        self._runs: list[tuple[Numbers, Numbers]] = []

    @property
    def distinct(self) -> int:
        """How many hashes are remembered; one that is in several runs counts several times."""
        return sum(len(hashes) for hashes, _ in self._runs)

    def add(self, hashes: Numbers) -> Numbers:
        """Count hashes, and return how often each was met before."""
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
    """Return where runs of equal values begin."""
    return np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1]))


def _shaped(digests: bytes, count: int) -> pa.Array:
    """Return digests in the shape of unique ids."""
    digits = np.frombuffer(digests.hex().upper().encode(), np.uint8)
    digits = digits.reshape(count, 2 * _DIGEST_BYTES)
    keys = np.full((count, _KEY_DIGITS), ord("0"), np.uint8)
    keys[:, :_PREFIX_DIGITS] = digits[:, :_PREFIX_DIGITS]
    keys[:, _PREFIX_DIGITS + _TIME_DIGITS :] = digits[:, _PREFIX_DIGITS:]
    kind = pa.binary(_KEY_DIGITS)
    buffers = [None, pa.py_buffer(np.ascontiguousarray(keys))]
    return pa.FixedSizeBinaryArray.from_buffers(kind, count, buffers).cast(pa.binary())
