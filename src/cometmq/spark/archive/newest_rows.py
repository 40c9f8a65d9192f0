"""Finds the newest rows of a table, which identify the log or the topics that were archived.

The bounds of files in the table's own metadata tell which files have to be read: usually one.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from cometmq.spark.archive.tables import ArchiveTable, Chosen, StoredFile
from cometmq.spark.offsets import QueueKey
from cometmq.spark.schema import CORE, arrow_schema, chosen

IDENTITY = (
    *("topic", "broker_name", "queue_id", "queue_offset", "store_timestamp", "body_crc"),
    *("phy_offset", "store_size"),
)
"""Columns that identify a message."""
FILES_MAX = 64
"""Limit on the files that are read: more than one are only needed for files without bounds, and for
queues without recent messages."""
_SCHEMA = arrow_schema(column._replace(nullable=True) for column in chosen(CORE, IDENTITY))


def newest_row_of_log(table: ArchiveTable, broker: str | None) -> dict[str, Any] | None:
    """Return the row of a broker with the highest physical offset; None if there is no row.

    Args:
        table: the archive.
        broker: the broker's name, None for a log without a name.
    """
    name = pc.field("broker_name")
    is_own = name.is_null() if broker is None else name == broker
    found: dict[str, Any] | None = None
    files = table.files(Chosen(broker=broker))
    files.sort(key=lambda file: (_or_first(file.phy_max), _or_first(file.newest_ms)), reverse=True)
    for file in files[:FILES_MAX]:
        if found is not None and _or_first(file.phy_max) <= found["phy_offset"]:
            break
        found = _later(found, _rows(table, file).filter(is_own), "phy_offset")
    return found


def newest_rows_of_queues(
    table: ArchiveTable, topic: str, queues: Collection[QueueKey]
) -> dict[QueueKey, dict[str, Any]]:
    """Return a row near the end of each queue of a topic, where its newest files have one."""
    found: dict[QueueKey, dict[str, Any] | None] = dict.fromkeys(queues)
    files = table.files(Chosen((topic,)))
    files.sort(key=lambda file: _or_first(file.newest_ms), reverse=True)
    for file in files[:FILES_MAX]:
        if None not in found.values():
            break
        rows = _rows(table, file).filter(pc.field("topic") == topic)
        for key, row in found.items():
            is_broker = pc.field("broker_name") == key.broker
            of_queue = rows.filter(is_broker & (pc.field("queue_id") == key.queue_id))
            found[key] = _later(row, of_queue, "queue_offset")
    return {key: row for key, row in found.items() if row is not None}


def _rows(table: ArchiveTable, file: StoredFile) -> pa.Table:
    """Return what identifies the rows of a file."""
    names = [name for name in IDENTITY if name != "topic" or file.has_topic]
    with table.open(file) as source:
        rows = pq.ParquetFile(source).read(columns=names)
    if not file.has_topic:
        rows = rows.append_column("topic", pa.repeat(pa.scalar(file.topic), rows.num_rows))
    return rows.select(_SCHEMA.names).cast(_SCHEMA)


def _later(found: dict[str, Any] | None, rows: pa.Table, name: str) -> dict[str, Any] | None:
    """Return the row with the highest value in a column, which may be one that was found before."""
    if rows.num_rows == 0:
        return found
    at = pc.index(rows[name], pc.max(rows[name])).as_py()
    row: dict[str, Any] = rows.slice(at, 1).to_pylist()[0]
    return row if found is None or row[name] > found[name] else found


def _or_first(bound: int | None) -> int:
    """Return a bound as a sort key; files of older versions have none."""
    return -1 if bound is None else bound
