"""Measures sends a second, and the disk space of an empty store, by the size of log files.

A broker creates each file of its log ahead of need and reserves its space. Small files take less
disk at first and are created more often. The sizes take turns in each round, each with a new store.

Examples::

    .venv/bin/python benchmarks/log_file_size.py              writes results/log-file-size.md
    .venv/bin/python benchmarks/log_file_size.py --rounds 2   a look: prints, writes nothing
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path
from typing import Any

import loadgen
import machine

TESTS = Path(__file__).resolve().parent.parent / "tests"
sys.path[:0] = [str(TESTS), str(TESTS / "conformance")]

from support.processes.server import Standalone  # noqa: E402

MIB = 1024 * 1024
SIZES_MIB = (1024, 64, 16)
LOADS = {
    "128 B, synchronous flush": ("SYNC_FLUSH", loadgen.Load()),
    "128 B, asynchronous flush": ("ASYNC_FLUSH", loadgen.Load()),
    "4 KiB, asynchronous flush": ("ASYNC_FLUSH", loadgen.Load(body=4096)),
}
ROUNDS_MIN = 5
"""Fewer rounds write no result file."""


def main() -> None:
    """Measure, print, and write the result file of a whole run."""
    parser = argparse.ArgumentParser(description="Sends a second by the size of log files.")
    parser.add_argument("--rounds", type=int, default=ROUNDS_MIN)
    parser.add_argument("--seconds", type=float, default=4.0, help="of load per figure")
    parser.add_argument("--folder", type=Path, default=machine.ROOT / "build" / "bench")
    asked = parser.parse_args()
    rows: dict[str, dict[int, list[dict[str, Any]]]] = {
        name: {size: [] for size in SIZES_MIB} for name in LOADS
    }
    with machine.NoiseWatch() as watch:
        for _ in range(asked.rounds):
            for name, (flush, load) in LOADS.items():
                for size in SIZES_MIB:
                    taken = _measure(asked.folder / "log-file-size", size, flush, load, asked)
                    print(name, size, taken, flush=True)
                    rows[name][size].append(taken)
    lines = [*_head(asked, watch.noise), *_table(rows)]
    machine.report("log-file-size", lines, rows, whole=asked.rounds >= ROUNDS_MIN)


def _measure(
    folder: Path, size_mib: int, flush: str, load: loadgen.Load, asked: argparse.Namespace
) -> dict[str, Any]:
    shutil.rmtree(folder, ignore_errors=True)
    settings = {"flushDiskType": flush, "mappedFileSizeCommitLog": size_mib * MIB}
    server = Standalone(folder, settings=settings)
    server.start()
    try:
        empty_mib = _allocated_mib(folder / "store")
        target = loadgen.Target("%s:%d" % server.broker, [server.pid])
        figures = loadgen.run(load, target, topic="sizes", warmup_s=0.5, duration_s=asked.seconds)
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)
    if doubts := loadgen.doubts(figures):
        raise loadgen.LoadError(doubts)
    return {"empty_mib": empty_mib} | figures


def _allocated_mib(folder: Path) -> float:
    return sum(path.stat().st_blocks for path in folder.rglob("*") if path.is_file()) * 512 / MIB


def _head(asked: argparse.Namespace, noise: machine.Noise) -> list[str]:
    return machine.page_head(
        "The size of log files",
        {"load": f"16 connections with 32 sends in flight each, for {asked.seconds:g} s"},
        rounds=asked.rounds,
        noise=noise,
    )


def _table(rows: dict[str, dict[int, list[dict[str, Any]]]]) -> list[str]:
    lines = [
        "| load | log file, MiB | disk of an empty store, MiB | k sends/s | processor seconds per"
        " million sends | p99, ms |",
        "|---|--:|--:|---|---|---|",
    ]
    for name, sizes in rows.items():
        for size, taken in sizes.items():
            figures = (
                [each["msg_s"] / 1e3 for each in taken],
                [each["server"]["cpu_per_million"] for each in taken],
                [each["lat_us"]["p99"] / 1e3 for each in taken],
            )
            cells = " | ".join(machine.cell(values, ".3g") for values in figures)
            lines.append(f"| {name} | {size} | {taken[0]['empty_mib']:.0f} | {cells} |")
    return lines


if __name__ == "__main__":
    main()
