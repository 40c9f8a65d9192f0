"""A slave acts as the master: ours among servers of RocketMQ 5.3.3, and theirs among ours.

The master is killed with scheduled messages and undecided half messages. The slave sends them to
the other broker, whose checks Java's producer answers; the master takes that over when it returns.
"""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import kit
import pytest
from codes import Request
from programs import JAVA_53, Client
from servers import (
    CometBroker,
    CometNameServer,
    RealBroker,
    RealNameServer,
    Settings,
    connect,
    registered_brokers,
    wait_for_route,
)

from support.brokers.replicas import Registered

COMET, JAVA = "comet", "5.3.3"
TOPIC, QUEUES = "T", 4
LEVEL = 15
"""15 seconds, in which the master is killed."""
SCHEDULED = {"first", "second", "third"}
HALF = {"ask commit", "ask rollback"}
WAIT_S = 240.0
SILENCE_S, SCAN_S = 10.0, 5.0
"""A broker that is silent for the first time is removed by the next scan after it."""
HOUR_MS = 3_600_000

ACTING: Settings = {
    "enableSlaveActingMaster": True,
    "enableRemoteEscape": True,
    "totalReplicas": 2,
    "brokerIP2": "127.0.0.1",  # else RocketMQ's master waits forever for its slave
    "transactionTimeOut": 1000,
    "transactionCheckInterval": 1000,
    "transactionCheckMax": 1000,
}
MASTER = ACTING | {"brokerRole": "ASYNC_MASTER", "transactionCheckInterval": HOUR_MS}
SLAVE = ACTING | {"brokerRole": "SLAVE", "brokerId": 1, "slaveReadEnable": True}
OTHER = ACTING | {"brokerName": "broker-b", "totalReplicas": 1}
NAME_SERVER: Settings = {"supportActingMaster": True, "notifyMinBrokerIdChanged": True}

Broker = CometBroker | RealBroker


class _CometMember(Registered, CometBroker):
    pass


class _RealMember(Registered, RealBroker):
    pass


@dataclass(frozen=True)
class Group:
    """A name server, a master with its slave, and another broker."""

    namesrv: str
    master: Broker
    slave: Broker
    other: Broker


@contextmanager
def running(namesrv: str, master: str, slave: str, other: str, folder: Path) -> Iterator[Group]:
    """Run servers of RocketMQ and ours within ``with``."""
    with ExitStack() as stack:
        names = folder / "namesrv"
        server = (
            CometNameServer(names, NAME_SERVER)
            if namesrv == COMET
            else RealNameServer(JAVA, names, NAME_SERVER)
        )
        server.start()
        stack.callback(server.kill)

        def broker(kind: str, name: str, settings: Settings) -> Broker:
            at, store = folder / name, folder / f"{name}-store"
            made: Broker = (
                _CometMember(at, server.address, store=store, settings=settings)
                if kind == COMET
                else _RealMember(JAVA, at, server.address, store=store, settings=settings)
            )
            made.start()
            stack.callback(made.kill)
            return made

        yield Group(
            server.address,
            broker(master, "master", MASTER),
            broker(slave, "slave", SLAVE),
            broker(other, "other", OTHER),
        )


def create_topic(broker: Broker, namesrv: str) -> None:
    connection = connect(broker.address)
    kit.ok(kit.create_topic(connection, TOPIC, read=QUEUES, write=QUEUES))
    connection.close()
    wait_for_route(namesrv, TOPIC)


def end(broker: Broker, topic: str, queue: int) -> int:
    with closing(connect(broker.address)) as connection:
        return kit.max_offset(connection, topic, queue)


def delivered(broker: Broker) -> Counter[str]:
    """What consumers find, and how often."""
    connection = connect(broker.address)
    found: Counter[str] = Counter()
    try:
        for queue in range(QUEUES):
            count = kit.max_offset(connection, TOPIC, queue)
            if count:
                messages = kit.read_queue(connection, "readers", TOPIC, count, queue=queue)
                found += Counter(message.body.decode() for message in messages)
    finally:
        connection.close()
    return found


def schedule_offset(broker: Broker) -> int:
    """How many messages of the level a broker has delivered, or a slave for it."""
    with closing(connect(broker.address)) as connection:
        table = kit.ok(connection.request(Request.GET_ALL_DELAY_OFFSET)).json()["offsetTable"]
    return {int(level): offset for level, offset in table.items()}.get(LEVEL, 0)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("namesrv", "master", "slave", "other"),
    [(JAVA, JAVA, COMET, JAVA), (COMET, COMET, JAVA, COMET), (JAVA, COMET, COMET, JAVA)],
)
def test_what_is_due_goes_to_the_other_broker_and_not_to_consumers_twice(
    namesrv: str, master: str, slave: str, other: str, tmp_path: Path
) -> None:
    with running(namesrv, master, slave, other, tmp_path) as group:
        create_topic(group.master, group.namesrv)
        with closing(Client(JAVA_53, group.namesrv, tmp_path)) as java:
            java.main.ask(
                "transaction",
                group="shop",
                topic=TOPIC,
                messages=[{"body": body} for body in sorted(HALF)],
            )
            java.send(TOPIC, [{"body": body, "delay": LEVEL} for body in sorted(SCHEDULED)])
            kit.eventually(
                lambda: (
                    end(group.slave, kit.DELAY_TOPIC, LEVEL - 1) == len(SCHEDULED)
                    and end(group.slave, kit.HALF_TOPIC, 0) == len(HALF)
                ),
                timeout=WAIT_S,
            )
            group.master.kill()
            create_topic(group.other, group.namesrv)
            wanted = {*SCHEDULED, "ask commit"}
            kit.eventually(
                lambda: delivered(group.other).keys() == wanted, timeout=WAIT_S, pause=0.5
            )
            kit.eventually(lambda: set(java.main.checked) == HALF, timeout=WAIT_S)

            group.master.start()
            kit.eventually(
                lambda: schedule_offset(group.master) == len(SCHEDULED), timeout=WAIT_S, pause=0.5
            )
            connection = connect(group.master.address)
            kit.store(connection, TOPIC, b"later", properties={"DELAY": "1"})
            connection.close()
            kit.eventually(lambda: delivered(group.master), timeout=WAIT_S, pause=0.5)
        assert delivered(group.master) == Counter(["later"])
        found = delivered(group.other)
        if other != COMET:  # RocketMQ delivers again what it checks again
            del found["ask commit"]
            wanted.remove("ask commit")
        assert found == dict.fromkeys(wanted, 1)


@pytest.mark.long
@pytest.mark.timeout(300)
def test_requests_for_the_version_of_the_topics_are_heartbeats(tmp_path: Path) -> None:
    """RocketMQ's brokers send them each second, unless compatibleWithOldNameSrv=false."""
    stored = {"store": tmp_path / "store", "settings": OTHER}
    with (
        CometNameServer(tmp_path / "namesrv", NAME_SERVER) as names,
        RealBroker(JAVA, tmp_path / "broker", names.address, **stored) as broker,
    ):
        deadline = time.monotonic() + SILENCE_S + SCAN_S + 5.0
        while time.monotonic() < deadline:
            assert broker.address in registered_brokers(names.address).values()
            time.sleep(0.2)

        os.kill(broker.process.pid, signal.SIGSTOP)
        kit.eventually(
            lambda: broker.address not in registered_brokers(names.address).values(),
            timeout=WAIT_S,
        )
