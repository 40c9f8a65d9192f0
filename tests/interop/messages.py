"""Fills a broker with many messages and reads everything back, over raw connections.

What was acknowledged is remembered per queue, in order; what is read must be exactly that.
"""

from __future__ import annotations

import random
import struct
import time
from collections import defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import islice
from typing import NamedTuple

import kit
from codes import Answer, Request
from servers import connect
from wire import (
    Command,
    Connection,
    Fields,
    Message,
    decode_records,
    encode_batch,
    encode_properties,
)

QUEUES = 4
BATCH = 100
IN_FLIGHT_MAX = 200
PULL_COUNT = 1000
SEND_SECONDS_MAX = 120.0
SEND_ATTEMPTS_MAX = 20
BUSY_PAUSE_SECONDS = 0.1

Queue = tuple[str, int]


class Stored(NamedTuple):
    """What must come back of a message."""

    body: bytes
    tags: str
    keys: str

    def digest(self) -> bytes:
        return sha256(b"\0".join((self.body, self.tags.encode(), self.keys.encode()))).digest()


@dataclass
class Ledger:
    """All acknowledged messages: a digest each, by queue and in queue order."""

    queues: dict[Queue, list[bytes]] = field(default_factory=lambda: defaultdict(list))
    samples: list[tuple[str, str, bytes]] = field(default_factory=list)
    """Topic, key and body of some messages, to look up by key."""

    def add(self, topic: str, queue: int, offset: int, messages: list[Stored]) -> None:
        place = self.queues[topic, queue]
        assert offset == len(place), f"{topic} {queue}: offset {offset}, after {len(place)}"
        place += [message.digest() for message in messages]

    @property
    def count(self) -> int:
        return sum(len(queue) for queue in self.queues.values())

    def copy(self) -> Ledger:
        queues = {key: list(value) for key, value in self.queues.items()}
        return Ledger(defaultdict(list, queues), list(self.samples))


def generate(seed: int, count: int) -> Iterator[Stored]:
    """Messages with bodies of 10 to 300 bytes, and now and then one of 60 KB."""
    source = random.Random(seed)
    for number in range(count):
        size = 60_000 if number % 2500 == 1234 else source.randrange(10, 300)
        body = f"{seed}-{number} ".encode() + source.randbytes(size)
        yield Stored(body, f"tag{number % 7}", f"key-{seed}-{number} all")


def send(connection: Connection, code: int, header: Fields, body: bytes) -> Command:
    """Send until the broker is not busy; the answer is the last one.

    A real broker on a loaded machine refuses what waited too long in its queue (code 2): nothing
    is stored then.
    """
    for attempt in range(SEND_ATTEMPTS_MAX):
        if attempt:
            time.sleep(BUSY_PAUSE_SECONDS)
        answer = connection.request(code, header, body, timeout=SEND_SECONDS_MAX)
        if answer.code != Answer.SYSTEM_BUSY:
            break
    return answer


def store_many(broker: Connection, topic: str, count: int, *, queue: int) -> None:
    """Store the bodies 0, 1, … in one queue and wait until they can be pulled."""
    for number in range(count):
        header = kit.send_fields(topic, e=queue)
        answer = kit.ok(send(broker, Request.SEND_MESSAGE_V2, header, b"%d" % number))
    kit.wait_for_queue(broker, topic, answer.number("queueOffset") + 1, queue, timeout=120)


def fill(
    broker: str, ledger: Ledger, topics: list[str], *, seed: int, singles: int, batches: int
) -> None:
    """Send messages one by one, pipelined, and then batches of 100; all must be acknowledged."""
    messages = generate(seed, singles + batches * BATCH)
    _fill_one_by_one(broker, ledger, topics, messages, singles)
    _fill_batches(broker, ledger, topics, messages, batches)


def place(topics: list[str], number: int) -> Queue:
    """Deal the messages out over all queues of all topics."""
    return topics[number % len(topics)], number // len(topics) % QUEUES


