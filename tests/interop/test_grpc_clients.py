"""RocketMQ's official clients for gRPC, unmodified, at ``cometmq proxy`` before our broker."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import toolchain
from processes import Process

from cometmq.client import blocking
from cometmq.testing import ThreadedCluster
from support.brokers.certificates import Authority
from support.checks.waiting import wait_until

LIMIT_S = 120.0
TOPICS = {"normal": "NORMAL", "fifo": "FIFO", "late": "DELAY", "half": "TRANSACTION"}
SETTINGS = {"transactionTimeOut": "1000", "transactionCheckInterval": "1000"}
EXPECTED = Counter(
    [
        "push normal one a k1,k2 {shop=Bern} - 1",
        "push normal again b  {} - 1",
        "push normal again b  {} - 2",
        *(f"push fifo f{number} -  {{}} g 1" for number in range(3)),
        "push late late -  {} - 1", "simple half committed", "simple half checked",
        "checked true", "pushed true",
    ]
)  # fmt: skip


@pytest.fixture
def cluster() -> Iterator[ThreadedCluster]:
    with ThreadedCluster(settings=SETTINGS) as running:
        with blocking.AdminClient(running.name_servers) as admin:
            for name, kind in TOPICS.items():
                admin.create_topic(name, queues=1, attributes={"message.type": kind})
        yield running


class Proxy:
    """``cometmq proxy`` as a process."""

    def __init__(self, name_servers: str, folder: Path, *options: str) -> None:
        words = ["proxy", "-n", name_servers, "--port", "0", *options]
        self._log = folder / "proxy.log"
        self._process = Process([sys.executable, "-m", "cometmq", *words], self._log)
        wait_until(lambda: bool(self._address()), timeout=LIMIT_S)
        self.address = self._address()

    def _address(self) -> str:
        found = re.search(r"proxy ready at (\S+)", self._log.read_text())
        return found[1] if found else ""

    def stop(self) -> None:
        self._process.stop()


def said(command: list[str]) -> Counter[str]:
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith(STARTS)]
    return Counter(line.replace("k2,k1", "k1,k2") for line in lines)


STARTS = ("push ", "simple ", "checked ", "pushed ")


def test_the_python_client(cluster: ThreadedCluster, tmp_path: Path) -> None:
    proxy = Proxy(cluster.name_servers, tmp_path)
    try:
        program = Path(__file__).with_name("python") / "grpc_client.py"
        assert said([str(toolchain.grpc_python()), str(program), proxy.address]) == EXPECTED
    finally:
        proxy.stop()


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "TLS"])
def test_the_java_client(cluster: ThreadedCluster, tmp_path: Path, tls: bool) -> None:
    options: list[str] = []
    if tls:
        certificate, key = Authority(tmp_path, "authority").issue("proxy")
        options = ["--certificate", str(certificate), "--key", str(key)]
    proxy = Proxy(cluster.name_servers, tmp_path, *options)
    try:
        classes = toolchain.java_classes("grpc", toolchain.grpc_jars())
        java = [toolchain.command("java"), "-cp", classes, "GrpcClient"]
        assert said([*java, proxy.address, str(tls).lower()]) == EXPECTED
    finally:
        proxy.stop()
