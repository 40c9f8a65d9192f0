"""The format ``rocketmq`` as a sink: batch and streaming writes.

Nothing is done by commit and abort: a task has sent its rows, and every one was acknowledged, when
its `write` returns. What a failed attempt has sent stays sent; its rows are sent again under equal
unique ids.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from cometmq.spark.brokers import connect
from cometmq.spark.errors import OptionError, SourceError
from cometmq.spark.options.parsing import parse_options
from cometmq.spark.options.writing import TopicWriteOptions
from cometmq.spark.writing import Origin, Sent, TopicWriter, check_columns
from cometmq.spark.writing.delivery import check_delivery

BATCH_ID = "streaming.sql.batchId"
QUERY_ID = "sql.streaming.queryId"
OF_THE_QUERY = ("checkpointlocation",)
"""Options of a stream that Spark hands to its sink, too."""


@dataclass
class SentMessage(WriterCommitMessage):
    """What a task tells the driver."""

    sent: Sent


class TopicBatchWriter(DataSourceArrowWriter):
    """Writes a DataFrame to topics.

    Args:
        options: as Spark hands them over.
        schema: of the DataFrame.
        overwrite: whether the mode is ``overwrite``, which is refused.
    """

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        self._options = _checked(options, schema, overwrite)
        self._job = self._options.job_id or uuid.uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write one partition; return once every row was acknowledged."""
        return _write(self._options, iterator, job=self._job, batch=0)


class TopicStreamWriter(DataSourceStreamArrowWriter):
    """Writes the batches of a stream to topics.

    Args:
        options: as Spark hands them over.
        schema: of the stream.
        overwrite: whether the output mode is ``complete``, which is refused.
    """

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        self._options = _checked(options, schema, overwrite)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write one partition of one batch; return once every row was acknowledged."""
        job = self._options.job_id or _local(QUERY_ID)
        return _write(self._options, iterator, job=job, batch=int(_local(BATCH_ID)))


def _checked(options: Mapping[str, str], schema: StructType, overwrite: bool) -> TopicWriteOptions:
    if overwrite:
        raise OptionError("a topic cannot be overwritten: use the mode append")
    own = {name: text for name, text in options.items() if name.lower() not in OF_THE_QUERY}
    parsed = parse_options(TopicWriteOptions, own)
    check_delivery(parsed.delivery)
    check_columns(to_arrow_schema(schema, timezone="UTC"), parsed.topic)
    return parsed


def _write(
    options: TopicWriteOptions, batches: Iterator[pa.RecordBatch], *, job: str, batch: int
) -> SentMessage:
    origin = Origin(job, batch, _task().partitionId())
    return SentMessage(TopicWriter(connect(options), options, origin).write(batches))


def _task() -> TaskContext:
    task = TaskContext.get()
    if task is None:
        raise SourceError("only tasks of Spark write rows")
    return task


def _local(name: str) -> str:
    found = _task().getLocalProperty(name)
    if found is None:
        raise SourceError(f"Spark does not provide {name} here: set the option jobId")
    return str(found)
