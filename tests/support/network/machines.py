"""Servers on machines of a network, and what can happen to them.

A fault names machines by the part that they play: ``clients``, ``names``, ``master``, ``slave``;
with controllers also ``etcd``, ``controllers``, and ``active`` for the one that decides.
"""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import ClassVar, NamedTuple

import kit
import toolchain
from codes import Answer
from processes import Process
from servers import SMALL_FILES, Settings, write_settings
from wire import Connection

from cometmq.protocol.codes import RequestCode
from support.network.namespaces import Host, Network

READY_S = 60.0
ANSWER_S = 5.0
"""A controller that gives no response within this time may be cut off."""
QUEUES = 4
TOPIC, READERS, NAME = "faults", "readers", "pair"
NAME_SERVER_PORT, BROKER_PORT, CONTROLLER_PORT = 9876, 10911, 9878
ETCD_PORT, ETCD_PEER_PORT = 2379, 2380

Place = tuple[int, int]
"""A queue, and an offset in it."""


class Stored(NamedTuple):
    """A message of a broker."""

    body: bytes
    log_offset: int


class Server:
    """A process on a machine of its own.

    Args:
        host: the machine.
        folder: of its output, and where it runs.
        arguments: the command.
        ready: matches the line of its output that says that it is ready.
    """

    def __init__(
        self, host: Host, folder: Path, arguments: Sequence[str], ready: str = "^ready "
    ) -> None:
        self.host = host
        self._folder = folder
        self._arguments = arguments
        self._ready = re.compile(ready, re.MULTILINE)
        self._log = folder / "output.log"
        self._process: Process | None = None

    @property
    def process(self) -> Process:
        assert self._process is not None, "not started"
        return self._process

    def start(self) -> None:
        """Start it on its machine, and wait until it is ready."""
        before = self._starts()
        env = os.environ | {"PYTHONUNBUFFERED": "1"}
        self._process = self.host.run(
            lambda: Process(self._arguments, self._log, env=env, cwd=self._folder)
        )
        self._process.wait_until(lambda: self._starts() > before, "its line ready", READY_S)

    def _starts(self) -> int:
        text = self._log.read_text(errors="replace") if self._log.exists() else ""
        return len(self._ready.findall(text))

    def signal(self, number: int) -> None:
        os.kill(self.process.pid, number)

    def close(self) -> None:
        if self._process is not None and self._process.is_running:
            self._process.kill()


def comet(host: Host, command: str, folder: Path, settings: Settings) -> Server:
    """A server of ours: ``namesrv``, ``controller`` or ``broker``."""
    listen: Settings = {"bindAddress": host.address}
    conf = write_settings(folder / f"{command}.conf", listen | settings)
    arguments = [sys.executable, "-m", "cometmq", command, "-c", str(conf)]
    if command == "broker":
        arguments += ["--store", str(folder / "store")]
    return Server(host, folder, arguments)


def etcd(host: Host, folder: Path) -> Server:
    """An etcd of one member."""
    folder.mkdir(parents=True)
    client, peer = (f"http://{host.address}:{port}" for port in (ETCD_PORT, ETCD_PEER_PORT))
    arguments = [
        toolchain.command("etcd"), "--name", "one", "--data-dir", str(folder / "data"),
        "--listen-client-urls", client, "--advertise-client-urls", client,
        "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
        "--initial-cluster", f"one={peer}", "--logger", "zap",
    ]  # fmt: skip
    return Server(host, folder, arguments, ready="serving client traffic")


@contextmanager
def connected(server: Server, port: int, timeout: float = READY_S) -> Iterator[Connection]:
    """Connect to a server from the machine of the clients."""
    address = server.host.address, port
    with closing(Connection(address, timeout=timeout)) as connection:
        yield connection


