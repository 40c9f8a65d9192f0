"""Name servers and brokers as processes: RocketMQ's own, and ours, behind one interface.

``RealNameServer`` and ``RealBroker`` run the official jars; ``CometNameServer``, ``CometBroker``
and ``CometStandalone`` run this project's command line. All listen on loopback, keep what they
write below the folder they are given, and can be stopped, killed and started again on the same
ports. A broker counts as started when its name server knows it.
"""

from __future__ import annotations

import os
import shutil
import sys
from contextlib import closing
from pathlib import Path
from typing import Protocol, Self

import kit
import toolchain
from codes import Request
from processes import Process, ProcessError, accepts
from wire import Address, Connection

from cometmq.remoting.ports import free_broker_port, free_port
from support.runner.versions import ALL_VERSIONS

CLUSTER, BROKER_NAME = "DefaultCluster", "broker-a"
READY_SECONDS_MAX = 180.0

Settings = dict[str, str | int | bool]

SMALL_FILES: Settings = {
    "mappedFileSizeCommitLog": 4 * 1024 * 1024,
    "mappedFileSizeConsumeQueue": 20 * 20_000,
    "maxHashSlotNum": 20_000,
    "maxIndexNum": 80_000,
}
"""File sizes that make a store of some thousand messages span several files of every kind."""

QUICK_BROKER: Settings = {
    "brokerClusterName": CLUSTER,
    "brokerName": BROKER_NAME,
    "brokerId": 0,
    "brokerIP1": "127.0.0.1",
    "autoCreateTopicEnable": True,
    "autoCreateSubscriptionGroup": True,
    "defaultTopicQueueNums": 4,
    "messageDelayLevel": "1s 2s 3s 4s 5s 6s 7s 8s 9s 10s 11s 12s 13s 14s 15s 16s 17s 18s",
    "diskMaxUsedSpaceRatio": 95,
    "diskSpaceCleanForciblyRatio": 97,
    "diskSpaceWarningLevelRatio": 98,
}
"""Settings both servers know, with short delay levels: retries begin at level 3.

A disk may be fuller than a broker likes it: tests would lose the messages that it deletes then.
"""

_JVM = [
    "-Xms128m",
    "-Xmx512m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:MaxDirectMemorySize=1g",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.base/jdk.internal.ref=ALL-UNNAMED",
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
]

_QUIET_LOGBACK = """<configuration>
  <appender name="file" class="ch.qos.logback.core.FileAppender">
    <file>{log}</file>
    <encoder><pattern>%d %p %t - %m%n</pattern></encoder>
  </appender>
  <root level="WARN"><appender-ref ref="file"/></root>
</configuration>
"""


class Server(Protocol):
    """One server process that can come back on the same port."""

    @property
    def address(self) -> str: ...
    def start(self) -> None: ...
    def stop(self) -> None: ...
    def kill(self) -> None: ...


def split_address(text: str) -> Address:
    host, port = text.rsplit(":", 1)
    return host, int(port)


def connect(address: str, source: str | None = None) -> Connection:
    """A raw connection to a server, perhaps from a certain local address."""
    return Connection(split_address(address), timeout=60.0, source=source)


def registered_brokers(namesrv: str, source: str | None = None) -> dict[str, str]:
    """Master address by broker name, as the name server tells it now; empty when it is silent."""
    try:
        connection = connect(namesrv, source)
    except OSError:
        return {}
    try:
        table = kit.ok(connection.request(Request.GET_BROKER_CLUSTER_INFO)).json()
    except (AssertionError, OSError):
        return {}
    finally:
        connection.close()
    masters = {}
    for name, data in (table.get("brokerAddrTable") or {}).items():
        addresses = {int(key): value for key, value in data["brokerAddrs"].items()}
        if 0 in addresses:
            masters[name] = addresses[0]
    return masters


