"""Divides ranges of logs into the parts that tasks read.

A part has all that a task needs, the files included: Spark reads it with another object than the
one that planned it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from cometmq.model.errors import CometError
from cometmq.protocol.subscription import parse_tag_expression
from cometmq.spark.errors import OptionError
from cometmq.spark.logs import ByteRange, Log, missing, plan
from cometmq.spark.logs.logs import Logs
from cometmq.spark.offsets import LogOffsets
from cometmq.spark.options.logs import LogOptions
from cometmq.spark.sources.filters import RowFilter
from cometmq.spark.sources.losses import Losses


@dataclass(frozen=True)
class LogPart:
    """What one task reads of one log."""

    log: Log
    """With the files of this part alone."""
    range: ByteRange


class Conditions(NamedTuple):
    """Which records are rows; all conditions hold together."""

    topics: frozenset[str]
    """Any of these; none for all."""
    filter: RowFilter

    @classmethod
    def of(cls, options: LogOptions) -> Conditions:
        """Read the options that choose.

        Raises:
            OptionError: an expression of tags or keys is none.
        """
        try:
            tags = parse_tag_expression(options.filter_tags)
        except CometError as error:
            raise OptionError(f"option filter.tags: {error}") from None
        wanted = () if tags.selects_all else tags.tags
        return cls(options.topics(), RowFilter.of(wanted, options.filter_keys))

    def topic_bytes(self) -> frozenset[bytes] | None:
        """Return the topics as records have them, None for all."""
        return frozenset(topic.encode() for topic in self.topics) or None


def plan_parts(
    options: LogOptions, losses: Losses, logs: Logs, starts: LogOffsets, ends: LogOffsets
) -> list[LogPart]:
    """Cut what is read of logs into parts, the largest first.

    Args:
        options: of the query.
        losses: what to do about bytes that are gone.
        logs: where the bytes are.
        starts: where to begin in each log, which is where a record does; a log that is not named
            begins with its first file.
        ends: where to end, which is where a record does; logs that are not named are not read.

    Raises:
        DataLossError: some bytes are gone, and that is an error.
    """
    held = [
        (logs.by_name[name], each)
        for name, end in ends.items()
        for each in _held(logs.by_name[name], starts.get(name), end, losses)
    ]
    total = sum(each.size for _, each in held)
    parts = [part for log, each in held for part in _parts(options, log, each, total)]
    return sorted(parts, key=lambda part: (-part.range.size, part.range))


def _held(log: Log, start: int | None, end: int, losses: Losses) -> list[ByteRange]:
    """Return what files hold of the bytes between two offsets, by file."""
    if start is None:
        start = log.min_offset
    if start > end:
        losses.report(f"log of {log.name}: bytes from {start} are not there, the log ends at {end}")
        start = log.min_offset
    for gap in missing(log, start, end):
        losses.report(
            f"{ByteRange(log.name, start, end)}: {gap.start} to {gap.end} are in no file;"
            f" the files hold {log.min_offset} to {log.end_offset}"
        )
    return plan(log, start, end, 1 << 62)  # by file


def _parts(options: LogOptions, log: Log, held: ByteRange, total: int) -> Iterator[LogPart]:
    least = 1
    if options.min_partitions is not None:
        least = -(-options.min_partitions * held.size // total)
    for part in plan(log, held.start, held.end, options.max_partition_bytes, least=least):
        yield LogPart(log.only(part.start, part.end), part)
