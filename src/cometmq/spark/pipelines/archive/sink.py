"""A sink of Spark that writes archives: the format ``cometmq-archive``, of streams alone.

Tasks write files; one entry of the manifest names all of a micro-batch. A batch that is done again
has the same rows and numbers, so it writes the same files and the same entry: each record is in the
archive once. Files carry the id of the query, which its checkpoint keeps: a query that begins again
without its checkpoint counts batches from 0, and replaces no file of another query.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamArrowWriter,
    DataSourceStreamWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from cometmq.spark.errors import SourceError
from cometmq.spark.logs import ByteRange
from cometmq.spark.pipelines.archive.manifest import (
    ArchiveFile,
    Entry,
    LastRecord,
    Manifest,
    QueueRows,
)
from cometmq.spark.pipelines.archive.parquet import (
    Form,
    joined,
    last_records,
    newest_records,
    parts_of,
    write_parts,
)
from cometmq.spark.pipelines.archive.reading import COLUMNS
from cometmq.spark.pipelines.running.folders import open_folder
from cometmq.spark.schema import arrow_schema

FORMAT = "cometmq-archive"
ROWS_AT_ONCE = 200_000
_BATCH_ID = "streaming.sql.batchId"
_QUERY_ID = "sql.streaming.queryId"


@dataclass
class Written(WriterCommitMessage):
    """What a task wrote."""

    files: tuple[ArchiveFile, ...]
    queues: tuple[QueueRows, ...]
    last: tuple[LastRecord, ...]
    query: str


class ArchiveSink(DataSource):
    """The format."""

    @classmethod
    def name(cls) -> str:
        """Return what Spark knows it by."""
        return FORMAT

    def streamWriter(  # noqa: N802 - as Spark calls it
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamWriter:
        """Return what writes a stream."""
        return ArchiveWriter(dict(self.options))


class ArchiveWriter(DataSourceStreamArrowWriter):
    """Writes the micro-batches of a stream.

    Args:
        options: ``to``, the archive's folder; ``name``, what the manifest calls the stream;
            ``codec``.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        self._to = options["to"]
        self._name = options["name"]
        self._form = Form(options["codec"])

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Write the rows of one task, some at a time."""
        batch, partition, query = _task()
        folder = open_folder(self._to)
        files: list[ArchiveFile] = []
        queues: list[QueueRows] = []
        last: list[LastRecord] = []
        for number, table in enumerate(_tables(iterator)):
            parts, met = parts_of(table)
            name = ByteRange(f"{self._name}-{query}-{batch:08d}", partition, number)
            files += write_parts(folder, name, parts, self._form)
            queues += met
            last += last_records(table)
        return Written(tuple(files), tuple(queues), tuple(newest_records(last)), query)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Make the files of a batch part of the archive; again, it changes nothing.

        Raises:
            RunError: another query has archived a batch of this number.
        """
        written = [message for message in messages if isinstance(message, Written)]
        if not written:
            return
        files = tuple(file for message in written for file in message.files)
        queues = joined(queue for message in written for queue in message.queues)
        last = newest_records(record for message in written for record in message.last)
        rows = sum(file.rows for file in files)
        query = written[0].query
        entry = Entry(
            self._name,
            batchId,
            batchId + 1,
            rows,
            files,
            tuple(queues),
            query=query,
            last_records=tuple(last),
        )
        Manifest(open_folder(self._to)).add_batch(entry)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Leave the files: the batch is done again and replaces them."""


def _task() -> tuple[int, int, str]:
    """Give the batch, the partition and the query of this task."""
    task = TaskContext.get()
    batch = task.getLocalProperty(_BATCH_ID) if task is not None else None
    query = task.getLocalProperty(_QUERY_ID) if task is not None else None
    if task is None or batch is None or query is None:
        raise SourceError(f"{FORMAT}: only tasks of a stream write rows")
    return int(batch), task.partitionId(), query


def _tables(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Yield the rows in tables with an archive's columns, of about so many rows."""
    taken: list[pa.RecordBatch] = []
    for batch in batches:
        taken.append(batch)
        if sum(each.num_rows for each in taken) >= ROWS_AT_ONCE:
            yield _completed(taken)
            taken = []
    if taken:
        yield _completed(taken)


def _completed(batches: Sequence[pa.RecordBatch]) -> pa.Table:
    """The rows with all columns of an archive; null where brokers do not say."""
    table = pa.Table.from_batches(batches)
    schema = arrow_schema(COLUMNS)
    columns = [
        table[field.name].cast(field.type)
        if field.name in table.column_names
        else pa.nulls(table.num_rows, field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)
