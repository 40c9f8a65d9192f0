"""Batch reads of topics: their bounds, their parts, and the rows of each part.

The rules are those of Spark's Kafka source (KafkaBatch).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from cometmq.spark.offsets import QueueRange
from cometmq.spark.options.topics import TopicReadOptions
from cometmq.spark.payloads.plan import PayloadPlan
from cometmq.spark.planning import split
from cometmq.spark.schema import Column
from cometmq.spark.sources.bounds import EARLIEST, end_of, start_of
from cometmq.spark.sources.losses import Losses
from cometmq.spark.sources.ranges import Connect, RangeReader
from cometmq.spark.sources.selection import Selection


class TopicReader:
    """Reads parts of topics in workers, for batches and for streams.

    Args:
        options: of the query.
        columns: of the rows, in their order.
        connect: gives the session with the brokers.
        payload: decodes bodies, if the query does.
        away_s: see `RangeReader`.
    """

    def __init__(
        self,
        options: TopicReadOptions,
        columns: Sequence[Column],
        connect: Connect,
        payload: PayloadPlan | None = None,
        away_s: float = 0.0,
    ) -> None:
        self._options = options
        self._connect = connect
        self._selection = Selection.of(options)
        self._rows = partial(RangeReader, options, columns, connect, payload, away_s)
        self._rows()  # so that planning fails if it refuses something

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one part; none for the part that Spark makes up if there are none."""
        each = None if partition is None else partition.value
        return self._rows().read(each) if isinstance(each, QueueRange) else iter(())

    def _partitions(self, ranges: Iterable[QueueRange]) -> Sequence[InputPartition]:
        """Return the parts that tasks read, the largest first."""
        least, most = self._options.min_partitions, self._options.max_records_per_partition
        parts = split(ranges, min_partitions=least, max_records=most)
        return [InputPartition(part) for part in parts]


class TopicBatchReader(TopicReader, DataSourceReader):
    """Plans a batch on the driver; the arguments are those of `TopicReader`."""

    def __init__(self, options: TopicReadOptions, *more: Any) -> None:
        super().__init__(options, *more)
        self._start, self._end = start_of(options, EARLIEST), end_of(options)

    def partitions(self) -> Sequence[InputPartition]:
        """Return the parts that tasks read, the largest first."""
        session = self._connect(self._options)
        bounds = session.bounds(self._selection.queues(session))
        starts = self._start.resolve(session, bounds)
        ends = self._end.resolve(session, bounds)
        losses = Losses(fail=self._options.fail_on_data_loss)
        ranges = []
        for key, limits in bounds.items():
            start = losses.begin(key, starts[key], limits, self._start.naming(key))
            end = losses.end(QueueRange(key, start, ends[key]), limits)
            ranges.append(QueueRange(key, start, max(start, end)))
        return self._partitions(ranges)
