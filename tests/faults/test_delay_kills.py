"""Scheduled messages of ten levels wait and are delivered while the server is killed.

The server is killed with SIGKILL at random moments before and while the messages are due, and
started again. Some starts have a shorter table of levels, so that a part of the messages waits in
levels that the settings do not have any more. Afterwards the closed store shows for each message
when it was due and when it was stored in its topic.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import kit
import pytest

from support.processes.server import Standalone
from support.runner.tiers import new_seed, rounds
from support.stores.scheduled_messages import Wire, frames_of, journeys

KILLS = rounds(test=4, long=30)
MESSAGES = rounds(test=20_000, long=100_000)
LEVELS, QUEUES = 10, 4
TOPIC = "later"
FIRST_S = rounds(test=5, long=20)
"""The shortest delay; by then all messages are stored."""
DELAYS = [f"{FIRST_S + more}s" for more in (0, 1, 2, 3, 4, 4, 3, 2, 1, 0)]
SHORTER = 6
"""The levels of the table of every other start."""
DELIVERED_S = 240.0


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Standalone]:
    running = Standalone(tmp_path, settings=settings(LEVELS))
    running.start()
    yield running
    if running.running:
        running.kill()


def settings(levels: int) -> dict[str, object]:
    return {
        "brokerIP1": "127.0.0.1",
        "messageDelayLevel": " ".join(DELAYS[:levels]),
        "waitTimeMillsInSendQueue": 60_000,
    }


def until_delivered(server: Standalone, count: int) -> None:
    with closing(Wire(server.broker)) as wire:
        kit.eventually(
            lambda: wire.delivered(TOPIC, QUEUES) >= count, timeout=DELIVERED_S, pause=0.01
        )


def test_each_scheduled_message_is_delivered_once_and_not_early_over_kills(
    server: Standalone,
) -> None:
    seed = new_seed()
    print(f"seed={seed}")
    chance = random.Random(seed)
    with closing(Wire(server.broker)) as wire:
        wire.create_topic(TOPIC, QUEUES)
        wire.send(frames_of(TOPIC, range(MESSAGES), queues=QUEUES, levels=LEVELS))
        print(f"{wire.waiting()} messages wait")

    for number in range(KILLS):
        if number > 0:  # the first time while all of them wait
            begin, end = MESSAGES * number // KILLS, MESSAGES * (number + 1) // KILLS
            until_delivered(server, chance.randrange(begin, end))
        server.kill()
        server.settings = settings(LEVELS if number % 2 else SHORTER)
        server.start()
    with closing(Wire(server.broker)) as wire:
        kit.eventually(lambda: wire.waiting() == 0, timeout=DELIVERED_S)
    server.kill()

    found = journeys(server.folder / "store", TOPIC, queues=QUEUES)
    assert found.keys() == set(range(MESSAGES))
    times = Counter(len(journey.delivered_ms) for journey in found.values())
    lateness_ms = [
        at_ms - journey.due_ms for journey in found.values() for at_ms in journey.delivered_ms
    ]
    print(f"how often delivered: {dict(times)}; late by up to {max(lateness_ms)} ms with restarts")
    assert times[0] == 0, f"{times[0]} messages are lost"
    assert min(lateness_ms) >= 0, f"a message was delivered {-min(lateness_ms)} ms early"
    assert times.keys() == {1}, "the log shows what was delivered: nothing is delivered again"