class Machines:
    """A machine for clients, and one for each server: a name server, and brokers of one name.

    All but the start is called on the machine of the clients.
    """

    hosts = 0
    """How many machines there are."""
    is_elected = False
    """Whether controllers elect the master."""

    def __init__(self, network: Network, folder: Path) -> None:
        self.network = network
        self.folder = folder
        self.clients, names, *self._others = network.hosts
        self.name_server = f"{names.address}:{NAME_SERVER_PORT}"
        settings: Settings = {
            "listenPort": NAME_SERVER_PORT,
            "kvConfigPath": str(folder / "kvConfig.json"),
        }
        self.servers = {"names": [comet(names, "namesrv", folder / "namesrv", settings)]}
        """By the part that they play; they start in this order."""
        self.brokers: list[Server] = []

    def _broker(self, host: Host, number: int, settings: Settings) -> Server:
        common: Settings = SMALL_FILES | {
            "brokerName": NAME,
            "brokerIP1": host.address,
            "listenPort": BROKER_PORT,
            "namesrvAddr": self.name_server,
            "slaveReadEnable": True,
            "cleanFileForciblyEnable": False,  # the disk of the test may be nearly full
        }
        broker = comet(host, "broker", self.folder / f"broker-{number}", common | settings)
        self.brokers.append(broker)
        return broker

    @property
    def master(self) -> Server:
        """The master, as it was when `settle` was called."""
        return self.servers["master"][0]

    @property
    def slave(self) -> Server:
        """The slave, as it was when `settle` was called."""
        return self.servers["slave"][0]

    def start(self) -> None:
        for servers in self.servers.values():
            for server in servers:
                server.start()

    def close(self) -> None:
        for servers in self.servers.values():
            for server in servers:
                server.close()

    def settle(self) -> None:
        """Wait until all is well, and note who is the master."""

    def epoch(self) -> int:
        """The number of the mastership; 0 if masters are not elected."""
        return 0

    def create_topic(self) -> None:
        """Create the topic, and wait until the slaves have copied it."""
        with connected(self.master, BROKER_PORT) as connection:
            kit.ok(kit.create_topic(connection, TOPIC, read=QUEUES, write=QUEUES))
        for broker in self.brokers:
            with connected(broker, BROKER_PORT) as connection:
                kit.eventually(partial(kit.topic_config, connection, TOPIC), timeout=READY_S)

    def links(self, source: str, target: str) -> list[tuple[Host, Host]]:
        """The directions between two parts, each one or several words."""
        sources, targets = self._hosts_of(source), self._hosts_of(target)
        return [(one, other) for one in sources for other in targets if one is not other]

    def _hosts_of(self, words: str) -> list[Host]:
        found = []
        for word in words.split():
            servers = self.servers.get(word, [])
            found += [self.clients] if word == "clients" else [one.host for one in servers]
        assert found, f"met the part {words!r}, expected one of {sorted(self.servers)}"
        return found

    def read(self, broker: Server) -> dict[Place, Stored]:
        """All messages of a broker."""
        found: dict[Place, Stored] = {}
        with connected(broker, BROKER_PORT) as connection:
            for queue in range(QUEUES):
                end = kit.max_offset(connection, TOPIC, queue)
                read = kit.read_queue(connection, READERS, TOPIC, end, queue=queue, timeout=READY_S)
                del read[end:]  # what came meanwhile
                offsets = [message.queue_offset for message in read]
                assert offsets == list(range(end)), f"queue {queue} has a gap: {offsets}"
                found |= {
                    (queue, message.queue_offset): Stored(message.body, message.log_offset)
                    for message in read
                }
        return found

    def read_all(self) -> dict[Place, Stored]:
        """All messages, after all brokers have the same ones.

        A send that timed out may still be on its way, in a packet that TCP repeats later and later.
        """
        while True:
            kit.eventually(self._is_copied, timeout=READY_S)
            before = self._ends(self.brokers[0])
            stored, *copies = map(self.read, self.brokers)
            if self._ends(self.brokers[0]) == before:
                assert all(copy == stored for copy in copies), "the brokers differ"
                return stored

    def _is_copied(self) -> bool:
        ends, *others = map(self._ends, self.brokers)
        return ends != [] and all(other == ends for other in others)

    def _ends(self, broker: Server) -> list[int]:
        """The ends of all queues of a broker; empty while it does not respond."""
        with suppress(OSError, AssertionError), connected(broker, BROKER_PORT) as connection:
            return [kit.max_offset(connection, TOPIC, queue) for queue in range(QUEUES)]
        return []


class Pair(Machines):
    """A master, ``SYNC_MASTER``, and its slave."""

    hosts = 4

    def __init__(self, network: Network, folder: Path) -> None:
        super().__init__(network, folder)
        for number, role in enumerate(("SYNC_MASTER", "SLAVE")):
            settings: Settings = {"brokerId": number, "brokerRole": role}
            broker = self._broker(self._others[number], number, settings)
            self.servers["slave" if number else "master"] = [broker]


