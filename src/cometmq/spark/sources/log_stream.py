"""Streams of logs: the range of each micro-batch, and how a stream resumes after a failure.

    first batch     $start → $from and places     the end says where the batch begins (see edges)
    any other       places → places               never less than before, but for a log that was
                                                  created again or lost its end, which $from names
    no news         the same text again, for Spark compares texts

Every place that a batch ends at is one where a record ends. The end of a batch also has the store
time of that record, by which a later batch recognizes the log. What Spark must be able to repeat
after a failure depends on the two documents alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from cometmq.spark.compat import ReadAllAvailable, ReadLimit, ReadMaxBytes, StreamReader
from cometmq.spark.logs.logs import LATEST, Logs, check_known
from cometmq.spark.offsets import LogOffsets, log_from_json, log_times_from_json, log_to_json
from cometmq.spark.options.logs import LogOptions
from cometmq.spark.payloads.plan import PayloadPlan
from cometmq.spark.schema import Column
from cometmq.spark.sources.edges import (
    FROM,
    STORED,
    first_end,
    is_start,
    start_in,
    without_start,
)
from cometmq.spark.sources.log_batch import LogPartition
from cometmq.spark.sources.log_edges import start_of
from cometmq.spark.sources.log_identity import changed_logs, stored_at
from cometmq.spark.sources.log_plan import Planner
from cometmq.spark.sources.log_rows import Conditions, PartReader
from cometmq.spark.sources.losses import Losses

_WHAT = "an offset of this stream"


class LogStreamReader(StreamReader):
    """Plans micro-batches on the driver, and reads their parts in workers.

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
        self._columns = tuple(columns)
        self._conditions = Conditions.of(options)
        self._start = start_of(options, LATEST)
        self._losses = Losses(fail=options.fail_on_data_loss)
        self._target: LogOffsets | None = None
        self._newest: LogOffsets | None = None
        self._logs: Logs | None = None
        self._planned: LogOffsets | None = None
        self._reader()  # so that what it refuses fails planning

    # --- Spark asks, on the driver --------------------------------------------------------------

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Remember how far logs go now: this run goes no further."""
        self._target = self._looked().ends()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Return what `maxBytesPerTrigger` says."""
        most = self._options.max_bytes_per_trigger
        return ReadAllAvailable() if most is None else ReadMaxBytes(most)

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return the start as the user gave it; what that means is found out later."""
        return self._start.to_json()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return where the next batch ends, which is ``start`` if there is nothing for it.

        Raises:
            DataLossError: bytes behind ``start`` are not there any more, and that is an error.
            PlaceError: what is at a path is no log any more.
        """
        logs = self._looked()
        ends = self._newest = logs.ends()
        if self._target is not None:
            ends = {name: min(end, self._target.get(name, end)) for name, end in ends.items()}
        if is_start(start):
            begins = self._start.resolve(logs, ends)
            if begins is None:
                return start
            places = _limited(logs, begins, ends, limit) if self._start.repeatable else begins
            return first_end(log_to_json(begins), self._ends_at(logs, places, {}))
        known, stored = _known(start), _stored(start)
        check_known(known, logs)
        changes = changed_logs(logs, known, stored, self._newest)
        for name, change in changes.items():
            self._losses.changed_log(name, known[name], change, self._newest[name])
        restarts = {name: change.start for name, change in changes.items()}
        found = _limited(logs, {**logs.begins(), **known, **restarts}, ends, limit)
        if found == known and not changes:
            return start
        kept = {
            name: time_ms
            for name, time_ms in stored.items()
            if name not in changes and found.get(name) == known.get(name)
        }
        end = self._ends_at(logs, found, kept)
        return {FROM: log_to_json(restarts), **end} if restarts else end

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name
        """Return how far logs went when last looked at, for the progress of the query."""
        return None if self._newest is None else log_to_json(self._newest)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the parts of a batch, the largest first.

        Raises:
            DataLossError: bytes of the batch are not there any more, and that is an error.
            PlaceError: what is at a path is no log any more.
        """
        ends = _known(end)
        logs = self._logs or self._looked()
        check_known(ends, logs)
        if is_start(start):
            begins = _known(start_in(end))
        else:
            begins = _known(start) | _known(end.get(FROM, {}))
        if begins == ends:
            return []
        if self._planned != ends:
            ends = self._remaining(logs, begins, ends, _stored(end))
        planner = Planner(self._options, self._losses)
        parts = planner.parts(logs, begins, ends, self._conditions)
        return [LogPartition(part) for part in parts]

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: the checkpoint is the only one to know."""

    def stop(self) -> None:
        """Do nothing: no file stays open between batches."""

    # --- Spark asks, in workers -----------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one part."""
        if not isinstance(partition, LogPartition):
            return iter(())
        return self._reader().read(partition.part)

    def _reader(self) -> PartReader:
        return PartReader(self._options, self._columns, self._conditions, self._payload)

    # --- how ------------------------------------------------------------------------------------

    def _looked(self) -> Logs:
        """Return the logs with the files they have now."""
        if self._logs is None:
            self._logs = Logs(self._options.places(), empty=True, walk=self._options.walks)
        else:
            self._logs.look()
        return self._logs

    def _ends_at(self, logs: Logs, ends: LogOffsets, stored: dict[str, int]) -> dict[str, Any]:
        self._planned = ends
        rest = {name: end for name, end in ends.items() if name not in stored}
        times = dict(sorted((stored | stored_at(logs, rest)).items()))
        return ({STORED: times} if times else {}) | log_to_json(ends)

    def _remaining(
        self, logs: Logs, begins: LogOffsets, ends: LogOffsets, stored: dict[str, int]
    ) -> LogOffsets:
        """Return where a batch ends now that an earlier run of the query planned.

        Raises:
            DataLossError: records of the batch are not there any more, and that is an error.
        """
        now = logs.ends()
        known = {name: end for name, end in ends.items() if name in stored}
        left = dict(ends)
        for name, change in changed_logs(logs, known, stored, now).items():
            self._losses.changed_log(name, ends[name], change, now[name])
            end = begins.get(name, change.start) if change.created_again else change.start
            left[name] = min(end, left[name])
            if left[name] <= begins.get(name, 0):
                del left[name]  # nothing of it is left
        return left


def _stored(document: dict[str, Any]) -> dict[str, int]:
    return log_times_from_json(document.get(STORED, {}), f"{STORED} of {_WHAT}")


def _known(document: Any) -> LogOffsets:
    return log_from_json(without_start(document), _WHAT)


def _limited(logs: Logs, begins: LogOffsets, ends: LogOffsets, limit: ReadLimit) -> LogOffsets:
    """Return where a batch ends that begins there and takes no more than the limit."""
    sizes = {name: max(end - begins.get(name, 0), 0) for name, end in ends.items()}
    total = sum(sizes.values())
    if not isinstance(limit, ReadMaxBytes) or total <= limit.max_bytes:
        return {name: begins[name] + size for name, size in sizes.items()}
    found = {}
    for name, size in sizes.items():
        wanted = max(1, size * limit.max_bytes // total) if size else 0
        end = begins[name] + size
        found[name] = logs.boundary(name, begins[name] + wanted, end) if size else end
    return found