def write_settings(path: Path, settings: Settings) -> Path:
    """A Java properties file, which is also what our command line reads."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = (f"{key}={_text(value)}" for key, value in settings.items())
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def _text(value: str | int | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


class _Running(Server):
    """Runs within ``with``, and is killed at its end."""

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


class _Server(_Running):
    """What all of them share: the process, its end, and starting again."""

    def __init__(self, folder: Path, port: int) -> None:
        self.folder = folder
        self.port = port
        self.source: str | None = None
        """The local address from which its name server is asked whether it is registered."""
        self._process: Process | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def process(self) -> Process:
        assert self._process is not None, f"{type(self).__name__} was not started"
        return self._process

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.is_running

    def stop(self) -> None:
        """Stop cleanly; a server that is not running stays so."""
        if self.is_running:
            self.process.stop()

    def kill(self) -> None:
        """End it with SIGKILL."""
        if self.is_running:
            self.process.kill()

    def log_text(self) -> str:
        """All it has printed."""
        return self.process.log.read_text(errors="replace")

    def _await_registration(self, namesrv: str) -> None:
        self.process.wait_until(
            lambda: (
                accepts(self.port)
                and self.address in registered_brokers(namesrv, self.source).values()
            ),
            "registration at the name server",
            READY_SECONDS_MAX,
        )


class RealServer(_Server):
    """A server of a release of RocketMQ."""

    main_class = ""
    log_name = ""

    def __init__(self, version: str, folder: Path, port: int) -> None:
        super().__init__(folder, port)
        self.version = version

    def _launch(self, *options: str) -> None:
        home = self.folder
        (home / "conf").mkdir(parents=True, exist_ok=True)
        logback = _QUIET_LOGBACK.format(log=home / f"{self.log_name}.log")
        for prefix in ("logback_", "rmq."):
            suffix = ".xml" if prefix == "logback_" else ".logback.xml"
            (home / "conf" / f"{prefix}{self.log_name}{suffix}").write_text(logback)
        jars = toolchain.rocketmq_jars("servers", self.version)
        arguments = [
            toolchain.command("java"), *_JVM,
            f"-Duser.home={home}", f"-Drocketmq.home.dir={home}", "-Drocketmq.log.level=WARN",
            f"-Drmq.logback.configurationFile={home}/conf/rmq.{self.log_name}.logback.xml",
            "-cp", jars, self.main_class, *options,
        ]  # fmt: skip
        env = os.environ | {"ROCKETMQ_HOME": str(home), "TZ": "UTC", "NAMESRV_ADDR": ""}
        self._process = Process(arguments, home / f"{self.log_name}.out", env=env, cwd=home)


class RealNameServer(RealServer):
    """RocketMQ's own name server."""

    main_class = "org.apache.rocketmq.namesrv.NamesrvStartup"
    log_name = "namesrv"

    def __init__(self, version: str, folder: Path, settings: Settings | None = None) -> None:
        super().__init__(version, folder, free_port())
        self.settings = settings or {}

    def start(self) -> None:
        settings: Settings = self.settings | {
            "listenPort": self.port,
            "kvConfigPath": str(self.folder / "kvConfig.json"),
        }
        self._launch("-c", str(write_settings(self.folder / "namesrv.conf", settings)))
        self.process.wait_until(lambda: accepts(self.port), "its port", READY_SECONDS_MAX)


class RealBroker(RealServer):
    """RocketMQ's own broker, at any name server, on any store."""

    main_class = "org.apache.rocketmq.broker.BrokerStartup"
    log_name = "broker"

    def __init__(
        self, version: str, folder: Path, namesrv: str, *, store: Path, settings: Settings
    ) -> None:
        super().__init__(version, folder, free_broker_port())
        self.namesrv = namesrv
        self.store = store
        self.settings = settings

    def start(self) -> None:
        settings: Settings = QUICK_BROKER | {
            "namesrvAddr": self.namesrv,
            "listenPort": self.port,
            "haListenPort": self.port + 1,
            "storePathRootDir": str(self.store),
            "storePathCommitLog": str(self.store / "commitlog"),
            "flushDiskType": "ASYNC_FLUSH",
            "waitTimeMillsInSendQueue": 5000,  # by default a busy machine makes it refuse sends
        }
        if self.version.startswith("5."):
            settings |= {"timerWheelEnable": False, "transientStorePoolEnable": False}
        self._launch(
            "-c", str(write_settings(self.folder / "broker.conf", settings | self.settings))
        )
        self._await_registration(self.namesrv)


