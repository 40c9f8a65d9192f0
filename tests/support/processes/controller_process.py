"""A controller as a process of its own, over the model of etcd.

Run as a program it starts the controller and says where it listens: ``ready PORT``.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cometmq.cli import logs
from cometmq.cli.configurations import controller_configuration
from cometmq.cli.server_options import ServerOptions
from cometmq.controller.app import Controller
from support.controllers.etcd_model import EtcdStore, ModelEtcd
from support.processes.server import rss_bytes

STOP_TIMEOUT_S = 90.0


@dataclass
class ControllerProcess:
    """A running controller."""

    process: subprocess.Popen[bytes]
    port: int
    log: Path

    @property
    def address(self) -> tuple[str, int]:
        return "127.0.0.1", self.port

    def rss_bytes(self) -> int:
        """Resident memory that is not backed by files."""
        return rss_bytes(self.process.pid)

    def stop(self) -> int:
        """Ask the process to stop and wait for it; returns its exit status."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(STOP_TIMEOUT_S)
        finally:
            self.process.kill()
            self.process.wait()


@contextmanager
def controller_process(folder: Path, settings: Sequence[str] = ()) -> Iterator[ControllerProcess]:
    """Run a controller.

    Args:
        folder: of its log and its file of settings.
        settings: lines of its configuration file.
    """
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "controller.conf"
    file.write_text("".join(f"{line}\n" for line in ("listenPort=0", *settings)))
    log = folder / "controller.log"
    tests = Path(__file__).resolve().parents[2]
    paths = [str(tests), str(tests / "conformance"), os.environ.get("PYTHONPATH", "")]
    with log.open("ab") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "support.processes.controller_process", str(file)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
        )
    try:
        assert process.stdout is not None
        line = process.stdout.readline().split()  # the end of the process ends it, too
        assert line[:1] == [b"ready"], f"the controller did not start\n{log.read_text()[-3000:]}"
        running = ControllerProcess(process, int(line[1]), log)
        yield running
        running.stop()
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


async def _serve(file: Path) -> None:
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    logs.configure("info")
    configuration = controller_configuration(ServerOptions(config=file))
    controller = Controller(configuration, ModelEtcd(EtcdStore(time.monotonic)))
    await controller.start()
    while not controller.active.is_active:
        await asyncio.sleep(0.01)
    print(f"ready {controller.port}", flush=True)
    await ended.wait()
    await controller.stop()


if __name__ == "__main__":
    asyncio.run(_serve(Path(sys.argv[1])))
