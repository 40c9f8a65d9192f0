"""Controllers and the brokers whose master they elect, as processes, of RocketMQ or ours."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import kit
from codes import Answer
from processes import accepts
from servers import (
    QUICK_BROKER,
    CometBroker,
    CometNameServer,
    RealBroker,
    RealServer,
    Server,
    Settings,
    connect,
    registered_brokers,
    write_settings,
)

from cometmq.protocol.codes import RequestCode
from cometmq.remoting.ports import free_port
from support.brokers.replicas import Registered
from support.processes.etcd_server import etcd

WAIT_S = 180.0
LOOK_S = 0.05
NAME = "broker-a"
COMET = "comet"
"""Our servers, where others are named by their release."""


class CometController(CometNameServer):
    """Our controller, on an etcd."""

    def __init__(self, folder: Path, store: str) -> None:
        super().__init__(folder)
        self._store = store

    def start(self) -> None:
        before = self._ready_lines()
        settings: Settings = {
            "listenPort": self.port,
            "controllerStore": f"etcd://{self._store}",
            "controllerDLegerGroup": self.folder.parent.name,
        }
        conf = write_settings(self.folder / "controller.conf", settings)
        self._launch("controller", "-c", str(conf))
        self._await_ready(before)


class RealController(RealServer):
    """RocketMQ's own controller, alone in its group."""

    main_class = "org.apache.rocketmq.controller.ControllerStartup"
    log_name = "controller"

    def __init__(self, version: str, folder: Path) -> None:
        super().__init__(version, folder, free_port())

    def start(self) -> None:
        settings: Settings = {
            "controllerDLegerGroup": "group1",
            "controllerDLegerPeers": f"n0-{self.address}",
            "controllerDLegerSelfId": "n0",
            "controllerStorePath": str(self.folder / "store"),
            "mappedFileSize": 16 * 1024 * 1024,
        }
        self._launch("-c", str(write_settings(self.folder / "controller.conf", settings)))
        self.process.wait_until(lambda: accepts(self.port), "its port", WAIT_S)


class ElectedComet(Registered, CometBroker):
    """Our broker, master or slave as the controller decides."""

    def launch(self) -> None:
        """Start it, and wait for nothing: the controller may refuse it."""
        conf = write_settings(self.folder / "broker.conf", QUICK_BROKER | self.settings)
        self._launch(
            "broker", "--port", str(self.port), "--store", str(self.store),
            "-n", self.namesrv, "-c", str(conf),
        )  # fmt: skip

    def await_line(self, text: str) -> None:
        """Wait until its log has a text."""
        self.process.wait_until(lambda: text in self.log(), f"the line {text!r}", WAIT_S)

    def log(self) -> str:
        """Return what it has logged, in all its starts."""
        return (self.folder / "cometmq.out").read_text(errors="replace")


class ElectedReal(Registered, RealBroker):
    """RocketMQ's broker, master or slave as the controller decides."""


ElectedBroker = ElectedComet | ElectedReal


