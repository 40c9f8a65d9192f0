"""The bounds of queries and batches: options, and the offsets that they mean.

    earliest | latest | group                     the same for every queue
    {"orders": {"broker-a": {"0": 23, "1": -2}}}  offsets; -2 is the earliest, -1 the latest
    times                                         one for all queues, or one per queue

A start that would be another one a moment later, such as the latest, is fixed by a first batch
without rows: `OffsetBound.repeatable` tells which is which.

The options are those of Spark's Kafka source.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from cometmq.spark.brokers import Away, BrokerSession
from cometmq.spark.errors import DataLossError, OptionError, SourceError
from cometmq.spark.offsets import START, Bounds, Positions, QueueKey, from_json, to_json
from cometmq.spark.options.topics import ERROR, SYMBOLIC, TopicReadOptions

EARLIEST, LATEST, GROUP = SYMBOLIC
OFFSETS, TIMES = "offsets", "times"
EARLIEST_OFFSET, LATEST_OFFSET = -2, -1
LISTED_MAX = 8
"""The most names that an error lists."""


@dataclass(frozen=True)
class OffsetBound:
    """The start or the end of a read, of all queues."""

    option: str
    """Which option said so, for errors."""
    kind: str
    """EARLIEST, LATEST, GROUP, OFFSETS or TIMES."""
    default: str
    """EARLIEST or LATEST: of queues that are not named, or where the group has no offset."""
    named: Positions = field(default_factory=dict)
    """Offsets, or times in ms, of the queues that were named."""
    time_ms: int | None = None
    """The time for all queues."""
    group: str | None = None
    strict: bool = True
    """Whether a time that no message is as young as is an error; else it means the end."""

    @property
    def repeatable(self) -> bool:
        """Whether asking later gives the same offsets, as long as nothing expires."""
        if self.kind == EARLIEST:
            return True
        if self.kind == TIMES:
            return self.strict and (self.time_ms is not None or self.default == EARLIEST)
        if self.kind == OFFSETS:
            latest = any(offset == LATEST_OFFSET for offset in self.named.values())
            return not latest and self.default == EARLIEST
        return False

    def naming(self, key: QueueKey) -> str:
        """Return which option or group named the offset of a queue; empty if none did."""
        if self.kind == GROUP:
            return f"the committed offsets of group {self.group}"
        return f"option {self.option}" if self.kind == OFFSETS and key in self.named else ""

    def to_json(self) -> dict[str, Any]:
        """Return the document that stands for this start in a checkpoint."""
        if self.kind == TIMES:
            times = self.time_ms if self.time_ms is not None else to_json(self.named)
            return {START: {"ts": times}}
        return {START: to_json(self.named) if self.kind == OFFSETS else self.kind}

    def resolve(self, session: BrokerSession, bounds: Mapping[QueueKey, Bounds]) -> Positions:
        """Return the offset of every queue that ``bounds`` names.

        Raises:
            OptionError: a queue is named that is not among them.
            DataLossError: a queue has no message as young as asked, and that is an error.
            UnreachableError: a queue begins at its oldest message, at a time or where a group is,
                and its master did not answer.
        """
        strange = sorted(set(self.named) - set(bounds))
        if strange:
            raise OptionError(
                f"option {self.option} names {strange[0]}, which this query does not read:"
                f" {_read_instead(strange[0], bounds)}"
            )
        if self.kind == TIMES:  # masters find times: a replica's bounds may end before them
            bounds = of_masters(session, bounds, self.named or bounds)
        default = self.kind if self.kind in (EARLIEST, LATEST) else self.default
        wanted = self._wanted(session, bounds)
        oldest = {
            key
            for key, limits in bounds.items()
            if self._is_oldest(wanted.get(key), default, limits)
        }
        checked = of_masters(session, bounds, oldest)
        return {key: _offset(wanted.get(key), default, limits) for key, limits in checked.items()}

    def _is_oldest(self, wanted: int | None, default: str, limits: Bounds) -> bool:
        """Whether a queue is read from its oldest message."""
        if wanted is None:
            return default == EARLIEST
        return wanted == EARLIEST_OFFSET or (self.kind == TIMES and wanted <= limits.min)

    def _wanted(self, session: BrokerSession, bounds: Mapping[QueueKey, Bounds]) -> Positions:
        """Return the offsets of queues that are named, committed or at a time."""
        if self.kind == GROUP:
            return dict(session.committed(self.group or "", list(bounds)))
        return self._at_times(session, bounds) if self.kind == TIMES else self.named

    def _at_times(self, session: BrokerSession, bounds: Mapping[QueueKey, Bounds]) -> Positions:
        if self.time_ms is not None:
            times = dict.fromkeys(bounds, self.time_ms)
        else:
            times = dict(self.named)
        found = dict(session.at_time(times)) if times else {}
        for key, offset in found.items():
            if self.strict and offset >= bounds[key].max:
                raise DataLossError(
                    f"{key}: no message was stored at or after {times[key]} ms ({self.option}); "
                    "set startingOffsetsByTimestampStrategy=latest to start at its end"
                )
        return found


def _offset(wanted: int | None, default: str, limits: Bounds) -> int:
    if wanted is None:
        wanted = EARLIEST_OFFSET if default == EARLIEST else LATEST_OFFSET
    if wanted == EARLIEST_OFFSET:
        return limits.min
    return limits.max if wanted == LATEST_OFFSET else wanted


def _read_instead(key: QueueKey, read: Collection[QueueKey]) -> str:
    """List what a query reads of the topic of a queue that it does not read."""
    by_broker: dict[str, list[int]] = {}
    for each in sorted(read):
        if each.topic == key.topic:
            by_broker.setdefault(each.broker, []).append(each.queue_id)
    if not by_broker:
        topics = sorted({each.topic for each in read})
        return f"it reads the topics {_few(topics)}" if topics else "it reads no topic"
    queues = [
        f"{'queues' if len(ids) > 1 else 'queue'} {_few(list(map(str, ids)))} of {broker}"
        for broker, ids in by_broker.items()
    ]
    return f"of this topic it reads {_few(queues)}"


def _few(texts: list[str]) -> str:
    more = len(texts) - LISTED_MAX
    return ", ".join(texts[:LISTED_MAX]) + (f" and {more} more" if more > 0 else "")


def of_masters(
    session: BrokerSession,
    bounds: Mapping[QueueKey, Bounds],
    keys: Collection[QueueKey],
    away: Away | None = None,
) -> Mapping[QueueKey, Bounds]:
    """Return bounds that say where some queues begin for their masters.

    A replica may keep messages for a shorter time: a query that began there would skip for good
    what the master still has.

    Args:
        session: asks the masters.
        bounds: as brokers or replicas said.
        keys: the queues that are read from their oldest message.
        away: gets the queues whose master does not respond.

    Raises:
        UnreachableError: a master did not respond, and ``away`` is None.
    """
    unsure = sorted(key for key in keys if key in bounds and not bounds[key].master)
    if not unsure:
        return bounds
    return {**bounds, **session.bounds(unsure, masters_only=True, away=away)}


def start_of(options: TopicReadOptions, usual: str) -> OffsetBound:
    """Read the options about where to begin; the default is another one for batches and streams."""
    default = options.starting_offsets_default or usual
    strict = options.starting_offsets_by_timestamp_strategy == ERROR
    if options.starting_timestamp is not None:
        time_ms = options.starting_timestamp
        return OffsetBound("startingTimestamp", TIMES, default, time_ms=time_ms, strict=strict)
    if options.starting_offsets_by_timestamp is not None:
        name = "startingOffsetsByTimestamp"
        times = _times(name, options.starting_offsets_by_timestamp)
        return OffsetBound(name, TIMES, default, named=times, strict=strict)
    text = options.starting_offsets
    if text is None:
        return OffsetBound("startingOffsets", usual, default)
    if text.lower() in SYMBOLIC:
        return OffsetBound("startingOffsets", text.lower(), default, group=options.group)
    named = _offsets("startingOffsets", text, f"{', '.join(SYMBOLIC)} or offsets")
    return OffsetBound("startingOffsets", OFFSETS, default, named=named)


def end_of(options: TopicReadOptions) -> OffsetBound:
    """Read the options about where a batch ends, which is not the earliest."""
    if options.ending_timestamp is not None:
        time_ms = options.ending_timestamp
        return OffsetBound("endingTimestamp", TIMES, LATEST, time_ms=time_ms, strict=False)
    if options.ending_offsets_by_timestamp is not None:
        name = "endingOffsetsByTimestamp"
        times = _times(name, options.ending_offsets_by_timestamp)
        return OffsetBound(name, TIMES, LATEST, named=times, strict=False)
    text = options.ending_offsets
    if text is None or text.lower() == LATEST:
        return OffsetBound("endingOffsets", LATEST, LATEST)
    named = _offsets("endingOffsets", text, "latest or offsets")
    if EARLIEST_OFFSET in named.values():
        raise OptionError(f"option endingOffsets={text}: a batch cannot end at the earliest (-2)")
    return OffsetBound("endingOffsets", OFFSETS, LATEST, named=named)


def _offsets(name: str, text: str, words: str) -> Positions:
    named = _document(name, text, words)
    if any(offset < EARLIEST_OFFSET for offset in named.values()):
        raise OptionError(f"option {name}={text}: an offset is 0 or more, -1 or -2")
    return named


def _times(name: str, text: str) -> Positions:
    named = _document(name, text, "times in ms")
    if any(time_ms < 0 for time_ms in named.values()):
        raise OptionError(f"option {name}={text}: a time is 0 or more")
    return named


def _document(name: str, text: str, words: str) -> Positions:
    shape = f'expected {words}: {{"topic": {{"broker": {{"0": 23}}}}}}'
    try:
        named = from_json(json.loads(text), f"option {name}")
    except ValueError:
        raise OptionError(f"option {name}={text}: {shape}") from None
    except SourceError as error:
        raise OptionError(f"{error}; {shape}") from None
    if not named:
        raise OptionError(f"option {name}={text}: it names no queue")
    return named
