"""The unique ids that earlier attempts of a task have stored, among all ids of some ranges.

A range also has the messages of other tasks and producers, so there may be many ids. Each one takes
16 bytes: a digest of the id. Two ids have the same digest only if 128 bits are equal.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cometmq.spark.batches import RecordDecoder
from cometmq.spark.brokers import BrokerSession
from cometmq.spark.errors import NotExactlyOnceError
from cometmq.spark.offsets import QueueRange
from cometmq.spark.schema import CORE, chosen

IDS_MAX = 1 << 24
"""Limit on the ids that are remembered, in 256 MiB."""
_DIGEST = np.dtype([("high", ">u8"), ("low", ">u8")])

Numbers: TypeAlias = npt.NDArray[Any]


class StoredIds:
    """A set of unique ids.

    Args:
        ids: the ids, in any number of arrays of texts or bytes.
        ids_max: limit on their number.

    Raises:
        NotExactlyOnceError: there are more.
    """

    def __init__(self, ids: Iterable[pa.Array] = (), ids_max: int = IDS_MAX) -> None:
        parts: list[Numbers] = []
        count = 0
        for part in ids:
            count += len(part)
            if count > ids_max:
                raise NotExactlyOnceError(
                    f"more than {ids_max} messages were stored since the first attempt: their ids"
                    " cannot be remembered to leave out stored rows; expected smaller batches, or"
                    " delivery=at-least-once"
                )
            parts.append(_digests(part))
        found = np.concatenate(parts) if parts else np.empty(0, _DIGEST)
        self._high, self._low = found["high"].astype(np.uint64), found["low"].astype(np.uint64)
        order = np.lexsort((self._low, self._high))
        self._high, self._low = self._high[order], self._low[order]

    def __len__(self) -> int:
        return len(self._high)

    def contains(self, ids: pa.Array) -> Numbers:
        """Return which of some ids are in the set."""
        if not len(self):
            return np.zeros(len(ids), bool)
        wanted = _digests(ids)
        at = np.searchsorted(self._high, wanted["high"].astype(np.uint64))
        at = np.minimum(at, len(self) - 1)
        found: Numbers = (self._high[at] == wanted["high"]) & (self._low[at] == wanted["low"])
        return found


def read_ids(session: BrokerSession, wanted: Iterable[QueueRange], *, timeout_ms: int) -> StoredIds:
    """Return the unique ids of all messages in some ranges of queues.

    Raises:
        NotExactlyOnceError: there are more than can be remembered.
        SourceError: a range cannot be read.
    """
    decoder = RecordDecoder(chosen(CORE, ["msg_id"]), broker_name=None, decompress=False)
    return StoredIds(
        batch.column(0)
        for each in wanted
        if each.size
        for piece in session.read(each, timeout_ms=timeout_ms)
        for batch in decoder.batches(
            piece, 0, len(piece), first_offset=each.start, end_offset=each.end
        )
    )


def _digests(ids: pa.Array) -> Numbers:
    texts = ids.cast(pa.binary()).to_pylist()
    digests = b"".join(blake2b(text, digest_size=_DIGEST.itemsize).digest() for text in texts)
    return np.frombuffer(digests, _DIGEST)
