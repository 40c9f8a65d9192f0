"""The brokers that are compared: ours and RocketMQ's own, each with its name server.

Both sides get the same settings: those that name them and place their files, and how to flush.
Everything else is left at its default. Java brokers run with the collector flags of RocketMQ's own
start script. Processor time and memory are those of the name server and the broker on both sides;
ours are one process.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import ClassVar

TESTS = Path(__file__).resolve().parent.parent / "tests"
sys.path[:0] = [str(TESTS / "interop"), str(TESTS / "conformance")]

import kit  # noqa: E402
import machine  # noqa: E402
import toolchain  # noqa: E402
from codes import Request  # noqa: E402
from processes import Process, accepts  # noqa: E402
from wire import Connection, ConnectionClosedError, NoAnswerError  # noqa: E402

import cometmq  # noqa: E402
from cometmq.remoting.ports import free_broker_port, free_port  # noqa: E402

START_SECONDS_MAX = 300.0
JAVA_FLAGS = [
    "-XX:+UseG1GC",
    "-XX:G1HeapRegionSize=16m",
    "-XX:G1ReservePercent=25",
    "-XX:InitiatingHeapOccupancyPercent=30",
    "-XX:SoftRefLRUPolicyMSPerMB=0",
    "-XX:-UseLargePages",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.base/jdk.internal.ref=ALL-UNNAMED",
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
]
JAVA_NAMESRV_FLAGS = ["-Xms128m", "-Xmx512m"]
QUIET_LOG = """<configuration>
  <appender name="file" class="ch.qos.logback.core.FileAppender">
    <file>{log}</file>
    <encoder><pattern>%d %p %t - %m%n</pattern></encoder>
  </appender>
  <root level="WARN"><appender-ref ref="file"/></root>
</configuration>
"""


class Server:
    """A server on fresh files in a folder of its own."""

    name = ""
    measured_as = ""
    """The server whose rows it is measured on, if they are not its own."""
    protocol = "rocketmq"
    """As the load generator names it."""
    heap = ""
    """Fixed size of the heap; empty for servers that have none."""
    start_s = 1.0
    """What a start takes, for the plan of a run."""
    settle_s = 1.0
    """Seconds of load before the first figure is taken."""
    flushes: ClassVar[Mapping[str, str]] = {
        "ASYNC_FLUSH": "flushDiskType=ASYNC_FLUSH",
        "SYNC_FLUSH": "flushDiskType=SYNC_FLUSH",
    }
    """The server's own setting for each of RocketMQ's flush modes."""

    def __init__(self, folder: Path, *, flush: str) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        self.folder = folder
        self.flush = flush
        self.started_at = 0.0
        self.port = 0
        self.processes: list[Process] = []

    @property
    def address(self) -> str:
        """Where the server listens."""
        return f"127.0.0.1:{self.port}"

    @property
    def pids(self) -> list[int]:
        """All processes; their processor time and memory count."""
        return [process.pid for process in self.processes]

    @property
    def store(self) -> Path:
        """The folder of the messages."""
        return self.folder / "store"

    @classmethod
    def prepare(cls) -> None:
        """Install the programs; skips as tests do where a tool is missing."""

    def launch(self) -> None:
        """Start the processes."""
        raise NotImplementedError

    def version(self) -> str:
        """Version and build, as far as the running processes show them."""
        raise NotImplementedError

    def start(self) -> dict[str, float]:
        """Start and wait until the server serves; returns how long that took."""
        raise NotImplementedError

    def describe(self) -> dict[str, str]:
        """What the table says about the server."""
        return {"version": self.version(), "heap": self.heap or "none"} | dict(self.flushes)

    def stop(self) -> None:
        """End the processes and remove their files."""
        for process in reversed(self.processes):
            if process.is_running:
                process.kill()
        shutil.rmtree(self.folder, ignore_errors=True)
        os.sync()

    def _until(self, ready: Callable[[], bool]) -> float:
        deadline = self.started_at + START_SECONDS_MAX
        while not ready():
            broker = self.processes[-1]
            if not broker.is_running or time.monotonic() > deadline:
                raise broker.error("did not serve")
            time.sleep(0.005)
        return time.monotonic() - self.started_at

    def _write_settings(self, name: str, settings: Mapping[str, str | int]) -> Path:
        path = self.folder / name
        path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        return path


class RocketServer(Server):
    """A name server and a broker that speak RocketMQ's protocol."""

    def __init__(self, folder: Path, *, flush: str) -> None:
        super().__init__(folder, flush=flush)
        self.namesrv_port = free_port()
        self.port = free_broker_port()

    def settings(self) -> dict[str, str | int]:
        """What both sides are told."""
        return {
            "brokerClusterName": "DefaultCluster",
            "brokerName": "broker-a",
            "brokerId": 0,
            "brokerIP1": "127.0.0.1",
            "flushDiskType": self.flush,
            # The default of RocketMQ and of `cometmq broker`; `standalone` has smaller files.
            "mappedFileSizeCommitLog": 1 << 30,
        }

    def start(self) -> dict[str, float]:
        """Start and wait for the first acknowledged send; returns how long things took."""
        self.launch()
        first_send_s = self._until(self._send_is_acknowledged)
        route_s = self._until(self._route_is_visible)
        return {"first_send_s": first_send_s, "route_s": route_s}

    def _send_is_acknowledged(self) -> bool:
        return self._ask(self.port, lambda c: kit.send(c, "first", b"x").code == 0)

    def _route_is_visible(self) -> bool:
        code, fields = Request.GET_ROUTEINFO_BY_TOPIC, {"topic": "first"}
        return self._ask(self.namesrv_port, lambda c: c.request(code, fields).code == 0)

    @staticmethod
    def _ask(port: int, question: Callable[[Connection], bool]) -> bool:
        try:
            connection = Connection(("127.0.0.1", port), timeout=3.0)
        except OSError:
            return False
        try:
            return question(connection)
        except (OSError, NoAnswerError, ConnectionClosedError):
            return False
        finally:
            connection.close()


