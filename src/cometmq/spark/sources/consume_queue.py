"""The format ``rocketmq-consumequeue``: the units of a store's consume queues, as they are.

The layout is that of `cometmq.store.queues.consume_queue`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from cometmq.spark.errors import DataLossError
from cometmq.spark.logs.ext_files import ExtReader
from cometmq.spark.logs.queue_files import (
    QUEUES,
    QueueFile,
    UnitReader,
    queue_directories,
    queue_files,
    read_units,
    store_at,
)
from cometmq.spark.logs.storage import Storage
from cometmq.spark.options.logs import QueueFileOptions
from cometmq.spark.options.parsing import parse_options
from cometmq.spark.schema import Column, arrow_schema, ddl, declared
from cometmq.store.queues.consume_queue_ext import ADDRESS_MAX

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

COLUMNS: tuple[Column, ...] = (
    Column("topic", pa.string(), False, "STRING", "the topic"),
    Column("queue_id", pa.int32(), False, "INT", "the queue within topic and broker"),
    Column("cq_offset", pa.int64(), False, "BIGINT", "the queue offset of the unit"),
    Column("phy_offset", pa.int64(), False, "BIGINT", "the physical offset of the record"),
    Column("size", pa.int32(), False, "INT", "size of the record; 2147483647 in a filler"),
    Column("tags_code", pa.int64(), False, "BIGINT", "hash of the tags, or the delivery time"),
    Column("broker_name", pa.string(), True, "STRING", "the broker of the store; null if unknown"),
)
_NUMBERS = {"phy_offset": "<i8", "size": "<i4"}


@dataclass
class QueueFilePartition(InputPartition):
    """One file of units."""

    storage: Storage
    file: QueueFile
    broker: str | None

    def __init__(self, storage: Storage, file: QueueFile, broker: str | None) -> None:
        super().__init__(file.path)
        self.storage, self.file, self.broker = storage, file, broker


class ConsumeQueueSource(DataSource):
    """Reads units of consume queues as rows, one per message, in batches.

    It has the options of `cometmq.spark.options.logs.QueueFileOptions`. Fillers are rows too.

    Example:
        ``spark.read.format("rocketmq-consumequeue").load("/data/store").show()``
    """

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "rocketmq-consumequeue"

    def schema(self) -> str:
        """Return all columns."""
        parse_options(QueueFileOptions, self.options)
        return ddl(COLUMNS)

    def reader(self, schema: StructType) -> ConsumeQueueReader:
        """Return what reads a batch."""
        options = parse_options(QueueFileOptions, self.options)
        fields = [(each.name, each.dataType.simpleString(), each.nullable) for each in schema]
        return ConsumeQueueReader(options, declared(COLUMNS, fields))


class ConsumeQueueReader(DataSourceReader):
    """Finds the files on the driver, and reads each in a worker.

    Args:
        options: of the query.
        columns: of the rows, in their order.
    """

    def __init__(self, options: QueueFileOptions, columns: Sequence[Column]) -> None:
        self._options = options
        self._columns = tuple(columns)

    def partitions(self) -> Sequence[InputPartition]:
        """Return one part for each file, the largest first.

        Raises:
            PlaceError: at a path there is no store.
        """
        found = []
        for broker, paths in self._options.places().items():
            for path in paths:
                storage, store = store_at(path)
                for queue in queue_directories(storage, store, self._options.topics(), (QUEUES,)):
                    files = queue_files(storage, queue)
                    found += [QueueFilePartition(storage, file, broker) for file in files]
        return sorted(found, key=lambda part: -part.file.size)

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """Yield the written units of a file; none for the part that Spark makes up."""
        if not isinstance(partition, QueueFilePartition):
            return iter(())
        return self._read(partition)

    def _read(self, part: QueueFilePartition) -> Iterator[pa.RecordBatch]:
        try:
            with UnitReader(part.storage, part.file) as reader:
                written = reader.written()
            with ExtReader(part.storage, part.file.queue) as extensions:
                for first in range(0, written, self._options.batch_rows):
                    stop = min(first + self._options.batch_rows, written)
                    units = read_units(part.storage, part.file, first, stop)
                    yield self._batch(part, first, units, extensions)
        except FileNotFoundError:
            raise DataLossError(f"{part.file.path} was deleted while it was read") from None

    def _batch(
        self, part: QueueFilePartition, first: int, units: Any, extensions: ExtReader
    ) -> pa.RecordBatch:
        rows, queue = len(units), part.file.queue
        base = part.file.base_offset // queue.unit_bytes + first
        made = {
            "topic": lambda: pa.repeat(pa.scalar(queue.topic, pa.string()), rows),
            "queue_id": lambda: pa.repeat(pa.scalar(queue.queue_id, pa.int32()), rows),
            "cq_offset": lambda: pa.array(np.arange(base, base + rows, dtype=np.int64)),
            "tags_code": lambda: pa.array(self._tags_codes(units, extensions)),
            "broker_name": lambda: pa.repeat(pa.scalar(part.broker, pa.string()), rows),
        }
        arrays = [
            pa.array(units[column.name].astype(_NUMBERS[column.name]))
            if column.name in _NUMBERS
            else made[column.name]()
            for column in self._columns
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(self._columns))

    def _tags_codes(self, units: Any, extensions: ExtReader) -> Any:
        codes = units["tags_code"].astype("<i8")
        if self._options.resolve:
            for index in np.flatnonzero(codes <= ADDRESS_MAX).tolist():
                codes[index] = extensions.tags_code_of(int(codes[index]))
        return codes
