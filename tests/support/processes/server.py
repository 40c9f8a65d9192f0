"""A real server process on loopback: started, watched, killed."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from cometmq.remoting.ports import free_broker_port, free_port

READY_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 90.0

Address = tuple[str, int]


class ServerError(AssertionError):
    """The server did not start, or did not stop, as it should."""


@dataclass(frozen=True)
class Ports:
    """Where a standalone server listens; the broker's second port is two below its first."""

    namesrv: int
    broker: int


def free_ports() -> Ports:
    """Ports nobody listens on, the broker's fast port included."""
    return Ports(namesrv=free_port(), broker=free_broker_port())


@dataclass
class Standalone:
    """``cometmq standalone`` as a process: name server and broker on one store."""

    folder: Path
    settings: Mapping[str, object] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    ports: Ports = field(default_factory=free_ports)
    arguments: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.process: subprocess.Popen[bytes] | None = None
        self.starts = 0

    @property
    def broker(self) -> Address:
        return "127.0.0.1", self.ports.broker

    @property
    def namesrv(self) -> Address:
        return "127.0.0.1", self.ports.namesrv

    @property
    def pid(self) -> int:
        assert self.process is not None, "the server is not running"
        return self.process.pid

    @property
    def log(self) -> Path:
        """What the server wrote to its standard error, over all its starts."""
        return self.folder / "server.log"

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def start(self) -> None:
        """Start the server and wait until it says that it is ready."""
        self.starts += 1
        config = self.folder / "broker.conf"
        config.write_text("".join(f"{key}={value}\n" for key, value in self.settings.items()))
        command = [sys.executable, "-m", "cometmq", "standalone"]
        command += ["--namesrv-port", str(self.ports.namesrv)]
        command += ["--broker-port", str(self.ports.broker)]
        command += ["--store", str(self.folder / "store"), "-c", str(config), *self.arguments]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**os.environ, "PYTHONUNBUFFERED": "1", **self.environment},
            )
        self._wait_until_ready()

    def kill(self) -> None:
        """End the process at once, as a crash would."""
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self._reap()

    def stop(self) -> int:
        """Ask the process to stop and wait for it; returns its exit status."""
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self._reap()
        except subprocess.TimeoutExpired:
            self.kill()
            raise ServerError(
                f"still running {STOP_TIMEOUT_S:.0f} s after SIGTERM\n{self.log_end()}"
            ) from None

    def log_end(self, lines: int = 30) -> str:
        """The last lines of the log, for a failure's message."""
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        return "\n".join(text.splitlines()[-lines:])

    def rss_bytes(self) -> int:
        """Resident memory that is not backed by files."""
        return rss_bytes(self.pid)

    def _reap(self) -> int:
        assert self.process is not None
        status = self.process.wait(STOP_TIMEOUT_S)
        if self.process.stdout is not None:
            self.process.stdout.close()
        return status

    def _wait_until_ready(self) -> None:
        assert self.process is not None
        assert self.process.stdout is not None
        said = b""
        deadline = time.monotonic() + READY_TIMEOUT_S
        while time.monotonic() < deadline:
            readable, _, _ = select.select([self.process.stdout], [], [], 0.2)
            chunk = os.read(self.process.stdout.fileno(), 4096) if readable else None
            if chunk:
                said += chunk
            if any(line.startswith(b"ready ") for line in said.splitlines()):
                return
            if chunk == b"" or self.process.poll() is not None:
                break
        self.kill()
        raise ServerError(f"did not get ready; said {said[-500:]!r}\n{self.log_end()}")


def rss_bytes(pid: int) -> int:
    """Resident memory of a process that is not backed by files."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise ServerError(f"process {pid} shows no RssAnon")


@contextmanager
def standalone(folder: Path, **settings: object) -> Iterator[Standalone]:
    """A running standalone server with these settings; stopped at the end."""
    server = Standalone(folder, settings={"brokerIP1": "127.0.0.1", **settings})
    server.start()
    try:
        yield server
    finally:
        if server.running:
            server.stop()
