"""Measures what metrics cost a broker under full load.

A name server and a broker run as processes on this machine, with topics and groups that make the
page of metrics large. Two things cost: what a broker counts for metrics with each send, and the
pages that are read. Each is measured on its own, because seconds of two brokers differ by more than
the two percent that are asked for:

- A broker runs in valgrind, which counts instructions: of pipelined sends (16 connections with 32
  requests in flight) with ``metricsExporterType=DISABLE`` and with ``PROM``, in turns, each with a
  new broker, and of the same time without requests. From them comes the share by which metrics
  raise the instructions of a send.
- A broker without valgrind gets the same load, and shows its processor seconds per second; then its
  page is read again and again, and shows its processor seconds per page.

The growth is that share, and the share of the load's processor time that a page takes every few
seconds. The figure is the worse quartile of the rounds.

Examples::

    .venv/bin/python benchmarks/metrics.py              writes benchmarks/results/metrics.md
    .venv/bin/python benchmarks/metrics.py --rounds 1   a look: prints, writes nothing

It needs valgrind (Debian: ``apt-get install valgrind``).
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import loadgen
import machine
from verdict import ROUNDS_MIN, verdict, worse_quartile

from cometmq.remoting.ports import free_port

TESTS = Path(__file__).resolve().parent.parent / "tests"
sys.path[:0] = [str(TESTS), str(TESTS / "interop"), str(TESTS / "conformance")]

import kit  # noqa: E402
from codes import Request  # noqa: E402
from servers import CometBroker, CometNameServer, Settings, connect  # noqa: E402

NOISE_MAX = 0.3
"""In cores; a machine on which more runs beside it gives no verdict."""
SHARE_MAX = 0.02
PAGES = 20
LOAD = loadgen.Load(conns=16, window=32, body=128)


class Instructions(NamedTuple):
    """What a broker in valgrind executes, without the kernel."""

    per_send: float
    per_idle_second: float


class Round(NamedTuple):
    """What was measured in one round."""

    without: Instructions
    with_metrics: Instructions
    sends_per_s: float
    """At full load, without metrics and without valgrind."""
    busy: float
    """The processor seconds of a second of this load."""
    page_s: float
    """The processor seconds of a page."""
    page_bytes: int

    @property
    def counting(self) -> float:
        """The share by which counting raises what a second of full load executes."""
        before, after = self.without, self.with_metrics
        idle = (after.per_idle_second - before.per_idle_second) / self.sends_per_s
        return (after.per_send + idle) / before.per_send - 1

    def growth(self, interval_s: float) -> float:
        """The share by which metrics raise the cost of full load if a page is read so often."""
        return self.counting + self.page_s / (interval_s * self.busy)


@contextmanager
def _running(
    folder: Path, topics: int, settings: Settings, under: Sequence[str] = ()
) -> Iterator[CometBroker]:
    shutil.rmtree(folder, ignore_errors=True)
    files: Settings = {
        "mappedFileSizeCommitLog": 1 << 30,
        "mappedFileSizeConsumeQueue": 6_000_000,
        "maxHashSlotNum": 5_000_000,
        "maxIndexNum": 20_000_000,
        "flushDiskType": "ASYNC_FLUSH",
    }
    name_server = CometNameServer(folder / "namesrv")
    broker = CometBroker(
        folder / "broker",
        name_server.address,
        store=folder / "broker" / "store",
        settings=files | settings,
    )
    broker.under = list(under)
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        for server in (name_server, broker):
            stack.callback(server.kill)
            server.start()
        _fill(broker.address, topics)
        yield broker


def _fill(address: str, topics: int) -> None:
    """Create topics with a message each, and a group that has consumed it."""
    connection = connect(address)
    try:
        for number in range(topics):
            topic, group = f"topic-{number:05}", f"group-{number:05}"
            kit.create_topic(connection, topic)
            kit.create_group(connection, group)
            kit.store_many(connection, topic, 1)
            kit.ok(kit.commit_offset(connection, group, topic, 1))
        kit.ok(connection.request(Request.GET_BROKER_RUNTIME_INFO))
    finally:
        connection.close()


def _load(broker: CometBroker, seconds: float) -> dict[str, Any]:
    target = loadgen.Target(broker.address, [broker.process.pid])
    topic = f"t{time.monotonic_ns()}"
    found = loadgen.run(LOAD, target, topic=topic, warmup_s=1.0, duration_s=seconds)
    if doubts := loadgen.doubts(found):
        raise loadgen.LoadError(doubts)
    return found


class Counter:
    """Counts the instructions of a process in valgrind's callgrind.

    Args:
        broker: the process; its working folder gets the counts.
    """

    options = (
        "valgrind", "--tool=callgrind", "--instr-atstart=no", "--callgrind-out-file=counted",
    )  # fmt: skip

    def __init__(self, broker: CometBroker) -> None:
        self._pid = broker.process.pid
        self._folder = broker.folder
        self._dumps = 0

    def during(self, work: Callable[[], object]) -> int:
        """Do some work; return how many instructions the process executed meanwhile."""
        self._control("-i", "on")
        work()
        self._control("-i", "off")
        self._control("-d")
        self._dumps += 1
        text = (self._folder / f"counted.{self._dumps}").read_text(errors="replace")
        return sum(int(line.split()[1]) for line in text.splitlines() if line.startswith("totals:"))

    def _control(self, *options: str) -> None:
        command = ["callgrind_control", *options, str(self._pid)]
        subprocess.run(command, check=True, capture_output=True, timeout=60)


def _count(folder: Path, topics: int, settings: Settings, seconds: float) -> Instructions:
    patient: Settings = {"waitTimeMillsInSendQueue": 60_000}
    with _running(folder, topics, settings | patient, Counter.options) as broker:
        counter = Counter(broker)
        _load(broker, 1.0)
        idle = counter.during(lambda: time.sleep(seconds)) / seconds
        found: list[dict[str, Any]] = []
        began = time.monotonic()
        counted = counter.during(lambda: found.append(_load(broker, seconds)))
        took_s = time.monotonic() - began
        return Instructions((counted - idle * took_s) / found[0]["acked_total"], idle)


def _measure(asked: argparse.Namespace, number: int) -> Round:
    folder = asked.folder / "metrics"
    port = free_port()
    served: Settings = {"metricsExporterType": "PROM", "metricsPromExporterPort": port}
    counts: dict[bool, Instructions] = {}
    for has_metrics in (False, True) if number % 2 == 0 else (True, False):
        settings = served if has_metrics else {}
        counts[has_metrics] = _count(folder, asked.topics, settings, asked.seconds)
    with _running(folder, asked.topics, served) as broker:
        load = _load(broker, asked.seconds)
        pids = [broker.process.pid]
        before = machine.cpu_seconds(pids)
        sizes = [_page_bytes(port) for _ in range(PAGES)]
        page_s = (machine.cpu_seconds(pids) - before) / PAGES
    return Round(
        counts[False],
        counts[True],
        load["msg_s"],
        load["server"]["cpu"] / load["seconds"],
        page_s,
        max(sizes),
    )


def _page_bytes(port: int) -> int:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as response:
        return len(response.read())


def main() -> None:
    """Measure, print, and write the result file of a whole run."""
    asked = _arguments()
    machine.refuse_other_sources()
    if shutil.which("valgrind") is None:
        sys.exit("there is no valgrind (Debian: apt-get install valgrind)")
    rounds: list[Round] = []
    with machine.NoiseWatch() as watch:
        for number in range(asked.rounds):
            found = _measure(asked, number)
            rounds.append(found)
            print(f"{found.growth(asked.interval):+.2%} {found}", flush=True)
    lines = [*_head(asked, watch.noise), *_table(asked, rounds, watch.noise)]
    machine.report("metrics", lines, rounds, whole=asked.rounds >= ROUNDS_MIN)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure what metrics cost a broker.")
    parser.add_argument("--rounds", type=int, default=ROUNDS_MIN)
    parser.add_argument("--seconds", type=float, default=6.0, help="of each load")
    parser.add_argument("--interval", type=float, default=5.0, help="seconds between two pages")
    parser.add_argument("--topics", type=int, default=100, help="each has a group")
    parser.add_argument("--folder", type=Path, default=machine.ROOT / "build" / "bench")
    return parser.parse_args()


def _head(asked: argparse.Namespace, noise: machine.Noise) -> list[str]:
    loads = {
        "load": "bodies of 128 bytes, 16 connections with 32 requests in flight, for"
        f" {asked.seconds:g} seconds; {asked.topics} topics with a group each",
        "instructions": "counted by valgrind, without the kernel",
    }
    return machine.page_head(
        "What metrics cost a broker", loads, rounds=asked.rounds, noise=noise, noise_max=NOISE_MAX
    )


def _table(asked: argparse.Namespace, rounds: Sequence[Round], noise: machine.Noise) -> list[str]:
    grows = [each.growth(asked.interval) for each in rounds]
    said = verdict(grows, SHARE_MAX, more_is_better=False)
    if not said or noise.total > NOISE_MAX:
        said = "no verdict"
    pages = f"{_cell([1000 * each.page_s for each in rounds])}, {rounds[-1].page_bytes:,} bytes"

    def row(name: str, unit: str, values: Sequence[float]) -> str:
        return f"| {name} | {unit} | {_cell(values)} | |"

    return [
        "| figure | unit | value | target |",
        "|---|---|--:|---|",
        row("a send without metrics", "instructions", [each.without.per_send for each in rounds]),
        row("a send with metrics", "instructions", [each.with_metrics.per_send for each in rounds]),
        row("growth by counting", "%", [100 * each.counting for each in rounds]),
        f"| a page | ms of a processor | {pages} | |",
        row("full load", "cores", [each.busy for each in rounds]),
        row(f"growth, a page every {asked.interval:g} s", "%", [100 * each for each in grows]),
        f"| the same, worse quartile | % | {100 * worse_quartile(grows, more_is_better=False):+.2f}"
        f" | ≤ {100 * SHARE_MAX:g} {said} |",
    ]


def _cell(values: Sequence[float]) -> str:
    middle, least, most = (
        f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
        for value in (median(values), min(values), max(values))
    )
    return f"{middle} ({least}, {most})"


if __name__ == "__main__":
    main()
