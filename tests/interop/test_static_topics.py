"""Static topics with RocketMQ's tool, clients and brokers: queues move while clients work.

Clients without logical queues, of all languages but Java 5, take the numbers of physical queues for
those of logical ones.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import kit
import pytest
from mqadmin import MqAdmin
from programs import CPP, GO, JAVA_49, JAVA_53, OURS, Client, CommandError, Group, Kind
from servers import CometBroker, CometNameServer, RealBroker, RealNameServer, Settings

from cometmq.client import AdminClient
from support.clients.delivery_check import Seen, out_of_order

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


@pytest.fixture(scope="module")
def namesrv_of(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], str]]:
    """The name server of running servers, ours or RocketMQ's."""
    running: dict[str, str] = {}
    with ExitStack() as stack:

        def namesrv(target: str) -> str:
            if target not in running:
                folder = tmp_path_factory.mktemp(target)
                running[target] = start_servers(target, folder, stack)
            return running[target]

        yield namesrv


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
    target: str,
    tool: str,
    mqadmin: MqAdmin,
    namesrv_of: Callable[[str], str],
    tmp_path: Path,
) -> None:
    topic, namesrv = kit.unique("static"), namesrv_of(target)
    with ExitStack() as stack:
        if tool == "theirs":
            options = ("-t", topic, "-qn", str(QUEUES), "-b", ",".join(NAMES[:2]))
            printed = mqadmin.run(namesrv, "updateStaticTopic", *options)
            assert "new mapping data is written" in printed.out, printed
        else:
            asyncio.run(create(namesrv, topic, NAMES[:2]))
        java, ours = (stack.enter_context(running(kind, namesrv, tmp_path)) for kind in KINDS)
        groups = [
            client.group(kit.unique("group"), topic, mode=mode, members=1)
            for mode in ("concurrent", "orderly")
            for client in (java, ours)
        ]
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
        for orderly in groups[2:]:
            assert out_of_order(seen_by(orderly)) == []
        assert asyncio.run(leaders(namesrv, topic)) == {NAMES[2]}


def seen_by(group: Group) -> list[Seen]:
    return [
        Seen(
            event["consumer"], str(event["queue"]), event["offset"], event["body"], event["now_ms"]
        )
        for event in group.received
    ]


@contextmanager
def running(kind: Kind, namesrv: str, folder: Path) -> Iterator[Client]:
    """A client program within ``with``."""
    client = Client(kind, namesrv, folder)
    try:
        yield client
    finally:
        client.close()


async def create(namesrv: str, topic: str, brokers: Sequence[str]) -> None:
    async with AdminClient(namesrv) as admin:
        await admin.create_static_topic(topic, QUEUES, brokers=brokers)


async def move(namesrv: str, topic: str) -> None:
    async with AdminClient(namesrv) as admin:
        assert len(await admin.move_static_queues(topic, NAMES[2:])) == QUEUES


async def leaders(namesrv: str, topic: str) -> set[str]:
    async with AdminClient(namesrv) as admin:
        mapped = (await admin.route(topic)).topic_queue_mapping_by_broker or {}
        newest = max(info.epoch for info in mapped.values())
        return {i.bname for i in mapped.values() if i.curr_id_map and i.epoch == newest}


OLD_KINDS = (GO, CPP, pytest.param(JAVA_49, marks=pytest.mark.long))
EACH = 8
"""Messages of each client: some for each queue."""


@pytest.mark.parametrize("target", ["comet", pytest.param("5.3.3", marks=pytest.mark.long)])
@pytest.mark.parametrize("kind", OLD_KINDS, ids=str)
def test_old_clients_need_all_queues_on_one_broker_that_has_led_them_always(
    kind: Kind, target: str, namesrv_of: Callable[[str], str], tmp_path: Path
) -> None:
    """They take physical queues for logical ones; with one broker the numbers are the same."""
    namesrv, group = namesrv_of(target), kit.unique("group")
    single, spread = kit.unique("single"), kit.unique("spread")
    with running(OURS, namesrv, tmp_path) as ours:
        with running(kind, namesrv, tmp_path) as old:
            asyncio.run(create(namesrv, single, NAMES[:1]))
            sent, errors, where = exchange(old, ours, single, group)
            assert (len(sent), errors, set(where.values())) == (2 * EACH, [], set(range(QUEUES)))

            # Both brokers have physical queues 0 and 1; each logical queue has one leader.
            asyncio.run(create(namesrv, spread, NAMES[:2]))
            sent, errors, where = exchange(old, ours, spread, kit.unique("group"))
            assert set(where.values()) == {0, 1}
            assert_refused(kind, errors)
            missed = {body for body in sent if body not in where}
            assert missed
            assert all(body.startswith(OURS.name) for body in missed)
        asyncio.run(move(namesrv, single))
        with running(kind, namesrv, tmp_path / "moved") as old:
            sent, errors, where = exchange(old, ours, single, group)
            assert set(sent) <= where.keys()
            assert_refused(kind, errors)


def assert_refused(kind: Kind, errors: list[str]) -> None:
    """Check the errors of sends to brokers that do not lead the queue; C++ tries another broker."""
    assert bool(errors) == (kind is not CPP)
    assert all("501" in error for error in errors), errors


def exchange(
    old: Client, ours: Client, topic: str, group: str
) -> tuple[list[str], list[str], dict[str, int]]:
    """Send with both clients, then receive.

    Returns:
        What was sent, the errors of the old client, and the logical queue of each message that the
        old client has received.
    """
    sent, errors = [], []
    for client in (old, ours):
        for number in range(EACH):
            body = kit.unique(f"{client.kind.name} {number}")
            error = error_of(client, topic, body)
            if error and client.kind is CPP:  # sends fail while it connects
                kit.eventually(lambda b=body: not error_of(old, topic, b))
                error = ""
            if error:
                errors.append(error)
            else:
                sent.append(body)
    reader = old.group(group, topic, members=1)
    whole = ours.group(kit.unique("all"), topic, members=1)
    queues = {event["body"]: event["queue"] for event in whole.wait_for(sent)}
    reached = {queues[body] for body in sent if body.startswith(old.kind.name)}
    received = reader.wait_for(body for body in sent if queues[body] in reached)
    for each in (reader, whole):
        each.stop()
    return sent, errors, {event["body"]: queues[event["body"]] for event in received}


def error_of(client: Client, topic: str, body: str) -> str:
    """Send one message; return the error, empty if it was stored."""
    try:
        client.send(topic, [{"body": body}])
    except CommandError as problem:
        return str(problem)
    return ""
