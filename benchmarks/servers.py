"""The brokers that are compared: ours and RocketMQ's own, each with its name server.

Both sides get the same settings: those that name them and place their files, and how to flush.
Everything else is left at its default. Java brokers run with a heap of 2 GiB and the collector
flags of RocketMQ's own start script.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from pathlib import Path

TESTS = Path(__file__).resolve().parent.parent / "tests"
sys.path[:0] = [str(TESTS / "interop"), str(TESTS / "conformance")]

import kit  # noqa: E402
import toolchain  # noqa: E402
from codes import Request  # noqa: E402
from processes import Process, accepts  # noqa: E402
from wire import Connection, ConnectionClosedError, NoAnswerError  # noqa: E402

from cometmq.testing.ports import free_broker_port, free_port  # noqa: E402

FIRST_SEND_SECONDS_MAX = 60.0
HEAP = "2g"
JAVA_FLAGS = (
    f"-Xms{HEAP} -Xmx{HEAP} -XX:+UseG1GC -XX:G1HeapRegionSize=16m -XX:G1ReservePercent=25 "
    "-XX:InitiatingHeapOccupancyPercent=30 -XX:SoftRefLRUPolicyMSPerMB=0 -XX:-UseLargePages "
    "--add-opens=java.base/java.nio=ALL-UNNAMED --add-opens=java.base/sun.nio.ch=ALL-UNNAMED "
    "--add-opens=java.base/jdk.internal.ref=ALL-UNNAMED "
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED"
).split()
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
    """A name server and a broker on fresh files in a folder of their own."""

    name = ""
    settle_s = 1.0
    """Seconds of load before the first figure is taken."""

    def __init__(self, folder: Path, *, flush: str) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        self.folder = folder
        self.flush = flush
        self.started_at = 0.0
        self.namesrv_port = free_port()
        self.port = free_broker_port()
        self.processes: list[Process] = []

    @property
    def address(self) -> str:
        """Where the broker listens."""
        return f"127.0.0.1:{self.port}"

    @property
    def pids(self) -> list[int]:
        """All processes, for memory."""
        return [process.pid for process in self.processes]

    @property
    def broker_pids(self) -> list[int]:
        """The broker's process, for CPU time; ours has the name server in it."""
        return [self.processes[-1].pid]

    def settings(self) -> dict[str, str | int]:
        """What both sides are told."""
        return {
            "brokerClusterName": "DefaultCluster",
            "brokerName": "broker-a",
            "brokerId": 0,
            "brokerIP1": "127.0.0.1",
            "flushDiskType": self.flush,
        }

    def launch(self) -> None:
        """Start the processes."""
        raise NotImplementedError

    def describe(self) -> str:
        """Version and build, as far as the running processes show them."""
        raise NotImplementedError

    def start(self) -> dict[str, float]:
        """Start and wait for the first acknowledged send; returns how long things took."""
        self.launch()
        first_send_s = self._until(self._send_is_acknowledged)
        route_s = self._until(self._route_is_visible)
        return {"first_send_s": first_send_s, "route_s": route_s}

    def stop(self) -> None:
        """End the processes and remove their files."""
        for process in reversed(self.processes):
            if process.is_running:
                process.kill()
        shutil.rmtree(self.folder, ignore_errors=True)
        os.sync()

    def _write_settings(self, name: str, settings: dict[str, str | int]) -> Path:
        path = self.folder / name
        path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        return path

    def _until(self, ready: object) -> float:
        assert callable(ready)
        deadline = self.started_at + FIRST_SEND_SECONDS_MAX
        while not ready():
            broker = self.processes[-1]
            if not broker.is_running or time.monotonic() > deadline:
                raise broker.error("did not serve")
            time.sleep(0.005)
        return time.monotonic() - self.started_at

    def _send_is_acknowledged(self) -> bool:
        return self._ask(self.port, lambda c: kit.send(c, "first", b"x").code == 0)

    def _route_is_visible(self) -> bool:
        code, fields = Request.GET_ROUTEINFO_BY_TOPIC, {"topic": "first"}
        return self._ask(self.namesrv_port, lambda c: c.request(code, fields).code == 0)

    @staticmethod
    def _ask(port: int, question: object) -> bool:
        assert callable(question)
        try:
            connection = Connection(("127.0.0.1", port), timeout=3.0)
        except OSError:
            return False
        try:
            return bool(question(connection))
        except (OSError, NoAnswerError, ConnectionClosedError):
            return False
        finally:
            connection.close()


