"""A topic over two of our brokers with Java's clients: one is killed, restarted, or upgraded.

The integration test of the same name does so with our clients, and without the upgrade.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import kit
import pytest
from codes import Request
from programs import JAVA_49, JAVA_53, OURS, Client, CommandError, Group, Kind
from servers import CometBroker, CometNameServer, connect, wait_for_route

import cometmq

TOPIC, QUEUES = "T", 4
NAMES = ("broker-a", "broker-b")
MORE = 50
"""Messages between two events."""
WAIT_S = 240.0
JAVA = [pytest.param(JAVA_49, marks=pytest.mark.long), JAVA_53]
LONG = [pytest.param(kind, marks=pytest.mark.long) for kind in (JAVA_49, JAVA_53, OURS)]
BUILDS = {"interpreted": {"COMETMQ_BUILD": "interpreted"}, "compiled": {}}
"""What chooses each build."""


class Masters:
    """A name server and two brokers of ours, with a topic on both."""

    def __init__(self, folder: Path) -> None:
        self._name_server = CometNameServer(folder / "namesrv", {"orderMessageEnable": True})
        self.namesrv = self._name_server.address
        self.brokers = {
            name: CometBroker(
                folder / name,
                self.namesrv,
                store=folder / f"{name}-store",
                settings={"brokerName": name},
            )
            for name in NAMES
        }

    def start(self, build: str = "compiled") -> None:
        self._name_server.start()
        for name in NAMES:
            self.start_broker(name, build)
            connection = connect(self.brokers[name].address)
            kit.ok(kit.create_topic(connection, TOPIC, read=QUEUES, write=QUEUES, order=True))
            connection.close()
        wait_for_route(self.namesrv, TOPIC)

    def start_broker(self, name: str, build: str = "compiled") -> None:
        broker = self.brokers[name]
        broker.env = BUILDS[build]
        broker.start()
        assert loads_compiled(broker.process.pid) == (build == "compiled" and is_compiled())

    def fix_queues(self) -> None:
        """Let routes say that the topic always has the queues of both brokers."""
        connection = connect(self.namesrv)
        value = ";".join(f"{name}:{QUEUES}" for name in NAMES)
        fields = {"namespace": "ORDER_TOPIC_CONFIG", "key": TOPIC, "value": value}
        kit.ok(connection.request(Request.PUT_KV_CONFIG, fields))
        connection.close()

    def kill(self) -> None:
        for broker in self.brokers.values():
            broker.kill()
        self._name_server.kill()


def is_compiled() -> bool:
    """Whether this installation has compiled modules."""
    return any(
        path.name.endswith(tuple(EXTENSION_SUFFIXES))
        for path in Path(cometmq.__path__[0]).rglob("*.so")
    )


def loads_compiled(pid: int) -> bool:
    """Whether a process has loaded compiled modules of ours."""
    folder = cometmq.__path__[0]
    maps = Path(f"/proc/{pid}/maps").read_text().splitlines()
    return any(folder in line and line.endswith(".so") for line in maps)


@contextmanager
def running(folder: Path, build: str = "compiled") -> Iterator[Masters]:
    """Run two masters within ``with``."""
    masters = Masters(folder)
    try:
        masters.start(build)
        yield masters
    finally:
        masters.kill()


class Load:
    """Sends one message after the other within ``with``, and notes where each was acknowledged.

    Args:
        client: sends them.
        shards: keys that keep their queues, taken in turn; none for sends to any queue.
    """

    def __init__(self, client: Client, *shards: str) -> None:
        self._client = client
        self._shards = shards
        self.acknowledged: list[tuple[str, str]] = []
        """Body and broker, in the order of the sends."""
        self.failed: list[tuple[str, str]] = []
        """Shard and error."""
        self._is_ending = threading.Event()
        self._grew = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="load", daemon=True)

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.end()

    def end(self) -> None:
        """Send no more; return when the last send has ended."""
        self._is_ending.set()
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        number = 0
        while not self._is_ending.is_set():
            shard = self._shards[number % len(self._shards)] if self._shards else ""
            options = {"style": "ordered", "shard": shard} if shard else {}
            body = f"{shard} {number}"
            number += 1
            try:
                [result] = self._client.send(TOPIC, [{"body": body}], **options)
            except CommandError as problem:
                self.failed.append((shard, str(problem)))
            else:
                with self._grew:
                    self.acknowledged.append((body, result["broker"]))
                    self._grew.notify_all()

    def more(self, count: int, broker: str | None = None) -> None:
        """Wait for so many further acknowledgements, of one broker or any."""
        start = len(self.acknowledged)

        def has_more() -> bool:
            return sum(broker in (None, found) for _, found in self.acknowledged[start:]) >= count

        with self._grew:
            assert self._grew.wait_for(has_more, WAIT_S), self.failed[-3:]

    def brokers_of(self, shard: str) -> list[str]:
        """Return where the messages of a shard went, without repetitions."""
        found = [broker for body, broker in self.acknowledged if body.split()[0] == shard]
        return [b for n, b in enumerate(found) if n == 0 or found[n - 1] != b]

    def report(self, what: str, group: Group) -> None:
        """Print the counts."""
        bodies = group.bodies()
        print(
            f"{what}: acknowledged={len(self.acknowledged)}"
            f" {dict(Counter(broker for _, broker in self.acknowledged))}"
            f" failed={len(self.failed)} received={len(bodies)}"
            f" duplicates={len(bodies) - len(set(bodies))}"
        )


def in_order(group: Group, shard: str) -> bool:
    """Whether the messages of a shard were received for the first time in the order of sends."""
    found = [body for body in dict.fromkeys(group.bodies()) if body.split()[0] == shard]
    return found == sorted(found, key=lambda body: int(body.split()[1]))


@pytest.mark.parametrize("kind", JAVA, ids=str)
@pytest.mark.timeout(600)
def test_producers_go_on_at_the_other_master_and_consumers_catch_up(
    kind: Kind, tmp_path: Path
) -> None:
    with (
        running(tmp_path) as masters,
        closing(Client(kind, masters.namesrv, tmp_path)) as client,
    ):
        group = client.group("G", TOPIC, members=1)
        with Load(client) as load:
            for name in NAMES:
                load.more(MORE, name)
            masters.brokers["broker-a"].kill()
            load.more(4 * MORE, "broker-b")
            masters.start_broker("broker-a")
            load.more(MORE, "broker-a")
            load.end()
            group.wait_for(body for body, _ in load.acknowledged)
        load.report(f"{kind}: one of two masters killed", group)
        assert load.failed == []


@pytest.mark.long
@pytest.mark.parametrize("is_fixed", [False, True], ids=["queues of the route", "fixed queues"])
@pytest.mark.parametrize("kind", [JAVA_49, JAVA_53], ids=str)
@pytest.mark.timeout(600)
def test_keys_keep_their_order_and_wait_for_their_queue_only_if_the_queues_are_fixed(
    kind: Kind, is_fixed: bool, tmp_path: Path
) -> None:
    """Without an order configuration the keys of a lost broker move to the other one."""
    with running(tmp_path) as masters:
        if is_fixed:
            masters.fix_queues()
        client = Client(kind, masters.namesrv, tmp_path)
        shards = [f"shard-{number}" for number in range(8)]
        try:
            group = client.group("G", TOPIC, mode="orderly", members=1)
            with Load(client, *shards) as load:
                load.more(2 * MORE)
                homes = {shard: load.brokers_of(shard) for shard in shards}
                assert {home for [home] in homes.values()} == set(NAMES), homes
                lost = {shard for shard, home in homes.items() if home == ["broker-a"]}
                masters.brokers["broker-a"].kill()
                load.more(4 * MORE if is_fixed else 8 * MORE, "broker-b")
                moved = {shard for shard in lost if "broker-b" in load.brokers_of(shard)}
                assert moved == (set() if is_fixed else lost)
                masters.start_broker("broker-a")
                load.more(MORE, "broker-a")
                load.end()
                group.wait_for(body for body, _ in load.acknowledged)
            load.report(f"{kind}: ordered, one of two masters killed", group)
            assert {shard for shard, _ in load.failed} <= lost
            if is_fixed:
                assert all(load.brokers_of(shard) == homes[shard] for shard in shards)
            stayed = shards if is_fixed else set(shards) - lost
            assert all(in_order(group, shard) for shard in stayed if len(homes[shard]) == 1)
        finally:
            client.close()


@pytest.mark.parametrize("kind", LONG, ids=str)
@pytest.mark.timeout(600)
def test_a_rolling_upgrade_fails_no_send_and_loses_nothing(kind: Kind, tmp_path: Path) -> None:
    """From the interpreted build to the compiled one, then back: two builds of one program.

    The next broker is stopped when the producer sends to the one before again, as the page on
    replication says: Java's has only the brokers of its last route.
    """
    with (
        running(tmp_path, "interpreted") as masters,
        closing(Client(kind, masters.namesrv, tmp_path)) as client,
    ):
        group = client.group("G", TOPIC, members=1)
        with Load(client) as load:
            for build in ("compiled", "interpreted"):
                for name in NAMES:
                    load.more(MORE, name)
                    masters.brokers[name].stop()
                    load.more(MORE)
                    masters.start_broker(name, build)
                    load.more(MORE, name)
            load.end()
            group.wait_for(body for body, _ in load.acknowledged)
        load.report(f"{kind}: rolling upgrade", group)
        assert load.failed == []
