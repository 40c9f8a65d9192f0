"""Many scheduled messages: sends them over the wire, and finds them in a closed store.

The body of each is its number in digits.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from cometmq.model.topic import DELAY_TOPIC
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.command import Command, command_of, encode_command
from cometmq.protocol.properties import encode_properties
from cometmq.protocol.record import split_record
from cometmq.store import MessageStore, StoreSettings

DIGITS = 8
_OFFSETS = "scheduleMessageOffset_"
CHUNK, IN_FLIGHT_MAX = 500, 2_000
ANSWER_S = 60.0

Address = tuple[str, int]


@dataclass
class Journey:
    """When a message was due, and when it was stored in its topic."""

    level: int
    due_ms: int
    delivered_ms: list[int] = field(default_factory=list)


class Wire:
    """One connection that keeps a window of sends in flight."""

    def __init__(self, address: Address) -> None:
        self._socket = socket.create_connection(address, timeout=ANSWER_S)
        self._received = self._socket.makefile("rb")
        self._in_flight = 0

    def create_topic(self, name: str, queues: int) -> None:
        fields = {
            "topic": name, "defaultTopic": "TBW102", "readQueueNums": str(queues),
            "writeQueueNums": str(queues), "perm": "6", "topicFilterType": "SINGLE_TAG",
            "topicSysFlag": "0", "order": "false",
        }  # fmt: skip
        self._ask(Command(RequestCode.UPDATE_AND_CREATE_TOPIC, fields=fields))

    def waiting(self) -> int:
        """Return how many messages wait in the levels, as mqadmin shows it."""
        response = self._ask(Command(RequestCode.GET_BROKER_RUNTIME_INFO))
        table = msgspec.json.decode(response.body)["table"]
        levels = [text for name, text in table.items() if name.startswith(_OFFSETS)]
        return sum(int(text.split(",")[1]) - int(text.split(",")[0]) for text in levels)

    def delivered(self, topic: str, queues: int) -> int:
        """Return how many messages are in the queues of a topic."""
        ends = [
            self._ask(
                Command(RequestCode.GET_MAX_OFFSET, fields={"topic": topic, "queueId": str(queue)})
            )
            for queue in range(queues)
        ]
        return sum(int(response.fields["offset"]) for response in ends)

    def send(self, frames: Iterable[bytes]) -> None:
        """Send frames; return when the broker has stored all of them."""
        chunk: list[bytes] = []
        for frame in frames:
            chunk.append(frame)
            if len(chunk) == CHUNK:
                self._put(chunk)
                chunk = []
        self._put(chunk)
        self._take(down_to=0)

    def close(self) -> None:
        self._received.close()
        self._socket.close()

    def _put(self, chunk: list[bytes]) -> None:
        self._socket.sendall(b"".join(chunk))
        self._in_flight += len(chunk)
        self._take(down_to=IN_FLIGHT_MAX - CHUNK)

    def _take(self, *, down_to: int) -> None:
        while self._in_flight > down_to:
            self._response()
            self._in_flight -= 1

    def _ask(self, request: Command) -> Command:
        self._socket.sendall(encode_command(request))
        return self._response()

    def _response(self) -> Command:
        head = self._received.read(8)
        size, header = int.from_bytes(head[:4]), int.from_bytes(head[5:])
        response = command_of(
            head + self._received.read(header), self._received.read(size - 4 - header)
        )
        assert response.code == 0, response
        return response


def frames_of(topic: str, numbers: Iterable[int], *, queues: int, levels: int) -> Iterator[bytes]:
    """Yield a send of each number, whose level and queue follow from it."""
    heads = {
        (level, queue): _head(topic, level, queue)
        for level in range(1, levels + 1)
        for queue in range(queues)
    }
    for number in numbers:
        yield heads[1 + number % levels, number // levels % queues] + b"%0*d" % (DIGITS, number)


def _head(topic: str, level: int, queue: int) -> bytes:
    """Return a send without its body."""
    fields = {
        "a": "producers", "b": topic, "c": "TBW102", "d": 4, "e": queue, "f": 0,
        "g": int(time.time() * 1000), "h": 0, "j": 0, "k": "false", "m": "false",
        "i": encode_properties({"DELAY": str(level)}).decode(),
    }  # fmt: skip
    texts = {name: str(value) for name, value in fields.items()}
    body = bytes(DIGITS)
    whole = encode_command(Command(RequestCode.SEND_MESSAGE_V2, fields=texts, body=body))
    return whole[:-DIGITS]


def journeys(root: Path, topic: str, *, queues: int) -> dict[int, Journey]:
    """Return what a closed store says of each scheduled message of one topic."""
    file_bytes = max(path.stat().st_size for path in (root / "commitlog").iterdir())
    store = MessageStore(StoreSettings(root=root, commit_log_file_bytes=file_bytes))
    store.open()
    try:
        found: dict[int, Journey] = {}
        for name, queue_id in store.queue_keys():
            if name == DELAY_TOPIC:
                for number, due_ms, _ in _messages(store, name, queue_id):
                    found[number] = Journey(queue_id + 1, due_ms)
        for queue_id in range(queues):
            for number, _, stored_ms in _messages(store, topic, queue_id):
                found[number].delivered_ms.append(stored_ms)
        return found
    finally:
        store.close()


def _messages(store: MessageStore, topic: str, queue_id: int) -> Iterator[tuple[int, int, int]]:
    """Yield number, tags code and store time of each message of a queue."""
    low, high = store.bounds(topic, queue_id)
    for log_offset, size, code in store.consume_queue_units(topic, queue_id, low, high - low):
        data = store.record_at(log_offset, size)
        assert data is not None
        record = split_record(data)
        yield int(record.body), code, record.store_time_ms
