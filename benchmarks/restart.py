"""Measures how long a broker with a large store takes from its start to ``ready``.

An empty store shows what a start takes anyhow. The older messages of the others have bodies of
zeros that take no space on the disk; their queue and their index are real. In each round the load
generator sends for some seconds, and the broker is killed (SIGKILL) or stopped (SIGTERM) while it
does; then the broker starts again. The figures are the time from the start of the process until it
prints ``ready``, when name server and broker serve, and the processor time used by then, which
depends less on what else runs on the machine.

Examples::

    .venv/bin/python benchmarks/restart.py                      writes benchmarks/results/restart.md
    .venv/bin/python benchmarks/restart.py --gib 1 --rounds 1   a look: prints, writes nothing
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import loadgen
import machine

TESTS = Path(__file__).resolve().parent.parent / "tests"
sys.path[:0] = [str(TESTS), str(TESTS / "conformance")]

from support.processes.server import Standalone  # noqa: E402
from support.stores.sparse_log import make_sparse_log  # noqa: E402

SIZES_GIB = (0, 1, 10, 50)
FLUSHES = ("SYNC_FLUSH", "ASYNC_FLUSH")
TARGETS_S = {"SIGKILL": 1.5, "SIGTERM": 0.4}
BODY_BYTES = 128 * 1024
LOAD = loadgen.Load(mode="send", conns=16, window=32, body=1024, queues=8)
ROUNDS_MIN = 5
"""Fewer rounds give no verdict, and no result file."""
NOISE_MAX = 0.3
"""In cores; a machine on which more runs beside it gives no verdict."""


def main() -> None:
    """Measure what was asked for, print it, and write the result file of a whole run."""
    asked = _arguments()
    machine.refuse_other_sources()
    rows: list[dict[str, Any]] = []
    with machine.NoiseWatch() as watch:
        for gib in asked.gib:
            rows += _measure(asked.folder / "restart", gib, asked)
    lines = [*_head(asked, watch.noise), *_table(rows, watch.noise)]
    machine.report(
        "restart", lines, rows, whole=tuple(asked.gib) == SIZES_GIB and asked.rounds >= ROUNDS_MIN
    )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Time restarts of brokers with large stores.")
    parser.add_argument("--gib", type=int, nargs="+", default=SIZES_GIB, help="sizes of the log")
    parser.add_argument("--rounds", type=int, default=ROUNDS_MIN)
    parser.add_argument("--seconds", type=float, default=5.0, help="of load before each end")
    parser.add_argument("--folder", type=Path, default=machine.ROOT / "build" / "bench")
    return parser.parse_args()


def _measure(folder: Path, gib: int, asked: argparse.Namespace) -> list[dict[str, Any]]:
    """Make a store of a size, and time its restarts in both flush modes."""
    shutil.rmtree(folder, ignore_errors=True)
    try:
        count = make_sparse_log(folder / "store" / "commitlog", gib << 30, body_bytes=BODY_BYTES)
        server = Standalone(folder, settings={"checkCRCOnRecover": "false"})
        server.start()  # makes queue and index
        server.stop()
        rows = []
        for flush in FLUSHES:
            server = Standalone(folder, settings={"flushDiskType": flush})
            of_flush: list[dict[str, Any]] = [
                {
                    "gib": gib,
                    "messages": count,
                    "flush": flush,
                    "signal": signal,
                    "s": [],
                    "cpu": [],
                }
                for signal in TARGETS_S
            ]
            for number in range(asked.rounds):
                for row in of_flush:
                    topic = f"{flush}-{row['signal']}-{number}"
                    took_s, used_s = _restart(server, row["signal"], topic, asked.seconds)
                    row["s"].append(took_s)
                    row["cpu"].append(used_s)
                    print(f"{gib} GiB {flush} {row['signal']}: {took_s:.3f} s", flush=True)
            rows += of_flush
        return rows
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _restart(server: Standalone, signal: str, topic: str, load_s: float) -> tuple[float, float]:
    """End a broker under load and start it again.

    Returns:
        The seconds until it is ready, and the seconds of a processor that it has used by then.
    """
    server.start()
    load = threading.Thread(target=_send, args=(server, topic, load_s + 30.0))
    load.start()
    time.sleep(load_s)
    if signal == "SIGKILL":
        server.kill()
    else:
        server.stop()
    load.join()
    began_s = time.monotonic()
    server.start()
    took_s = time.monotonic() - began_s
    fields = Path(f"/proc/{server.pid}/stat").read_text().rpartition(")")[2].split()
    used_s = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    server.stop()
    return took_s, used_s


def _send(server: Standalone, topic: str, duration_s: float) -> None:
    host, port = server.broker
    target = loadgen.Target(f"{host}:{port}", [server.pid])
    with contextlib.suppress(loadgen.LoadError, OSError):  # the broker ends under it
        loadgen.run(LOAD, target, topic=topic, warmup_s=0.0, duration_s=duration_s)


def _head(asked: argparse.Namespace, noise: machine.Noise) -> list[str]:
    loads = {
        "load": f"{LOAD.conns} connections with {LOAD.window} sends of {LOAD.body} bytes in flight,"
        f" for {asked.seconds:g} s, until the broker is gone",
    }
    return machine.page_head(
        "Restarts of brokers with large stores",
        loads,
        rounds=asked.rounds,
        noise=noise,
        noise_max=NOISE_MAX,
    )


def _table(rows: Sequence[dict[str, Any]], noise: machine.Noise) -> list[str]:
    lines = [
        "| log | messages before the load | flush | ended by | seconds to `ready` | target"
        " | processor seconds |",
        "|--:|--:|---|---|---|---|---|",
    ]
    for row in rows:
        seconds, used, target_s = row["s"], row["cpu"], TARGETS_S[row["signal"]]
        if len(seconds) < ROUNDS_MIN or noise.total > NOISE_MAX:
            verdict = "no verdict"
        else:  # the worse quartile decides
            verdict = "met" if sorted(seconds)[-2] <= target_s else "missed"
        lines.append(
            f"| {row['gib']} GiB | {row['messages']:,} | {row['flush']} | {row['signal']}"
            f" | {machine.cell(seconds, '.2f')}"
            f" | ≤ {target_s:g} {verdict} | {machine.cell(used, '.2f')} |"
        )
    return lines


if __name__ == "__main__":
    main()