class ElectedPair(Machines):
    """Two brokers whose master is elected by one of two controllers, on an etcd."""

    hosts = 7
    is_elected = True
    broker_settings: ClassVar[Settings] = {}
    """Further ones of each broker."""
    controller_settings: ClassVar[Settings] = {}
    """Further ones of each controller."""

    def __init__(self, network: Network, folder: Path) -> None:
        super().__init__(network, folder)
        store, first, second, *hosts = self._others
        self.servers["etcd"] = [etcd(store, folder / "etcd")]
        controlling: Settings = self.controller_settings | {
            "listenPort": CONTROLLER_PORT,
            "controllerStore": f"etcd://{store.address}:{ETCD_PORT}",
        }
        self._controllers = [
            comet(host, "controller", folder / f"controller-{number}", controlling)
            for number, host in enumerate((first, second))
        ]
        self.servers["controllers"] = self._controllers
        addresses = (f"{host.address}:{CONTROLLER_PORT}" for host in (first, second))
        elected: Settings = self.broker_settings | {
            "enableControllerMode": True,
            "controllerAddr": ";".join(addresses),
            "allAckInSyncStateSet": True,
        }
        self.servers["brokers"] = [
            self._broker(host, number, elected) for number, host in enumerate(hosts)
        ]

    def settle(self) -> None:
        """Wait until both brokers are in the in-sync set, and note who plays which part."""

        def found() -> _State | None:
            state = self._state()
            is_whole = state is not None and len(state.members) == len(self.brokers)
            return state if is_whole else None

        state = kit.eventually(found, timeout=READY_S)
        for role in ("master", "slave"):
            self.servers[role] = [
                broker
                for broker in self.brokers
                if (broker.host.address == state.master) == (role == "master")
            ]
        self.servers["active"] = [state.controller]

    def epoch(self) -> int:
        """The number of the mastership."""
        return kit.eventually(self._state, timeout=READY_S).epoch

    def _state(self) -> _State | None:
        """What the active controller knows, if it responds."""
        for controller in self._controllers:
            with (
                suppress(OSError, AssertionError),
                connected(controller, CONTROLLER_PORT, ANSWER_S) as connection,
            ):
                code = RequestCode.CONTROLLER_GET_REPLICA_INFO
                answer = connection.request(code, {"brokerName": NAME})
                if answer.code == Answer.SUCCESS:
                    host, _, _ = str(answer.fields.get("masterAddress", "")).rpartition(":")
                    members = answer.json()["syncStateSet"]
                    return _State(
                        controller, host, int(answer.fields.get("masterEpoch", 0)), members
                    )
        return None


class _State(NamedTuple):
    """What a controller knows of the brokers."""

    controller: Server
    master: str
    """The address of its machine; may be empty."""
    epoch: int
    members: list[int]
    """The in-sync set."""


Action = Callable[[Machines], None]


def heal(machines: Machines) -> None:
    """Let all packets pass at once again."""
    machines.network.heal()


@dataclass(frozen=True)
class Fault:
    """What happens to the machines, and how it ends."""

    name: str
    begin: Action
    end: Action = heal
    lasts_s: float = 3.0
    kills_master: bool = False

    def __str__(self) -> str:
        return self.name


def lasting(seconds: float, *faults: Fault) -> list[Fault]:
    """Faults that last so long."""
    return [replace(fault, lasts_s=seconds) for fault in faults]


def cut(source: str, target: str) -> Action:
    """Let nothing pass in the direction from one part to another."""

    def begin(machines: Machines) -> None:
        for one, other in machines.links(source, target):
            machines.network.link(one, other).is_cut = True

    return begin


def partition(one: str, other: str) -> Action:
    """Let nothing pass between two parts."""
    return both(cut(one, other), cut(other, one))


def weaken(one: str, other: str, *, loss: float, delay_s: float, bytes_per_s: float) -> Action:
    """Make the links between two parts lossy, late and slow."""

    def begin(machines: Machines) -> None:
        for direction in (*machines.links(one, other), *machines.links(other, one)):
            link = machines.network.link(*direction)
            link.loss, link.delay_s, link.bytes_per_s = loss, delay_s, bytes_per_s

    return begin


def stop(role: str) -> Fault:
    """A process that stands still for a while."""
    return Fault(
        f"{role} stopped by SIGSTOP",
        lambda machines: machines.servers[role][0].signal(signal.SIGSTOP),
        lambda machines: machines.servers[role][0].signal(signal.SIGCONT),
    )


def kill(role: str) -> Fault:
    """A process that is killed, and started again."""
    return Fault(
        f"{role} killed",
        lambda machines: machines.servers[role][0].process.kill(),
        lambda machines: machines.servers[role][0].start(),
        kills_master=role == "master",
    )


def both(*actions: Action) -> Action:
    """One action after another."""

    def act(machines: Machines) -> None:
        for action in actions:
            action(machines)

    return act
