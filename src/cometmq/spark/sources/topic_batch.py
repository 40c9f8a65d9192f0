"""Batch reads of topics: their bounds, their parts, and the rows of each part.

The rules are those of Spark's Kafka source (KafkaBatch).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from cometmq.spark.brokers import BrokerSession
from cometmq.spark.offsets import QueueRange
from cometmq.spark.options.topics import TopicReadOptions
from cometmq.spark.payloads.plan import PayloadPlan
from cometmq.spark.planning import split
from cometmq.spark.schema import Column
from cometmq.spark.sources.bounds import EARLIEST, end_of, start_of
from cometmq.spark.sources.losses import Losses
from cometmq.spark.sources.ranges import Connect, RangeReader, check_filters
from cometmq.spark.sources.selection import Selection


class TopicBatchReader(DataSourceReader):
    """Plans a batch on the driver, and reads its parts in workers.

    Args:
        options: of the query.
        columns: of the rows, in their order.
        connect: gives the session with the brokers.
        payload: decodes bodies, if the query does.
    """

    def __init__(
        self,
        options: TopicReadOptions,
        columns: Sequence[Column],
        connect: Connect,
        payload: PayloadPlan | None = None,
    ) -> None:
        self._options = options
        self._payload = payload
        self._columns = tuple(columns)
        self._connect = connect
        self._selection = Selection.of(options)
        self._start, self._end = start_of(options, EARLIEST), end_of(options)
        check_filters(options)

    def partitions(self) -> Sequence[InputPartition]:
        """Return the parts that tasks read, the largest first."""
        session = self._connect(self._options)
        parts = split(
            self._ranges(session),
            min_partitions=self._options.min_partitions,
            max_records=self._options.max_records_per_partition,
        )
        return [InputPartition(part) for part in parts]

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one part; none for the part that Spark makes up if there are none."""
        reader = RangeReader(self._options, self._columns, self._connect, self._payload)
        return read_partition(reader, partition)

    def _ranges(self, session: BrokerSession) -> list[QueueRange]:
        bounds = session.bounds(self._selection.queues(session))
        starts = self._start.resolve(session, bounds)
        ends = self._end.resolve(session, bounds)
        losses = Losses(fail=self._options.fail_on_data_loss)
        ranges = []
        for key, limits in bounds.items():
            start = losses.begin(key, starts[key], limits, self._start.naming(key))
            end = losses.end(QueueRange(key, start, ends[key]), limits)
            ranges.append(QueueRange(key, start, max(start, end)))
        return ranges


def read_partition(
    reader: RangeReader, partition: InputPartition | None
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a part that was planned, none for the one that Spark makes up."""
    each = None if partition is None else partition.value
    return reader.read(each) if isinstance(each, QueueRange) else iter(())
