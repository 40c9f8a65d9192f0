"""Measures Celery on CometMQ, RabbitMQ and Redis: tasks published, and tasks executed by workers.

A round starts each broker on fresh files. One process publishes tasks that do nothing, one after
the other, each confirmed; then a worker with one kind of pool executes them with late
acknowledgement. Rates count from the first task to the last one; processor time is that of the
client, or of the worker and its pool, and of the broker.

Two durabilities are compared apart, since a broker that waits for its disk does other work than one
that does not:

- sync: a task is on the disk before its sender goes on: CometMQ's SYNC_FLUSH, Redis' ``appendfsync
  always``, RabbitMQ's durable queue with publisher confirms.
- async: it is written, and synced within a second: ASYNC_FLUSH, and ``appendfsync everysec``.
  RabbitMQ has no such mode, and is as above.

Examples::

    .venv/bin/python benchmarks/celery_tasks.py sync       writes benchmarks/results/celery.md
    .venv/bin/python benchmarks/celery_tasks.py sync --count 500 --rounds 1        only prints
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar

import machine

TESTS = Path(__file__).resolve().parent.parent / "tests"
sys.path[:0] = [str(TESTS)]

import servers  # noqa: E402
from figures import cell, ratios  # noqa: E402
from processes import Process, accepts  # noqa: E402
from verdict import ROUNDS_MIN, verdict  # noqa: E402

from cometmq.remoting.ports import free_ports  # noqa: E402

COUNT = 1500
CONCURRENCY = 2
LOADS = {
    "prefork, multiplier 4": ("prefork", 4),
    "prefork, multiplier 32": ("prefork", 32),
    "threads, multiplier 4": ("threads", 4),
    "solo, multiplier 4": ("solo", 4),
}
"""Pool and prefetch multiplier of each load."""
NOISE_MAX = 0.3
LIMIT_S = 120.0
POLL_S = 0.01
PROGRAM = Path(__file__).with_name("client_programs") / "celery_shop.py"
FLUSHES = {"sync": "SYNC_FLUSH", "async": "ASYNC_FLUSH"}
RABBITMQ = Path("/usr/lib/rabbitmq/bin")


class Comet(servers.Comet):
    """Ours."""

    options: ClassVar[dict[str, Any]] = {}

    @property
    def url(self) -> str:
        """What Celery connects to."""
        return f"cometmq://127.0.0.1:{self.namesrv_port}"


class _Debian(servers.Server):
    """A server of a package of Debian."""

    package = ""
    options: ClassVar[dict[str, Any]] = {}

    @classmethod
    def prepare(cls) -> None:
        """End the program unless the package is installed."""
        if not cls.version_of_package():
            sys.exit(f"{cls.package} is not installed: apt-get install {cls.package}")

    @classmethod
    def version_of_package(cls) -> str:
        """Return the version; empty if the package is not installed."""
        command = ["dpkg-query", "-W", "-f", "${Version}", cls.package]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout

    @classmethod
    def package_version(cls) -> str:
        """Return package and version."""
        return f"{cls.package} {cls.version_of_package()}"

    def version(self) -> str:
        """Package and version."""
        return self.package_version()

    def start(self) -> dict[str, float]:
        """Start and wait for the port."""
        self.launch()
        return {"first_send_s": self._until(lambda: accepts(self.port))}


class Redis(_Debian):
    """Redis with an append-only file."""

    name = "redis"
    package = "redis-server"
    flushes: ClassVar[Mapping[str, str]] = {
        "SYNC_FLUSH": "appendonly yes, appendfsync always",
        "ASYNC_FLUSH": "appendonly yes, appendfsync everysec",
    }

    def launch(self) -> None:
        """Start the server."""
        self.port = free_ports(1)
        self.store.mkdir()
        fsync = "always" if self.flush == "SYNC_FLUSH" else "everysec"
        settings = {"port": self.port, "bind": "127.0.0.1", "save": "", "appendonly": "yes",
                    "appendfsync": fsync, "dir": self.store}  # fmt: skip
        arguments = [part for key, value in settings.items() for part in (f"--{key}", str(value))]
        self.started_at = time.monotonic()
        command = ["/usr/bin/redis-server", *arguments]
        self.processes = [Process(command, self.folder / "redis.log")]

    @property
    def url(self) -> str:
        """What Celery connects to."""
        return f"redis://127.0.0.1:{self.port}/0"


class RabbitMQ(_Debian):
    """RabbitMQ with Celery's own durable classic queue and persistent messages."""

    name = "rabbitmq"
    package = "rabbitmq-server"
    options: ClassVar[dict[str, Any]] = {"confirm_publish": True}
    flushes: ClassVar[Mapping[str, str]] = dict.fromkeys(
        FLUSHES.values(), "durable classic queue, persistent, confirm_publish"
    )

    def launch(self) -> None:
        """Start the server, without Debian's wrapper: as this user, on own files."""
        self.port = free_ports(2)
        folder = self.folder.resolve()
        self._environment = os.environ | {
            "HOME": str(folder),
            "RABBITMQ_NODENAME": f"bench{self.port}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(self.port + 1),
            "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"),
            "RABBITMQ_LOG_BASE": str(folder),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
            "RABBITMQ_CONF_ENV_FILE": "/dev/null",
        }
        self.started_at = time.monotonic()
        command = [str(RABBITMQ / "rabbitmq-server")]
        self.processes = [Process(command, folder / "rabbitmq.log", env=self._environment)]

    def stop(self) -> None:
        """End all processes of the node; the first one is a shell."""
        for pid in machine.family_pids(self.processes[0].pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        super().stop()

    @property
    def url(self) -> str:
        """What Celery connects to."""
        return f"pyamqp://guest:guest@127.0.0.1:{self.port}//"


Broker = Comet | Redis | RabbitMQ
KINDS: tuple[type[Broker], ...] = (Comet, RabbitMQ, Redis)


class Shop:
    """The application of a broker, and what its tasks note."""

    def __init__(self, server: Broker) -> None:
        self._server = server
        self._done = server.folder / "done"
        self._environment = machine.compiled_environment() | {
            "BROKER": server.url,
            "BROKER_OPTIONS": json.dumps(server.options),
            "PREFETCH_MULTIPLIER": "1",
            "DONE": str(self._done),
            "PYTHONPATH": str(PROGRAM.parent),
        }

    def _broker_cpu(self) -> float:
        return machine.family_cpu_seconds(self._server.processes[0].pid)

    def publish(self, count: int) -> dict[str, float]:
        """Publish tasks; return the rate and what a task takes of the processors."""
        command = [sys.executable, str(PROGRAM), str(count)]
        log = self._server.folder / "client.log"
        client = Process(command, log, env=self._environment, talks=True)
        assert client.stdin is not None
        assert client.stdout is not None
        if client.stdout.readline() != b"ready\n":
            raise client.error("published nothing")
        before = self._broker_cpu()
        client.stdin.write(b"\n")
        client.stdin.flush()
        seconds, cpu = map(float, client.stdout.readline().split())
        broker = self._broker_cpu() - before
        client.stdout.close()
        client.wait(LIMIT_S)
        return _figures(count - 1, seconds, cpu, broker)

    def execute(self, pool: str, multiplier: int, count: int) -> dict[str, float]:
        """Let a worker execute tasks that wait; the first tenth of them warms it."""
        self._done.write_bytes(b"")
        command = [sys.executable, "-m", "celery", "-A", PROGRAM.stem, "worker", "-P", pool,
                   "-c", str(CONCURRENCY), "--without-gossip", "--without-mingle",
                   "--without-heartbeat", "-l", "WARNING"]  # fmt: skip
        log = self._server.folder / f"worker-{pool}.log"
        environment = self._environment | {"PREFETCH_MULTIPLIER": str(multiplier)}
        worker = Process(command, log, env=environment)
        first = self._wait(worker, count // 10)
        began, cpu, broker = (
            time.perf_counter(),
            machine.family_cpu_seconds(worker.pid),
            self._broker_cpu(),
        )
        last = self._wait(worker, count)
        seconds = time.perf_counter() - began
        cpu, broker = machine.family_cpu_seconds(worker.pid) - cpu, self._broker_cpu() - broker
        worker.stop()
        return _figures(last - first, seconds, cpu, broker)

    def _wait(self, worker: Process, count: int) -> int:
        deadline = time.monotonic() + LIMIT_S
        while (done := self._done.stat().st_size) < count:
            if time.monotonic() > deadline or not worker.is_running:
                raise worker.error(f"executed {done} of {count} tasks")
            time.sleep(POLL_S)
        return done


def _figures(count: int, seconds: float, cpu: float, broker: float) -> dict[str, float]:
    return {
        "tasks/s": count / seconds,
        "CPU": (cpu + broker) / count * 1e6,
        "broker": broker / count * 1e6,
    }


def _round(server: Broker, count: int, loads: Sequence[str]) -> dict[str, dict[str, float]]:
    server.start()
    try:
        shop = Shop(server)
        found: dict[str, dict[str, float]] = {}
        for load in loads:
            published = shop.publish(count)
            found.setdefault("publish", published)
            found[load] = shop.execute(*LOADS[load], count)
        return found
    finally:
        server.stop()


Rounds = dict[str, dict[str, list[dict[str, float]]]]
"""Load, server, and what each round measured."""


def _table(rounds: Rounds, *, is_quiet: bool) -> list[str]:
    lines = ["| Load | Figure | " + " | ".join(rounds["publish"]) + " | Goal |"]
    lines.append("|---|---|" + "--:|" * len(rounds["publish"]) + "---|")
    for load, of_servers in rounds.items():
        for figure, more in (("tasks/s", True), ("CPU", False), ("broker", False)):
            ours = dict(enumerate(each[figure] for each in of_servers[Comet.name]))
            cells, goals = [], []
            for server, found in of_servers.items():
                values = dict(enumerate(each[figure] for each in found))
                said = cell(values.values(), rounds=len(values), more_is_better=more)
                if server != Comet.name:
                    times = ratios(ours, values, more_is_better=more)
                    said += f"<br>{cell(times, more_is_better=True, sign='x')}"
                    goals.append(f"{server}: {verdict(times, 1.0, more_is_better=True)}")
                cells.append(said)
            goal = "; ".join(goals) if is_quiet else "no verdict"
            goal = "" if figure == "broker" else goal
            unit = figure if more else f"{figure}, µs a task"
            lines.append(f"| {load} | {unit} | {' | '.join(cells)} | {goal} |")
    return lines


def _results(asked: argparse.Namespace, run: dict[str, Any], *, whole: bool) -> None:
    path = machine.ROOT / machine.RESULT_FILES / "celery.json"
    runs = json.loads(path.read_text()) if path.exists() else {}
    runs[asked.durability] = run
    lines = ["# Celery", ""]
    lines += [
        f"- versions: celery {version('celery')}, kombu {version('kombu')}, py-amqp "
        f"{version('amqp')}, redis-py {version('redis')}",
        f"- worker: concurrency {CONCURRENCY}, late acknowledgement, results ignored, no gossip, "
        "mingle, events or heartbeats; multiplier: worker_prefetch_multiplier, 4 by default",
        "- publish: one process, one task after the other, each confirmed",
        "- CPU: the client, or the worker and its pool, and the broker; broker: its part of it",
        "- each cell is the median and, in brackets, the worse quartile; below it how many times "
        "better CometMQ's figure is than this one (x above 1) or worse",
        "- goal: at least equal",
    ]
    for durability, each in runs.items() if whole else [(asked.durability, run)]:
        table = _table(each["rounds"], is_quiet=each["noise_cores"] <= NOISE_MAX)
        lines += ["", f"## {durability}", "", *each["head"], "", *table]
    machine.report("celery", lines, runs, whole=whole)


def main() -> None:
    """Measure, print, and write the result files of a whole run."""
    parser = argparse.ArgumentParser(description="Measure Celery on three brokers.")
    parser.add_argument("durability", choices=list(FLUSHES))
    parser.add_argument("--count", type=int, default=COUNT)
    parser.add_argument("--rounds", type=int, default=ROUNDS_MIN)
    parser.add_argument("--servers", nargs="*", default=[kind.name for kind in KINDS])
    parser.add_argument("--loads", nargs="*", choices=list(LOADS), default=list(LOADS))
    parser.add_argument("--resume", action="store_true", help="keep what an ended run measured")
    parser.add_argument("--folder", type=Path, default=machine.ROOT / "build" / "bench" / "celery")
    asked = parser.parse_args()
    machine.refuse_other_sources()
    kinds = [kind for kind in KINDS if kind.name in asked.servers]
    saved = machine.ROOT / "build" / "bench" / f"celery-{asked.durability}.json"
    rounds: Rounds = json.loads(saved.read_text()) if asked.resume else {}
    said: dict[str, str] = {}
    for kind in kinds:
        kind.prepare()
    with machine.NoiseWatch() as watch:
        for number in range(asked.rounds):
            for kind in kinds:
                said[kind.name] = kind.flushes[FLUSHES[asked.durability]]
                if len(rounds.get("publish", {}).get(kind.name, ())) > number:
                    continue  # measured before
                server = kind(asked.folder, flush=FLUSHES[asked.durability])
                for load, figures in _round(server, asked.count, asked.loads).items():
                    rounds.setdefault(load, {}).setdefault(kind.name, []).append(figures)
                    print(kind.name, load, json.dumps(figures), flush=True)
                saved.parent.mkdir(parents=True, exist_ok=True)
                saved.write_text(json.dumps(rounds))
    head = machine.page_head(
        "", {"tasks": f"{asked.count:,} a load"}, rounds=asked.rounds, noise=watch.noise,
        noise_max=NOISE_MAX,
    )[2:]  # fmt: skip
    for kind in kinds:
        package = f", {kind.package_version()}" if issubclass(kind, _Debian) else ""
        head.append(f"- {kind.name}: {said[kind.name]}{package}")
    whole = asked.rounds >= ROUNDS_MIN and asked.count >= COUNT and len(kinds) == len(KINDS)
    run = {"head": head, "rounds": rounds, "noise_cores": watch.noise.total}
    _results(asked, run, whole=whole)
    shutil.rmtree(asked.folder, ignore_errors=True)


if __name__ == "__main__":
    main()
