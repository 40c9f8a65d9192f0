"""Writes rows to Parquet files by topic and day, each sorted by queue and offset.

Runs in Spark's Python workers: one range of a log is held in memory, not more. The rows of a queue
already come in the order of their offsets, so a stable sort by topic, day and queue is enough; it
is done on 16-bit keys, which is a matter of milliseconds.
"""

from __future__ import annotations

import inspect
import zlib
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from cometmq.spark.errors import SourceError
from cometmq.spark.logs.ranges import ByteRange
from cometmq.spark.pipelines.archive.manifest import (
    ArchiveFile,
    LastRecord,
    QueueRows,
    file_name,
)
from cometmq.spark.pipelines.running.folders import Folder

_FEW = (
    *("topic", "broker_name", "tags", "store_host", "born_host", "queue_id", "flag", "sys_flag"),
    "properties.key_value.key",
)
"""Columns with few values, written as numbers into a dictionary."""
_UNSEEN = ("body", "properties", "keys", "offset_msg_id", "born_host", "store_host")
"""Columns whose least and greatest value nobody looks for."""
_HAS_FILTERS = "bloom_filter_options" in inspect.signature(pq.ParquetWriter).parameters
"""Older versions of pyarrow cannot write them."""
_FALSE_POSITIVES = 0.05
_FILES_AT_ONCE = 2
_QUEUE = ["topic", "broker_name", "queue_id"]
_RECORD = ["queue_offset", "born_timestamp", "store_timestamp", "body_crc"]
IDENTITY = (*_QUEUE, *_RECORD)
"""Columns that `last_records` needs."""
_OFFSET_MAX = (1 << 31) - 1
_MS_PER_DAY = 86_400_000


@dataclass(frozen=True)
class Form:
    """How files are written."""

    codec: str = "zstd"
    group_rows: int = 131_072
    bloom: bool = True
    """Whether files have a Bloom filter on ``msg_id``, where pyarrow can write one."""


@dataclass(frozen=True)
class Part:
    """The rows of one topic and day."""

    topic: str
    date: str
    rows: pa.Table


def parts_of(table: pa.Table) -> tuple[list[Part], list[QueueRows]]:
    """Sort rows and divide them by topic and day.

    Args:
        table: rows with ``topic``, ``queue_id``, ``queue_offset`` and ``store_timestamp``.

    Returns:
        The parts, by topic and day, and what there is of each queue.
    """
    if table.num_rows == 0:
        return [], []
    table = table.combine_chunks()
    topics, codes = _topic_codes(table)
    days = _days(table)
    queues = _numbers(table, "queue_id")
    offsets = _numbers(table, "queue_offset")
    order = _order(codes, days, queues, offsets)
    codes, days = codes[order], days[order]
    table = _taken(table, order)
    edges = _edges(codes, days)
    parts = [
        Part(
            topics[codes[low]],
            str(np.datetime64(int(days[low]), "D")),
            table.slice(low, high - low),
        )
        for low, high in edges
    ]
    millis = _numbers(table, "store_timestamp") // 1000
    return parts, _queue_rows(topics, codes, queues[order], offsets[order], millis)


def write_parts(
    folder: Folder, part: ByteRange, parts: list[Part], form: Form
) -> Iterator[ArchiveFile]:
    """Write each part to its file and yield what the manifest says of it.

    While one file goes to the disk, the next one is encoded.
    """

    def write(each: Part) -> ArchiveFile:
        name = file_name(each.topic, each.date, part)
        return describe(each, name, _write(folder, name, each.rows, form))

    with ThreadPoolExecutor(_FILES_AT_ONCE) as pool:
        yield from pool.map(write, parts)


