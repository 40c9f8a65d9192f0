"""The offsets of a query: the documents that Spark keeps in a checkpoint, and their meaning.

    topics     {"orders": {"broker-a": {"0": 17, "1": 4}}}    the next offset of every queue
    logs       {"broker-a": {"phy": 1073741824}}              the next byte of every log
               {"$stored": {"broker-a": 1735…}, …}            with the store time of the last record
    start      {"$start": "latest"}                           not a place yet: where to begin
    end        {"$from": {…}, "$stored": {…}, "orders": {…}}  also where queues begin that the start
                                                              of the batch does not name so, and
                                                              the store time of the last message

A next offset is the first one not read, as in Kafka. Spark compares documents as texts, and keeps
them for years: keys are sorted, queues are texts in the order of their numbers, and all numbers
are whole.

The shape follows the offsets of Spark's Kafka source.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from cometmq.spark.errors import SourceError

LogOffsets: TypeAlias = dict[str, int]
"""Broker → the next byte of its log."""


class QueueKey(NamedTuple):
    """Which queue: sorts by topic, broker and number."""

    topic: str
    broker: str
    queue_id: int

    def __str__(self) -> str:
        return f"topic {self.topic}, queue {self.queue_id} of {self.broker}"


class QueueRange(NamedTuple):
    """Offsets of one queue, from ``start`` up to and without ``end``."""

    key: QueueKey
    start: int
    end: int

    def __str__(self) -> str:
        return f"{self.key}, offsets {self.start} to {self.end}"

    @property
    def size(self) -> int:
        """How many offsets the range has."""
        return max(self.end - self.start, 0)


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a queue holds: the offset of its oldest message, and the one its next will have."""

    min: int
    max: int
    master: bool = True
    """Whether the master said so. A replica may lag behind it, or keep messages for a shorter time:
    what the replica lacks is not lost."""
    newest_ms: int = field(default=0, compare=False)
    """The store time of the message before ``max``; 0 if the broker did not say it."""


Positions: TypeAlias = dict[QueueKey, int]
"""The next offset of each queue."""


def to_json(positions: Mapping[QueueKey, int]) -> dict[str, Any]:
    """Return the document of these positions; equal positions give equal texts."""
    found: dict[str, Any] = {}
    for (topic, broker, queue_id), offset in sorted(positions.items()):
        found.setdefault(topic, {}).setdefault(broker, {})[str(queue_id)] = int(offset)
    return found


def from_json(document: Any, what: str = "an offset document") -> Positions:
    """Return the positions in a document.

    Args:
        document: what ``json.loads`` made of it.
        what: its name in an error.

    Raises:
        SourceError: it does not have the shape topic, broker, queue, whole number.
    """
    found: Positions = {}
    for topic, brokers in _members(document, what):
        for broker, queues in _members(brokers, f"{what}, {topic}"):
            for queue, offset in _members(queues, f"{what}, {topic}, {broker}"):
                where = f"{what}, {topic}, {broker}, {queue}"
                found[QueueKey(topic, broker, _queue_id(queue, where))] = _whole(offset, where)
    return found


def log_to_json(offsets: Mapping[str, int]) -> dict[str, Any]:
    """Return the document of these places in logs."""
    return {broker: {"phy": int(offset)} for broker, offset in sorted(offsets.items())}


def log_from_json(document: Any, what: str = "an offset document") -> LogOffsets:
    """Return the places in logs that a document names.

    Raises:
        SourceError: it does not have the shape broker, "phy", whole number.
    """
    found: LogOffsets = {}
    for broker, place in _members(document, what):
        members = dict(_members(place, f"{what}, {broker}"))
        if set(members) != {"phy"}:
            raise SourceError(f"{what}, {broker}: expected phy alone, met {sorted(members)}")
        found[broker] = _whole(members["phy"], f"{what}, {broker}, phy")
    return found


def log_times_from_json(document: Any, what: str) -> dict[str, int]:
    """Return the store times in ms that a document names for logs.

    Raises:
        SourceError: it does not have the shape broker, whole number.
    """
    return {
        broker: _whole(time_ms, f"{what}, {broker}") for broker, time_ms in _members(document, what)
    }


def _members(value: Any, what: str) -> Iterable[tuple[str, Any]]:
    if not isinstance(value, dict):
        raise SourceError(f"{what}: expected an object, met {value!r}")
    return value.items()


def _queue_id(text: str, what: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise SourceError(f"{what}: expected the number of a queue")
    return int(text)


def _whole(value: Any, what: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise SourceError(f"{what}: expected a whole number, met {value!r}")
    return value
