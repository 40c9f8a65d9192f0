"""Timer messages wait, are recalled and are delivered while the server is killed.

The server is killed with SIGKILL at random moments before and while the messages are due, and
started again. Some starts have another length of slots, or no wheel, so that the index is made
again. Afterwards the closed store shows for each message when it was due and when it was stored in
its topic.
"""

from __future__ import annotations

import random
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import kit
import pytest
import timer_kit
from codes import Request
from wire import Connection

from cometmq.store import MessageStore, StoreSettings
from support.processes.server import Standalone
from support.runner.tiers import new_seed, rounds
from support.stores.small_stores import all_messages

KILLS = rounds(test=4, long=30)
MESSAGES = rounds(test=4_000, long=40_000)
QUEUES = 2
TOPIC = "later"
FIRST_S = rounds(test=15, long=60)
"""The shortest delay; by then all messages are stored."""
SPAN_S = rounds(test=6, long=30)
RECALLED_PART = 10
"""Each tenth message is recalled."""
DELIVERED_S = 240.0
IN_FLIGHT = 200


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Standalone]:
    running = Standalone(tmp_path, settings=settings(1000))
    running.start()
    yield running
    if running.running:
        running.kill()


def settings(precision_ms: int) -> dict[str, object]:
    return {
        "brokerIP1": "127.0.0.1",
        "timerPrecisionMs": precision_ms,
        "recallMessageEnable": "true",
        "waitTimeMillsInSendQueue": 60_000,
    }


def store_messages(broker: Connection, begin_ms: int, chance: random.Random) -> list[str]:
    """Store all messages; return the handles of those to recall."""
    handles: list[str] = []
    for first in range(0, MESSAGES, IN_FLIGHT):
        opaques = []
        for number in range(first, min(first + IN_FLIGHT, MESSAGES)):
            due_ms = begin_ms + FIRST_S * 1000 + chance.randrange(SPAN_S * 1000)
            properties = {
                "UNIQ_KEY": f"{number:032X}",
                "TIMER_DELIVER_MS": str(due_ms),
            }
            header = kit.send_fields(TOPIC, e=number % QUEUES, i=kit.encode_properties(properties))
            opaques.append(broker.send(Request.SEND_MESSAGE_V2, header, str(number).encode()))
        for at, opaque in enumerate(opaques, first):
            answer = kit.ok(broker.response(opaque, timeout=60))
            if at % RECALLED_PART == 0:
                handles.append(answer.fields["recallHandle"])
    return handles


def until_delivered(server: Standalone, count: int) -> None:
    with closing(Connection(server.broker)) as broker:
        kit.eventually(
            lambda: sum(kit.max_offset(broker, TOPIC, queue) for queue in range(QUEUES)) >= count,
            timeout=DELIVERED_S,
        )


def test_each_timer_message_is_delivered_once_and_not_early_over_kills(
    server: Standalone,
) -> None:
    seed = new_seed()
    print(f"seed={seed}")
    chance = random.Random(seed)
    kept = MESSAGES - len(range(0, MESSAGES, RECALLED_PART))
    with closing(Connection(server.broker)) as broker:
        kit.create_topic(broker, TOPIC, read=QUEUES, write=QUEUES)
        handles = store_messages(broker, int(time.time() * 1000), chance)
        fields = [{"topic": TOPIC, "recallHandle": handle} for handle in handles]
        for opaque in [broker.send(Request.RECALL_MESSAGE, each) for each in fields]:
            kit.ok(broker.response(opaque, timeout=60))

    for number in range(KILLS):
        if number > 0:  # the first time while all of them wait
            wanted = chance.randrange(kept * number // KILLS, kept * (number + 1) // KILLS)
            until_delivered(server, wanted)
        server.kill()
        if number % 3 == 1:
            (server.folder / "store" / "timerwheel").unlink(missing_ok=True)
        server.settings = settings(200 if number % 3 == 2 else 1000)
        server.start()
    until_delivered(server, kept)
    with closing(Connection(server.broker)) as broker:
        kit.eventually(lambda: timer_kit.waiting_count(broker, TOPIC) == 0, timeout=30)
        assert broker.request(Request.GET_TIMER_METRICS).json()["timingCount"] == {}
    server.kill()

    root = server.folder / "store"
    file_bytes = max(path.stat().st_size for path in (root / "commitlog").iterdir())
    store = MessageStore(StoreSettings(root=root, commit_log_file_bytes=file_bytes))
    store.open()
    found: dict[int, list[int]] = defaultdict(list)
    for queue in range(QUEUES):
        for message in all_messages(store, TOPIC, queue):
            due_ms = int(message.properties["TIMER_DELIVER_MS"])
            found[int(message.body)].append(message.store_time_ms - due_ms)
    store.abandon()
    times = Counter(len(lateness) for lateness in found.values())
    lateness_ms = [each for lateness in found.values() for each in lateness]
    print(f"how often delivered: {dict(times)}; late by up to {max(lateness_ms)} ms with restarts")
    expected = set(range(MESSAGES)) - set(range(0, MESSAGES, RECALLED_PART))
    assert expected - found.keys() == set(), "messages are lost"
    assert found.keys() - expected == set(), "recalled messages are delivered"
    assert min(lateness_ms) >= 0, f"a message was delivered {-min(lateness_ms)} ms early"
    assert times.keys() == {1}, "the log shows what was delivered: nothing is delivered again"
