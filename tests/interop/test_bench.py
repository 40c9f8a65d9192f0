"""``cometmq bench`` loads Kafka and NATS."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import toolchain
from processes import Process, accepts

from cometmq.remoting.ports import free_ports
from support.checks.waiting import wait_until

START_S_MAX = 60.0
KAFKA = """process.roles=broker,controller
node.id=1
controller.listener.names=CONTROLLER
controller.quorum.voters=1@127.0.0.1:{controller}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
group.initial.rebalance.delay.ms=0
log.dirs={folder}/log
"""
LOADS = {
    "nats": {"producer": (), "consumer": ("--rate", "200")},
    "kafka": {
        "producer": (), "batch": ("--batch", "8"), "consumer": ("--rate", "200"),
        "transaction": (),
    },
}  # fmt: skip


@contextmanager
def nats(folder: Path) -> Iterator[int]:
    port = free_ports(1)
    command = [str(toolchain.nats_server()), "-a", "127.0.0.1", "-p", str(port), "-js"]
    with running([*command, "-sd", str(folder / "store")], folder, port):
        yield port


@contextmanager
def kafka(folder: Path) -> Iterator[int]:
    port = free_ports(2)
    conf = folder / "kafka.conf"
    conf.write_text(KAFKA.format(port=port, controller=port + 1, folder=folder))
    java = [toolchain.command("java"), "-Xmx384m", "-cp", toolchain.kafka_jars()]
    words = ["format", "-t", "MkU3OEVBNTcwNTJENDM2Qk", "-c", str(conf)]
    subprocess.run([*java, "kafka.tools.StorageTool", *words], check=True, capture_output=True)
    with running([*java, "kafka.Kafka", str(conf)], folder, port):
        yield port


@contextmanager
def running(command: list[str], folder: Path, port: int) -> Iterator[None]:
    process = Process(command, folder / "server.log")
    try:
        wait_until(lambda: accepts(port), timeout=START_S_MAX)
        yield
    finally:
        process.stop()


@pytest.mark.parametrize(("system", "start"), [("nats", nats), ("kafka", kafka)])
def test_another_system_is_loaded(system: str, start: object, tmp_path: Path) -> None:
    with start(tmp_path) as port:  # type: ignore[operator]
        for kind, options in LOADS[system].items():
            words = ["bench", kind, "--against", system, "--servers", f"127.0.0.1:{port}"]
            quick = ["--seconds", "0.5", "--warm-up", "0", "--in-flight", "4", "--queues", "2"]
            done = subprocess.run(
                [sys.executable, "-m", "cometmq", *words, *quick, *options],
                capture_output=True, text=True, timeout=120, check=False,
            )  # fmt: skip
            assert done.returncode == 0, done.stderr
            assert "durations   p50" in done.stdout, (kind, done.stdout, done.stderr)