class Comet(RocketServer):
    """Ours, name server and broker in one process."""

    build = "compiled"
    name = "cometmq"
    python = sys.executable
    package = Path(cometmq.__file__).parent

    @classmethod
    def prepare(cls) -> None:
        """Write the bytecode of the sources: a start without it takes more time and memory."""
        subprocess.run([cls.python, "-m", "compileall", "-q", cls.package], check=True)

    def launch(self) -> None:
        """Start ``cometmq standalone``."""
        settings = self._write_settings("broker.conf", self.settings())
        environment = machine.compiled_environment()
        if self.build == "interpreted":
            environment["COMETMQ_BUILD"] = "interpreted"
        command = [self.python, "-m", "cometmq", "standalone"]
        command += ["--namesrv-port", str(self.namesrv_port), "--broker-port", str(self.port)]
        command += ["--store", str(self.folder / "store"), "-c", str(settings)]
        self.started_at = time.monotonic()
        self.processes = [Process(command, self.folder / "cometmq.log", env=environment)]

    def version(self) -> str:
        """Build and event loop of the running process."""
        maps = Path(f"/proc/{self.pids[0]}/maps").read_text()
        folder = f"{self.package}/"
        ours = {line.split()[-1] for line in maps.splitlines() if folder in line}
        compiled = sum(path.endswith(".so") for path in ours)
        loop = "uvloop" if "/uvloop/" in maps else "asyncio"
        return f"CometMQ, {compiled} compiled modules loaded, {loop}"


class CometInterpreted(Comet):
    """Ours without its compiled modules."""

    build = "interpreted"
    name = "cometmq-interpreted"


def before(checkout: Path) -> type[Comet]:
    """Ours, as another checkout has it."""
    name = f"{Comet.name}-before"
    members = {
        "name": name,
        "measured_as": Comet.name,
        "python": machine.python_of(checkout),
        "package": checkout / "src" / "cometmq",
    }
    return type("CometBefore", (Comet,), members)