def _fill_one_by_one(
    broker: str, ledger: Ledger, topics: list[str], messages: Iterator[Stored], count: int
) -> None:
    connection = connect(broker)
    waiting: deque[tuple[int, Fields, Stored]] = deque()
    acknowledged: dict[Queue, dict[int, Stored]] = defaultdict(dict)

    def take_answer() -> None:
        opaque, header, message = waiting.popleft()
        answer = connection.response(opaque, SEND_SECONDS_MAX)
        if answer.code == Answer.SYSTEM_BUSY:
            answer = send(connection, Request.SEND_MESSAGE_V2, header, message.body)
        queue = header["b"], header["e"]
        acknowledged[queue][kit.ok(answer).number("queueOffset")] = message

    for number in range(count):
        topic, queue = place(topics, number)
        message = next(messages)
        properties = encode_properties({"TAGS": message.tags, "KEYS": message.keys})
        header = kit.send_fields(topic, e=queue, i=properties)
        opaque = connection.send(Request.SEND_MESSAGE_V2, header, message.body)
        waiting.append((opaque, header, message))
        if len(waiting) >= IN_FLIGHT_MAX:
            take_answer()
        if number % 997 == 0:
            ledger.samples.append((topic, message.keys.split()[0], message.body))
    while waiting:
        take_answer()
    connection.close()
    # Requests in flight together may be stored in another order than they were sent.
    for (topic, queue), by_offset in acknowledged.items():
        for offset in sorted(by_offset):
            ledger.add(topic, queue, offset, [by_offset[offset]])


def _fill_batches(
    broker: str, ledger: Ledger, topics: list[str], messages: Iterator[Stored], count: int
) -> None:
    connection = connect(broker)
    for number in range(count):
        topic, queue = place(topics, number)
        batch = list(islice(messages, BATCH))
        items = [(m.body, {"TAGS": m.tags, "KEYS": m.keys}) for m in batch]
        header = kit.send_fields(topic, e=queue, m=True)
        answer = kit.ok(send(connection, Request.SEND_BATCH_MESSAGE, header, encode_batch(items)))
        ledger.add(topic, queue, answer.number("queueOffset"), batch)
    connection.close()


def read_queue(broker: str, topic: str, queue: int, count: int) -> list[Message]:
    """Pull a queue from its start until ``count`` messages came and nothing follows."""
    connection = connect(broker)
    messages: list[Message] = []
    try:
        while True:
            fields = kit.pull_fields("readers", topic, len(messages), queue=queue, count=PULL_COUNT)
            answer = connection.request(Request.PULL_MESSAGE, fields, timeout=SEND_SECONDS_MAX)
            if answer.code != Answer.SUCCESS:
                assert len(messages) >= count, f"{topic} {queue} ends at {len(messages)}: {answer}"
                return messages
            messages += split_records(answer.body)
    finally:
        connection.close()


def split_records(data: bytes) -> Iterator[Message]:
    """Decode the records of a pull answer one at a time."""
    position = 0
    while position < len(data):
        (size,) = struct.unpack_from(">i", data, position)
        yield decode_records(data[position : position + size])[0]
        position += size


def check_all(broker: str, ledger: Ledger) -> None:
    """Read every queue and every sampled key; all must be as it was acknowledged."""
    for (topic, queue), digests in ledger.queues.items():
        found = read_queue(broker, topic, queue, len(digests))
        assert [message.queue_offset for message in found] == list(range(len(digests)))
        assert [digest_of(message) for message in found] == digests, (topic, queue)
    connection = connect(broker)
    for topic, key, body in ledger.samples:
        answer = kit.ok(connection.request(Request.QUERY_MESSAGE, query_fields(topic, key)))
        assert [message.body for message in split_records(answer.body)] == [body], (topic, key)
    connection.close()


def digest_of(message: Message) -> bytes:
    properties = message.properties
    return Stored(message.body, properties["TAGS"], properties["KEYS"]).digest()


def query_fields(topic: str, key: str) -> dict[str, object]:
    return {
        "topic": topic,
        "key": key,
        "maxNum": 32,
        "beginTimestamp": 0,
        "endTimestamp": kit.now_ms() + 60_000,
    }
