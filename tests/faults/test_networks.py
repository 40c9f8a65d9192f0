"""A master and a slave on machines whose network, or whose processes, fail under load.

Clients, name server, master and slave are each in a network namespace (`support.networks`). Clients
of ours or of Java send while a fault begins, lasts and ends. Then:

- What was acknowledged with ``SEND_OK`` is where the response said, on master and slave.
- Both have the same messages at the same offsets, without a gap, and none that was not sent.
- While a killed master is away, its slave has all that had been acknowledged.
- Sends are acknowledged with ``SEND_OK`` again by themselves.

Messages that a producer's retries stored twice are counted. The last test run leaves its table in
``build/test-results/network-faults.md``.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing, suppress
from dataclasses import astuple, dataclass, field, fields
from pathlib import Path

import kit
import pytest
from processes import Process
from programs import JAVA_53, Client, CommandError
from servers import SMALL_FILES, Settings, write_settings
from wire import Connection

from cometmq.client import CometError, Message, Producer, SendStatus
from support.networks import Host, Network
from support.root import as_root

LIMIT_S = 180.0
"""It ends what hangs."""
READY_S = 60.0
FAULT_S = 3.0
"""How long a fault lasts."""
ENOUGH = 300
"""So many acknowledgements show that all is well."""
QUEUES = 4
TOPIC, GROUP = "faults", "readers"
NAME_SERVER_PORT, BROKER_PORT = 9876, 10911
TABLE = Path(__file__).resolve().parents[2] / "build" / "test-results" / "network-faults.md"

Place = tuple[int, int]
Send = Callable[[bytes], Awaitable[tuple[str, Place] | None]]
"""Sends a body, and returns status and place, or None if that failed."""


class Server:
    """A process of ours on a machine of its own."""

    def __init__(self, host: Host, command: str, folder: Path, settings: Settings) -> None:
        self.host = host
        self._folder = folder
        self._command = command
        listen: Settings = {"bindAddress": host.address}
        self._conf = write_settings(folder / f"{command}.conf", listen | settings)
        self._process: Process | None = None

    @property
    def process(self) -> Process:
        assert self._process is not None, "not started"
        return self._process

    def start(self) -> None:
        """Start it on its machine, and wait until it is ready."""
        log = self._folder / "output.log"
        before = _ready_lines(log)
        arguments = [sys.executable, "-m", "cometmq", self._command, "-c", str(self._conf)]
        if self._command == "broker":
            arguments += ["--store", str(self._folder / "store")]
        env = os.environ | {"PYTHONUNBUFFERED": "1"}
        self._process = self.host.run(lambda: Process(arguments, log, env=env, cwd=self._folder))
        self._process.wait_until(lambda: _ready_lines(log) > before, "its line ready", READY_S)

    def signal(self, number: int) -> None:
        os.kill(self.process.pid, number)

    def close(self) -> None:
        if self._process is not None and self._process.is_running:
            self._process.kill()


def _ready_lines(log: Path) -> int:
    text = log.read_text(errors="replace") if log.exists() else ""
    return sum(line.startswith("ready ") for line in text.splitlines())


class Machines:
    """Clients, a name server, a master and its slave, each on a machine."""

    def __init__(self, network: Network, folder: Path) -> None:
        self.network = network
        self.folder = folder
        self.clients, names, master, slave = network.hosts
        self.name_server = f"{names.address}:{NAME_SERVER_PORT}"
        self._names = Server(
            names,
            "namesrv",
            folder / "namesrv",
            {"listenPort": NAME_SERVER_PORT, "kvConfigPath": str(folder / "kvConfig.json")},
        )
        self.master = self._broker(master, folder / "master", "SYNC_MASTER", 0)
        self.slave = self._broker(slave, folder / "slave", "SLAVE", 1)

    def _broker(self, host: Host, folder: Path, role: str, number: int) -> Server:
        settings: Settings = SMALL_FILES | {
            "brokerName": "pair",
            "brokerId": number,
            "brokerRole": role,
            "brokerIP1": host.address,
            "listenPort": BROKER_PORT,
            "namesrvAddr": self.name_server,
            "slaveReadEnable": True,
        }
        return Server(host, "broker", folder, settings)

    def start(self) -> None:
        for server in (self._names, self.master, self.slave):
            server.start()

    def close(self) -> None:
        for server in (self.slave, self.master, self._names):
            server.close()

    def read(self, broker: Server) -> dict[Place, bytes]:
        """All messages of a broker; called on the machine of the clients."""
        found: dict[Place, bytes] = {}
        address = broker.host.address, BROKER_PORT
        with closing(Connection(address, timeout=READY_S)) as connection:
            for queue in range(QUEUES):
                end = kit.max_offset(connection, TOPIC, queue)
                read = kit.read_queue(connection, GROUP, TOPIC, end, queue=queue, timeout=READY_S)
                offsets = [message.queue_offset for message in read]
                assert offsets == list(range(end)), f"queue {queue} has a gap: {offsets}"
                found |= {(queue, message.queue_offset): message.body for message in read}
        return found


@dataclass(frozen=True)
class Fault:
    """What happens to the machines, and how it ends."""

    name: str
    begin: Callable[[Machines], None]
    end: Callable[[Machines], None]
    is_kill: bool = False

    def __str__(self) -> str:
        return self.name


def cut(*directions: str) -> Callable[[Machines], None]:
    """Cut directions between two machines, such as ``"clients master"``."""

    def begin(machines: Machines) -> None:
        hosts = {
            "clients": machines.clients,
            "master": machines.master.host,
            "slave": machines.slave.host,
        }
        for direction in directions:
            source, target = direction.split()
            machines.network.link(hosts[source], hosts[target]).is_cut = True

    return begin


def weaken(loss: float, delay_s: float, bytes_per_s: float) -> Callable[[Machines], None]:
    """Make the links of the master lossy, late and slow."""

    def begin(machines: Machines) -> None:
        for peer in (machines.clients, machines.slave.host):
            for link in machines.network.between(machines.master.host, peer):
                link.loss, link.delay_s, link.bytes_per_s = loss, delay_s, bytes_per_s

    return begin


def heal(machines: Machines) -> None:
    machines.network.heal()


FAULTS = [
    Fault("master and slave parted", cut("master slave", "slave master"), heal),
    Fault("slave does not hear the master", cut("master slave"), heal),
    Fault("master does not hear the slave", cut("slave master"), heal),
    Fault("clients and master parted", cut("clients master", "master clients"), heal),
    Fault("clients do not hear the master", cut("master clients"), heal),
    Fault("master does not hear the clients", cut("clients master"), heal),
    Fault("5 % of packets lost", weaken(0.05, 0.0, 0.0), heal),
    Fault("links slow and late", weaken(0.0, 0.05, 200_000.0), heal),
    Fault(
        "master stopped by SIGSTOP",
        lambda machines: machines.master.signal(signal.SIGSTOP),
        lambda machines: machines.master.signal(signal.SIGCONT),
    ),
    Fault(
        "slave stopped by SIGSTOP",
        lambda machines: machines.slave.signal(signal.SIGSTOP),
        lambda machines: machines.slave.signal(signal.SIGCONT),
    ),
    Fault(
        "master killed",
        lambda machines: machines.master.process.kill(),
        lambda machines: machines.master.start(),
        is_kill=True,
    ),
    Fault(
        "slave killed",
        lambda machines: machines.slave.process.kill(),
        lambda machines: machines.slave.start(),
    ),
]


@dataclass
class Load:
    """What producers sent, and what they were told."""

    sent: set[bytes] = field(default_factory=set)
    acknowledged: dict[Place, bytes] = field(default_factory=dict)
    """Those with SEND_OK."""
    other_status: int = 0
    failed: int = 0
    is_over: bool = False
    last_ok_s: float = 0.0
    progress: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def produce(self, send: Send, name: int) -> None:
        """Send one message after another."""
        number = 0
        while not self.is_over:
            number += 1
            body = b"%d-%d" % (name, number)
            self.sent.add(body)
            sent = await send(body)
            if sent is None:
                self.failed += 1
                continue
            status, place = sent
            if status != SendStatus.SEND_OK.name:
                self.other_status += 1
                continue
            before = self.acknowledged.setdefault(place, body)
            assert before == body, f"{place} was acknowledged for {before!r} and {body!r}"
            self.last_ok_s = time.monotonic()
            async with self.progress:
                self.progress.notify_all()

    async def more(self, count: int) -> None:
        """Wait for more acknowledgements."""
        wanted = len(self.acknowledged) + count
        async with asyncio.timeout(LIMIT_S), self.progress:
            await self.progress.wait_for(lambda: len(self.acknowledged) >= wanted)


Senders = Callable[["Machines"], AbstractAsyncContextManager[list[Send]]]


@asynccontextmanager
async def ours(machines: Machines) -> AsyncIterator[list[Send]]:
    """Eight users of a producer of ours."""
    async with Producer(machines.name_server, group="senders") as producer:

        async def send(body: bytes) -> tuple[str, Place] | None:
            try:
                receipt = await producer.send(Message(topic=TOPIC, body=body))
            except CometError:
                return None
            return receipt.status.name, (receipt.queue.queue_id, receipt.queue_offset)

        yield [send] * 8


@asynccontextmanager
async def java(machines: Machines) -> AsyncIterator[list[Send]]:
    """A producer of Java, which sends one message at a time."""
    client = Client(JAVA_53, machines.name_server, machines.folder)

    async def send(body: bytes) -> tuple[str, Place] | None:
        try:
            (sent,) = await asyncio.to_thread(client.send, TOPIC, [{"body": body.decode()}])
        except CommandError:
            return None
        return sent["status"], (sent["queue"], sent["offset"])

    try:
        yield [send]
    finally:
        client.close()


@dataclass(frozen=True)
class Row:
    """A line of the table."""

    clients: str
    fault: str
    acknowledged: int
    acknowledged_meanwhile: int
    other_status: int
    failed: int
    stored_twice: int
    recovered_after_s: float


@pytest.fixture(scope="module")
def rows() -> Iterator[list[Row]]:
    """The rows of this run; written as a table at its end."""
    found: list[Row] = []
    yield found
    if found:
        names = [name.name.replace("_", " ") for name in fields(Row)]
        lines = ["| " + " | ".join(names) + " |", "|---|---" + "|--:" * (len(names) - 2) + "|"]
        lines += ["| " + " | ".join(map(str, astuple(row))) + " |" for row in found]
        TABLE.parent.mkdir(parents=True, exist_ok=True)
        TABLE.write_text("\n".join(lines) + "\n")
        print("\n".join(lines))


IN_SHORT_RUNS = ("master and slave parted", "master killed")
CASES = [
    pytest.param(
        senders,
        fault,
        id=f"{senders.__name__}-{fault}",
        marks=() if senders is ours and fault.name in IN_SHORT_RUNS else pytest.mark.long,
    )
    for senders in (ours, java)
    for fault in FAULTS
]


@pytest.mark.parametrize(("senders", "fault"), CASES)
def test_nothing_acknowledged_is_lost(
    senders: Senders,
    fault: Fault,
    rows: list[Row],
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    if os.geteuid():  # the machines belong to this process, which needs to be root
        again = [*as_root(), sys.executable, "-m", "pytest", "-q", "-s", request.node.nodeid]
        subprocess.run(again, check=True, cwd=request.config.rootpath)
        return
    if senders is java:
        JAVA_53.command()  # what it downloads, it cannot get from inside the network
    seed = random.randrange(2**32)
    print(f"seed={seed}")
    with Network(4, seed=seed) as network:
        machines = Machines(network, tmp_path)
        try:
            machines.start()
            row = machines.clients.run(lambda: suffer(machines, senders, fault), LIMIT_S)
        finally:
            machines.close()
    rows.append(row)
    for name, value in zip((one.name for one in fields(Row)), astuple(row), strict=True):
        request.node.user_properties.append((name, value))


def suffer(machines: Machines, senders: Senders, fault: Fault) -> Row:
    """Send while a fault comes and goes, and judge what is stored then."""
    address = machines.master.host.address, BROKER_PORT
    with closing(Connection(address, timeout=READY_S)) as connection:
        kit.ok(kit.create_topic(connection, TOPIC, read=QUEUES, write=QUEUES))
    address = machines.slave.host.address, BROKER_PORT
    with closing(Connection(address, timeout=READY_S)) as connection:
        kit.eventually(lambda: kit.topic_config(connection, TOPIC), timeout=READY_S)
    load, meanwhile, recovered_after_s = asyncio.run(send_through(machines, senders, fault))

    stored = read_both(machines)
    check(load.acknowledged, stored)
    assert set(stored.values()) <= load.sent
    return Row(
        senders.__name__,
        fault.name,
        len(load.acknowledged),
        meanwhile,
        load.other_status,
        load.failed,
        len(stored) - len(set(stored.values())),
        round(recovered_after_s, 2),
    )


async def send_through(
    machines: Machines, senders: Senders, fault: Fault
) -> tuple[Load, int, float]:
    """Return what was sent, how much was acknowledged meanwhile, and when it went on."""
    load = Load()
    async with (
        senders(machines) as sends,
        asyncio.TaskGroup() as tasks,
    ):
        for name, send in enumerate(sends):
            tasks.create_task(load.produce(send, name))
        await load.more(ENOUGH)

        known = dict(load.acknowledged)
        await asyncio.to_thread(fault.begin, machines)
        await asyncio.sleep(FAULT_S)
        if fault.is_kill:
            await asyncio.to_thread(wait_for_copy, machines, known)
        meanwhile = len(load.acknowledged) - len(known)

        await asyncio.to_thread(fault.end, machines)
        ended_s = time.monotonic()
        await load.more(1)
        recovered_after_s = load.last_ok_s - ended_s
        await load.more(ENOUGH)
        load.is_over = True
    return load, meanwhile, recovered_after_s


def wait_for_copy(machines: Machines, known: dict[Place, bytes]) -> None:
    """Wait until the slave shows what had been acknowledged; it may still build its queues."""
    with suppress(AssertionError):
        kit.eventually(lambda: known.items() <= machines.read(machines.slave).items())
    check(known, machines.read(machines.slave))


def read_both(machines: Machines) -> dict[Place, bytes]:
    """All messages of the master, after those of its slave have become the same.

    A send that timed out may still be on its way, in a packet that TCP repeats later and later.
    """
    while True:
        kit.eventually(lambda: ends(machines.slave) == ends(machines.master) != [], timeout=READY_S)
        before = ends(machines.master)
        stored, copied = machines.read(machines.master), machines.read(machines.slave)
        if ends(machines.master) == before:
            assert copied == stored, "master and slave differ"
            return stored


def check(acknowledged: dict[Place, bytes], stored: dict[Place, bytes]) -> None:
    lost = {place: body for place, body in acknowledged.items() if stored.get(place) != body}
    assert not lost, (
        f"{len(lost)} acknowledged messages are lost, such as {sorted(lost.items())[:5]}"
    )


def ends(broker: Server) -> list[int]:
    """The ends of all queues of a broker; empty while it does not respond."""
    with suppress(OSError, AssertionError):
        address = broker.host.address, BROKER_PORT
        with closing(Connection(address, timeout=READY_S)) as connection:
            return [kit.max_offset(connection, TOPIC, queue) for queue in range(QUEUES)]
    return []
