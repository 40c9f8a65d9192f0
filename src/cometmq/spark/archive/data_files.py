"""Writes rows as Parquet files of one topic and day each, sorted by queue and offset.

It runs in Spark's Python workers. Each file has a name that is never used twice. A file belongs to
the archive when a commit of the table names it.

The rows of a queue already come in the order of their offsets, so a stable sort by topic, day and
queue is enough. It sorts 16-bit keys, which takes milliseconds.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from cometmq.spark.errors import SourceError
from cometmq.spark.schema import log_columns

COLUMNS = log_columns(properties=True, validate=False)
"""The columns of an archive."""
NEW_FILE = "message"
"""The names of our files begin with this word, unlike those of files that were rewritten."""
Create = Callable[[str], AbstractContextManager[Any]]
"""Opens a new file of a table, by its name below the table's folder."""

_FEW_VALUES = (
    *("topic", "broker_name", "tags", "store_host", "born_host", "queue_id", "flag", "sys_flag"),
    "properties.key_value.key",
)
"""Columns that are written with a dictionary."""
NO_STATISTICS = (
    *("body", "properties", "properties.key", "properties.value"),
    *("keys", "offset_msg_id", "born_host", "store_host"),
)
"""Columns without minimum and maximum in files, as no condition would use them."""
_BOUNDED = ("broker_name", "queue_id", "queue_offset", "phy_offset", "store_timestamp")
"""Columns whose minimum and maximum the table's commit has."""
_HAS_FILTERS = "bloom_filter_options" in inspect.signature(pq.ParquetWriter).parameters
"""Older versions of pyarrow cannot write Bloom filters."""
_FALSE_POSITIVES = 0.05
_FILES_AT_ONCE = 2
_OFFSET_MAX = (1 << 31) - 1
_DAY_US = 86_400_000_000


@dataclass(frozen=True)
class Form:
    """How files are written."""

    codec: str = "zstd"
    group_rows: int = 131_072
    bloom: bool = True
    """Whether files have a Bloom filter on ``msg_id``, where pyarrow can write one."""


class DataFile(NamedTuple):
    """One written file."""

    name: str
    topic: str
    date: str
    rows: int
    bytes: int
    newest_ms: int
    """The store time of its newest message."""
    statistics: str
    """Rows, minimums and maximums, in the JSON of Delta."""


class Part(NamedTuple):
    """The rows of one topic and day."""

    topic: str
    date: str
    rows: pa.Table


def write_files(table: pa.Table, create: Create, form: Form) -> list[DataFile]:
    """Write rows to new files; while one file goes to the disk, the next one is encoded."""

    def write(part: Part) -> DataFile:
        topic, date, rows = part
        name = f"date={date}/{NEW_FILE}-{uuid4().hex}.parquet"
        size = _write(rows, create(name), form)
        newest_ms = int(_numbers(rows, "store_timestamp").max()) // 1000
        return DataFile(name, topic, date, rows.num_rows, size, newest_ms, _statistics(rows))

    with ThreadPoolExecutor(_FILES_AT_ONCE) as pool:
        return list(pool.map(write, parts_of(table)))


def parts_of(table: pa.Table) -> list[Part]:
    """Sort rows by topic, day, queue and offset, and divide them by topic and day."""
    if table.num_rows == 0:
        return []
    table = table.combine_chunks()
    topics, codes = _topic_codes(table)
    days = _numbers(table, "store_timestamp") // _DAY_US
    order = _order(codes, days, _numbers(table, "queue_id"), _numbers(table, "queue_offset"))
    codes, days = codes[order], days[order]
    table = _taken(table, order)
    return [
        Part(
            topics[codes[low]],
            str(np.datetime64(int(days[low]), "D")),
            table.slice(low, high - low),
        )
        for low, high in _bounds_of_runs(codes, days)
    ]


def _statistics(rows: pa.Table) -> str:
    """Return bounds as Delta writes them in JSON; store times have whole milliseconds."""
    facts: dict[str, Any] = {"minValues": {}, "maxValues": {}, "nullCount": {}}
    for name in _BOUNDED:
        facts["nullCount"][name] = rows[name].null_count
        bounds = pc.min_max(rows[name])
        for side, value in (("minValues", bounds["min"]), ("maxValues", bounds["max"])):
            if isinstance(met := value.as_py(), datetime):
                met = f"{met:%Y-%m-%dT%H:%M:%S}.{met.microsecond // 1000:03}Z"
            if met is not None:
                facts[side][name] = met
    return json.dumps({"numRecords": rows.num_rows, **facts})


