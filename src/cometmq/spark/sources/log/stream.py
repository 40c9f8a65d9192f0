"""Streams of logs: the range of each micro-batch, and how a stream resumes after a failure.

    first batch     $start → $from and offsets    the end says where the batch begins
    any other       offsets → offsets             never less than before, but for a log that was
                                                  created again or lost its end, which $from names
    no news         the same text again, for Spark compares texts

Every offset that a batch ends at is one where a record ends. The end of a batch also has the store
time of that record, by which a later batch recognizes the log: the rules are those of
`cometmq.spark.sources.queue_identity`, with bytes of a log for offsets of a queue. What Spark must
be able to repeat after a failure depends on the two documents alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql.datasource import InputPartition

from cometmq.spark.compat import ReadAllAvailable, ReadLimit, ReadMaxBytes, StreamReader
from cometmq.spark.logs import Follower
from cometmq.spark.logs.logs import LATEST, Logs, check_known
from cometmq.spark.logs.times import at_time, boundary, oldest_stored, stored_before
from cometmq.spark.offsets import (
    FROM,
    STORED,
    LogOffsets,
    begins_of,
    first_end,
    is_start,
    log_from_json,
    log_times_from_json,
    log_to_json,
    without_start,
)
from cometmq.spark.options.logs import LogOptions
from cometmq.spark.payloads.plan import PayloadPlan
from cometmq.spark.schema import Column
from cometmq.spark.sources.log.batch import LogReader
from cometmq.spark.sources.log.bounds import start_of
from cometmq.spark.sources.log.parts import plan_parts
from cometmq.spark.sources.queue_identity import Change

_WHAT = "an offset of this stream"


class LogStreamReader(LogReader, StreamReader):
    """Plans micro-batches on the driver; the arguments are those of `LogReader`."""

    def __init__(
        self,
        options: LogOptions,
        columns: Sequence[Column],
        payload: PayloadPlan | None = None,
    ) -> None:
        super().__init__(options, columns, payload)
        self._start = start_of(options, LATEST)
        self._target: LogOffsets | None = None
        self._newest: LogOffsets | None = None
        self._logs: Logs | None = None
        self._planned: LogOffsets | None = None

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
        """Return where the next batch ends, which is ``start`` if there is nothing for it."""
        logs = self._looked()
        ends = self._newest = logs.ends()
        if self._target is not None:
            ends = {name: min(end, self._target.get(name, end)) for name, end in ends.items()}
        if is_start(start):
            begins = self._start.resolve(logs, ends)
            if begins is None:
                return start
            found = _limited(logs, begins, ends, limit) if self._start.repeatable else begins
            return first_end(log_to_json(begins), self._ends_at(logs, found, {}))
        known, stored = _known(start), _stored(start)
        check_known(known, logs)
        changes = _changes(logs, known, stored, self._newest)
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
        """Return how far logs went when they were listed last, for the progress of the query."""
        return None if self._newest is None else log_to_json(self._newest)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the parts of a batch, the largest first."""
        ends = _known(end)
        logs = self._logs or self._looked()
        check_known(ends, logs)
        begins = begins_of(start, end, _known)
        if begins == ends:
            return []
        if self._planned != ends:
            ends = self._remaining(logs, begins, ends, _stored(end))
        parts = plan_parts(self._options, self._losses, logs, begins, ends)
        return [InputPartition(part) for part in parts]

    def _looked(self) -> Logs:
        """Return the logs with the files they have now."""
        if self._logs is None:
            self._logs = Logs(self._options.places(), empty=True, walk=self._options.walks)
        else:
            self._logs.look()
        return self._logs

    def _ends_at(self, logs: Logs, ends: LogOffsets, stored: Mapping[str, int]) -> dict[str, Any]:
        """Return the document of a batch's end, with store times for the ends that have none."""
        self._planned = ends
        times: dict[str, int | None] = dict(stored)
        for name, end in ends.items():
            if name not in times:
                times[name] = logs.ask(name, stored_before, end)
        known = {name: time_ms for name, time_ms in sorted(times.items()) if time_ms is not None}
        return ({STORED: known} if known else {}) | log_to_json(ends)

    def _remaining(
        self, logs: Logs, begins: LogOffsets, ends: LogOffsets, stored: dict[str, int]
    ) -> LogOffsets:
        """Return where a batch ends now that an earlier run of the query planned."""
        now = logs.ends()
        known = {name: end for name, end in ends.items() if name in stored}
        left = dict(ends)
        for name, change in _changes(logs, known, stored, now).items():
            self._losses.changed_log(name, ends[name], change, now[name])
            end = begins.get(name, change.start) if change.created_again else change.start
            left[name] = min(end, left[name])
            if left[name] <= begins.get(name, 0):
                del left[name]  # nothing of it is left
        return left


def _changes(
    logs: Logs, known: LogOffsets, stored: Mapping[str, int], ends: LogOffsets
) -> dict[str, Change]:
    """Return the logs that do not hold the last record before their offset.

    A log that ends before the offset has changed; consume queues may only lag behind its records.

    Args:
        logs: the logs.
        known: the offset of each log.
        stored: the store times of the last records before them; an older version wrote none.
        ends: how far each log may be read.
    """
    changed = {}
    for name, offset in known.items():
        stored_ms, end = stored.get(name), ends[name]
        if offset > end:
            is_same = logs.ask(name, Follower.from_record, end) >= offset
        else:
            met = None if stored_ms is None else logs.ask(name, stored_before, offset)
            is_same = met is None or met == stored_ms
        if is_same:
            continue
        oldest_ms = logs.ask(name, oldest_stored)
        if stored_ms is None or oldest_ms is None or oldest_ms > stored_ms:
            changed[name] = Change(created_again=True, start=logs.begins()[name])
        else:
            newer = logs.ask(name, at_time, stored_ms + 1, end)
            changed[name] = Change(created_again=False, start=end if newer is None else newer)
    return changed


def _stored(document: dict[str, Any]) -> dict[str, int]:
    return log_times_from_json(document.get(STORED, {}), f"{STORED} of {_WHAT}")


def _known(document: Any) -> LogOffsets:
    return log_from_json(without_start(document), _WHAT)


def _limited(logs: Logs, begins: LogOffsets, ends: LogOffsets, limit: ReadLimit) -> LogOffsets:
    """Return where a batch ends that begins there and takes no more than the limit."""
    sizes = {name: max(end - begins.get(name, 0), 0) for name, end in ends.items()}
    total = sum(sizes.values())
    found = {name: begins[name] + size for name, size in sizes.items()}
    if isinstance(limit, ReadMaxBytes) and total > limit.max_bytes:
        for name, end in found.items():
            if sizes[name]:
                wanted = begins[name] + max(1, sizes[name] * limit.max_bytes // total)
                found[name] = logs.ask(name, boundary, wanted, end)
    return found