def describe(part: Part, name: str, size: int) -> ArchiveFile:
    """Return what the manifest says of a file with these rows."""
    millis = _numbers(part.rows, "store_timestamp") // 1000
    return ArchiveFile(
        name=name,
        topic=part.topic,
        date=part.date,
        rows=part.rows.num_rows,
        bytes=size,
        min_store_ms=int(millis.min()),
        max_store_ms=int(millis.max()),
        ids_crc=ids_crc(part.rows),
        body_crc_sum=pc.sum(part.rows["body_crc"]).as_py() or 0,
    )


def ids_crc(rows: pa.Table) -> int:
    """Return the checksum of the message ids, one line each."""
    crc = 0
    for chunk in rows["msg_id"].chunks:
        lines = pc.binary_join_element_wise(chunk, "", "\n", null_handling="replace")
        first, last = _bounds(lines)
        data = lines.buffers()[2]
        if data is not None:
            crc = zlib.crc32(memoryview(data)[first:last], crc)
    return crc


def _bounds(texts: Any) -> tuple[int, int]:
    """Where the bytes of an array of texts begin and end in its buffer."""
    offsets = _offsets(texts)
    return int(offsets[0]), int(offsets[-1])


def _write(folder: Folder, name: str, rows: pa.Table, form: Form) -> int:
    names = rows.schema.names
    sorting = [pq.SortingColumn(names.index(column)) for column in ("queue_id", "queue_offset")]
    more: dict[str, Any] = {}
    if form.bloom and _HAS_FILTERS:
        ids = max(1, min(rows.num_rows, form.group_rows))
        more["bloom_filter_options"] = {"msg_id": {"ndv": ids, "fpp": _FALSE_POSITIVES}}
    with folder.writing(name) as sink:
        pq.write_table(
            rows,
            sink,
            compression=form.codec,
            row_group_size=form.group_rows,
            use_dictionary=[name for name in _FEW if name.partition(".")[0] in names],
            write_statistics=[column for column in names if column not in _UNSEEN],
            sorting_columns=sorting,
            store_schema=False,
            **more,
        )
        return int(sink.tell())


def _taken(table: pa.Table, order: Any) -> pa.Table:
    """The rows of a table in another order."""
    places = pa.array(order)
    columns = [
        _taken_map(column.combine_chunks(), order)
        if pa.types.is_map(column.type)
        else column.take(places)
        for column in table.columns
    ]
    return pa.Table.from_arrays(columns, schema=table.schema)


def _taken_map(maps: pa.MapArray, order: Any) -> pa.MapArray:
    """The same for maps, whose own ``take`` goes entry by entry."""
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
    """The texts of maps in another order: the bytes of a row at once, then where each text ends.

    Args:
        texts: of all entries of the maps.
        offsets: where each row's entries begin.
        order: of the rows.
        entries: the same of the entries.
    """
    ends = _offsets(texts)
    of_rows = [None, pa.py_buffer(ends[offsets]), texts.buffers()[2]]
    rows = pa.Array.from_buffers(pa.binary(), len(offsets) - 1, of_rows).take(order)
    ends = pa.py_buffer(_ends(np.diff(ends)[entries]))
    return pa.StringArray.from_buffers(len(entries), ends, rows.buffers()[2])


def _ends(lengths: Any) -> Any:
    """Where things of some lengths begin and end, one after the other.

    Raises:
        SourceError: they end behind what Arrow's 32-bit offsets can say.
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
    """Where the entries of an array of texts or maps begin and end."""
    offsets = np.frombuffer(array.buffers()[1], dtype=np.int32)
    return offsets[array.offset : array.offset + len(array) + 1]


def _topic_codes(table: pa.Table) -> tuple[list[str], Any]:
    """The topics in order, and each row's place among them."""
    dictionary = table["topic"].combine_chunks().dictionary_encode()
    met = dictionary.dictionary.to_pylist()
    topics = sorted(met)
    places = np.array([topics.index(topic) for topic in met], dtype=np.int64)
    return topics, places[dictionary.indices.to_numpy()]


def _days(table: pa.Table) -> Any:
    return _numbers(table, "store_timestamp") // (_MS_PER_DAY * 1000)


