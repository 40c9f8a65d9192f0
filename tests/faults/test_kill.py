"""A SIGKILL under load loses nothing that a store with synchronous flush has acknowledged.

Every round sends from several connections, kills the server at a random point, starts it again on
the same files and reads every queue. Rounds: 5, on long runs 50.
"""

from __future__ import annotations

import contextlib
import random
import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import kit
import pytest
from codes import Answer, Request
from wire import Connection, ConnectionClosedError, NoAnswerError

from support.processes.server import Standalone
from support.runner.tiers import new_seed, rounds

ROUNDS = rounds(test=5, long=50)
TOPIC, GROUP, QUEUES = "kill", "kill-readers", 4
SENDERS, WINDOW = 4, 16
ACKNOWLEDGED_BEFORE_KILL_MAX = 1500
SETTINGS = {
    "brokerIP1": "127.0.0.1",
    "flushDiskType": "SYNC_FLUSH",
    "mappedFileSizeCommitLog": 1024 * 1024,
    "mappedFileSizeConsumeQueue": 20 * 300,
    "maxHashSlotNum": 1000,
    "maxIndexNum": 4000,
}
"""Small files, so that kills also land where one file ends and the next begins."""

Place = tuple[int, int]


@dataclass
class Ledger:
    """What was sent and what was acknowledged, over all rounds."""

    sent: set[bytes] = field(default_factory=set)
    acknowledged: dict[Place, bytes] = field(default_factory=dict)
    refused: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)
    enough: threading.Event = field(default_factory=threading.Event)
    enough_at: int = 0

    def expect(self, more: int) -> None:
        """Set ``enough`` once so many more messages are acknowledged."""
        self.enough.clear()
        self.enough_at = len(self.acknowledged) + more

    def acknowledge(self, place: Place, body: bytes) -> None:
        with self.lock:
            before = self.acknowledged.setdefault(place, body)
            assert before == body, f"{place} was acknowledged for {before!r} and for {body!r}"
            if len(self.acknowledged) >= self.enough_at:
                self.enough.set()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Standalone]:
    running = Standalone(tmp_path, settings=SETTINGS)
    running.start()
    yield running
    if running.running:
        running.kill()


def test_nothing_acknowledged_is_lost_when_the_server_is_killed_under_load(
    server: Standalone,
) -> None:
    seed = new_seed()
    print(f"seed={seed}")
    chance = random.Random(seed)
    ledger, read = Ledger(), dict.fromkeys(range(QUEUES), 0)
    seen: dict[Place, bytes] = {}
    create_topic(server)

    for number in range(ROUNDS):
        ledger.expect(chance.randrange(1, ACKNOWLEDGED_BEFORE_KILL_MAX))
        send_until_killed(server, ledger, number)
        server.start()
        read_new(server, read, seen)
        check(ledger, seen)

    assert len(ledger.acknowledged) >= ROUNDS
    seen.clear()
    read_new(server, dict.fromkeys(range(QUEUES), 0), seen)
    check(ledger, seen)


def create_topic(server: Standalone) -> None:
    connection = Connection(server.broker, timeout=10.0)
    kit.ok(kit.create_topic(connection, TOPIC, read=QUEUES, write=QUEUES))
    connection.close()


def send_until_killed(server: Standalone, ledger: Ledger, number: int) -> None:
    senders = [
        threading.Thread(target=send_all, args=(server, ledger, f"{number}-{n}"), daemon=True)
        for n in range(SENDERS)
    ]
    for sender in senders:
        sender.start()
    acknowledged = ledger.enough.wait(60)
    server.kill()
    for sender in senders:
        sender.join(30)
    assert not ledger.refused, ledger.refused[:3]
    assert acknowledged, f"too few acknowledgements in time\n{server.log_end()}"


def send_all(server: Standalone, ledger: Ledger, name: str) -> None:
    """Keep a window of sends in flight until the connection breaks."""
    connection = Connection(server.broker, timeout=30.0)
    waiting: deque[tuple[int, bytes]] = deque()
    with contextlib.suppress(OSError, ConnectionClosedError, NoAnswerError):
        for count in range(10_000_000):
            body = f"{name}-{count} ".encode() * (1 + count % 23)
            header = kit.send_fields(TOPIC, e=count % QUEUES, i=f"KEYS\x01{name}-{count}\x02")
            ledger.sent.add(body)
            waiting.append((connection.send(Request.SEND_MESSAGE_V2, header, body), body))
            if len(waiting) == WINDOW and not take_answer(connection, ledger, waiting):
                break
    connection.close()


def take_answer(connection: Connection, ledger: Ledger, waiting: deque[tuple[int, bytes]]) -> bool:
    opaque, body = waiting.popleft()
    answer = connection.response(opaque)
    if answer.code != Answer.SUCCESS:
        ledger.refused.append(str(answer))
        return False
    ledger.acknowledge((answer.number("queueId"), answer.number("queueOffset")), body)
    return True


def read_new(server: Standalone, read: dict[int, int], seen: dict[Place, bytes]) -> None:
    """Read every queue from where the last reading ended to its end."""
    connection = Connection(server.broker, timeout=10.0)
    for queue, offset in read.items():
        end = kit.max_offset(connection, TOPIC, queue)
        messages = kit.read_queue(
            connection, GROUP, TOPIC, end - offset, offset=offset, queue=queue, timeout=30.0
        )
        offsets = [message.queue_offset for message in messages]
        assert offsets == list(range(offset, end)), f"queue {queue} has a gap: {offsets}"
        seen |= {(queue, message.queue_offset): message.body for message in messages}
        read[queue] = end
    connection.close()


def check(ledger: Ledger, seen: dict[Place, bytes]) -> None:
    lost = {place: body for place, body in ledger.acknowledged.items() if seen.get(place) != body}
    assert not lost, f"{len(lost)} acknowledged messages are lost or changed: {first(lost)}"
    strangers = {place: body for place, body in seen.items() if body not in ledger.sent}
    assert not strangers, f"{len(strangers)} messages that were not sent: {first(strangers)}"
    assert len(set(seen.values())) == len(seen), "a message was stored twice"


def first(places: dict[Place, bytes]) -> str:
    return ", ".join(f"{place}: {body[:40]!r}" for place, body in sorted(places.items())[:5])
