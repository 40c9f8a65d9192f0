"""Measures what metrics cost a broker under full load.

A name server and a broker run as processes on this machine, with topics and groups that make the
page of metrics large. The broker stores pipelined sends (16 connections with 32 requests in flight)
with ``metricsExporterType=DISABLE``, and with ``PROM`` while a thread here reads its page every few
seconds. Both are measured in each round, in turns, each with a new broker; the first of them
alternates. The figure is the share by which the processor seconds per million messages grow, in the
worse quartile of the rounds.

Examples::

    .venv/bin/python benchmarks/metrics.py              writes benchmarks/results/metrics.md
    .venv/bin/python benchmarks/metrics.py --rounds 1   a look: prints, writes nothing
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import NamedTuple

import loadgen
import machine
from verdict import ROUNDS_MIN, verdict, worse_quartile

from cometmq.remoting.ports import free_port

TESTS = Path(__file__).resolve().parent.parent / "tests"
sys.path[:0] = [str(TESTS), str(TESTS / "interop"), str(TESTS / "conformance")]

import kit  # noqa: E402
from codes import Request  # noqa: E402
from servers import CometBroker, CometNameServer, Settings, connect  # noqa: E402

RESULTS = machine.ROOT / machine.RESULT_FILES
NOISE_MAX = 0.3
"""In cores; a machine on which more runs beside it gives no verdict."""
SHARE_MAX = 0.02
LOAD = loadgen.Load(conns=16, window=32, body=128)


class Round(NamedTuple):
    """The processor seconds of a broker per million messages."""

    without: float
    with_metrics: float
    pages: int
    """How many pages were read meanwhile."""
    page_bytes: int

    @property
    def share(self) -> float:
        """The share by which metrics raise the cost."""
        return self.with_metrics / self.without - 1


class Reader:
    """Reads the page of a broker again and again, as Prometheus does."""

    def __init__(self, port: int, interval_s: float) -> None:
        self._url = f"http://127.0.0.1:{port}/metrics"
        self._interval_s = interval_s
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.sizes: list[int] = []

    def __enter__(self) -> Reader:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ends.wait(self._interval_s):
            with urllib.request.urlopen(self._url, timeout=60) as response:
                self.sizes.append(len(response.read()))


@contextmanager
def _running(folder: Path, topics: int, settings: Settings) -> Iterator[CometBroker]:
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


def _cost(broker: CometBroker, seconds: float) -> float:
    target = loadgen.Target(broker.address, [broker.process.pid])
    topic = f"t{time.monotonic_ns()}"
    found = loadgen.run(LOAD, target, topic=topic, warmup_s=1.0, duration_s=seconds)
    if doubts := loadgen.doubts(found):
        raise loadgen.LoadError(doubts)
    return float(found["server"]["cpu_per_million"])


def _measure(asked: argparse.Namespace, number: int) -> Round:
    folder = asked.folder / "metrics"
    costs: dict[bool, float] = {}
    sizes: list[int] = []
    for has_metrics in (False, True) if number % 2 == 0 else (True, False):
        port = free_port()
        served: Settings = {"metricsExporterType": "PROM", "metricsPromExporterPort": port}
        with _running(folder, asked.topics, served if has_metrics else {}) as broker:
            if not has_metrics:
                costs[False] = _cost(broker, asked.seconds)
                continue
            with Reader(port, asked.interval) as reader:
                costs[True] = _cost(broker, asked.seconds)
            sizes = reader.sizes
    if not sizes:
        raise loadgen.LoadError("no page was read: --seconds must be more than --interval")
    return Round(costs[False], costs[True], len(sizes), max(sizes))


def main() -> None:
    """Measure, print, and write the result file of a whole run."""
    asked = _arguments()
    machine.refuse_other_sources()
    rounds: list[Round] = []
    with machine.NoiseWatch() as watch:
        for number in range(asked.rounds):
            found = _measure(asked, number)
            rounds.append(found)
            print(f"{found.share:+.2%} {found}", flush=True)
    lines = [*_head(asked, watch.noise), *_table(rounds, watch.noise)]
    print(*lines, sep="\n")
    if asked.rounds >= ROUNDS_MIN:
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / "metrics.md").write_text("\n".join(lines) + "\n")
        (RESULTS / "metrics.json").write_text(json.dumps(rounds, indent=1) + "\n")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure what metrics cost a broker.")
    parser.add_argument("--rounds", type=int, default=ROUNDS_MIN)
    parser.add_argument("--seconds", type=float, default=15.0, help="of each load")
    parser.add_argument("--interval", type=float, default=5.0, help="seconds between two pages")
    parser.add_argument("--topics", type=int, default=100, help="each has a group")
    parser.add_argument("--folder", type=Path, default=machine.ROOT / "build" / "bench")
    return parser.parse_args()


def _head(asked: argparse.Namespace, noise: machine.Noise) -> list[str]:
    loads = {
        "load": "bodies of 128 bytes, 16 connections with 32 requests in flight, for"
        f" {asked.seconds:g} seconds; {asked.topics} topics with a group each; a page is read every"
        f" {asked.interval:g} seconds",
    }
    return machine.page_head(
        "What metrics cost a broker", loads, rounds=asked.rounds, noise=noise, noise_max=NOISE_MAX
    )


def _table(rounds: Sequence[Round], noise: machine.Noise) -> list[str]:
    shares = [each.share for each in rounds]
    found = worse_quartile(shares, more_is_better=False)
    said = verdict(shares, SHARE_MAX, more_is_better=False)
    if not said or noise.total > NOISE_MAX:
        said = "no verdict"
    pages = f"{median(each.pages for each in rounds):g} of {rounds[-1].page_bytes:,} bytes"
    return [
        "| figure | unit | value | target |",
        "|---|---|--:|---|",
        f"| without metrics | s/M | {_cell([each.without for each in rounds])} | |",
        f"| with metrics, read | s/M | {_cell([each.with_metrics for each in rounds])} | |",
        f"| pages read in one load | | {pages} | |",
        f"| growth, middle round | % | {100 * median(shares):+.1f} | |",
        f"| growth, worse quartile | % | {100 * found:+.1f} | ≤ {100 * SHARE_MAX:g} {said} |",
    ]


def _cell(values: Sequence[float]) -> str:
    return f"{median(values):.3g} ({min(values):.3g}, {max(values):.3g})"


if __name__ == "__main__":
    main()