class _CometServer(_Server):
    def __init__(self, folder: Path, port: int) -> None:
        super().__init__(folder, port)
        self.env: dict[str, str] = {}
        """Further environment variables, from the next start on."""
        self.under: list[str] = []
        """A program that runs the server, with its options."""

    def _launch(self, *arguments: str) -> None:
        env = os.environ | {"PYTHONUNBUFFERED": "1"} | self.env
        command = [*self.under, sys.executable, "-m", "cometmq", *arguments]
        self._process = Process(command, self.folder / "cometmq.out", env=env, cwd=self.folder)

    def start(self) -> None:
        raise NotImplementedError

    def _await_ready(self, lines: int) -> None:
        """Wait for the line that starts with ``ready``; ``lines``: how many earlier starts gave."""
        self.process.wait_until(
            lambda: self._ready_lines() > lines, "its line 'ready …'", READY_SECONDS_MAX
        )

    def _ready_lines(self) -> int:
        log = self.folder / "cometmq.out"
        text = log.read_text(errors="replace") if log.exists() else ""
        return sum(line.startswith("ready ") for line in text.splitlines())


class CometNameServer(_CometServer):
    """Our name server."""

    def __init__(self, folder: Path, settings: Settings | None = None) -> None:
        super().__init__(folder, free_port())
        folder.mkdir(parents=True, exist_ok=True)
        self.settings = settings or {}

    def start(self) -> None:
        before = self._ready_lines()
        settings = self.settings | {"kvConfigPath": str(self.folder / "kvConfig.json")}
        conf = write_settings(self.folder / "namesrv.conf", settings)
        self._launch("namesrv", "--port", str(self.port), "-c", str(conf))
        self._await_ready(before)


class CometBroker(_CometServer):
    """Our broker, at any name server, on any store."""

    def __init__(self, folder: Path, namesrv: str, *, store: Path, settings: Settings) -> None:
        super().__init__(folder, free_broker_port())
        folder.mkdir(parents=True, exist_ok=True)
        self.namesrv = namesrv
        self.store = store
        self.settings = settings

    def start(self) -> None:
        before = self._ready_lines()
        conf = write_settings(self.folder / "broker.conf", QUICK_BROKER | self.settings)
        self._launch(
            "broker", "--port", str(self.port), "--store", str(self.store),
            "-n", self.namesrv, "-c", str(conf),
        )  # fmt: skip
        self._await_ready(before)
        for address in self.namesrv.split(";"):
            self._await_registration(address)


class CometStandalone(_CometServer):
    """Our name server and broker in one process."""

    def __init__(self, folder: Path, *, store: Path, settings: Settings) -> None:
        super().__init__(folder, free_broker_port())
        folder.mkdir(parents=True, exist_ok=True)
        self.namesrv = f"127.0.0.1:{free_port()}"
        self.store = store
        self.settings = settings

    def start(self) -> None:
        before = self._ready_lines()
        conf = write_settings(self.folder / "broker.conf", QUICK_BROKER | self.settings)
        self._launch(
            "standalone", "--namesrv-port", self.namesrv.rpartition(":")[2],
            "--broker-port", str(self.port), "--store", str(self.store), "-c", str(conf),
        )  # fmt: skip
        self._await_ready(before)
        self._await_registration(self.namesrv)


def free_disk(store: Path) -> None:
    """Delete the large files of a store that no test needs any more: each log file has 1 GiB."""
    for name in ("commitlog", "index"):
        shutil.rmtree(store / name, ignore_errors=True)