class Comet(Server):
    """Ours, name server and broker in one process."""

    build = "compiled"
    name = "ours"

    def launch(self) -> None:
        """Start ``cometmq standalone``."""
        settings = self._write_settings("broker.conf", self.settings())
        environment = {k: v for k, v in os.environ.items() if k != "COMETMQ_BUILD"}
        if self.build == "interpreted":
            environment["COMETMQ_BUILD"] = "interpreted"
        command = [sys.executable, "-m", "cometmq", "standalone"]
        command += ["--namesrv-port", str(self.namesrv_port), "--broker-port", str(self.port)]
        command += ["--store", str(self.folder / "store"), "-c", str(settings)]
        self.started_at = time.monotonic()
        self.processes = [Process(command, self.folder / "cometmq.log", env=environment)]

    def describe(self) -> str:
        """Build and event loop of the running process."""
        maps = Path(f"/proc/{self.pids[0]}/maps").read_text()
        ours = {line.split()[-1] for line in maps.splitlines() if "/cometmq/" in line}
        compiled = sum(path.endswith(".so") for path in ours)
        loop = "uvloop" if "/uvloop/" in maps else "asyncio"
        return f"CometMQ, {compiled} compiled modules, {loop}"


class CometInterpreted(Comet):
    """Ours without its compiled modules."""

    build = "interpreted"
    name = "ours-interpreted"


class Java(Server):
    """RocketMQ's own name server and broker, from the official jars."""

    version = ""
    settle_s = 20.0

    def launch(self) -> None:
        """Start the name server, then the broker; the clock starts with the broker."""
        self._run(
            "namesrv",
            "org.apache.rocketmq.namesrv.NamesrvStartup",
            JAVA_NAMESRV_FLAGS,
            {"listenPort": self.namesrv_port, "kvConfigPath": str(self.folder / "kv.json")},
        )
        deadline = time.monotonic() + FIRST_SEND_SECONDS_MAX
        self.processes[0].wait_until(
            lambda: accepts(self.namesrv_port), "its port", deadline - time.monotonic()
        )
        self.started_at = time.monotonic()
        store = self.folder / "store"
        self._run(
            "broker",
            "org.apache.rocketmq.broker.BrokerStartup",
            JAVA_FLAGS,
            self.settings()
            | {
                "listenPort": self.port,
                "haListenPort": self.port + 1,
                "namesrvAddr": f"127.0.0.1:{self.namesrv_port}",
                "storePathRootDir": str(store),
                "storePathCommitLog": str(store / "commitlog"),
            },
        )

    def describe(self) -> str:
        """Version and heap."""
        return f"RocketMQ {self.version}, heap {HEAP}, G1"

    def _run(self, role: str, main: str, flags: list[str], settings: dict[str, str | int]) -> None:
        home = self.folder / role
        (home / "conf").mkdir(parents=True, exist_ok=True)
        log = QUIET_LOG.format(log=home / f"{role}.log")
        for name in (f"logback_{role}.xml", f"rmq.{role}.logback.xml"):
            (home / "conf" / name).write_text(log)
        command = [toolchain.command("java"), *flags]
        command += [f"-Duser.home={home}", f"-Drocketmq.home.dir={home}"]
        command += [f"-Drmq.logback.configurationFile={home}/conf/rmq.{role}.logback.xml"]
        command += ["-cp", toolchain.rocketmq_jars("servers", self.version), main]
        command += ["-c", str(self._write_settings(f"{role}.conf", settings))]
        environment = os.environ | {"ROCKETMQ_HOME": str(home), "NAMESRV_ADDR": ""}
        self.processes.append(Process(command, home / f"{role}.out", env=environment, cwd=home))


class Java49(Java):
    """RocketMQ 4.9.7."""

    version = "4.9.7"
    name = "java-4.9.7"


class Java53(Java):
    """RocketMQ 5.3.3."""

    version = "5.3.3"
    name = "java-5.3.3"


KINDS: dict[str, type[Server]] = {
    kind.name: kind for kind in (Comet, CometInterpreted, Java49, Java53)
}
