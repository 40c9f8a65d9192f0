"""Measures what other work of a broker does to the latency of sends.

``cold``: 2,000 sends a second, alone and beside a consumer that reads a backlog of 4 GiB that is
not in the page cache, with flow control of cold reads. Three further sides show what such a
consumer does without it, and why: at full speed; the same sends to another broker, which has no
consumer; and beside a consumer of the same backlog in the page cache, which never waits for the
disk. ``dirty``:
synchronous sends on a slow disk, beside 2,000 sends a second to one queue, and to 5,000 queues that
are all unsynced again and again. Each round measures both sides of a pair on one broker; the figure
is the ratio of their p99, and the target is 2.

The slow disk is a file system of its own, below which a process answers each flush after 10 ms (the
one of the power cuts, ``tests/power``); it needs root and ``/dev/fuse``.

Examples::

    .venv/bin/python benchmarks/stalls.py                          writes results/stalls.md
    .venv/bin/python benchmarks/stalls.py --rounds 1 --gib 0.25    a look: prints, writes nothing
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import cold
import loadgen
import machine
from loadgen import Load, Target

TESTS = Path(__file__).resolve().parent.parent / "tests"
sys.path[:0] = [str(TESTS), str(TESTS / "conformance"), str(TESTS / "power")]

import cuts  # noqa: E402
import wire  # noqa: E402

from cometmq.protocol.codes import RequestCode, ResponseCode  # noqa: E402
from support.processes.server import Standalone  # noqa: E402

ROUNDS_MIN = 5
"""Fewer rounds give no verdict, and no result file."""
TARGET = 2.0
GIB = 4.0
SECONDS = 8.0
QUEUES = 5000
FLUSH_MS = 10.0
DISK_MIB = 6 * 1024
RECORD_BYTES = 1200
LIMITED_S = 20.0
"""How long a consumer is measured that flow control makes slow."""
PRODUCER = Load(rate=2000, conns=4, queues=4)
SYNC_PRODUCER = Load(conns=4, window=8)
PULLS = Load(mode="pull", conns=4, window=1, queues=4, once=True)
ONE_QUEUE = Load(rate=2000, conns=4, window=64, queues=1)
MANY_QUEUES = Load(rate=2000, conns=4, window=64, queues=1, topics=QUEUES)


def main() -> None:
    """Measure what was asked for, print it, and write the result file of a whole run."""
    asked = _arguments()
    machine.refuse_other_sources()
    rows: dict[str, list[dict[str, float]]] = {"cold": [], "dirty": []}
    with machine.NoiseWatch() as watch:
        for number in range(asked.rounds):
            for name, measure in (("cold", _cold), ("dirty", _dirty)):
                if name in asked.parts:
                    found = measure(asked, turned=bool(number % 2))
                    rows[name].append(found)
                    print(name, found, flush=True)
    lines = [*_head(asked, watch.noise), *_table(rows)]
    machine.report(
        "stalls",
        lines,
        rows,
        whole=asked.rounds >= ROUNDS_MIN and asked.gib >= GIB and len(asked.parts) == len(rows),
    )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure what stalls sends.")
    parser.add_argument("--parts", nargs="+", default=["cold", "dirty"])
    parser.add_argument("--rounds", type=int, default=ROUNDS_MIN)
    parser.add_argument("--gib", type=float, default=GIB, help="size of the cold backlog")
    parser.add_argument("--folder", type=Path, default=machine.ROOT / "build" / "bench")
    return parser.parse_args()


@contextlib.contextmanager
def _broker(folder: Path, settings: dict[str, object]) -> Iterator[tuple[Standalone, Target]]:
    server = Standalone(folder, settings=settings)
    server.start()
    try:
        host, port = server.broker
        yield server, Target(f"{host}:{port}", [server.pid])
    finally:
        server.stop()


def _cold(asked: argparse.Namespace, *, turned: bool) -> dict[str, float]:
    """The p99 of a producer without and with a consumer that reads what only the disk has."""
    folder = asked.folder / "stalls"
    shutil.rmtree(folder, ignore_errors=True)
    count = int(asked.gib * (1 << 30) / RECORD_BYTES)
    fill = Load(batch=32, window=4, body=1024, queues=4, count=count)
    try:
        settings: dict[str, object] = {"flushDiskType": "ASYNC_FLUSH"}
        with (
            _broker(folder / "read", settings) as (server, target),
            _broker(folder / "other", settings) as (_, other),
        ):
            loadgen.run(fill, target, topic="cold", warmup_s=0.0, duration_s=300.0)
            os.sync()
            found = {}
            sides = ("without", "with", "full speed", "other broker", "in memory")
            for side in reversed(sides) if turned else sides:
                if side == "without":
                    figures = loadgen.run(
                        PRODUCER, target, topic="alone", warmup_s=0.5, duration_s=SECONDS
                    )
                    found[side] = figures["lat_us"]["p99"] / 1e3
                    continue
                if side != "in memory":
                    left_mib = cold.drop([server.pid], server.folder / "store", asked.gib * 20)
                else:
                    cold.read_all(server.folder / "store")
                is_limited = side == "with"
                _limit_cold_reads(server, is_limited)
                figures = loadgen.run_beside(
                    PULLS,
                    PRODUCER,
                    target,
                    topic="cold",
                    duration_s=LIMITED_S if is_limited else 60.0,
                    beside_target=other if side == "other broker" else None,
                )
                found[side] = figures["beside"]["lat_us"]["p99"] / 1e3
                found[f"MiB/s {side}"] = figures["msg_s"] * RECORD_BYTES / (1 << 20)
                if side != "in memory":
                    found[f"cached MiB {side}"] = left_mib
            return found
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _limit_cold_reads(server: Standalone, is_limited: bool) -> None:
    """Switch flow control of cold reads on or off."""
    setting = (
        f"coldDataFlowControlEnable={str(is_limited).lower()}\n"
        "cgColdReadThreshold=104857600\n"  # so that only the limit of all groups counts
    )
    connection = wire.Connection(server.broker)
    try:
        answer = connection.request(RequestCode.UPDATE_BROKER_CONFIG, body=setting.encode())
    finally:
        connection.close()
    if answer.code != ResponseCode.SUCCESS:
        raise loadgen.LoadError(f"the broker refuses {setting.strip()}: {answer.remark}")


def _dirty(asked: argparse.Namespace, *, turned: bool) -> dict[str, float]:
    """The p99 of synchronous sends on a slow disk beside sends to one queue, and to thousands."""
    work = asked.folder / "slow-disk"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    cuts.make_image(work / "base.img", DISK_MIB)
    disk = cuts.RecordedDisk(work / "base.img", work, "", FLUSH_MS)
    settings: dict[str, object] = {
        "flushDiskType": "SYNC_FLUSH",
        "mappedFileSizeCommitLog": 256 << 20,
        "mappedFileSizeConsumeQueue": 20_000,
        "diskMaxUsedSpaceRatio": 95,
    }
    try:
        with _broker(work / "live" / "broker", settings) as (_, target):
            sides = (("without", ONE_QUEUE), ("with", MANY_QUEUES))
            for side, beside in sides:  # the sends create the topics, many with one table write
                for load, topic in ((SYNC_PRODUCER, side), (beside, f"{side}-beside")):
                    once = replace(load, rate=0, window=64, count=4 * load.topics)
                    loadgen.run(
                        once, target, topic=topic, warmup_s=0.0, duration_s=300.0, create=False
                    )
            found = {}
            for side, beside in reversed(sides) if turned else sides:
                figures = loadgen.run_beside(
                    SYNC_PRODUCER, beside, target, topic=side, duration_s=SECONDS, create=False
                )
                found[side] = figures["lat_us"]["p99"] / 1e3
                found[f"k/s {side}"] = figures["msg_s"] / 1e3
            return found
    finally:
        disk.close()
        shutil.rmtree(work, ignore_errors=True)


def _head(asked: argparse.Namespace, noise: machine.Noise) -> list[str]:
    loads = {
        "cold": f"{PRODUCER.rate} sends/s, alone, and beside a consumer of a backlog of"
        f" {asked.gib:g} GiB outside the page cache, asynchronous flush, with"
        " `coldDataFlowControlEnable=true` and the default `globalColdReadThreshold`, which is also"
        " set for the one group; full speed:"
        " without flow control, which is the default; other broker: the same sends to a broker that"
        " nobody reads, beside that consumer, which is what the machine does by itself;"
        " in memory: beside a consumer at full speed of the same backlog in the page cache",
        "dirty": f"{SYNC_PRODUCER.conns} connections with {SYNC_PRODUCER.window} synchronous sends"
        f" in flight on a disk that takes {FLUSH_MS:g} ms for a flush, beside {ONE_QUEUE.rate}"
        f" sends/s to one queue, and to {QUEUES:,} queues",
    }
    return machine.page_head(
        "What other work does to the latency of sends", loads, rounds=asked.rounds, noise=noise
    )


def _table(rows: dict[str, list[dict[str, float]]]) -> list[str]:
    lines = [
        "| | p99 without, ms | p99 with, ms | ratio | target | also |",
        "|---|---|---|---|---|---|",
    ]
    for name, rounds in rows.items():
        if not rounds:
            continue
        ratios = sorted(found["with"] / found["without"] for found in rounds)
        worst = ratios[-2] if len(ratios) >= ROUNDS_MIN else None
        verdict = "no verdict" if worst is None else "met" if worst <= TARGET else "missed"
        also = ", ".join(
            f"{key} {median(found[key] for found in rounds):.2f}"
            for key in rounds[0]
            if key not in ("with", "without")
        )
        lines.append(
            f"| {name} | {_cell(rounds, 'without')} | {_cell(rounds, 'with')}"
            f" | {median(ratios):.2f} ({ratios[0]:.2f}, {ratios[-1]:.2f})"
            f" | ≤ {TARGET:g} {verdict} | {also} |"
        )
    return lines


def _cell(rounds: list[dict[str, Any]], key: str) -> str:
    return machine.cell([found[key] for found in rounds], ".2f")


if __name__ == "__main__":
    main()
