"""Consumers pop and acknowledge while brokers are killed.

Most messages are acknowledged when they are popped, some are not. The broker is killed with SIGKILL
at random moments, and started again, or another one is elected in its place. Then

    a message whose acknowledgement was answered is never redelivered
    each message is redelivered at most as often as it was left unacknowledged, or was in flight at
        a kill
    no message is redelivered behind one that was visible five seconds later
"""

from __future__ import annotations

import contextlib
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import kit
import pop_kit
import pytest
from codes import Answer
from servers import connect
from wire import Connection, ConnectionClosedError, NoAnswerError

from support.controllers.elected_processes import COMET, ElectedCluster, running_elected
from support.processes.server import Standalone
from support.runner.tiers import new_seed, rounds

KILLS = rounds(test=3, long=20)
FAILOVERS = rounds(test=1, long=10)
MESSAGES = rounds(test=600, long=5_000)
TOPIC, GROUP, QUEUES = "popped", "poppers", 4
INVISIBLE_MS = 1_500
LATE_MS = 5_000


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Standalone]:
    running = Standalone(tmp_path, settings={"brokerIP1": "127.0.0.1"})
    running.start()
    yield running
    if running.running:
        running.kill()


class Consumer:
    """Pops and acknowledges over one connection at a time, and counts what it sees."""

    def __init__(self, connect: Callable[[], Connection], chance: random.Random) -> None:
        self.connect = connect
        """Connects to the master."""
        self.chance = chance
        self.delivered: Counter[bytes] = Counter()
        self.acked: set[bytes] = set()
        self.unknown: set[bytes] = set()
        """Messages of acknowledgements that may have been stored without a response."""
        self.in_flight: set[bytes] = set()
        """Messages of the last pop that are to be acknowledged."""
        self.expected: Counter[bytes] = Counter()
        """How often each message may be redelivered."""
        self.again: list[bytes] = []
        """What was delivered although its acknowledgement was answered."""
        self._newest: dict[bytes, pop_kit.Taken] = {}
        self._visible: dict[int, int] = {}
        """When messages were visible again, by their offsets in the retry topic."""

    def run(self, kill: Callable[[], None]) -> None:
        """Pop and acknowledge until the broker is killed, at any moment."""
        killer = threading.Timer(self.chance.uniform(0.01, 0.3), kill)
        killer.start()
        with (
            contextlib.suppress(ConnectionClosedError, NoAnswerError, OSError),
            closing(self.connect()) as connection,
        ):
            while True:
                self.pop(connection, count=self.chance.choice((1, 5, 32)))
        killer.join()
        self.expected.update(self.in_flight - self.acked)
        self.in_flight = set()

    def finish(self) -> None:
        """Pop until nothing is left, and check what was seen."""

        def is_done() -> bool:
            self.pop(connection, count=32, leaves=0.0)
            return len(self.acked | self.unknown) == MESSAGES

        with closing(self.connect()) as connection:
            kit.eventually(is_done, timeout=120.0, pause=0.02)
            kit.eventually(
                lambda: self.pop(connection, count=32) == Answer.POLLING_TIMEOUT, timeout=30.0
            )
        times = Counter(self.delivered.values())
        print(f"how often delivered: {dict(times)}; may be redelivered: {self.expected.total()}")
        assert len(self.delivered) == MESSAGES
        assert self.again == []
        assert self.delivered <= self.expected + Counter(self.delivered.keys())
        latest_ms = 0
        for offset, visible_ms in sorted(self._visible.items()):
            assert latest_ms - visible_ms <= LATE_MS, f"{offset} of the retry topic was stuck"
            latest_ms = max(latest_ms, visible_ms)

    def pop(self, connection: Connection, *, count: int, leaves: float = 0.2) -> int:
        """Pop messages, and acknowledge most of them, alone or as a batch."""
        found = pop_kit.pop(connection, GROUP, TOPIC, count=count, invisible_ms=INVISIBLE_MS)
        self.again += [one.body for one in found.taken if one.body in self.acked]
        self.delivered.update(found.bodies)
        for one in found.taken:
            self._note_time(one)
        taken = [one for one in found.taken if self.chance.random() >= leaves]
        self.in_flight = {one.body for one in taken}
        self.expected.update(set(found.bodies) - self.in_flight)
        self.unknown |= self.in_flight
        if len(taken) > 3 and self.chance.random() < 0.5:
            receipts: dict[tuple[str, int], list[pop_kit.Receipt]] = {}
            for one in taken:
                receipts.setdefault((one.receipt.flag, one.receipt.queue), []).append(one.receipt)
            entries = [pop_kit.batch_entry(GROUP, TOPIC, each) for each in receipts.values()]
            kit.ok(pop_kit.batch_ack(connection, *entries))
            self.acked |= self.in_flight
        else:
            for one in taken:
                kit.ok(pop_kit.ack(connection, GROUP, TOPIC, one.receipt))
                self.acked.add(one.body)
        self.in_flight -= self.acked
        self.unknown -= self.acked
        return found.code

    def _note_time(self, taken: pop_kit.Taken) -> None:
        """Note when a message was visible again, if its pop before that was seen here."""
        before = self._newest.get(taken.body)
        self._newest[taken.body] = taken
        times = (
            0 if before is None else taken.record.reconsume_times - before.record.reconsume_times
        )
        if before is not None and times == 1:
            receipt = before.receipt
            self._visible[taken.receipt.offset] = receipt.pop_time + receipt.invisible_ms


def prepare(connection: Connection) -> None:
    """Create the topic and the group, and store the messages."""
    kit.ok(kit.create_topic(connection, TOPIC, read=QUEUES, write=QUEUES))
    kit.ok(kit.create_group(connection, GROUP))
    for number in range(MESSAGES):
        kit.store(connection, TOPIC, b"%d" % number, queue=number % QUEUES)


def seeded() -> random.Random:
    seed = new_seed()
    print(f"seed={seed}")
    return random.Random(seed)


def test_only_what_is_in_flight_at_a_kill_is_redelivered(server: Standalone) -> None:
    with closing(Connection(server.broker)) as connection:
        prepare(connection)
    consumer = Consumer(lambda: Connection(server.broker), seeded())
    for _ in range(KILLS):
        consumer.run(server.kill)
        server.start()
    consumer.finish()


@pytest.mark.needs("etcd")
@pytest.mark.promise
def test_only_what_is_in_flight_at_a_failover_is_redelivered(tmp_path: Path) -> None:
    with running_elected(COMET, (COMET, COMET), tmp_path, allAckInSyncStateSet=True) as cluster:
        cluster.await_in_sync(2)
        with closing(connect(cluster.await_master().address)) as connection:
            prepare(connection)
            for broker in cluster.brokers:
                with closing(connect(broker.address)) as known:
                    kit.eventually(lambda to=known: kit.topic_config(to, TOPIC), timeout=60.0)
        consumer = Consumer(lambda: connect(cluster.await_master().address), seeded())
        for _ in range(FAILOVERS):
            fail_over(cluster, consumer)
        consumer.finish()


def fail_over(cluster: ElectedCluster, consumer: Consumer) -> None:
    """Kill the master under load, and let it return as a slave."""
    master = cluster.await_master()
    consumer.run(master.kill)
    cluster.await_master(other_than=master)
    master.start()
    cluster.await_in_sync(2)
