"""Kombu's transport on our brokers and on RocketMQ's: the tests in tests/integration have ours."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import kombu
import pytest
from servers import Cluster, Settings

import cometmq.kombu  # noqa: F401 - makes the scheme known
from cometmq.model.errors import ResponseError
from support.checks.waiting import WAIT_S
from support.runner.versions import POP_SERVERS, VERSIONS_5

OTHER_PROCESS = {"idle_s": 119}
"""A setting of the client with which connections share nothing, as if of another process."""


@pytest.fixture(scope="module")
def session_cluster(target: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster for this file, with timers."""
    settings: Settings = {"recallMessageEnable": True}
    if target in VERSIONS_5:
        settings |= {"timerWheelEnable": True}
    with Cluster(target, tmp_path_factory.mktemp("kombu"), settings) as running:
        yield running


def received(connection: kombu.Connection, queue: kombu.Queue, count: int) -> list[Any]:
    """Receive so many messages, and acknowledge them."""
    found: list[Any] = []

    def callback(body: Any, message: Any) -> None:
        message.ack()
        found.append(body)

    with connection.Consumer(queue, callbacks=[callback]):
        while len(found) < count:
            connection.drain_events(timeout=WAIT_S)
    return found


@pytest.mark.only_on(*POP_SERVERS)
def test_priorities_bindings_requeues_timers_recalls_and_sizes(
    name_servers: str, topic: str
) -> None:
    """One test, since a cluster of RocketMQ takes long to start."""
    url = f"cometmq:///{topic}"
    here, there = (
        kombu.Connection(
            url, transport_options={"name_servers": name_servers, "delay_min": 0, "client": client}
        )
        for client in ({}, OTHER_PROCESS)
    )
    exchange = kombu.Exchange("news", "topic")
    queue = kombu.Queue("news", exchange, "a.#", max_priority=2)
    with here, there:
        queue(here.channel()).declare()
        producer = there.Producer(exchange=exchange)
        for priority in (0, 2, 1):
            producer.publish(priority, routing_key="a.b", priority=priority)
        producer.publish("not bound", routing_key="b")
        assert queue(here.channel()).queue_declare(passive=True).message_count == 3
        first = queue(here.channel()).get()
        first.reject(requeue=True)
        assert received(here, queue, 3) == [2, 1, 0]
        due = datetime.now(UTC) + timedelta(seconds=3)
        for name in ("stays", "recalled"):
            headers = {"id": f"{topic}-{name}", "eta": due.isoformat()}
            producer.publish(name, routing_key="a.b", headers=headers)
        assert there.transport.recall(f"{topic}-recalled") == 1
        assert received(here, queue, 1) == ["stays"]
        assert datetime.now(UTC) >= due - timedelta(seconds=1)
        with pytest.raises(socket.timeout), here.Consumer(queue, callbacks=[print]):
            here.drain_events(timeout=1.5)


@pytest.mark.only_on("4.9.7")
def test_a_broker_without_pop_is_named(name_servers: str, topic: str) -> None:
    options = {"name_servers": name_servers}
    with kombu.Connection(f"cometmq:///{topic}", transport_options=options) as connection:
        queue = kombu.Queue("old")
        connection.Producer().publish("x", routing_key="old", declare=[queue])
        with pytest.raises(ResponseError, match=r"needs brokers of RocketMQ 5\.0 or later"):
            queue(connection.channel()).get()
