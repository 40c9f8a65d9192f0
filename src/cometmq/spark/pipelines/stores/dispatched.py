"""Derives the units of queues and the entries of the index from a range of a log.

    transaction bits of sys_flag    unit in the queue    keys in the index
    none, commit                    yes                  yes
    prepared                        no                   yes
    rollback                        no                   no

This is `cometmq.store.queues.dispatch` for many records at once. Runs on executors.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cometmq.model.flags import SysFlag
from cometmq.model.topic import DELAY_TOPIC
from cometmq.protocol.properties import encode_properties
from cometmq.spark.batches import RecordDecoder
from cometmq.spark.logs import ByteRange, LogPlace, Reading, read_range
from cometmq.spark.pipelines.stores.hashes import index_hashes, java_hashes
from cometmq.spark.schema import chosen, log_columns
from cometmq.store.queues.dispatch import Dispatcher, TopicQueues

_PREPARED, _ROLLBACK, _KIND_BITS = 4, 12, 12
_INNER_BATCH = int(SysFlag.INNER_BATCH)
_NEEDED = (
    *("topic", "queue_id", "queue_offset", "tags", "keys", "msg_id", "offset_msg_id"),
    *("store_timestamp", "sys_flag", "phy_offset", "store_size"),
)
_OF_DELAYS = ("phy_offset", "store_timestamp", "properties")
_ALL = log_columns(properties=True, validate=False)
_BATCH_ROWS = 100_000

RUN = np.dtype(
    [("offset", "<i8"), ("phy", "<i8"), ("size", "<i4"), ("code", "<i8"), ("store_ms", "<i8")]
)
"""A unit and where it belongs."""
KEY = np.dtype([("hash", "<i4"), ("phy", "<i8"), ("store_ms", "<i8")])
"""An entry of the index, without its chain."""


@dataclass(frozen=True)
class Dispatched:
    """What follows from one range."""

    units: dict[tuple[str, int], Any]
    """By topic and queue: an array of `RUN` in the order of the log."""
    keys: Any
    """An array of `KEY` in the order of the index."""
    rows: int


def dispatch(
    place: LogPlace, part: ByteRange, delay_levels: str, *, with_keys: bool = True
) -> Dispatched:
    """Return what follows from the records that begin in a range.

    Args:
        place: the log.
        part: the range.
        delay_levels: the delay of each level, as in the broker's settings.
        with_keys: whether the entries of the index are wanted.

    Raises:
        BadRecordError: what stands in the range is no record.
    """
    table = _read(place, part, _NEEDED, None)
    kinds = _numbers(table, "sys_flag") & (_KIND_BITS | _INNER_BATCH)
    codes = java_hashes(_filled(table["tags"])).astype(np.int64)
    _delay_codes(place, part, delay_levels, table, codes)
    return Dispatched(
        dict(_units(table, kinds, codes)),
        _keys(table, kinds) if with_keys else np.zeros(0, KEY),
        table.num_rows,
    )


def _read(
    place: LogPlace, part: ByteRange, names: tuple[str, ...], topics: frozenset[bytes] | None
) -> pa.Table:
    decoder = RecordDecoder(
        chosen(_ALL, names),
        broker_name=None,
        decompress=False,
        crc=topics is None,
        max_rows=_BATCH_ROWS,
    )
    batches = read_range(place, part, Reading(decoder, topics=topics))
    return pa.Table.from_batches(batches, schema=decoder.schema).combine_chunks()


def _units(table: pa.Table, kinds: Any, codes: Any) -> Iterator[tuple[tuple[str, int], Any]]:
    rows = np.flatnonzero((kinds < _INNER_BATCH) & (kinds != _PREPARED) & (kinds != _ROLLBACK))
    if len(rows) == 0:
        return
    topics = _one(table["topic"]).dictionary_encode()
    numbers = topics.indices.to_numpy().astype(np.int64)[rows]
    queues = _numbers(table, "queue_id")[rows]
    order = np.lexsort((queues, numbers))  # stable: the order of the log stays
    rows, numbers, queues = rows[order], numbers[order], queues[order]
    run = np.empty(len(rows), RUN)
    run["offset"] = _numbers(table, "queue_offset")[rows]
    run["phy"] = _numbers(table, "phy_offset")[rows]
    run["size"] = _numbers(table, "store_size")[rows]
    run["code"] = codes[rows]
    run["store_ms"] = _numbers(table, "store_timestamp")[rows] // 1000
    changed = (numbers[1:] != numbers[:-1]) | (queues[1:] != queues[:-1])
    starts = [0, *(np.flatnonzero(changed) + 1).tolist()]
    for low, high in zip(starts, [*starts[1:], len(rows)], strict=True):
        name = topics.dictionary[int(numbers[low])].as_py()
        yield (name, int(queues[low])), run[low:high]


def _keys(table: pa.Table, kinds: Any) -> Any:
    """The entries of unique ids and keys; of one record, the unique id comes first."""
    indexed = (kinds < _INNER_BATCH) & (kinds != _ROLLBACK)
    seeds = _seeds(table)
    phys = _numbers(table, "phy_offset")
    times = _numbers(table, "store_timestamp") // 1000
    ids, keys = _one(table["msg_id"]), _one(table["keys"])
    has_id = pc.not_equal(ids, _one(table["offset_msg_id"])).fill_null(False)
    id_rows = np.flatnonzero(has_id.to_numpy(zero_copy_only=False) & indexed)
    parts = pc.split_pattern(keys, " ")
    key_rows = pc.list_parent_indices(parts).to_numpy().astype(np.int64)
    words = pc.list_flatten(parts)
    wanted = pc.greater(pc.binary_length(words), 0).to_numpy(zero_copy_only=False)
    wanted &= indexed[key_rows]
    key_rows, words = key_rows[wanted], words.filter(pa.array(wanted))
    rows = np.concatenate((id_rows, key_rows))
    hashes = np.concatenate(
        (
            java_hashes(ids.take(pa.array(id_rows)), seeds[id_rows]),
            java_hashes(words, seeds[key_rows]),
        )
    )
    order = np.argsort(rows, kind="stable")
    rows = rows[order]
    found = np.empty(len(rows), KEY)
    found["hash"] = index_hashes(hashes[order])
    found["phy"] = phys[rows]
    found["store_ms"] = times[rows]
    return found


def _seeds(table: pa.Table) -> Any:
    """The hash of each row's topic and ``#``, which stand before its keys."""
    topics = _one(table["topic"]).dictionary_encode()
    names = [f"{name}#" for name in topics.dictionary.to_pylist()]
    hashed = java_hashes(pa.array(names, pa.string()))
    return hashed[topics.indices.to_numpy()]


def _delay_codes(
    place: LogPlace, part: ByteRange, delay_levels: str, table: pa.Table, codes: Any
) -> None:
    """Put in when the messages of the delay topic are due; there are few as a rule."""
    rows = pc.equal(table["topic"], DELAY_TOPIC).to_numpy()
    rows = np.flatnonzero(rows)
    if len(rows) == 0:
        return
    topic, dispatcher = TopicQueues(DELAY_TOPIC), Dispatcher(None, delay_levels)
    delayed = _read(place, part, _OF_DELAYS, frozenset([DELAY_TOPIC.encode()]))
    times = _numbers(delayed, "store_timestamp") // 1000
    for at, (row, pairs) in enumerate(
        zip(rows.tolist(), delayed["properties"].to_pylist(), strict=True)
    ):
        text = encode_properties(dict(pairs or ()))
        codes[row] = dispatcher.tags_code(topic, int(times[at]), text)


def _filled(column: pa.ChunkedArray) -> pa.Array:
    return pc.fill_null(_one(column), "")


def _one(column: pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)


def _numbers(table: pa.Table, name: str) -> Any:
    return _one(table[name]).cast(pa.int64()).to_numpy(zero_copy_only=False)