def _numbers(table: pa.Table, name: str) -> Any:
    column = table[name].combine_chunks()
    return column.cast(pa.int64()).to_numpy(zero_copy_only=False)


def _order(codes: Any, days: Any, queues: Any, offsets: Any) -> Any:
    """The order of the rows by topic, day, queue and offset."""
    key = (codes * (int(days.max() - days.min()) + 1) + days - days.min()) * (
        int(queues.max()) + 1
    ) + queues
    if key.max() < 1 << 16:
        key = key.astype(np.uint16)
    order = np.argsort(key, kind="stable")
    key, offsets = key[order], offsets[order]
    if bool(np.all((key[1:] != key[:-1]) | (offsets[1:] > offsets[:-1]))):
        return order
    return order[np.lexsort((offsets, key))]  # a topic that was made again counts anew


def _edges(*columns: Any) -> list[tuple[int, int]]:
    """Where runs of equal values begin and end."""
    changes = np.zeros(len(columns[0]), dtype=bool)
    changes[0] = True
    for column in columns:
        changes[1:] |= column[1:] != column[:-1]
    starts = np.flatnonzero(changes).tolist()
    return list(zip(starts, [*starts[1:], len(columns[0])], strict=True))


def _queue_rows(
    topics: list[str], codes: Any, queues: Any, offsets: Any, millis: Any
) -> list[QueueRows]:
    """What there is of each queue; rows are sorted by topic and day, so a queue may come twice."""
    return joined(
        QueueRows(
            topics[codes[low]],
            int(queues[low]),
            rows=high - low,
            min_offset=int(offsets[low:high].min()),
            max_offset=int(offsets[low:high].max()),
            min_store_ms=int(millis[low:high].min()),
            max_store_ms=int(millis[low:high].max()),
        )
        for low, high in _edges(codes, queues)
    )


def joined(parts: Iterable[QueueRows]) -> list[QueueRows]:
    """Return what parts have of each queue together, by topic and queue."""
    found: dict[tuple[str, int], QueueRows] = {}
    for part in parts:
        key = (part.topic, part.queue_id)
        found[key] = _both(found[key], part) if key in found else part
    return [found[key] for key in sorted(found)]


def _both(one: QueueRows, two: QueueRows) -> QueueRows:
    return QueueRows(
        one.topic,
        one.queue_id,
        rows=one.rows + two.rows,
        min_offset=min(one.min_offset, two.min_offset),
        max_offset=max(one.max_offset, two.max_offset),
        min_store_ms=min(one.min_store_ms, two.min_store_ms),
        max_store_ms=max(one.max_store_ms, two.max_store_ms),
    )


def last_records(table: pa.Table) -> list[LastRecord]:
    """Return what identifies the newest row of each queue, where the rows name their broker.

    Args:
        table: rows with the columns `IDENTITY`.
    """
    offsets = table.select([*_QUEUE, "queue_offset"]).group_by(_QUEUE, use_threads=False)
    newest = offsets.aggregate([("queue_offset", "max")])
    found = table.select(IDENTITY).join(
        newest,
        keys=[*_QUEUE, "queue_offset"],
        right_keys=[*_QUEUE, "queue_offset_max"],
        join_type="left semi",
        use_threads=False,
    )
    facts = [found[name] for name in IDENTITY]
    rows = zip(*(_plain(column).to_pylist() for column in facts), strict=True)
    return newest_records(LastRecord(*row) for row in rows)


def newest_records(records: Iterable[LastRecord]) -> list[LastRecord]:
    """Return the newest of these records of each queue."""
    found: dict[tuple[str, str, int], LastRecord] = {}
    for each in records:
        key = (each.topic, each.broker, each.queue_id)
        if key not in found or each.offset > found[key].offset:
            found[key] = each
    return [found[key] for key in sorted(found)]


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Times as milliseconds, everything else as it is."""
    if pa.types.is_timestamp(column.type):
        return pc.divide(column.cast(pa.int64()), 1000)
    return column
