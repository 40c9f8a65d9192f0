"""Compares the messages of a topic with the expected ones; knows repeated ones."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from cometmq.model.message import StoredMessage
from cometmq.protocol.record import decode_messages
from cometmq.spark.brokers import connect
from cometmq.spark.errors import GoneError
from cometmq.spark.offsets import QueueRange
from cometmq.spark.options.connection import ConnectionOptions

Queue = tuple[str, int]
DISPATCH_S, LOOK_S = 120.0, 0.05


def stored(
    name_servers: str, topic: str, *, rows: Iterable[str] = (), count: int = 0
) -> dict[Queue, list[StoredMessage]]:
    """All messages of a topic, by queue, in order.

    RocketMQ puts what it has acknowledged into queues a moment later, and tells of a topic it made
    a moment later; so this waits for two minutes at most until every one of ``rows`` is there and
    ``count`` messages in all. Rows that are missing then, the test finds out.
    """
    wanted = {row.encode() for row in rows}
    deadline = time.monotonic() + DISPATCH_S
    while True:
        found = _stored_now(name_servers, topic)
        bodies = [message.body for messages in found.values() for message in messages]
        if (wanted <= set(bodies) and len(bodies) >= count) or time.monotonic() > deadline:
            assert len(bodies) >= count, f"{len(bodies)} of {count} messages"
            return found
        time.sleep(LOOK_S)


def _stored_now(name_servers: str, topic: str) -> dict[Queue, list[StoredMessage]]:
    session = connect(ConnectionOptions(name_servers=name_servers))
    found: dict[Queue, list[StoredMessage]] = {}
    try:
        keys = session.queues([topic])
    except GoneError:
        return found
    for key, bounds in session.bounds(keys).items():
        own = found[key.broker, key.queue_id] = []
        if bounds.max > bounds.min:
            for piece in session.read(QueueRange(key, bounds.min, bounds.max)):
                own += [
                    message
                    for message in decode_messages(piece)
                    if bounds.min <= message.queue_offset < bounds.max
                ]
        assert [message.queue_offset for message in own] == list(range(bounds.min, bounds.max))
    return found


def unique_key_of(message: StoredMessage) -> str:
    return message.properties["UNIQ_KEY"]


@dataclass(frozen=True)
class Audit:
    """What became of rows that were to be written at least once."""

    lost: set[str]
    strange: set[str]
    """What nobody wrote."""
    strangers: set[str]
    """Rows that are there under several unique keys, and keys that several rows have."""
    repeated: int
    """Messages beyond the first of each row."""

    @classmethod
    def of(cls, wanted: Iterable[str], messages: Iterable[StoredMessage]) -> Audit:
        """Compare bodies: each row has one of its own."""
        wanted = set(wanted)
        keys: defaultdict[str, set[str]] = defaultdict(set)
        bodies: defaultdict[str, set[str]] = defaultdict(set)
        count: Counter[str] = Counter()
        for message in messages:
            body = message.body.decode()
            keys[body].add(unique_key_of(message))
            bodies[unique_key_of(message)].add(body)
            count[body] += 1
        several = {body for body, own in keys.items() if len(own) > 1}
        several |= {key for key, own in bodies.items() if len(own) > 1}
        return cls(
            lost=wanted - count.keys(),
            strange=count.keys() - wanted,
            strangers=several,
            repeated=sum(count.values()) - len(count),
        )

    def check(self) -> None:
        """Fail unless nothing is lost and every repetition has the key of its twin."""
        assert not self.lost, f"{len(self.lost)} rows are lost, such as {sorted(self.lost)[:3]}"
        assert not self.strange, f"nobody wrote {sorted(self.strange)[:3]}"
        assert not self.strangers, f"twins without a common key: {sorted(self.strangers)[:3]}"


def first_ones(messages: Iterable[StoredMessage]) -> list[StoredMessage]:
    """Drop every message whose unique key came before, as a careful reader does."""
    found: dict[str, StoredMessage] = {}
    for message in messages:
        found.setdefault(unique_key_of(message), message)
    return list(found.values())


def order_by_key(
    queues: Mapping[Queue, list[StoredMessage]], key_of: Callable[[StoredMessage], str]
) -> dict[str, list[str]]:
    """The bodies of each key in the order of its queue; fails if a key is in several queues."""
    places: dict[str, Queue] = {}
    bodies: defaultdict[str, list[str]] = defaultdict(list)
    for queue, messages in queues.items():
        for message in messages:
            key = key_of(message)
            assert places.setdefault(key, queue) == queue, f"{key} is in {places[key]} and {queue}"
            bodies[key].append(message.body.decode())
    return dict(bodies)
