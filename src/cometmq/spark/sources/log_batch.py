"""Batch reads of logs: their bounds, their parts, and the rows of each part."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from cometmq.spark.logs.logs import EARLIEST, Logs
from cometmq.spark.options.logs import LogOptions
from cometmq.spark.payloads.plan import PayloadPlan
from cometmq.spark.schema import Column
from cometmq.spark.sources.log_edges import end_of, start_of
from cometmq.spark.sources.log_plan import Planner
from cometmq.spark.sources.log_rows import Conditions, LogPart, PartReader
from cometmq.spark.sources.losses import Losses


@dataclass
class LogPartition(InputPartition):
    """What one task reads."""

    part: LogPart

    def __init__(self, part: LogPart) -> None:
        super().__init__(str(part.range))
        self.part = part


class LogBatchReader(DataSourceReader):
    """Plans a batch on the driver, and reads its parts in workers.

    Args:
        options: of the query.
        columns: of the rows, in their order.
        payload: decodes bodies, if the query does.
    """

    def __init__(
        self,
        options: LogOptions,
        columns: Sequence[Column],
        payload: PayloadPlan | None = None,
    ) -> None:
        self._options = options
        self._payload = payload
        self.columns = tuple(columns)
        self._conditions = Conditions.of(options)
        self._start, self._end = start_of(options, EARLIEST), end_of(options)
        self._reader()  # so that what it refuses fails planning

    def partitions(self) -> Sequence[InputPartition]:
        """Return the parts that tasks read, the largest first."""
        logs = Logs(self._options.places(), walk=self._options.walks)
        losses = Losses(fail=self._options.fail_on_data_loss)
        watermarks = logs.ends()
        starts = dict(self._start.resolve(logs, watermarks) or watermarks)
        ends = dict(self._end.resolve(logs, watermarks) or watermarks)
        for name, most in watermarks.items():
            if max(starts[name], ends[name]) > most:
                asked = f"bytes {starts[name]} to {ends[name]}"
                losses.report(f"log of {name}: {asked} should be read, it ends at {most}")
                starts[name] = min(starts[name], most)
            ends[name] = max(starts[name], min(ends[name], most))
        parts = Planner(self._options, losses).parts(logs, starts, ends, self._conditions)
        return [LogPartition(part) for part in parts]

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one part; none for the part that Spark makes up if there are none."""
        if not isinstance(partition, LogPartition):
            return iter(())
        return self._reader().read(partition.part)

    def _reader(self) -> PartReader:
        return PartReader(self._options, self.columns, self._conditions, self._payload)
