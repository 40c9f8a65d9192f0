"""Consumers pop and acknowledge while the broker is killed.

Most messages are acknowledged when they are popped, some are not. The broker is killed with SIGKILL
at random moments, and started again. A message whose acknowledgement was answered must never come
again; every other one must, not long after its invisible time.
"""

from __future__ import annotations

import contextlib
import random
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import kit
import pop_kit
import pytest
from codes import Answer
from wire import Connection, ConnectionClosedError, NoAnswerError

from support.processes.server import Standalone
from support.runner.tiers import new_seed, rounds

KILLS = rounds(test=3, long=20)
MESSAGES = rounds(test=600, long=5_000)
TOPIC, GROUP, QUEUES = "popped", "poppers", 4
INVISIBLE_MS = 1_500


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Standalone]:
    running = Standalone(tmp_path, settings={"brokerIP1": "127.0.0.1"})
    running.start()
    yield running
    if running.running:
        running.kill()


class Consumer:
    """Pops and acknowledges over one connection at a time, and counts what it sees."""

    def __init__(self, server: Standalone, chance: random.Random) -> None:
        self.server = server
        self.chance = chance
        self.delivered: Counter[bytes] = Counter()
        self.acked: set[bytes] = set()
        self.unknown: set[bytes] = set()
        """Messages of acknowledgements that may have been stored without a response."""
        self.again: list[bytes] = []
        """What was delivered although its acknowledgement was answered."""
        self.in_flight = 0
        """Messages that were popped and not acknowledged at the kills, all together."""

    def run(self) -> None:
        """Pop and acknowledge until the broker is killed, at any moment."""
        killer = threading.Timer(self.chance.uniform(0.01, 0.3), self.server.kill)
        killer.start()
        with (
            contextlib.suppress(ConnectionClosedError, NoAnswerError, OSError),
            closing(Connection(self.server.broker)) as connection,
        ):
            while True:
                self.pop(connection, count=self.chance.choice((1, 5, 32)))
        killer.join()
        self.in_flight += len(self.delivered.keys() - self.acked)
        self.server.start()

    def finish(self) -> None:
        """Pop until nothing is left."""

        def is_done() -> bool:
            self.pop(connection, count=32, leaves=0.0)
            return len(self.acked | self.unknown) == MESSAGES

        with closing(Connection(self.server.broker)) as connection:
            kit.eventually(is_done, timeout=120.0, pause=0.02)
            kit.eventually(
                lambda: self.pop(connection, count=32) == Answer.POLLING_TIMEOUT, timeout=30.0
            )

    def pop(self, connection: Connection, *, count: int, leaves: float = 0.2) -> int:
        """Pop messages, and acknowledge most of them, alone or as a batch."""
        found = pop_kit.pop(connection, GROUP, TOPIC, count=count, invisible_ms=INVISIBLE_MS)
        self.again += [one.body for one in found.taken if one.body in self.acked]
        self.delivered.update(found.bodies)
        taken = [one for one in found.taken if self.chance.random() >= leaves]
        self.unknown.update(one.body for one in taken)
        if len(taken) > 3 and self.chance.random() < 0.5:
            receipts: dict[tuple[str, int], list[pop_kit.Receipt]] = {}
            for one in taken:
                receipts.setdefault((one.receipt.flag, one.receipt.queue), []).append(one.receipt)
            entries = [pop_kit.batch_entry(GROUP, TOPIC, each) for each in receipts.values()]
            kit.ok(pop_kit.batch_ack(connection, *entries))
        else:
            for one in taken:
                kit.ok(pop_kit.ack(connection, GROUP, TOPIC, one.receipt))
        self.acked.update(one.body for one in taken)
        self.unknown -= self.acked
        return found.code


def test_no_message_is_lost_and_no_acknowledged_one_comes_again_over_kills(
    server: Standalone,
) -> None:
    seed = new_seed()
    print(f"seed={seed}")
    chance = random.Random(seed)
    with closing(Connection(server.broker)) as connection:
        kit.ok(kit.create_topic(connection, TOPIC, read=QUEUES, write=QUEUES))
        kit.ok(kit.create_group(connection, GROUP))
        for number in range(MESSAGES):
            kit.store(connection, TOPIC, b"%d" % number, queue=number % QUEUES)

    consumer = Consumer(server, chance)
    for _ in range(KILLS):
        consumer.run()
    consumer.finish()

    times = Counter(consumer.delivered.values())
    print(f"how often delivered: {dict(times)}; in flight at kills: {consumer.in_flight}")
    assert len(consumer.delivered) == MESSAGES
    assert consumer.again == []
