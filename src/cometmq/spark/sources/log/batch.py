"""Batch reads of logs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from cometmq.spark.logs.logs import EARLIEST, Logs
from cometmq.spark.options.logs import LogOptions
from cometmq.spark.payloads.plan import PayloadPlan
from cometmq.spark.schema import Column
from cometmq.spark.sources.log.bounds import end_of, start_of
from cometmq.spark.sources.log.parts import Conditions, LogPart, plan_parts
from cometmq.spark.sources.log.rows import PartReader
from cometmq.spark.sources.losses import Losses


class LogReader:
    """Reads parts of logs in workers, for batches and for streams.

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
        self.columns = tuple(columns)
        self._options = options
        self._payload = payload
        self._conditions = Conditions.of(options)
        self._losses = Losses(fail=options.fail_on_data_loss)
        self._rows()  # so that planning fails if it refuses something

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a part; none for the part that Spark makes up if there are none."""
        part = None if partition is None else partition.value
        return self._rows().read(part) if isinstance(part, LogPart) else iter(())

    def _rows(self) -> PartReader:
        return PartReader(self._options, self.columns, self._conditions, self._payload)


class LogBatchReader(LogReader, DataSourceReader):
    """Plans a batch on the driver."""

    def partitions(self) -> Sequence[InputPartition]:
        """Return the parts that tasks read, the largest first."""
        logs = Logs(self._options.places(), walk=self._options.walks)
        watermarks = logs.ends()
        starts = start_of(self._options, EARLIEST).resolve(logs, watermarks) or watermarks
        ends = end_of(self._options).resolve(logs, watermarks) or watermarks
        starts, ends = dict(starts), dict(ends)
        for name, most in watermarks.items():
            if max(starts[name], ends[name]) > most:
                asked = f"bytes {starts[name]} to {ends[name]}"
                self._losses.report(f"log of {name}: {asked} should be read, it ends at {most}")
                starts[name] = min(starts[name], most)
            ends[name] = max(starts[name], min(ends[name], most))
        parts = plan_parts(self._options, self._losses, logs, starts, ends)
        return [InputPartition(part) for part in parts]
