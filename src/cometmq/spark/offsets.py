"""The offsets of a query: the documents that Spark keeps in a checkpoint, and their meaning.

    topics     {"orders": {"broker-a": {"0": 17, "1": 4}}}    the next offset of every queue
    logs       {"broker-a": {"phy": 1073741824}}              the next byte of every log
               {"$stored": {"broker-a": 1735…}, …}            with the store time of the last record
    start      {"$start": "latest"}                           no offset yet: where to begin
    end        {"$from": {…}, "$stored": {…}, "orders": {…}}  also where the batch begins, and the
                                                              store time of the last message

Spark does not keep a stream's start: when the first batch fails, it asks for the start again. So
the end of the first batch carries the offsets that the start stood for, under another key than a
start: both may be without offsets, where a pattern matches no topic yet. The end of any other batch
names queues there that the batch does not read from their offset in the start: new queues, queues
that were created again, and queues whose messages have expired or were lost. By the store times,
`cometmq.spark.sources.queue_identity` recognizes queues and logs later; checkpoints of older
versions have none. While the broker of a queue does not respond, the end also has the time since
when that is so, under ``$away``; the queue keeps its offset then.

A next offset is the first one not read, as in Kafka. Spark compares documents as texts, and keeps
them for years: keys are sorted, queues are texts in the order of their numbers, and all numbers
are whole.

The shape follows the offsets of Spark's Kafka source.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias, TypeVar

from cometmq.spark.errors import SourceError

LogOffsets: TypeAlias = dict[str, int]
"""Broker → the next byte of its log."""
Key = TypeVar("Key")

START = "$start"
"""Alone in a document: a start that is not resolved yet."""
FROM = "$from"
"""In the end of a batch: the offsets that queues begin at, if the batch's start has others."""
STORED = "$stored"
"""In the end of a batch: the store times in ms of the last messages before the offsets."""
AWAY = "$away"
"""In the end of a batch: since when, in ms since 1970, the brokers of queues do not respond."""
LOST = "$lost"
"""In the newest offset of a progress: how many messages were lost since the query started."""
NEXT = "$next"
"""In the newest offset of a progress: the store times in ms of the next messages to read."""


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
    """Return the positions in a document, whose name in errors is ``what``.

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


def is_start(document: Any) -> bool:
    """Whether a document stands for a start, and not yet for offsets."""
    return isinstance(document, dict) and set(document) == {START}


def first_end(starts: Mapping[str, Any], ends: Mapping[str, Any]) -> dict[str, Any]:
    """Return the document of the first batch's end, which says where the batch begins, too."""
    return {FROM: dict(starts), **ends}


def without_start(document: Any) -> Any:
    """Return the offsets of a document, without its other members: no topic begins with $."""
    if not isinstance(document, dict):
        return document
    return {name: value for name, value in document.items() if not name.startswith("$")}


def begins_of(
    start: Any, end: Mapping[str, Any], known: Callable[[Any], dict[Key, int]]
) -> dict[Key, int]:
    """Return where a batch begins, from the documents of its start and its end.

    Raises:
        SourceError: it is the first batch, and its end does not say.
    """
    if is_start(start):
        if FROM not in end:
            raise SourceError(
                f"met no start of the first batch in the checkpoint, expected {FROM} in {end}: the"
                " option may have changed since the batch was planned; use a new checkpointLocation"
            )
        return known(end[FROM])
    return known(start) | known(end.get(FROM, {}))


def positions_in(document: Mapping[str, Any], name: str) -> Positions:
    """Return the numbers by queue that a document has under a name such as `STORED`.

    There are none if an older version wrote the document.

    Raises:
        SourceError: they have another shape.
    """
    return from_json(document.get(name, {}), f"{name} of an offset of this stream")


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
