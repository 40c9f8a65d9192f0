"""Batch reads of topics: their bounds, their parts, and the rows of each part.

The rules are those of Spark's Kafka source (KafkaBatch).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from cometmq.spark.brokers import BrokerSession
from cometmq.spark.offsets import Bounds, Positions, QueueKey, QueueRange
from cometmq.spark.options.topics import TopicReadOptions
from cometmq.spark.planning import split
from cometmq.spark.schema import Column
from cometmq.spark.sources.edges import EARLIEST, end_of, start_of
from cometmq.spark.sources.losses import Losses
from cometmq.spark.sources.pushed import Pushed
from cometmq.spark.sources.ranges import Connect, RangeReader, check_filters
from cometmq.spark.sources.selection import Selection


class TopicBatchReader(DataSourceReader):
    """Plans a batch on the driver, and reads its parts in workers.

    Args:
        options: of the query.
        columns: of the rows, in their order.
        connect: gives the session with the brokers.
        ends: where queues ended when the query was made; None to find that out when planning.
    """

    def __init__(
        self,
        options: TopicReadOptions,
        columns: Sequence[Column],
        connect: Connect,
        ends: Positions | None = None,
    ) -> None:
        self._options = options
        self._columns = tuple(columns)
        self._connect = connect
        self._ends = ends
        self._pushed = Pushed()
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
        reader = RangeReader(self._options, self._columns, self._connect, self._pushed.tags)
        return read_partition(reader, partition)

    def _ranges(self, session: BrokerSession) -> list[QueueRange]:
        bounds = session.bounds(self._selection.queues(session))
        starts = self._start.resolve(session, bounds)
        ends = self._ends_of(session, bounds)
        losses = Losses(fail=self._options.fail_on_data_loss)
        ranges = []
        for key, limits in bounds.items():
            start = losses.begin(key, starts[key], limits, self._start.naming(key))
            end = losses.end(QueueRange(key, start, ends[key]), limits)
            ranges.append(QueueRange(key, start, max(start, end)))
        return self._pushed.narrowed(ranges, session)

    def _ends_of(
        self, session: BrokerSession, bounds: dict[QueueKey, Bounds]
    ) -> dict[QueueKey, int]:
        ends = self._end.resolve(session, bounds)
        if self._ends is None:
            return ends
        # Queues that came later hold nothing that was there when the query was made.
        return {key: min(end, self._ends.get(key, bounds[key].min)) for key, end in ends.items()}


class PushingBatchReader(TopicBatchReader):
    """The same, reading only what the query's conditions let through.

    Spark refuses a reader with this method unless filters may be pushed down, so it is apart.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterator[Filter]:  # noqa: N802 - Spark's name
        """Heed the conditions that narrow what is read; return those that Spark has to check."""
        return iter([each for each in filters if not self._pushed.take(each)])


def read_partition(
    reader: RangeReader, partition: InputPartition | None
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a part that was planned, none for the one that Spark makes up."""
    each = None if partition is None else partition.value
    return reader.read(each) if isinstance(each, QueueRange) else iter(())


def latest_ends(options: TopicReadOptions, connect: Connect) -> Positions:
    """Return where the chosen queues end now."""
    session = connect(options)
    bounds = session.bounds(Selection.of(options).queues(session))
    return {key: limits.max for key, limits in bounds.items()}
