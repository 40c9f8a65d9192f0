"""Rivals that speak another protocol: NATS JetStream and Kafka.

Both store messages in files and replicate to nobody. The nearest to RocketMQ's flush modes is, for
NATS, ``sync_interval`` (two minutes by default, or ``always``) and, for Kafka, no flush of its own
(the default) or one after each request (``log.flush.interval.messages=1``).
"""

from __future__ import annotations

import subprocess
import time
from typing import ClassVar

import servers
import toolchain
from processes import Process, accepts

from cometmq.remoting.ports import free_ports

KAFKA_CLUSTER = "MkU3OEVBNTcwNTJENDM2Qk"
NATS_CONF = """host: 127.0.0.1
port: {port}
jetstream {{ store_dir: "{store}", sync_interval: {interval} }}
"""
KAFKA_CONF = {
    "process.roles": "broker,controller",
    "node.id": 1,
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "offsets.topic.replication.factor": 1,
    "transaction.state.log.replication.factor": 1,
    "transaction.state.log.min.isr": 1,
    "auto.create.topics.enable": "false",
}
KAFKA_FLAGS = [
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
]
"""Those of Kafka's own start script."""


class _Rival(servers.Server):
    """A server of one process that serves once it accepts connections."""

    def start(self) -> dict[str, float]:
        """Start and wait for the port."""
        self.launch()
        return {"first_send_s": self._until(lambda: accepts(self.port))}


class Nats(_Rival):
    """NATS JetStream with file storage."""

    name = "nats"
    protocol = "nats"
    settle_s = 2.0
    flushes: ClassVar[dict[str, str]] = {
        "ASYNC_FLUSH": "sync_interval: 2m (default)",
        "SYNC_FLUSH": "sync_interval: always",
    }

    @classmethod
    def prepare(cls) -> None:
        """Build the program."""
        toolchain.nats_server()

    def launch(self) -> None:
        """Start the server, built from its module."""
        self.port = free_ports(1)
        interval = "always" if self.flush == "SYNC_FLUSH" else "2m"
        conf = self.folder / "nats.conf"
        conf.write_text(NATS_CONF.format(port=self.port, store=self.store, interval=interval))
        command = [str(toolchain.nats_server()), "-c", str(conf)]
        self.started_at = time.monotonic()
        self.processes = [Process(command, self.folder / "nats.log")]

    def version(self) -> str:
        """What the program says."""
        said = subprocess.run(
            [toolchain.nats_server(), "--version"], capture_output=True, text=True, check=True
        )
        return f"NATS JetStream, {said.stdout.strip().removeprefix('nats-server: ')}"


class Kafka(_Rival):
    """One Kafka node that is broker and controller."""

    name = "kafka"
    protocol = "kafka"
    heap = "1g"
    more: ClassVar[dict[str, str | int]] = {}
    """Further settings."""
    start_s = 8.0
    settle_s = 20.0
    flushes: ClassVar[dict[str, str]] = {
        "ASYNC_FLUSH": "no flush of its own (default)",
        "SYNC_FLUSH": "log.flush.interval.messages=1",
    }

    @classmethod
    def prepare(cls) -> None:
        """Install the jars."""
        toolchain.command("java")
        toolchain.kafka_jars()

    def launch(self) -> None:
        """Format the storage and start the node."""
        self.port = free_ports(2)
        listeners = f"PLAINTEXT://127.0.0.1:{self.port},CONTROLLER://127.0.0.1:{self.port + 1}"
        settings = KAFKA_CONF | {
            "listeners": listeners,
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{self.port}",
            "controller.quorum.voters": f"1@127.0.0.1:{self.port + 1}",
            "log.dirs": str(self.store),
            **self.more,
        }
        if self.flush == "SYNC_FLUSH":
            settings["log.flush.interval.messages"] = 1
        conf = str(self._write_settings("kafka.conf", settings))
        java = [toolchain.command("java")]
        classes = ["-cp", toolchain.kafka_jars()]
        subprocess.run(
            [*java, *classes, "kafka.tools.StorageTool", "format", "-t", KAFKA_CLUSTER, "-c", conf],
            check=True,
            capture_output=True,
            timeout=120,
        )
        heap = [f"-Xms{self.heap}", f"-Xmx{self.heap}"]
        self.started_at = time.monotonic()
        command = [*java, *heap, *KAFKA_FLAGS, *classes, "kafka.Kafka", conf]
        self.processes = [Process(command, self.folder / "kafka.log")]

    def version(self) -> str:
        """Version and mode."""
        return f"Kafka {toolchain.KAFKA_VERSION}, one KRaft node, G1, acks=1"


KINDS: dict[str, type[servers.Server]] = {kind.name: kind for kind in (Nats, Kafka)}
