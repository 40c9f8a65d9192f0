"""Brokers in memory with the calls of `cometmq.spark.brokers.BrokerSession`.

Queues hold encoded records with a time of their own; they can expire, be made anew, lose their
tail, and go away with their broker, for good or for a while.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from cometmq.client.filters import Filter
from cometmq.protocol.hashing import java_hash
from cometmq.protocol.properties import encode_properties
from cometmq.protocol.record import encode_host, encode_record
from cometmq.spark.brokers import Away, Sample, StoreTimes
from cometmq.spark.errors import DataLossError, GoneError, RangeError, UnreachableError
from cometmq.spark.offsets import Bounds, QueueKey, QueueRange

HOST = encode_host("127.0.0.1", 10911)
CLUSTER = "DefaultCluster"
PIECE_RECORDS = 3
"""Few, so that a range is read in several pieces."""


@dataclass
class MemoryQueue:
    """The messages of one queue: record, tag and time, by offset."""

    min: int = 0
    records: list[tuple[bytes, str, int]] = field(default_factory=list)

    @property
    def max(self) -> int:
        return self.min + len(self.records)

    def first_at_or_after(self, time_ms: int) -> int:
        times = (at for _, _, at in self.records)
        return self.min + next(
            (i for i, at in enumerate(times) if at >= time_ms), len(self.records)
        )


class MemoryBrokers:
    """A cluster without processes; `connect` gives a session of it."""

    def __init__(self) -> None:
        self.held: dict[QueueKey, MemoryQueue] = {}
        self.groups: dict[tuple[str, QueueKey], int] = {}
        self.clusters: dict[str, str] = {}
        """The cluster of each broker, DefaultCluster where none is named."""
        self.away: set[str] = set()
        """Brokers that are not registered now."""
        self.replicas: dict[QueueKey, Bounds] = {}
        """What a replica says of queues whose master does not answer."""
        self.tells_newest = True
        """Whether bounds say when the newest message was stored; not all brokers do."""
        self.denied: Exception | None = None
        """What the next read ends with."""
        self.before: dict[str, Callable[[], None]] = {}
        """What happens before the next request, by its name."""
        self.asked: Counter[str] = Counter()
        self.now_ms = 1_000
        """The clock of all brokers: each message takes a millisecond."""
        self.pulled: list[Filter | None] = []
        self.pulled_by: list[str] = []
        self.retries: list[tuple[float, int | None]] = []
        """The retry policies of `retrying`."""
        self.waits_s: list[float] = []
        """How long readers would wait for a broker that is away."""

    def connect(self, options: Any) -> MemoryBrokers:
        return self

    def retrying(self, limit_s: float, *, retries: int | None = None) -> MemoryBrokers:
        self.retries.append((limit_s, retries))
        return self

    # --- what happens to it ---------------------------------------------------------------------

    def create(self, topic: str, queues: int = 2, broker: str = "broker-a") -> list[QueueKey]:
        """Make queues, or more of them; those that are there stay as they are."""
        keys = [QueueKey(topic, broker, number) for number in range(queues)]
        for key in keys:
            self.held.setdefault(key, MemoryQueue())
        return keys

    def send(
        self,
        key: QueueKey,
        count: int = 1,
        *,
        tags: str = "",
        keys: str = "",
        time_ms: int | None = None,
        body: bytes = b"x",
    ) -> None:
        """Append equal messages to a queue, stored at a time or one after the other."""
        properties = {name: text for name, text in (("TAGS", tags), ("KEYS", keys)) if text}
        queue = self.held[key]
        for _ in range(count):
            self.now_ms += 1
            stored_ms = self.now_ms if time_ms is None else time_ms
            record = encode_record(
                key.topic.encode(),
                body,
                encode_properties(properties),
                queue_id=key.queue_id,
                queue_offset=queue.max,
                log_offset=100 * queue.max,
                born_time_ms=stored_ms,
                born_host=HOST,
                store_time_ms=stored_ms,
                store_host=HOST,
            )
            queue.records.append((record, tags, stored_ms))

    def expire(self, key: QueueKey, up_to: int) -> None:
        """Forget the messages before an offset."""
        queue = self.held[key]
        del queue.records[: up_to - queue.min]
        queue.min = up_to

    def truncate(self, key: QueueKey, end: int) -> None:
        """Lose the messages from an offset on, as a broker does that is killed before a flush."""
        queue = self.held[key]
        del queue.records[end - queue.min :]

    def make_anew(self, key: QueueKey) -> None:
        """Delete a queue and make it again, empty."""
        self.held[key] = MemoryQueue()

    def delete(self, topic: str) -> None:
        """Delete a topic for good."""
        self.held = {key: queue for key, queue in self.held.items() if key.topic != topic}

    # --- what a session answers -----------------------------------------------------------------

    def topics(self) -> list[str]:
        return sorted({key.topic for key in self.registered()})

    def topics_matching(self, pattern: str) -> list[str]:
        return [topic for topic in self.topics() if re.fullmatch(pattern, topic)]

    def brokers(self) -> dict[str, str]:
        names = {key.broker for key in self.held} | set(self.clusters)
        return {name: self.clusters.get(name, CLUSTER) for name in sorted(names - self.away)}

    def queues(self, topics: Iterable[str], *, gone: set[str] | None = None) -> list[QueueKey]:
        self._ask("queues")
        keys = self.registered()
        missing = sorted(set(topics) - {key.topic for key in keys})
        if gone is not None:
            gone.update(missing)
        elif missing:
            raise GoneError(f"topic {missing[0]}: there is no such topic")
        return sorted(key for key in keys if key.topic in set(topics))

    def bounds(
        self,
        keys: Iterable[QueueKey],
        *,
        gone: set[QueueKey] | None = None,
        away: Away | None = None,
        masters_only: bool = False,
    ) -> dict[QueueKey, Bounds]:
        self._ask("bounds")
        there = self._there(keys, gone, away, masters_only=masters_only)
        masters = {key: self._bounds_of(key) for key in there}
        return masters | {key: self.replicas[key] for key in there if key in self.replicas}

    def at_time(
        self, key_times: Mapping[QueueKey, int], *, away: Away | None = None
    ) -> dict[QueueKey, int]:
        self._ask("at_time")
        there = self._there(key_times, None, away, masters_only=True)
        return {key: self.held[key].first_at_or_after(key_times[key]) for key in there}

    def store_times(
        self, offsets: Mapping[QueueKey, int], *, group: str = "", away: Away | None = None
    ) -> dict[QueueKey, StoreTimes]:
        self._ask("store_times")
        self.pulled_by.append(group)
        found = {}
        for key in self._there(offsets, set(), away):
            queue, index = self.held[key], offsets[key] - self.held[key].min
            times = [at for _, _, at in queue.records[index : index + 2]] if index >= 0 else []
            if times:
                found[key] = StoreTimes(times[0], times[1] if len(times) > 1 else 0)
        return found

    def samples(
        self,
        offsets: Mapping[QueueKey, int],
        *,
        group: str = "",
        messages: int = 32,
        away: Away | None = None,
    ) -> dict[QueueKey, Sample]:
        self._ask("samples")
        found = {}
        for key in self._there(offsets, set(), away):
            queue = self.held[key]
            records = queue.records[max(offsets[key] - queue.min, 0) :][:messages]
            if records:
                size = sum(len(record) for record, _, _ in records) / len(records)
                found[key] = Sample(records[0][2], size)
        return found

    def committed(self, group: str, keys: Iterable[QueueKey]) -> dict[QueueKey, int]:
        there = self._there(keys, None, masters_only=True)
        return {key: self.groups[group, key] for key in there if (group, key) in self.groups}

    def commit(
        self, group: str, offsets: Mapping[QueueKey, int], *, away: Away | None = None
    ) -> None:
        for key in self._there(offsets, None, away):
            self.groups[group, key] = offsets[key]

    def read(
        self,
        wanted: QueueRange,
        *,
        filter: Filter | None = None,
        batch_size: int = 32,
        timeout_ms: int = 1_000,
        group: str = "",
        away_s: float = 0.0,
    ) -> Iterator[bytes]:
        self.waits_s.append(away_s)
        self.pulled.append(filter)
        self.pulled_by.append(group)
        if self.denied is not None:
            denied, self.denied = self.denied, None
            raise denied
        place = wanted.start
        while place < wanted.end:
            (key,) = self._there([wanted.key], None)
            queue = self.held[key]
            if place < queue.min:
                raise DataLossError(f"{wanted}: offsets up to {queue.min} have expired")
            if place >= queue.max:
                raise RangeError(f"{wanted}: the queue ends at {queue.max}")
            # Whole pieces, also behind the end of the range, as brokers answer.
            taken = queue.records[place - queue.min :][: min(PIECE_RECORDS, batch_size)]
            place += len(taken)
            yield b"".join(record for record, tag, _ in taken if _passes(filter, tag))

    # --- how ------------------------------------------------------------------------------------

    def _bounds_of(self, key: QueueKey) -> Bounds:
        queue = self.held[key]
        newest_ms = queue.records[-1][2] if queue.records and self.tells_newest else 0
        return Bounds(queue.min, queue.max, newest_ms=newest_ms)

    def registered(self) -> list[QueueKey]:
        return [key for key in self.held if key.broker not in self.away]

    def _ask(self, name: str) -> None:
        self.asked[name] += 1
        self.before.pop(name, lambda: None)()

    def _there(
        self,
        keys: Iterable[QueueKey],
        gone: set[QueueKey] | None,
        away: Away | None = None,
        *,
        masters_only: bool = False,
    ) -> list[QueueKey]:
        keys = sorted(set(keys))
        silent = {
            key: f"{key}: {key.broker} is not registered now"
            for key in keys
            if key.broker in self.away
        }
        missing = [key for key in keys if key not in self.held and key not in silent]
        if masters_only:
            silent |= {
                key: f"{key}: the master of {key.broker} does not respond"
                for key in keys
                if key in self.replicas and key not in silent
            }
        if silent and away is None:
            raise UnreachableError(next(iter(silent.values())))
        if missing and gone is None:
            raise GoneError(f"{missing[0]}: no longer readable")
        if gone is not None:
            gone.update(missing)
        if away is not None:
            for key in keys:
                away.pop(key, None)
            away.update(silent)
        return [key for key in keys if key in self.held and key not in silent]


def _passes(wanted: Filter | None, tag: str) -> bool:
    """Whether a broker sends a message: it compares hashes of tags."""
    if wanted is None or not wanted.wanted_tags:
        return True
    return java_hash(tag) in {java_hash(each) for each in wanted.wanted_tags}
