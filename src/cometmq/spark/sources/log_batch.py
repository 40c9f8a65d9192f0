"""Batch reads of logs: their bounds, their parts, and the rows of each part."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)

from cometmq.spark.logs.logs import EARLIEST, Logs
from cometmq.spark.offsets import LogOffsets
from cometmq.spark.options.logs import LogOptions
from cometmq.spark.schema import Column
from cometmq.spark.sources.log_edges import end_of, start_of
from cometmq.spark.sources.log_plan import Planner
from cometmq.spark.sources.log_rows import Conditions, LogPart, PartReader
from cometmq.spark.sources.losses import Losses
from cometmq.spark.sources.pushed import Pushed


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
        ends: how far logs could be read when the query was made; None to find that out when
            planning.
    """

    def __init__(
        self, options: LogOptions, columns: Sequence[Column], ends: LogOffsets | None = None
    ) -> None:
        self._options = options
        self.columns = tuple(columns)
        self._ends = ends
        self._conditions = Conditions.of(options)
        self._start, self._end = start_of(options, EARLIEST), end_of(options)
        PartReader(options, columns, self._conditions)  # so that what it refuses fails planning

    def partitions(self) -> Sequence[InputPartition]:
        """Return the parts that tasks read, the largest first."""
        logs = Logs(self._options.places(), walk=self._options.walks)
        losses = Losses(fail=self._options.fail_on_data_loss)
        watermarks = self._ends if self._ends is not None else logs.ends()
        starts = dict(self._start.resolve(logs, watermarks) or watermarks)
        ends = dict(self._end.resolve(logs, watermarks) or watermarks)
        for name, most in watermarks.items():
            if max(starts[name], ends[name]) > most:
                asked = f"bytes {starts[name]} to {ends[name]}"
                losses.report(f"log of {name}: {asked} should be read, it ends at {most}")
                starts[name] = min(starts[name], most)
            ends[name] = max(starts[name], min(ends[name], most))
        starts, ends, conditions = self._narrowed(logs, starts, ends)
        parts = Planner(self._options, losses).parts(logs, starts, ends, conditions)
        return [LogPartition(part) for part in parts]

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one part; none for the part that Spark makes up if there are none."""
        if not isinstance(partition, LogPartition):
            return iter(())
        return PartReader(self._options, self.columns, self._conditions).read(partition.part)

    def _narrowed(
        self, logs: Logs, starts: LogOffsets, ends: LogOffsets
    ) -> tuple[LogOffsets, LogOffsets, Conditions]:
        """Return what the query's own conditions leave of all that."""
        return starts, ends, self._conditions


class PushingLogBatchReader(LogBatchReader):
    """The same, reading only what the query's conditions let through.

    Conditions on topics, brokers, times and log offsets narrow what is read; Spark checks them
    all once more. Spark refuses a reader with this method unless filters may be pushed down, so
    it is apart.
    """

    def __init__(
        self, options: LogOptions, columns: Sequence[Column], ends: LogOffsets | None = None
    ) -> None:
        super().__init__(options, columns, ends)
        self._pushed = Pushed()
        self._first_byte, self._end_byte = 0, 1 << 63

    def pushFilters(self, filters: list[Filter]) -> Iterator[Filter]:  # noqa: N802 - Spark's name
        """Heed the conditions that narrow what is read; Spark is to check all of them."""
        for each in filters:
            if getattr(each, "attribute", None) == ("phy_offset",):
                self._take_place(each)
            else:
                self._pushed.take(each)
        topics = self._pushed.places.get("topic")
        if topics is not None:
            own = self._conditions.topics
            self._conditions = replace(self._conditions, topics=_both(own, topics))
        return iter(filters)

    def _take_place(self, condition: Any) -> None:
        if isinstance(condition, (EqualTo, GreaterThan, GreaterThanOrEqual)):
            first = condition.value + isinstance(condition, GreaterThan)
            self._first_byte = max(first, self._first_byte)
        if isinstance(condition, (EqualTo, LessThan, LessThanOrEqual)):
            end = condition.value + (not isinstance(condition, LessThan))
            self._end_byte = min(end, self._end_byte)

    def _narrowed(
        self, logs: Logs, starts: LogOffsets, ends: LogOffsets
    ) -> tuple[LogOffsets, LogOffsets, Conditions]:
        brokers = self._pushed.places.get("broker_name")
        if brokers is not None:
            ends = {name: end for name, end in ends.items() if logs.places[name].broker in brokers}
        all_ends = ends
        starts = {name: max(starts[name], self._first_byte) for name in ends}
        ends = {name: min(end, self._end_byte) for name, end in ends.items()}
        if self._pushed.first_ms is not None:
            found = logs.at_time(max(self._pushed.first_ms, 0), ends)
            starts = {name: _later(starts[name], found[name], ends[name]) for name in ends}
        if self._pushed.end_ms is not None:
            found = logs.at_time(max(self._pushed.end_ms, 0), ends)
            ends = {name: _earlier(end, found[name]) for name, end in ends.items()}
        starts, ends = logs.snapped(starts, all_ends), logs.snapped(ends, all_ends)
        return starts, {n: max(end, starts[n]) for n, end in ends.items()}, self._conditions


def _both(own: frozenset[str], pushed: frozenset[str]) -> frozenset[str]:
    """Return the topics in both sets; where there is none, one that no record has."""
    return (own & pushed if own else pushed) or frozenset({""})


def _later(start: int, found: int | None, end: int) -> int:
    return max(start, end if found is None else found)


def _earlier(end: int, found: int | None) -> int:
    return end if found is None else min(end, found)