class Cluster(_Running):
    """A name server and a broker for the clients: ours, or the real ones to check a test itself."""

    def __init__(self, target: str, folder: Path, settings: Settings | None = None) -> None:
        self.target = target
        self.store = folder / "store"
        extra = self.settings = settings or {}
        """Of the broker; a change counts from its next start on."""
        self._servers: list[Server]
        if target == "comet":
            ours = CometStandalone(folder / "standalone", store=self.store, settings=extra)
            self._servers, self.namesrv = [ours], ours.namesrv
        elif target in ALL_VERSIONS:
            namesrv = RealNameServer(target, folder / "namesrv")
            broker = RealBroker(
                target, folder / "broker", namesrv.address, store=self.store, settings=extra
            )
            self._servers, self.namesrv = [namesrv, broker], namesrv.address
        else:
            raise ProcessError(f"target {target!r}: expected comet or one of {ALL_VERSIONS}")

    @property
    def broker(self) -> str:
        """Address of the broker."""
        return self._servers[-1].address

    def broker_warnings(self) -> str:
        """What a broker of RocketMQ has logged; empty for ours."""
        log = self.store.parent / "broker" / "broker.log"
        return log.read_text(errors="replace") if log.exists() else ""

    def start(self) -> None:
        for server in self._servers:
            server.start()

    def stop(self) -> None:
        for server in reversed(self._servers):
            server.stop()

    def kill(self) -> None:
        for server in reversed(self._servers):
            server.kill()

    def __exit__(self, *_: object) -> None:
        self.remove()

    def remove(self) -> None:
        """End the servers, and delete what takes much room of the store."""
        self.kill()
        free_disk(self.store)

    def kill_broker(self) -> None:
        """End the broker with SIGKILL (ours: the whole process)."""
        self._servers[-1].kill()

    def stop_broker(self) -> None:
        """Stop the broker cleanly (ours: the whole process)."""
        self._servers[-1].stop()

    def start_broker(self) -> None:
        """Start a broker that was stopped or killed, on the ports it had."""
        self._servers[-1].start()

    def restart_broker(self) -> None:
        """Stop the broker and start it again (ours: the whole process)."""
        self._servers[-1].stop()
        self._servers[-1].start()


def new_topic(
    cluster: Cluster, broker: Connection, *, queues: int = 4, attributes: str | None = None
) -> str:
    """Create a topic and wait until the name server tells clients where it is."""
    topic = kit.unique("topic")
    more = {} if attributes is None else {"attributes": attributes}
    kit.ok(kit.create_topic(broker, topic, read=queues, write=queues, **more))
    wait_for_route(cluster.namesrv, topic)
    return topic


def new_group(cluster: Cluster, broker: Connection) -> str:
    """A group the broker knows already, with its retry topic on the name server.

    Else a client learns of the retry topic only at its next look at the routes, and a first retry
    may be half a minute late.
    """
    group = kit.unique("group")
    member = f"10.0.0.1@{group}"
    kit.ok(kit.heartbeat(broker, member, kit.consumer(group, kit.subscription("TBW102"))))
    kit.ok(kit.unregister(broker, member, consumer=group))
    wait_for_route(cluster.namesrv, f"%RETRY%{group}")
    return group


def wait_for_route(namesrv: str, topic: str, source: str | None = None) -> None:
    """Wait until the name server knows the topic; ask it from a certain local address."""
    with closing(connect(namesrv, source)) as connection:
        kit.eventually(lambda: has_route(connection, topic), timeout=120.0)


def has_route(namesrv: Connection, topic: str) -> bool:
    return namesrv.request(Request.GET_ROUTEINFO_BY_TOPIC, {"topic": topic}).code == 0


def copy_store(source: Path, target: Path) -> Path:
    """A copy of a store that nothing writes to now."""
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("lock"))
    return target
