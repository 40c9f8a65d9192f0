"""etcd as a process on loopback, in a folder of its own."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import toolchain

from cometmq.remoting.ports import free_port

START_S = 30.0


@contextmanager
def etcd(folder: Path, *arguments: str, scheme: str = "http") -> Iterator[str]:
    """Run one member, and give its address, ``host:port``.

    Args:
        folder: of its data and its log.
        arguments: further options of etcd.
        scheme: of its client port.
    """
    folder.mkdir(parents=True, exist_ok=True)
    program = toolchain.command("etcd")
    port, peers = free_port(), free_port()
    client, peer = f"{scheme}://127.0.0.1:{port}", f"http://127.0.0.1:{peers}"
    log = folder / "etcd.log"
    command = [
        program, "--name", "one", "--data-dir", str(folder / "data"),
        "--listen-client-urls", client, "--advertise-client-urls", client,
        "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
        "--initial-cluster", f"one={peer}", "--logger", "zap", *arguments,
    ]  # fmt: skip
    with (
        log.open("wb") as out,
        subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT) as process,
    ):
        try:
            _wait(process, log)
            yield f"127.0.0.1:{port}"
        finally:
            process.kill()


def _wait(process: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until it listens for clients, as its log says."""
    deadline = time.monotonic() + START_S
    while b"serving client traffic" not in (text := log.read_bytes()):
        if process.poll() is not None or time.monotonic() > deadline:
            raise AssertionError(f"etcd did not start:\n{text[-3000:].decode(errors='replace')}")
        time.sleep(0.05)
