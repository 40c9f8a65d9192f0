"""Real brokers at our name server, and our broker at real name servers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
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
    Settings,
    connect,
    has_route,
    registered_brokers,
    wait_for_route,
)

from support.runner.versions import VERSIONS

SPLIT: Settings = {"enableSplitRegistration": True, "splitRegistrationSize": 3}
MANY = 30_000
"""So many topics with names of 240 characters do not fit into one frame."""


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
    with closing(connect(broker)) as connection:
        kit.ok(kit.create_topic(connection, topic, read=3, write=3))


def topics_at(namesrv: str) -> list[str]:
    with closing(connect(namesrv)) as connection:
        answer = kit.ok(connection.request(Request.GET_ALL_TOPIC_LIST_FROM_NAMESERVER))
        topics: list[str] = answer.json()["topicList"]
        return topics


@pytest.mark.parametrize(
    ("version", "settings"),
    [
        ("4.9.7", {}),
        ("5.3.3", SPLIT | {"enableSingleTopicRegister": True, "compressedRegister": True}),
        pytest.param("4.9.7", {"compressedRegister": True}, marks=pytest.mark.long),
        pytest.param("5.3.3", {}, marks=pytest.mark.long),
        pytest.param("5.3.3", {"compressedRegister": True}, marks=pytest.mark.long),
        pytest.param("5.3.3", SPLIT, marks=pytest.mark.long),
    ],
)
def test_a_real_broker_registers_here_and_leaves(
    version: str, settings: Settings, namesrv: str, tmp_path: Path
) -> None:
    with RealBroker(
        version, tmp_path / "broker", namesrv, store=tmp_path / "store", settings=settings
    ) as broker:
        assert registered_brokers(namesrv) == {BROKER_NAME: broker.address}
        expected = {"TBW102", "BenchmarkTest", CLUSTER, BROKER_NAME}
        kit.eventually(lambda: expected <= set(topics_at(namesrv)), timeout=120)
        topic = kit.unique("topic")
        create_topic(broker.address, topic)
        wait_for_route(namesrv, topic)
        broker.stop()
        kit.eventually(lambda: not registered_brokers(namesrv), timeout=120)
        assert topics_at(namesrv) == []


@pytest.mark.parametrize("version", VERSIONS)
def test_a_real_broker_that_is_killed_is_forgotten_at_once(
    version: str, namesrv: str, tmp_path: Path
) -> None:
    with RealBroker(
        version, tmp_path / "broker", namesrv, store=tmp_path / "store", settings={}
    ) as broker:
        broker.kill()
        kit.eventually(lambda: not registered_brokers(namesrv), timeout=120)


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


@pytest.mark.parametrize(
    ("settings", "count", "topic_is_alone"),
    [
        ({}, MANY, False),
        (SPLIT | {"compressedRegister": True}, 100, False),
        ({"enableSingleTopicRegister": True}, 100, True),
    ],
)
def test_our_broker_registers_tables_of_any_size_at_real_name_servers(
    settings: Settings, count: int, topic_is_alone: bool, namesrv: str, tmp_path: Path
) -> None:
    versions = VERSIONS[-1:] if topic_is_alone else VERSIONS  # 4.9 does not serve that
    real = [RealNameServer(version, tmp_path / version) for version in versions]
    names = [f"{number}-{'x' * 233}" for number in range(count)]
    config = {"readQueueNums": 3, "writeQueueNums": 3, "perm": 6}
    table = {name: config | {"topicName": name} for name in names}
    file = tmp_path / "store" / "config" / "topics.json"
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps({"dataVersion": {"counter": 1}, "topicConfigTable": table}))
    broker = None
    try:
        for server in real:
            server.start()
        addresses = [namesrv, *(server.address for server in real)]
        broker = CometBroker(
            tmp_path / "broker", ";".join(addresses), store=tmp_path / "store", settings=settings
        )
        broker.start()
        for address in addresses:
            kit.eventually(lambda at=address: set(names) <= set(topics_at(at)), timeout=120)
        topic = kit.unique("topic")
        create_topic(broker.address, topic)
        assert [known(address, topic) for address in addresses] == [True] * len(addresses)
        assert "cannot register" not in broker.log_text()
        broker.stop()
    finally:
        if broker is not None:
            broker.kill()
        for server in real:
            server.kill()


def known(namesrv: str, topic: str) -> bool:
    with closing(connect(namesrv)) as connection:
        return has_route(connection, topic)
