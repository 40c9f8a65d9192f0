"""Fixtures of the tests against real RocketMQ programs; see README.md for how to run them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from programs import Client, Kind
from servers import Cluster, RealNameServer, Settings, connect, new_group, new_topic
from wire import Connection

from support.brokers.clusters import chosen_targets


@pytest.fixture(scope="session")
def target() -> str:
    """Whose servers the clients meet: ours, or a real version to check the tests themselves."""
    return chosen_targets()[0]


SETTINGS: Settings = {
    "timerWheelEnable": True,
    "recallMessageEnable": True,
    "waitTimeMillsInSendQueue": 60_000,  # by default a busy machine makes it refuse sends
}


@pytest.fixture(scope="module")
def cluster(target: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A running name server and broker of their own for each test module."""
    with Cluster(target, tmp_path_factory.mktemp("cluster"), SETTINGS) as servers:
        yield servers


@pytest.fixture(scope="module")
def broker(cluster: Cluster) -> Iterator[Connection]:
    """A raw connection to the broker."""
    connection = connect(cluster.broker)
    yield connection
    connection.close()


@pytest.fixture(scope="module")
def clients(
    cluster: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[Kind], Client]]:
    """One running client program of each kind that a test asks for."""
    folder = tmp_path_factory.mktemp("clients")
    running: dict[str, Client] = {}

    def client_of(kind: Kind) -> Client:
        if kind.name not in running:
            running[kind.name] = Client(kind, cluster.namesrv, folder)
        return running[kind.name]

    yield client_of
    for client in running.values():
        client.close()


@pytest.fixture(scope="module")
def make_topic(cluster: Cluster, broker: Connection) -> Callable[..., str]:
    """Create topics that clients can find at once."""

    def make(*, queues: int = 4, attributes: str | None = None) -> str:
        return new_topic(cluster, broker, queues=queues, attributes=attributes)

    return make


@pytest.fixture(scope="module")
def make_group(cluster: Cluster, broker: Connection) -> Callable[[], str]:
    """Name groups whose retry topic clients can find at once."""

    def make() -> str:
        return new_group(cluster, broker)

    return make


@pytest.fixture(scope="module")
def namesrv(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One real name server for all the real brokers here."""
    with RealNameServer("5.3.3", tmp_path_factory.mktemp("namesrv")) as server:
        yield server.address
