"""Converts rows of an archive to rows for the topic sink.

The columns of a row:

    msg_id         made of job and origin: equal whenever the same row is replayed by the same job
    topic          the archive's, or what the mapping says
    sharding_key   broker and queue of origin: what was in one queue comes to one queue, in order
    queue_id       the queue of origin instead, if asked for
    properties     the sender's, besides ORIGIN_MSG_ID and REPLAY_JOB; RocketMQ's own are left out
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cometmq.model.dead_letter import SENT_AGAIN
from cometmq.protocol.compression import decompress_body
from cometmq.protocol.message_id import unique_id_for

REPLAY_JOB = "REPLAY_JOB"
NEEDED = (
    *("topic", "broker_name", "queue_id", "queue_offset", "msg_id", "tags", "keys", "body"),
    *("store_timestamp", "sys_flag", "flag", "phy_offset", "properties"),
)
_COMPRESSED, _KIND_BITS, _PREPARED, _ROLLBACK = 1, 12, 4, 12


@dataclass(frozen=True)
class Choice:
    """Which rows are replayed; what is empty chooses all."""

    tags: frozenset[str] = frozenset()
    keys: frozenset[str] = frozenset()
    """Rows with any of these keys."""
    since_ms: int | None = None
    until_ms: int | None = None

    def of(self, rows: pa.Table) -> pa.Table:
        """Return the chosen rows; half messages and rollbacks are never among them."""
        kinds = pc.bit_wise_and(rows["sys_flag"], _KIND_BITS)
        chosen = pc.invert(pc.is_in(kinds, pa.array([_PREPARED, _ROLLBACK], kinds.type)))
        chosen = pc.and_(chosen, pc.greater(pc.binary_length(rows["body"]), 0))
        if self.tags:
            chosen = pc.and_(chosen, pc.is_in(rows["tags"], pa.array(sorted(self.tags))))
        if self.keys:
            chosen = pc.and_(chosen, _has_key(rows["keys"], self.keys))
        times = rows["store_timestamp"].cast(pa.int64())
        if self.since_ms is not None:
            chosen = pc.and_(chosen, pc.greater_equal(times, self.since_ms * 1000))
        if self.until_ms is not None:
            chosen = pc.and_(chosen, pc.less(times, self.until_ms * 1000))
        return rows.filter(pc.fill_null(chosen, False))


@dataclass(frozen=True)
class Rewriting:
    """How archived rows become rows to write."""

    job: str
    topics: Mapping[str, str] = field(default_factory=dict)
    """Old and new topics; ``*`` for all others."""
    same_queue: bool = False
    """Whether rows go to the number of the queue that they came from."""

    def target(self, topic: str) -> str:
        """Return the topic that rows of a topic are written to."""
        return self.topics.get(topic, self.topics.get("*", topic))

    def rows(self, broker: str, topic: str, found: pa.Table) -> pa.Table:
        """Return the rows to write, in the order of the log.

        Args:
            broker: as the manifest calls what they were archived from.
            topic: their topic.
            found: rows with the columns ``NEEDED``.
        """
        found = found.sort_by([("phy_offset", "ascending"), ("queue_offset", "ascending")])
        found = found.combine_chunks()
        count = found.num_rows
        homes = [
            f"{broker}-{own}-{queue}"
            for own, queue in zip(
                found["broker_name"].to_pylist(), found["queue_id"].to_pylist(), strict=True
            )
        ]
        offsets = found["queue_offset"].to_pylist()
        start = f"{self.job}\0{topic}\0"
        keys = [
            unique_id_for(f"{start}{home}\0{at}") for home, at in zip(homes, offsets, strict=True)
        ]
        columns = {
            "topic": pa.array([self.target(topic)] * count, pa.string()),
            "msg_id": pa.array(keys, pa.string()),
            "body": _bodies(found),
            "tags": found["tags"],
            "keys": found["keys"],
            "flag": found["flag"],
            "properties": _properties(found, self.job),
        }
        if self.same_queue:
            columns["queue_id"] = found["queue_id"]
        else:
            columns["sharding_key"] = pa.array(homes, pa.string())
        return pa.table(columns)


def _has_key(texts: pa.ChunkedArray, keys: frozenset[str]) -> Any:
    """Which texts have one of the keys, which blanks separate."""
    whole = pc.binary_join_element_wise("", texts, "", " ")
    found = [pc.match_substring(whole, f" {key} ") for key in sorted(keys)]
    chosen = found[0]
    for each in found[1:]:
        chosen = pc.or_(chosen, each)
    return chosen


def _bodies(rows: pa.Table) -> Any:
    """The bodies as their senders had them."""
    flags = rows["sys_flag"].to_numpy()
    packed = np.flatnonzero(flags & _COMPRESSED)
    if len(packed) == 0:
        return rows["body"]
    bodies = rows["body"].to_pylist()
    for row in packed.tolist():
        bodies[row] = decompress_body(bodies[row], int(flags[row]))
    return pa.array(bodies, pa.binary())


def _properties(rows: pa.Table, job: str) -> pa.MapArray:
    """The rows' properties with two more each."""
    maps = rows["properties"].chunk(0) if rows["properties"].num_chunks else None
    if maps is None:
        return pa.array([], pa.map_(pa.string(), pa.string()))
    count = len(maps)
    offsets = maps.offsets.to_numpy().astype(np.int64)
    lengths = np.diff(offsets)
    ends = np.concatenate(([0], np.cumsum(lengths + 2)))
    names = pa.concat_arrays([maps.keys, pa.array([SENT_AGAIN, REPLAY_JOB])])
    ids = rows["msg_id"].combine_chunks()
    values = pa.concat_arrays([maps.items, ids, pa.array([job])])
    name_at = np.empty(int(ends[-1]), np.int64)
    value_at = np.empty(int(ends[-1]), np.int64)
    old = np.repeat(ends[:-1] - offsets[:-1], lengths)
    entries = np.arange(offsets[0], offsets[-1])
    name_at[entries + old] = value_at[entries + old] = entries
    more = ends[1:] - 2
    name_at[more], name_at[more + 1] = len(maps.keys), len(maps.keys) + 1
    value_at[more] = len(maps.items) + np.arange(count)
    value_at[more + 1] = len(maps.items) + count
    return pa.MapArray.from_arrays(
        pa.array(ends.astype(np.int32)),
        names.take(pa.array(name_at)),
        values.take(pa.array(value_at)),
    )
