"""Delayed messages, retries and committed offsets over stops and kills of a real server.

Each delayed message comes exactly once over a stop, and over kills.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import kit
import pytest
from codes import Answer, Request
from wire import Connection

from support.processes.server import Standalone
from support.stores.scheduled_messages import Wire

MESSAGES = 60
BODIES = [str(n).encode() for n in range(MESSAGES)]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Standalone]:
    running = Standalone(tmp_path, settings={"brokerIP1": "127.0.0.1"})
    running.start()
    yield running
    if running.running:
        running.kill()


@contextmanager
def connect(server: Standalone) -> Iterator[Connection]:
    with closing(Connection(server.broker, timeout=60.0)) as connection:
        yield connection


def park(server: Standalone) -> None:
    """Send all messages with the first level, one second."""
    with connect(server) as broker:
        kit.ok(kit.create_topic(broker, "later"))
        for body in BODIES:
            kit.store(broker, "later", body, properties={"DELAY": "1"})


def delivered(server: Standalone) -> list[bytes]:
    """What has come, once no message waits any more."""
    with closing(Wire(server.broker)) as wire:
        kit.eventually(lambda: wire.waiting() == 0, timeout=120)
    found: list[bytes] = []
    with connect(server) as broker:

        def all_are_read() -> bool:
            answer = kit.pull(broker, "readers", "later", len(found))
            if answer.code == Answer.SUCCESS:
                found.extend(answer.bodies)
            return answer.code != Answer.SUCCESS and len(found) >= MESSAGES

        kit.eventually(all_are_read, timeout=120)
    return found


def test_each_message_comes_exactly_once_when_the_server_is_stopped_in_between(
    server: Standalone,
) -> None:
    park(server)
    assert server.stop() == 0
    server.start()
    assert delivered(server) == BODIES
    assert server.stop() == 0
    server.start()
    assert delivered(server) == BODIES


def test_each_message_comes_exactly_once_when_the_server_is_killed_before_and_after_delivery(
    server: Standalone,
) -> None:
    park(server)
    server.kill()
    server.start()
    delivered(server)
    server.kill()
    server.start()
    assert delivered(server) == BODIES


def test_a_message_sent_back_comes_again_after_a_kill(server: Standalone) -> None:
    with connect(server) as broker:
        kit.ok(kit.create_topic(broker, "failing"))
        kit.ok(kit.create_group(broker, "retrying"))
        kit.store(broker, "failing", b"fails")
        record = kit.read_one(broker, "retrying", "failing")
        fields = {"group": "retrying", "offset": record.log_offset, "delayLevel": 1}
        kit.ok(broker.request(Request.CONSUMER_SEND_MSG_BACK, fields))
    server.kill()
    server.start()
    with connect(server) as broker:
        again = kit.read_one(broker, "retrying", "%RETRY%retrying", timeout=120)
    assert (again.body, again.reconsume_times) == (b"fails", 1)
    assert again.properties["ORIGIN_MESSAGE_ID"] == record.message_id


def test_committed_offsets_outlive_a_stop(server: Standalone) -> None:
    with connect(server) as broker:
        kit.ok(kit.create_topic(broker, "read"))
        kit.ok(kit.create_group(broker, "readers"))
        kit.store_many(broker, "read", 3)
        kit.ok(kit.commit_offset(broker, "readers", "read", 2))
    assert server.stop() == 0
    server.start()
    with connect(server) as broker:
        assert kit.query_offset(broker, "readers", "read").fields["offset"] == "2"
