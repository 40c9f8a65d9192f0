"""Static topics with RocketMQ's tool, client and brokers: queues move while both clients work."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import kit
import pytest
from mqadmin import MqAdmin
from programs import JAVA_53, OURS, Client, CommandError, Kind
from servers import CometBroker, CometNameServer, RealBroker, RealNameServer, Settings

from cometmq.client import AdminClient

NAMES = ("broker-a", "broker-b", "broker-c")
KINDS = (JAVA_53, OURS)
QUEUES = 4
REFUSED_S_MAX = 90.0
"""A Java client requests its routes every 30 seconds."""
NEIGHBOURS_S = 16.0
"""After this time a broker of RocketMQ knows the addresses of the others."""


@pytest.fixture(scope="module")
def mqadmin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MqAdmin]:
    tool = MqAdmin(tmp_path_factory.mktemp("mqadmin"))
    yield tool
    tool.close()


def start_servers(target: str, folder: Path, stack: ExitStack) -> str:
    """Start a name server and three brokers; return the address of the name server."""
    if target == "comet":
        namesrv = stack.enter_context(CometNameServer(folder / "namesrv")).address
    else:
        namesrv = stack.enter_context(RealNameServer(target, folder / "namesrv")).address
    for name in NAMES:
        settings: Settings = {"brokerName": name}
        store = folder / name / "store"
        if target == "comet":
            broker = CometBroker(folder / name, namesrv, store=store, settings=settings)
            stack.enter_context(broker)
        else:
            settings |= {"mappedFileSizeCommitLog": 16 * 1024 * 1024}
            stack.enter_context(
                RealBroker(target, folder / name, namesrv, store=store, settings=settings)
            )
    if target != "comet":
        time.sleep(NEIGHBOURS_S)
    return namesrv


class Sending(threading.Thread):
    """Sends one message after the other until it ends; a refused one is not sent again."""

    def __init__(self, client: Client, topic: str) -> None:
        super().__init__()
        self._client, self._topic = client, topic
        self.acknowledged: list[str] = []
        self.failures: list[str] = []
        self.is_ending = threading.Event()

    def run(self) -> None:
        number = 0
        while not self.is_ending.is_set():
            body = f"{self._client.kind.name} {number}"
            number += 1
            try:
                self._client.send(self._topic, [{"body": body}])
            except CommandError as problem:
                self.failures.append(str(problem))
            else:
                self.acknowledged.append(body)

    def more(self, count: int) -> None:
        wanted = len(self.acknowledged) + count
        kit.eventually(lambda: len(self.acknowledged) >= wanted, timeout=REFUSED_S_MAX)

    def end(self) -> None:
        self.is_ending.set()
        self.join()


@pytest.mark.parametrize(
    ("target", "tool"),
    [
        ("comet", "theirs"),
        pytest.param("comet", "ours", marks=pytest.mark.long),
        pytest.param("5.3.3", "ours", marks=pytest.mark.long),
    ],
    ids=["our brokers, their tool", "our brokers and tool", "their brokers, our tool"],
)
@pytest.mark.timeout(600)
def test_clients_go_through_a_move_without_a_restart(
    target: str, tool: str, mqadmin: MqAdmin, tmp_path: Path
) -> None:
    topic = kit.unique("static")
    with ExitStack() as stack:
        namesrv = start_servers(target, tmp_path, stack)
        if tool == "theirs":
            options = ("-t", topic, "-qn", str(QUEUES), "-b", ",".join(NAMES[:2]))
            printed = mqadmin.run(namesrv, "updateStaticTopic", *options)
            assert "new mapping data is written" in printed.out, printed
        else:
            asyncio.run(create(namesrv, topic))
        java, ours = (stack.enter_context(running(kind, namesrv, tmp_path)) for kind in KINDS)
        groups = [each.group(kit.unique("group"), topic, members=1) for each in (java, ours)]
        sends = [Sending(java, topic), Sending(ours, topic)]
        for each in sends:
            each.start()
            stack.callback(each.end)
            each.more(20)

        if tool == "theirs":
            printed = mqadmin.run(namesrv, "remappingStaticTopic", "-t", topic, "-b", NAMES[2])
            assert "Exception" not in printed.err, printed
        else:
            asyncio.run(move(namesrv, topic))
        for each in sends:
            each.more(20)
            each.end()

        assert sends[1].failures == []
        if target == "comet":
            assert all("501" in failure for failure in sends[0].failures), sends[0].failures[:3]
        acknowledged = {body for each in sends for body in each.acknowledged}
        for group in groups:
            group.wait_for(acknowledged)
        assert asyncio.run(leaders(namesrv, topic)) == {NAMES[2]}


@contextmanager
def running(kind: Kind, namesrv: str, folder: Path) -> Iterator[Client]:
    """A client program within ``with``."""
    client = Client(kind, namesrv, folder)
    try:
        yield client
    finally:
        client.close()


async def create(namesrv: str, topic: str) -> None:
    async with AdminClient(namesrv) as admin:
        await admin.create_static_topic(topic, QUEUES, brokers=NAMES[:2])


async def move(namesrv: str, topic: str) -> None:
    async with AdminClient(namesrv) as admin:
        assert len(await admin.move_static_queues(topic, NAMES[2:])) == QUEUES


async def leaders(namesrv: str, topic: str) -> set[str]:
    async with AdminClient(namesrv) as admin:
        mapped = (await admin.route(topic)).topic_queue_mapping_by_broker or {}
        newest = max(info.epoch for info in mapped.values())
        return {i.bname for i in mapped.values() if i.curr_id_map and i.epoch == newest}
