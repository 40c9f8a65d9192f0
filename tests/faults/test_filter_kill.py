"""SQL92 filters with bit maps over SIGKILLs: a group gets all that its expression selects.

Every round sends messages, changes some of the groups' expressions meanwhile, kills the server and
starts it again on the same files. Then each group reads the queue from its beginning.
"""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import kit
import pytest
from wire import Connection, ConnectionClosedError, NoAnswerError

from support.processes.server import Standalone
from support.runner.tiers import new_seed, rounds

ROUNDS = rounds(test=10, long=60)
TOPIC = "filtered"
SENT_BEFORE_KILL_MAX = 300
SETTINGS = {
    "brokerIP1": "127.0.0.1",
    "enablePropertyFilter": "true",
    "enableCalcFilterBitMap": "true",
    "enableConsumeQueueExt": "true",
    "mappedFileSizeCommitLog": 1024 * 1024,
    "mappedFileSizeConsumeQueue": 20 * 100,
    "mappedFileSizeConsumeQueueExt": 2048,
    "maxHashSlotNum": 1000,
    "maxIndexNum": 4000,
}

Selects = Callable[[int], bool]

EXPRESSIONS: tuple[tuple[str, Selects], ...] = (
    ("n < 10", lambda n: n < 10),
    ("n BETWEEN 5 AND 50 AND half = 'odd'", lambda n: 5 <= n <= 50 and n % 2 == 1),
    ("half IN ('even') OR n > 90", lambda n: n % 2 == 0 or n > 90),
    ("n = 1000", lambda n: False),
)


class Group:
    """A group whose expression may change; each has a version of its own."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.version = 1
        self.expression, self.selects = EXPRESSIONS[0]

    def change(self, chance: random.Random) -> None:
        self.version += 1
        self.expression, self.selects = chance.choice(EXPRESSIONS)

    def subscribe(self, broker: Connection) -> None:
        data = kit.subscription(TOPIC, self.expression, kind="SQL92", version=self.version)
        kit.ok(kit.heartbeat(broker, f"client-of-{self.name}", kit.consumer(self.name, data)))

    def read(self, broker: Connection, end: int) -> list[bytes]:
        found: list[bytes] = []
        offset = 0
        while offset < end:
            answer = kit.pull(
                broker, self.name, TOPIC, offset, expression=None, version=self.version
            )
            assert answer.code in (0, 20), str(answer.answer)
            found += answer.bodies
            offset = answer.next_offset
        return found


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Standalone]:
    running = Standalone(tmp_path, settings=SETTINGS)
    running.start()
    yield running
    if running.running:
        running.kill()


def test_groups_get_what_they_select_whenever_the_server_is_killed(server: Standalone) -> None:
    seed = new_seed()
    print(f"seed={seed}")
    chance = random.Random(seed)
    groups = [Group(f"g{number}") for number in range(3)]
    connection = Connection(server.broker, timeout=10.0)
    kit.ok(kit.create_topic(connection, TOPIC, read=1, write=1))
    connection.close()

    for number in range(ROUNDS):
        send_until_killed(server, groups, chance, number)
        server.start()
        check(server, groups)


def send_until_killed(
    server: Standalone, groups: list[Group], chance: random.Random, number: int
) -> None:
    broker = Connection(server.broker, timeout=10.0)
    for group in groups:
        group.subscribe(broker)
    enough = threading.Event()
    sender = threading.Thread(
        target=send_all, args=(server, enough, chance.randrange(1, SENT_BEFORE_KILL_MAX), number)
    )
    sender.start()
    for group in groups:
        if chance.random() < 0.5:
            group.change(chance)
            group.subscribe(broker)
    sent_enough = enough.wait(60)
    server.kill()
    sender.join(30)
    broker.close()
    assert sent_enough, server.log_end()


def send_all(server: Standalone, enough: threading.Event, count: int, number: int) -> None:
    """Send until the connection breaks."""
    broker = Connection(server.broker, timeout=10.0)
    chance = random.Random(number)
    with contextlib.suppress(ConnectionClosedError, NoAnswerError, OSError):
        while True:
            value = chance.randrange(100)
            properties = {"n": str(value), "half": "odd" if value % 2 else "even"}
            kit.store(broker, TOPIC, b"%d" % value, properties=properties)
            count -= 1
            if count == 0:
                enough.set()
    broker.close()


def check(server: Standalone, groups: list[Group]) -> None:
    broker = Connection(server.broker, timeout=30.0)
    end = kit.max_offset(broker, TOPIC)
    stored: list[bytes] = []
    while len(stored) < end:
        answer = kit.pull(broker, "everything", TOPIC, len(stored))
        assert answer.code == 0, str(answer.answer)
        stored += answer.bodies
    for group in groups:
        group.subscribe(broker)
        expected = [body for body in stored if group.selects(int(body))]
        assert group.read(broker, end) == expected, (group.name, group.expression)
    broker.close()
