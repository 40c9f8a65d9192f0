"""The writers of the format ``rocketmq``, for batch writes and streams.

When the `write` of a task returns, every row is acknowledged. So the commit only counts, and abort
does nothing. The rows of a failed attempt stay sent; the next attempt sends them again with equal
unique ids.
"""

from __future__ import annotations

import logging
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
from pyspark.sql.types import StructType

from cometmq.spark.brokers import connect
from cometmq.spark.compat import arrow_schema, exempt_loaded_modules
from cometmq.spark.errors import OptionError, SourceError
from cometmq.spark.options.parsing import parse_options
from cometmq.spark.options.writing import TopicWriteOptions
from cometmq.spark.sink.counts import Sent, add_counts, total
from cometmq.spark.sink.rows import check_columns
from cometmq.spark.sink.topic_writer import TopicWriter
from cometmq.spark.sink.unique_ids import Origin

log = logging.getLogger(__name__)

BATCH_ID = "streaming.sql.batchId"
QUERY_ID = "sql.streaming.queryId"
EXECUTION_ID, ROOT_EXECUTION_ID = "spark.sql.execution.id", "spark.sql.execution.root.id"
"""Spark numbers the executions of SQL in an application. In ``foreachBatch`` the root is the
execution of the micro-batch."""
QUERY_OPTIONS = ("checkpointlocation", "queryname")
"""Options of a stream that Spark passes to its sink, too."""


@dataclass
class SentMessage(WriterCommitMessage):
    """The message of a finished task to the driver."""

    job: str
    """The query's id or the name of the job; empty for a batch write without a name."""
    batch: int
    sent: Sent


class TopicBatchWriter(DataSourceArrowWriter):
    """Writes a DataFrame to topics.

    Args:
        options: the options of the write.
        schema: the columns of the DataFrame.
        overwrite: whether the mode is ``overwrite``, which is refused.
    """

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        self._options = _checked(options, schema, overwrite)
        self._job = self._options.job_id or uuid.uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write one partition; return when every row is acknowledged.

        In ``foreachBatch`` the origin is the query and the micro-batch, so that the rows of a
        repeated micro-batch have equal unique ids.
        """
        query, batch = _local(QUERY_ID), _local(BATCH_ID)
        options = self._options
        if query is None or batch is None:
            origin = Origin(self._job, 0, _task().partitionId())
            is_named = bool(options.job_id)
            return _write(options, iterator, origin, options.job_id, is_named=is_named)
        name = options.job_id or _execution_number() or self._job
        job = f"{query}, write {name} to {options.topic or 'the topics of its rows'}"
        return _write(options, iterator, Origin(job, int(batch), _task().partitionId()), query)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Count what the tasks have sent."""
        _count(self._options, messages)


class TopicStreamWriter(DataSourceStreamArrowWriter):
    """Writes the batches of a stream to topics; the output mode ``complete`` is refused."""

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        self._options = _checked(options, schema, overwrite)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write one partition of one batch; return when every row is acknowledged."""
        job = self._options.job_id or _required(QUERY_ID)
        origin = Origin(job, int(_required(BATCH_ID)), _task().partitionId())
        return _write(self._options, iterator, origin, job)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Count what the tasks have sent."""
        _count(self._options, messages)


def _checked(options: Mapping[str, str], schema: StructType, overwrite: bool) -> TopicWriteOptions:
    if overwrite:
        raise OptionError("a topic cannot be overwritten: use the mode append")
    own = {name: text for name, text in options.items() if name.lower() not in QUERY_OPTIONS}
    parsed = parse_options(TopicWriteOptions, own)
    check_columns(arrow_schema(schema), parsed.topic)
    return parsed


def _write(
    options: TopicWriteOptions,
    batches: Iterator[pa.RecordBatch],
    origin: Origin,
    job: str,
    *,
    is_named: bool = True,
) -> SentMessage:
    exempt_loaded_modules()
    sent = TopicWriter(connect(options), options, origin, is_named=is_named).write(batches)
    return SentMessage(job, origin.batch, sent)


def _count(options: TopicWriteOptions, messages: list[WriterCommitMessage | None]) -> None:
    """Log and add up what the tasks of a write have sent.

    It never raises: Spark would call abort, and end the query although the rows are sent.
    """
    found = [message for message in messages if isinstance(message, SentMessage)]
    if not found:
        return
    job, batch, sent = found[0].job, found[0].batch, total(message.sent for message in found)
    log.info(
        "written: job=%s batch=%d tasks=%d rows=%d bytes=%d requests=%d retries=%d",
        job or "(no name)",
        batch,
        len(found),
        *sent,
    )
    if options.counts_folder:
        add_counts(options.counts_folder, job, sent)


def _task() -> TaskContext:
    task = TaskContext.get()
    if task is None:
        raise SourceError("rows are written by tasks of Spark: expected a TaskContext, found none")
    return task


def _local(name: str) -> str | None:
    return _task().getLocalProperty(name)


def _required(name: str) -> str:
    found = _local(name)
    if found is None:
        raise SourceError(f"expected the property {name} of a stream's task, found none")
    return found


def _execution_number() -> str:
    """Return the number of this write among the executions since its micro-batch began.

    No two writes have the same number. A repeated micro-batch gives a write the same number if its
    function runs the same actions, and no other query or thread runs an action meanwhile.
    """
    execution, root = _local(EXECUTION_ID), _local(ROOT_EXECUTION_ID)
    return f"number {int(execution) - int(root)}" if execution and root else ""