class ElectedCluster:
    """Brokers of one name, beside a name server and a controller.

    Args:
        name: of the brokers.
        brokers: ours, or the release of RocketMQ's, of each broker.
        name_server, controller: those of the brokers.
        folder: where their files are.
        settings: further ones of the brokers.
        etcd: the address of that of our controller.
    """

    def __init__(
        self,
        name: str,
        brokers: Sequence[str],
        name_server: CometNameServer,
        controller: Server,
        folder: Path,
        settings: Settings,
        etcd: str = "",
    ) -> None:
        self.name = name
        self.etcd = etcd
        self.namesrv = name_server.address
        self.controller = controller
        self._elected: Settings = {
            "brokerName": name,
            "enableControllerMode": True,
            "controllerAddr": controller.address,
            **settings,
        }
        self.brokers = [
            self._broker(kind, folder / f"{name}-{number}") for number, kind in enumerate(brokers)
        ]

    def _broker(self, kind: str, folder: Path) -> ElectedBroker:
        store = folder.with_name(f"{folder.name}-store")
        settings = dict(self._elected)
        if kind == COMET:
            return ElectedComet(folder, self.namesrv, store=store, settings=settings)
        settings["storePathEpochFile"] = str(store / "epochFileCheckpoint")
        settings["storePathBrokerIdentity"] = str(store / "brokerIdentity")
        return ElectedReal(kind, folder, self.namesrv, store=store, settings=settings)

    def another(self, name: str, *, copy_of: ElectedBroker | None = None) -> ElectedComet:
        """Return one more broker of ours, with an empty store, or with a copy of one."""
        folder = self.brokers[0].folder.with_name(name)
        broker = self._broker(COMET, folder)
        assert isinstance(broker, ElectedComet)
        if copy_of is not None:
            shutil.copytree(copy_of.store, broker.store)
        self.brokers.append(broker)
        return broker

    def start(self) -> None:
        """Start the brokers; the first one becomes the master."""
        for broker in self.brokers:
            broker.start()
            self.await_master()

    def kill(self) -> None:
        """End the brokers."""
        for broker in self.brokers:
            broker.kill()

    def master(self) -> ElectedBroker | None:
        """The broker that the name server shows as the master."""
        address = registered_brokers(self.namesrv).get(self.name)
        return next((one for one in self.brokers if one.address == address), None)

    def await_master(self, *, other_than: ElectedBroker | None = None) -> ElectedBroker:
        """Wait until clients find a master."""

        def found() -> ElectedBroker | None:
            master = self.master()
            return None if master is other_than else master

        return kit.eventually(found, timeout=WAIT_S, pause=LOOK_S)

    def await_in_sync(self, count: int) -> None:
        """Wait until so many brokers are in the in-sync set."""
        self.await_state(lambda state: len(state["syncStateSet"]) == count)

    def await_state(self, holds: Callable[[dict[str, Any]], bool]) -> None:
        """Wait for an in-sync set as the controller knows it."""
        deadline = time.monotonic() + WAIT_S
        connection = connect(self.controller.address)
        state: Any = None
        try:
            while time.monotonic() < deadline:
                answer = connection.request(
                    RequestCode.CONTROLLER_GET_REPLICA_INFO, {"brokerName": self.name}
                )
                if answer.code == Answer.SUCCESS and holds(state := answer.json()):
                    return
                time.sleep(LOOK_S)
        finally:
            connection.close()
        raise AssertionError(f"the controller knows {state} after {WAIT_S:g} s")


@contextmanager
def running_elected(
    controller: str, brokers: Sequence[str], folder: Path, **settings: str | int | bool
) -> Iterator[ElectedCluster]:
    """Run brokers of one name within ``with``."""
    with running_names({NAME: brokers}, folder, controller, **settings) as [cluster]:
        yield cluster


@contextmanager
def running_names(
    brokers: Mapping[str, Sequence[str]],
    folder: Path,
    controller: str = COMET,
    **settings: str | int | bool,
) -> Iterator[list[ElectedCluster]]:
    """Run brokers of several names beside one name server and one controller within ``with``.

    Args:
        brokers: the kinds of the brokers of each name, see `ElectedCluster`.
        folder: where all files are.
        controller: ours, or the release of RocketMQ's.
        settings: further ones of the brokers.
    """
    with etcd(folder / "etcd") as store:
        names = CometNameServer(folder / "namesrv")
        deciding: Server = (
            CometController(folder / "controller", store)
            if controller == COMET
            else RealController(controller, folder / "controller")
        )
        clusters = [
            ElectedCluster(name, kinds, names, deciding, folder, settings, store)
            for name, kinds in brokers.items()
        ]
        servers: list[ElectedCluster | Server] = [*clusters, deciding, names]
        try:
            for server in reversed(servers):
                server.start()
            yield clusters
        finally:
            for server in servers:
                server.kill()
