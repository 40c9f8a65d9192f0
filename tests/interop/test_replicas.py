"""Java's consumers read from the slave when its master is killed, and from the master later."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import kit
import pytest
from programs import JAVA_49, JAVA_53, Client, Kind
from servers import connect, new_group, new_topic

from support.brokers.replicas import Pair, running_pair

MESSAGES = [f"m{number}" for number in range(20)]


@pytest.fixture(scope="module")
def pair(target: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with running_pair(target, tmp_path_factory.mktemp("pair")) as running:
        yield running


@pytest.mark.parametrize("kind", [pytest.param(JAVA_49, marks=pytest.mark.long), JAVA_53], ids=str)
def test_a_consumer_changes_to_the_slave_and_back(pair: Pair, kind: Kind, tmp_path: Path) -> None:
    broker = connect(pair.master.broker)
    topic, group = new_topic(pair.master, broker), new_group(pair.master, broker)
    broker.close()
    with closing(Client(kind, pair.master.namesrv, tmp_path)) as client:
        client.send(topic, [{"body": body} for body in MESSAGES])
        pair.await_copy([topic])
        pair.await_tables(topic, group)
        pair.master.kill_broker()
        members = client.group(group, topic, members=1)
        members.wait_for(MESSAGES)

        pair.master.start_broker()
        kit.eventually(lambda: sent(client, topic), timeout=180.0, pause=0.5)
        members.wait_for([*MESSAGES, "after"])
        assert sorted(set(members.bodies())) == sorted([*MESSAGES, "after"])
        members.stop()


def sent(client: Client, topic: str) -> bool:
    """Whether a message can be sent to the master, which has just started."""
    try:
        client.send(topic, [{"body": "after"}])
    except AssertionError:
        return False
    return True
