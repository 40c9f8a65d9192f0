"""The format ``rocketmq-index``: the entries of a store's index, as they are.

The layout is that of `cometmq.store.index.key_index`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from cometmq.spark.logs.index_files import IndexFile, IndexFileReader, index_files
from cometmq.spark.options.logs import IndexOptions
from cometmq.spark.options.parsing import parse_options
from cometmq.spark.schema import TIMESTAMP, Column, arrow_schema, ddl, declared

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

COLUMNS: tuple[Column, ...] = (
    Column("key_hash", pa.int32(), False, "INT", "hash of topic, # and key"),
    Column("phy_offset", pa.int64(), False, "BIGINT", "the physical offset of the record"),
    Column("time_diff", pa.int32(), False, "INT", "seconds after the file's first entry"),
    Column("prev", pa.int32(), False, "INT", "the previous entry of the slot; 0 for none"),
    Column("entry", pa.int32(), False, "INT", "the number of the entry in its file, from 1"),
    Column("file", pa.string(), False, "STRING", "the name of the file"),
    Column("store_timestamp", TIMESTAMP, False, "TIMESTAMP", "store time, up to one second early"),
    Column("broker_name", pa.string(), True, "STRING", "the broker of the store; null if unknown"),
)
_NUMBERS = {"key_hash": "<i4", "phy_offset": "<i8", "time_diff": "<i4", "prev": "<i4"}
_ENTRIES_PER_PART = 2_000_000


@dataclass
class IndexPartition(InputPartition):
    """Entries of one file, from ``first`` up to and without ``stop``."""

    file: IndexFile
    first: int
    stop: int
    broker: str | None

    def __init__(self, file: IndexFile, first: int, stop: int, broker: str | None) -> None:
        super().__init__(f"{file.path}, entries {first} to {stop}")
        self.file, self.first, self.stop, self.broker = file, first, stop, broker


class IndexSource(DataSource):
    """Reads entries of index files as rows, one per key of a message, in batches.

    It has the options of `cometmq.spark.options.logs.IndexOptions`.

    Example:
        ``spark.read.format("rocketmq-index").load("/data/store").groupBy("file").count().show()``
    """

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "rocketmq-index"

    def schema(self) -> str:
        """Return all columns."""
        parse_options(IndexOptions, self.options)
        return ddl(COLUMNS)

    def reader(self, schema: StructType) -> IndexReader:
        """Return what reads a batch."""
        options = parse_options(IndexOptions, self.options)
        fields = [(each.name, each.dataType.simpleString(), each.nullable) for each in schema]
        return IndexReader(options, declared(COLUMNS, fields))


class IndexReader(DataSourceReader):
    """Finds the files on the driver, and reads parts of them in workers.

    Args:
        options: of the query.
        columns: of the rows, in their order.
    """

    def __init__(self, options: IndexOptions, columns: Sequence[Column]) -> None:
        self._options = options
        self._columns = tuple(columns)

    def partitions(self) -> Sequence[InputPartition]:
        """Return parts of files that have some entries.

        Raises:
            PlaceError: at a path there is no index.
        """
        return [
            part
            for broker, paths in self._options.places().items()
            for path in paths
            for file in index_files(path, self._options.slots)
            for part in _parts(file, broker)
        ]

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """Yield the entries of a part; none for the part that Spark makes up."""
        if not isinstance(partition, IndexPartition):
            return iter(())
        return self._read(partition)

    def _read(self, part: IndexPartition) -> Iterator[pa.RecordBatch]:
        with IndexFileReader(part.file) as reader:
            begin_ms = reader.header().begin_ms
            for first in range(part.first, part.stop, self._options.batch_rows):
                stop = min(first + self._options.batch_rows, part.stop)
                yield self._batch(part, first, reader.entries(first, stop), begin_ms)

    def _batch(
        self, part: IndexPartition, first: int, entries: Any, begin_ms: int
    ) -> pa.RecordBatch:
        rows = len(entries)
        made = {
            "entry": lambda: pa.array(np.arange(first, first + rows, dtype=np.int32)),
            "file": lambda: pa.repeat(pa.scalar(part.file.name, pa.string()), rows),
            "store_timestamp": lambda: pa.array(_stored_us(entries, begin_ms)).cast(TIMESTAMP),
            "broker_name": lambda: pa.repeat(pa.scalar(part.broker, pa.string()), rows),
        }
        arrays = [
            pa.array(entries[column.name].astype(_NUMBERS[column.name]))
            if column.name in _NUMBERS
            else made[column.name]()
            for column in self._columns
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(self._columns))


def _parts(file: IndexFile, broker: str | None) -> Iterator[IndexPartition]:
    with IndexFileReader(file) as reader:
        used = reader.used()
    for first in range(1, used, _ENTRIES_PER_PART):
        yield IndexPartition(file, first, min(first + _ENTRIES_PER_PART, used), broker)


def _stored_us(entries: Any, begin_ms: int) -> Any:
    return (entries["time_diff"].astype(np.int64) * 1000 + begin_ms) * 1000