def _write(rows: pa.Table, created: AbstractContextManager[Any], form: Form) -> int:
    names = rows.schema.names
    more: dict[str, Any] = {}
    if form.bloom and _HAS_FILTERS:
        ids = max(1, min(rows.num_rows, form.group_rows))
        more["bloom_filter_options"] = {"msg_id": {"ndv": ids, "fpp": _FALSE_POSITIVES}}
    with created as file:
        pq.write_table(
            rows,
            file,
            compression=form.codec,
            row_group_size=form.group_rows,
            use_dictionary=[name for name in _FEW_VALUES if name.partition(".")[0] in names],
            write_statistics=[column for column in names if column not in NO_STATISTICS],
            sorting_columns=[
                pq.SortingColumn(names.index(name)) for name in ("queue_id", "queue_offset")
            ],
            store_schema=False,
            **more,
        )
        return int(file.tell())


def _taken(table: pa.Table, order: Any) -> pa.Table:
    """Return the rows of a table in another order."""
    places = pa.array(order)
    columns = [
        _taken_map(column.combine_chunks(), order)
        if pa.types.is_map(column.type)
        else column.take(places)
        for column in table.columns
    ]
    return pa.Table.from_arrays(columns, schema=table.schema)


def _taken_map(maps: pa.MapArray, order: Any) -> pa.MapArray:
    """Do the same for maps, whose own ``take`` copies entry by entry."""
    offsets = _offsets(maps).astype(np.int64)
    starts, lengths = offsets[:-1][order], np.diff(offsets)[order]
    ends = _ends(lengths)
    entries = np.arange(ends[-1]) + np.repeat(starts - ends[:-1], lengths)
    rows = (offsets, pa.array(order), entries)
    return pa.MapArray.from_arrays(
        pa.array(ends),
        _taken_texts(maps.keys, *rows),
        _taken_texts(maps.items, *rows),
        type=maps.type,
    )


def _taken_texts(texts: pa.StringArray, offsets: Any, order: pa.Array, entries: Any) -> pa.Array:
    """Return the texts of maps in another order: a row's bytes at once, then each text's end.

    Args:
        texts: the texts of all entries of the maps.
        offsets: where each row's entries begin.
        order: the order of the rows.
        entries: the order of the entries.
    """
    ends = _offsets(texts)
    of_rows = [None, pa.py_buffer(ends[offsets]), texts.buffers()[2]]
    rows = pa.Array.from_buffers(pa.binary(), len(offsets) - 1, of_rows).take(order)
    ends = pa.py_buffer(_ends(np.diff(ends)[entries]))
    return pa.StringArray.from_buffers(len(entries), ends, rows.buffers()[2])


def _ends(lengths: Any) -> Any:
    """Return the offsets of values with these lengths.

    Raises:
        SourceError: they exceed Arrow's 32-bit offsets.
    """
    end = int(lengths.sum(dtype=np.int64))
    if end > _OFFSET_MAX:
        raise SourceError(
            f"properties of one range or batch: met {end}, expected at most {_OFFSET_MAX} bytes of"
            " keys or values in one column: use a smaller range_bytes, or smaller batches"
        )
    ends = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=ends[1:])
    return ends


def _offsets(array: Any) -> Any:
    offsets = np.frombuffer(array.buffers()[1], dtype=np.int32)
    return offsets[array.offset : array.offset + len(array) + 1]


def _topic_codes(table: pa.Table) -> tuple[list[str], Any]:
    """Return the sorted topics, and the number of each row's topic among them."""
    dictionary = table["topic"].combine_chunks().dictionary_encode()
    met = dictionary.dictionary.to_pylist()
    topics = sorted(met)
    places = np.array([topics.index(topic) for topic in met], dtype=np.int64)
    return topics, places[dictionary.indices.to_numpy()]


def _numbers(table: pa.Table, name: str) -> Any:
    column = table[name].combine_chunks()
    return column.cast(pa.int64()).to_numpy(zero_copy_only=False)


def _order(codes: Any, days: Any, queues: Any, offsets: Any) -> Any:
    """Return the order of the rows by topic, day, queue and offset."""
    key = (codes * (int(days.max() - days.min()) + 1) + days - days.min()) * (
        int(queues.max()) + 1
    ) + queues
    if key.max() < 1 << 16:
        key = key.astype(np.uint16)
    order = np.argsort(key, kind="stable")
    key, offsets = key[order], offsets[order]
    if bool(np.all((key[1:] != key[:-1]) | (offsets[1:] > offsets[:-1]))):
        return order
    return order[np.lexsort((offsets, key))]  # a topic that was created again starts at 0


def _bounds_of_runs(*columns: Any) -> Iterator[tuple[int, int]]:
    """Yield where runs of equal values begin and end."""
    changes = np.zeros(len(columns[0]), dtype=bool)
    changes[0] = True
    for column in columns:
        changes[1:] |= column[1:] != column[:-1]
    starts = np.flatnonzero(changes).tolist()
    yield from zip(starts, [*starts[1:], len(columns[0])], strict=True)
