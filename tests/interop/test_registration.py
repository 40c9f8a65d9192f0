"""Real brokers at our name server, and our broker at real name servers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import kit
import pytest
from codes import Request
from servers import (
    BROKER_NAME,
    CLUSTER,
    CometBroker,
    CometNameServer,
    RealBroker,
    RealNameServer,
    connect,
    has_route,
    registered_brokers,
    wait_for_route,
)

from support.versions import VERSIONS


@pytest.fixture(scope="module")
def namesrv(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Our name server, for all the real brokers here."""
    server = CometNameServer(tmp_path_factory.mktemp("namesrv"))
    try:
        server.start()
        yield server.address
    finally:
        server.stop()


def create_topic(broker: str, topic: str) -> None:
    connection = connect(broker)
    try:
        kit.ok(kit.create_topic(connection, topic, read=3, write=3))
    finally:
        connection.close()


def topics_at(namesrv: str) -> list[str]:
    connection = connect(namesrv)
    try:
        answer = kit.ok(connection.request(Request.GET_ALL_TOPIC_LIST_FROM_NAMESERVER))
        topics: list[str] = answer.json()["topicList"]
        return topics
    finally:
        connection.close()


@pytest.mark.parametrize(
    ("version", "compressed"),
    [
        ("4.9.7", False),
        ("5.3.3", True),
        pytest.param("4.9.7", True, marks=pytest.mark.long),
        pytest.param("5.3.3", False, marks=pytest.mark.long),
    ],
)
def test_a_real_broker_registers_here_and_leaves(
    version: str, compressed: bool, namesrv: str, tmp_path: Path
) -> None:
    settings = {"compressedRegister": compressed}
    broker = RealBroker(
        version, tmp_path / "broker", namesrv, store=tmp_path / "store", settings=settings
    )
    try:
        broker.start()
        assert registered_brokers(namesrv) == {BROKER_NAME: broker.address}
        assert {"TBW102", "BenchmarkTest", CLUSTER, BROKER_NAME} <= set(topics_at(namesrv))
        topic = kit.unique("topic")
        create_topic(broker.address, topic)
        wait_for_route(namesrv, topic)
        broker.stop()
        kit.eventually(lambda: not registered_brokers(namesrv), timeout=120)
        assert topics_at(namesrv) == []
    finally:
        broker.kill()


@pytest.mark.parametrize("version", VERSIONS)
def test_a_real_broker_that_is_killed_is_forgotten_at_once(
    version: str, namesrv: str, tmp_path: Path
) -> None:
    broker = RealBroker(
        version, tmp_path / "broker", namesrv, store=tmp_path / "store", settings={}
    )
    try:
        broker.start()
        broker.kill()
        kit.eventually(lambda: not registered_brokers(namesrv), timeout=120)
    finally:
        broker.kill()


def test_our_broker_registers_at_real_name_servers_and_ours_at_once(
    namesrv: str, tmp_path: Path
) -> None:
    real = [RealNameServer(version, tmp_path / version) for version in VERSIONS]
    broker = None
    try:
        for server in real:
            server.start()
        addresses = [namesrv, *(server.address for server in real)]
        broker = CometBroker(
            tmp_path / "broker", ";".join(addresses), store=tmp_path / "store", settings={}
        )
        broker.start()
        for address in addresses:
            assert registered_brokers(address) == {BROKER_NAME: broker.address}
        topic = kit.unique("topic")
        create_topic(broker.address, topic)
        assert [known(address, topic) for address in addresses] == [True] * 3
        broker.stop()
        for address in addresses:
            kit.eventually(lambda at=address: not registered_brokers(at), timeout=120)
    finally:
        if broker is not None:
            broker.kill()
        for server in real:
            server.kill()


def known(namesrv: str, topic: str) -> bool:
    connection = connect(namesrv)
    try:
        return has_route(connection, topic)
    finally:
        connection.close()
