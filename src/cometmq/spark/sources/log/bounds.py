"""The bounds of reads of logs: options, and the offsets that they mean.

    {"$start": "earliest" | "latest"}             the same for every log
    {"$start": {"ts": 1735689600000}}             the first record stored then or later
    {"$start": {"broker-a": {"phy": 1048576}}}    bytes of logs; -2 is earliest, -1 latest

The options are those of Spark's Kafka source.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cometmq.spark.logs.logs import EARLIEST, LATEST, Logs
from cometmq.spark.logs.times import at_time
from cometmq.spark.offsets import START, LogOffsets, log_to_json
from cometmq.spark.options.logs import LogOptions, position_document

_WORDS = {"earliest": EARLIEST, "latest": LATEST}


@dataclass(frozen=True)
class LogBound:
    """The start or the end of a read, of all logs."""

    default: int
    """EARLIEST or LATEST, of logs that are not named."""
    named: tuple[tuple[str, int], ...] = ()
    """Bytes of logs by broker."""
    time_ms: int | None = None
    """The time instead, for all logs."""

    @property
    def repeatable(self) -> bool:
        """Whether a later call of `resolve` gives the same offsets, if nothing expires."""
        if self.time_ms is not None:
            return True
        return self.default == EARLIEST and all(offset != LATEST for _, offset in self.named)

    def to_json(self) -> dict[str, Any]:
        """Return the document that stands for this start in a checkpoint."""
        if self.time_ms is not None:
            return {START: {"ts": self.time_ms}}
        if self.named:
            return {START: log_to_json(dict(self.named))}
        return {START: "earliest" if self.default == EARLIEST else "latest"}

    def resolve(self, logs: Logs, ends: LogOffsets) -> LogOffsets | None:
        """Return the offset in every log; None where no log is as young as the time yet."""
        if self.time_ms is None:
            return logs.resolve(dict(self.named), self.default, ends)
        found = {name: logs.ask(name, at_time, self.time_ms, end) for name, end in ends.items()}
        if all(offset is None for offset in found.values()):
            return None
        return {name: ends[name] if offset is None else offset for name, offset in found.items()}


def start_of(options: LogOptions, default: int) -> LogBound:
    """Read the options about where to begin; the default is another one for batches and streams."""
    return _bound(options.starting_timestamp, options.starting_offsets, "startingOffsets", default)


def end_of(options: LogOptions) -> LogBound:
    """Read the options about where a batch ends."""
    return _bound(options.ending_timestamp, options.ending_offsets, "endingOffsets", LATEST)


def _bound(time_ms: int | None, text: str | None, name: str, default: int) -> LogBound:
    document = position_document(text, name)
    if time_ms is not None or document is None:
        return LogBound(default, time_ms=time_ms)
    if isinstance(document, str):
        return LogBound(_WORDS[document])
    return LogBound(default, tuple(sorted(document.items())))
