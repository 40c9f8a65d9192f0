"""Real and our name servers and brokers in one cluster: each registers with the other's.

One topic lies on two brokers, a real one and ours; official clients find both through either kind
of name server, and notice when ours leaves.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

import kit
import pytest
from codes import Request
from programs import JAVA_49, JAVA_53, Client
from servers import (
    CometBroker,
    CometNameServer,
    RealBroker,
    RealNameServer,
    connect,
    free_disk,
    wait_for_route,
)

JAVA = {"4.9.7": JAVA_49, "5.3.3": JAVA_53}
TOPIC, GROUP = "Orders", "billing"
MESSAGES = 40


@dataclass(frozen=True)
class Mixed:
    """A name server, a broker of each kind, and a client of the same version."""

    namesrv: str
    real: RealBroker
    ours: CometBroker
    client: Client


@pytest.fixture(
    scope="module",
    params=[
        pytest.param((version, kind), marks=[] if crosses else pytest.mark.long)
        for version, kind, crosses in (
            ("4.9.7", "real", True),
            ("4.9.7", "comet", False),
            ("5.3.3", "real", False),
            ("5.3.3", "comet", True),
        )
    ],
    ids=lambda param: f"{param[0]}-at-{param[1]}-name-server",
)
def mixed(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Mixed]:
    version, kind = request.param
    folder = tmp_path_factory.mktemp("mixed")
    with ExitStack() as stack:
        namesrv = start_name_server(kind, version, folder, stack)
        real = RealBroker(
            version,
            folder / "real",
            namesrv,
            store=folder / "real-store",
            settings={"brokerName": "broker-real"},
        )
        ours = CometBroker(
            folder / "ours",
            namesrv,
            store=folder / "our-store",
            settings={"brokerName": "broker-ours"},
        )
        for broker in (real, ours):
            stack.callback(free_disk, broker.store)
            stack.callback(broker.kill)
            broker.start()
            create_topic(broker.address)
        wait_for_route(namesrv, TOPIC)
        wait_for_route(namesrv, f"%RETRY%{GROUP}")
        client = Client(JAVA[version], namesrv, folder / "client")
        stack.callback(client.close)
        yield Mixed(namesrv, real, ours, client)


def start_name_server(kind: str, version: str, folder: Path, stack: ExitStack) -> str:
    server = (
        RealNameServer(version, folder / "namesrv")
        if kind == "real"
        else CometNameServer(folder / "namesrv")
    )
    stack.callback(server.kill)
    server.start()
    return server.address


def create_topic(broker: str) -> None:
    connection = connect(broker)
    kit.ok(kit.create_topic(connection, TOPIC, read=2, write=2))
    group = kit.consumer(GROUP, kit.subscription(TOPIC))
    kit.ok(kit.heartbeat(connection, "10.0.0.1@first", group))
    kit.ok(kit.unregister(connection, "10.0.0.1@first", consumer=GROUP))
    connection.close()


def brokers_of_topic(namesrv: str) -> set[str]:
    with closing(connect(namesrv)) as connection:
        answer = kit.ok(connection.request(Request.GET_ROUTEINFO_BY_TOPIC, {"topic": TOPIC}))
        return {broker["brokerName"] for broker in answer.json()["brokerDatas"]}


def stored(broker: str) -> int:
    """How many messages the broker has of the topic."""
    with closing(connect(broker)) as connection:
        return sum(kit.max_offset(connection, TOPIC, queue) for queue in range(2))


def test_clients_use_both_brokers_and_notice_when_ours_leaves(mixed: Mixed) -> None:
    kit.eventually(
        lambda: brokers_of_topic(mixed.namesrv) == {"broker-real", "broker-ours"}, timeout=120.0
    )
    group = mixed.client.group(GROUP, TOPIC)
    before = [f"before {n}" for n in range(MESSAGES)]
    mixed.client.send(TOPIC, [{"body": body, "tag": "t", "keys": "k"} for body in before])

    group.wait_for(before)

    assert stored(mixed.real.address) >= MESSAGES // 4
    assert stored(mixed.ours.address) >= MESSAGES // 4
    assert (
        stored(mixed.real.address) + stored(mixed.ours.address) >= MESSAGES
    )  # a send may be repeated

    mixed.ours.stop()
    kit.eventually(lambda: brokers_of_topic(mixed.namesrv) == {"broker-real"}, timeout=120.0)
    after = [f"after {n}" for n in range(MESSAGES)]
    mixed.client.send(TOPIC, [{"body": body} for body in after])

    group.wait_for(after)
    group.stop()
