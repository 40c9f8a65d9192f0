"""Divides ranges of logs into the parts that tasks read."""

from __future__ import annotations

from collections.abc import Iterator

from cometmq.spark.logs import ByteRange, LogPlace, missing, plan
from cometmq.spark.logs.logs import Logs
from cometmq.spark.logs.lookup import cut_units, estimated_bytes, has_queues_of, units_between
from cometmq.spark.offsets import LogOffsets
from cometmq.spark.options.logs import LogOptions
from cometmq.spark.sources.log_rows import Conditions, LogPart
from cometmq.spark.sources.losses import Losses

_SELECTIVE = 0.05
_UNITS_PER_PART_MAX = 100_000


class Planner:
    """Cuts what is read of logs into parts.

    Args:
        options: of the query.
        losses: what to do about bytes that are gone.
    """

    def __init__(self, options: LogOptions, losses: Losses) -> None:
        self._options = options
        self._losses = losses

    def parts(
        self,
        logs: Logs,
        starts: LogOffsets,
        ends: LogOffsets,
        conditions: Conditions,
    ) -> list[LogPart]:
        """Return the parts, the largest first.

        Args:
            logs: where the bytes are.
            starts: where to begin in each log, which is where a record does; a log that is not
                named begins with its first file.
            ends: where to end, which is where a record does; logs that are not named are not read.
            conditions: which records are rows.

        Raises:
            DataLossError: some bytes are gone, and that is an error.
        """
        ranges = {
            name: self.held(logs.places[name], starts.get(name), end) for name, end in ends.items()
        }
        total = sum(each.size for held in ranges.values() for each in held)
        parts: list[LogPart] = []
        for name, held in ranges.items():
            for each in held:
                parts += self._of(logs.places[name], each, conditions, total)
        return sorted(parts, key=lambda part: (-part.range.size, part.range))

    def held(self, place: LogPlace, start: int | None, end: int) -> list[ByteRange]:
        """Return what files hold of the bytes between two places, by file.

        Raises:
            DataLossError: it is not all of them, and that is an error.
        """
        if start is None:
            start = place.min_offset
        if start > end:
            self._losses.report(
                f"log of {place.name}: bytes from {start} are not there, the log ends at {end}"
            )
            start = place.min_offset
        for gap in missing(place, start, end):
            self._losses.report(
                f"{ByteRange(place.name, start, end)}: {gap.start} to {gap.end} are in no file;"
                f" the files hold {place.min_offset} to {place.end_offset}"
            )
        return plan(place, start, end, 1 << 62)  # by file

    def _of(
        self, place: LogPlace, each: ByteRange, conditions: Conditions, total: int
    ) -> Iterator[LogPart]:
        looked_up = self._looked_up(place, each, conditions)
        if looked_up is not None:
            yield from looked_up
            return
        least = 1
        if self._options.min_partitions is not None:
            least = -(-self._options.min_partitions * each.size // total)
        most = self._options.max_partition_bytes
        for part in plan(place, each.start, each.end, most, least=least):
            yield LogPart(place.only(part.start, part.end), part)

    def _looked_up(
        self, place: LogPlace, each: ByteRange, conditions: Conditions
    ) -> list[LogPart] | None:
        """Return the parts that look records up by their units, None to walk over the log."""
        how, topics = self._options.read_through, conditions.topics
        if how == "log" or not topics or (how == "auto" and not place.remote):
            return None
        if how == "auto" and not has_queues_of(place, topics):
            return None
        units = units_between(place, topics, each)
        if how == "auto" and estimated_bytes(place, units) > each.size * _SELECTIVE:
            return None
        held = place.only(each.start, each.end)
        return [
            LogPart(held, each, units=(part,))
            for found in units
            for part in cut_units(found, _UNITS_PER_PART_MAX)
        ]
