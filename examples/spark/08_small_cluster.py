"""Run on a Spark cluster of one master and one worker, which ends with this program.

As on a large cluster, executors are separate processes. The daemons are run from the ``pyspark``
package alone, without its missing ``start-master.sh``.
Run: ``python examples/spark/08_small_cluster.py [name server] [topic]``.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import pyspark
from pyspark.sql import SparkSession

from cometmq.spark.java import SparkStartError, find_java
from cometmq.spark.sessions import LOOPBACK, local_session

T = TypeVar("T")
START_SECONDS_MAX = 90.0
STOP_SECONDS_MAX = 10.0
POLL_SECONDS = 0.1
_MASTER = re.compile(r"Starting Spark master at (spark://\S+)")
_WEB_PAGE = re.compile(r"Bound MasterWebUI to \S+, and started at (http://\S+)")


class StandaloneCluster:
    """A standalone master and one worker on this machine, running within ``with``.

    Args:
        cores: of the worker.
        memory: of the worker, for all its executors.
        folder: for logs and the worker's files; a temporary one by default.
        launcher: a command before each daemon's own, for instance one that ends it with its parent.

    Example: ``with StandaloneCluster() as cluster: spark = cluster.session()``
    """

    def __init__(
        self,
        cores: int = 2,
        memory: str = "2g",
        *,
        folder: Path | None = None,
        launcher: tuple[str, ...] = (),
    ) -> None:
        self._cores, self._memory = cores, memory
        self._launcher = launcher
        self._temporary = None if folder else tempfile.TemporaryDirectory(prefix="cometmq-spark-")
        self.folder = folder or Path(self._temporary.name if self._temporary else "")
        self._daemons: list[subprocess.Popen[bytes]] = []
        self.master = ""
        """The address of the master, ``spark://host:port``, once started."""

    @property
    def daemons(self) -> tuple[subprocess.Popen[bytes], ...]:
        """The processes of the master and the worker; none before the start and after the end."""
        return tuple(self._daemons)

    def start(self) -> None:
        """Start both and wait until the master counts the worker as alive.

        Raises:
            SparkStartError: no Java, or a daemon did not come up in time; quotes its log.
        """
        try:
            self._start()
        except BaseException:
            self.stop()
            raise

    def _start(self) -> None:
        master_log = self._launch("master", "--port", "0", "--webui-port", "0")
        self.master = self._await(master_log, lambda: _found(_MASTER, master_log))
        page = self._await(master_log, lambda: _found(_WEB_PAGE, master_log))
        worker_log = self._launch(
            "worker", "--cores", str(self._cores), "--memory", self._memory,
            "--work-dir", str(self.folder / "work"), "--webui-port", "0", self.master,
        )  # fmt: skip
        self._await(worker_log, lambda: _alive_workers(page))

    def session(self, memory: str = "1g", **conf: object) -> SparkSession:
        """Give a session whose executors are this cluster's; arguments as for `local_session`."""
        return local_session(self._cores, memory, master=self.master, **conf)

    def stop(self) -> None:
        """End both daemons, the worker and with it its executors first."""
        for daemon in reversed(self._daemons):
            _end(daemon)
        self._daemons.clear()
        if self._temporary is not None:
            self._temporary.cleanup()

    def _launch(self, role: str, *arguments: str) -> Path:
        find_java()
        log = self.folder / f"{role}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        home = Path(pyspark.__file__).parent
        name = f"org.apache.spark.deploy.{role}.{role.capitalize()}"
        command = [*self._launcher, str(home / "bin" / "spark-class"), name, "--host", LOOPBACK]
        with log.open("wb") as sink:
            daemon = subprocess.Popen(
                [*command, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                cwd=self.folder,
                env=os.environ | {"SPARK_HOME": str(home)},
            )
        self._daemons.append(daemon)
        return log

    def _await(self, log: Path, ready: Callable[[], T | None]) -> T:
        deadline = time.monotonic() + START_SECONDS_MAX
        while not (found := ready()):
            if self._daemons[-1].poll() is not None or time.monotonic() > deadline:
                tail = log.read_text(errors="replace")[-2000:]
                raise SparkStartError(f"the {log.stem} did not come up:\n{tail}")
            time.sleep(POLL_SECONDS)
        return found

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


def _found(pattern: re.Pattern[str], log: Path) -> str | None:
    match = pattern.search(log.read_text(errors="replace"))
    return match and match[1]


def _alive_workers(page: str) -> int:
    try:
        with urllib.request.urlopen(f"{page.rstrip('/')}/json/", timeout=5) as answer:
            state: dict[str, Any] = json.load(answer)
    except OSError:
        return 0
    return sum(worker["state"] == "ALIVE" for worker in state["workers"])


def _end(daemon: subprocess.Popen[bytes]) -> None:
    daemon.terminate()
    try:
        daemon.wait(STOP_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        daemon.kill()
        daemon.wait()


def main(name_server: str = "127.0.0.1:9876", topic: str = "orders") -> None:
    with StandaloneCluster(cores=1, memory="1g") as cluster:
        spark = cluster.session(**{"spark.executor.memory": "512m"})
        reader = spark.read.format("rocketmq").option("nameServer", name_server)
        tags = reader.option("subscribe", topic).schema("tags STRING").load()
        print(f"{tags.count()} messages, counted by executors of {spark.sparkContext.master}")
        spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
