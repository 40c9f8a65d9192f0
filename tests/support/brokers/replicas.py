"""A master and its replica as processes, of RocketMQ or ours."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import kit
from codes import Request
from processes import Process
from servers import (
    Cluster,
    CometBroker,
    CometNameServer,
    RealBroker,
    Settings,
    connect,
    split_address,
)

WAIT_S = 180.0
LOOK_S = 0.1
READABLE: Settings = {"slaveReadEnable": True}
MASTER = READABLE | {"brokerRole": "ASYNC_MASTER"}


SLAVE = READABLE | {"brokerRole": "SLAVE", "brokerId": 1}


class ReplicatedCluster(Cluster):
    """A name server and a master; ours are two processes, because tests kill the master alone."""

    def __init__(self, target: str, folder: Path) -> None:
        super().__init__(target, folder, MASTER)
        if target == "comet":
            name_server = CometNameServer(folder / "namesrv")
            self.namesrv = name_server.address
            master = CometBroker(folder / "broker", self.namesrv, store=self.store, settings=MASTER)
            self._servers = [name_server, master]


class Registered:
    """A broker that counts as started when it is registered, with whatever id."""

    address: str
    process: Process

    def _await_registration(self, namesrv: str) -> None:
        self.process.wait_until(lambda: self._is_registered(namesrv), "registration", WAIT_S)

    def _is_registered(self, namesrv: str) -> bool:
        with closing(connect(namesrv)) as connection:
            table = kit.ok(connection.request(Request.GET_BROKER_CLUSTER_INFO)).json()
        return any(
            self.address in data["brokerAddrs"].values()
            for data in table["brokerAddrTable"].values()
        )


class CometReplica(Registered, CometBroker):
    """Our broker that follows the master of a cluster."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        store = folder.with_name(f"{folder.name}-store")
        super().__init__(folder, cluster.namesrv, store=store, settings=SLAVE)


class RealReplica(Registered, RealBroker):
    """RocketMQ's broker that follows the master of a cluster."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        settings = dict(SLAVE)
        if cluster.target.startswith("4."):  # else it hears of it seconds later; 5 must hear of it
            host, port = split_address(cluster.broker)
            settings["haMasterAddress"] = f"{host}:{port + 1}"
        super().__init__(
            cluster.target,
            folder,
            cluster.namesrv,
            store=folder.with_name(f"{folder.name}-store"),
            settings=settings,
        )


Replica = CometReplica | RealReplica


def new_replica(cluster: Cluster, folder: Path) -> Replica:
    """Make a replica of the kind of its master; it is not started."""
    kind = CometReplica if cluster.target == "comet" else RealReplica
    return kind(cluster, folder)


@dataclass(frozen=True)
class Pair:
    """A master, and the replica that follows it."""

    master: Cluster
    replica: Replica

    def await_copy(self, topics: Iterable[str], *, queues: int = 4) -> None:
        """Wait until the replica has all that the master has of some topics.

        Raises:
            AssertionError: it has not within a minute.
        """
        wanted = [(topic, queue) for topic in topics for queue in range(queues)]
        deadline = time.monotonic() + WAIT_S
        while (there := _ends(self.replica.address, wanted)) != (
            here := _ends(self.master.broker, wanted)
        ):
            assert time.monotonic() < deadline, f"met {there}, expected {here}"
            time.sleep(LOOK_S)

    def await_tables(self, topic: str, group: str) -> None:
        """Wait until the replica has copied a topic and a group; RocketMQ 5 does once a minute."""

        def has_copied() -> bool:
            with closing(connect(self.replica.address)) as connection:
                has_topic = kit.topic_config(connection, topic) is not None
                return has_topic and kit.group_config(connection, group) is not None

        kit.eventually(has_copied, timeout=WAIT_S, pause=LOOK_S)


def _ends(address: str, queues: Iterable[tuple[str, int]]) -> list[int]:
    with closing(connect(address)) as connection:
        return [kit.max_offset(connection, topic, queue) for topic, queue in queues]


@contextmanager
def running_pair(target: str, folder: Path) -> Iterator[Pair]:
    """Run a master with its replica within ``with``."""
    cluster = ReplicatedCluster(target, folder / "master")
    replica = new_replica(cluster, folder / "replica")
    try:
        cluster.start()
        replica.start()
        yield Pair(cluster, replica)
    finally:
        replica.kill()
        cluster.remove()