class Java(RocketServer):
    """RocketMQ's own name server and broker, from the official jars."""

    release = ""
    heap = "2g"
    start_s = 5.0
    settle_s = 20.0

    @classmethod
    def prepare(cls) -> None:
        """Install the jars."""
        toolchain.command("java")
        toolchain.rocketmq_jars("servers", cls.release)

    def launch(self) -> None:
        """Start the name server, then the broker; the clock starts with the broker."""
        self._run(
            "namesrv",
            "org.apache.rocketmq.namesrv.NamesrvStartup",
            JAVA_NAMESRV_FLAGS,
            {"listenPort": self.namesrv_port, "kvConfigPath": str(self.folder / "kv.json")},
        )
        deadline = time.monotonic() + START_SECONDS_MAX
        self.processes[0].wait_until(
            lambda: accepts(self.namesrv_port), "its port", deadline - time.monotonic()
        )
        self.started_at = time.monotonic()
        store = self.folder / "store"
        self._run(
            "broker",
            "org.apache.rocketmq.broker.BrokerStartup",
            [f"-Xms{self.heap}", f"-Xmx{self.heap}", *JAVA_FLAGS],
            self.settings()
            | {
                "listenPort": self.port,
                "haListenPort": self.port + 1,
                "namesrvAddr": f"127.0.0.1:{self.namesrv_port}",
                "storePathRootDir": str(store),
                "storePathCommitLog": str(store / "commitlog"),
            },
        )

    def version(self) -> str:
        """Version and collector."""
        return f"RocketMQ {self.release}, G1"

    def _run(self, role: str, main: str, flags: list[str], settings: dict[str, str | int]) -> None:
        home = self.folder / role
        (home / "conf").mkdir(parents=True, exist_ok=True)
        log = QUIET_LOG.format(log=home / f"{role}.log")
        for name in (f"logback_{role}.xml", f"rmq.{role}.logback.xml"):
            (home / "conf" / name).write_text(log)
        command = [toolchain.command("java"), *flags]
        command += [f"-Duser.home={home}", f"-Drocketmq.home.dir={home}"]
        command += [f"-Drmq.logback.configurationFile={home}/conf/rmq.{role}.logback.xml"]
        command += ["-cp", toolchain.rocketmq_jars("servers", self.release), main]
        command += ["-c", str(self._write_settings(f"{role}.conf", settings))]
        environment = os.environ | {"ROCKETMQ_HOME": str(home), "NAMESRV_ADDR": ""}
        self.processes.append(Process(command, home / f"{role}.out", env=environment, cwd=home))


class Java49(Java):
    """RocketMQ 4.9.7."""

    release = "4.9.7"
    name = "rocketmq-4.9.7"


class Java53(Java):
    """RocketMQ 5.3.3."""

    release = "5.3.3"
    name = "rocketmq-5.3.3"


class Java53Small(Java53):
    """RocketMQ 5.3.3 with a heap of 512 MiB."""

    heap = "512m"
    name = "rocketmq-5.3.3-512m"


KINDS: dict[str, type[RocketServer]] = {
    kind.name: kind for kind in (Comet, CometInterpreted, Java49, Java53, Java53Small)
}


def make_topic(server: RocketServer, topic: str, *, queues: int) -> None:
    """Create a topic on the broker."""
    connection = Connection(("127.0.0.1", server.port), timeout=10.0)
    try:
        kit.ok(kit.create_topic(connection, topic, read=queues, write=queues))
    finally:
        connection.close()


def message_count(server: RocketServer, topic: str, *, queues: int) -> int:
    """Count the messages that the broker has put into a topic's queues."""
    connection = Connection(("127.0.0.1", server.port), timeout=10.0)
    try:
        return sum(kit.max_offset(connection, topic, queue) for queue in range(queues))
    finally:
        connection.close()
