"""Measures how late 100,000 scheduled messages are delivered.

They are sent over one connection with ten levels, and wait at the same time. How late each was is
what the closed store says: the store time of the delivered message, less the time when it was due.
Three loads:

- spread: they fall due in the pace in which they were sent;
- killed: the same, and the broker is killed (SIGKILL) when half of them are delivered;
- at once: the broker is stopped until all of them are due.

What was due while no broker ran is late by the time since the start of the next process.

Examples::

    .venv/bin/python benchmarks/delay.py              writes benchmarks/results/delay.md
    .venv/bin/python benchmarks/delay.py --rounds 1   a look: prints, writes nothing
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from statistics import quantiles
from typing import Any

import machine

TESTS = Path(__file__).resolve().parent.parent / "tests"
sys.path[:0] = [str(TESTS)]

from support.processes.server import Standalone  # noqa: E402
from support.stores.scheduled_messages import Journey, Wire, frames_of, journeys  # noqa: E402

FLUSHES = ("SYNC_FLUSH", "ASYNC_FLUSH")
MESSAGES, LEVELS, QUEUES = 100_000, 10, 4
TOPIC = "later"
SPREAD = "20s 21s 22s 23s 24s 24s 23s 22s 21s 20s"
TARGET_S = 1.1
TARGETED = ("spread", "killed")
ROUNDS_MIN = 5
"""Fewer rounds give no verdict, and no result file."""
NOISE_MAX = 0.3
"""In cores; a machine on which more runs beside it gives no verdict."""
POLL_S = 0.02


def main() -> None:
    """Measure what was asked for, print it, and write the result file of a whole run."""
    asked = _arguments()
    machine.refuse_other_sources()
    rows: list[dict[str, Any]] = []
    with machine.NoiseWatch() as watch:
        for flush in FLUSHES:
            for load, run in LOADS.items():
                row: dict[str, Any] = {
                    "load": load,
                    "flush": flush,
                    "p50": [],
                    "p99": [],
                    "max": [],
                }
                row |= {"rate": [], "twice": []}
                for number in range(asked.rounds):
                    _measure(asked.folder / f"delay-{number}", flush, run, row)
                    print(f"{load} {flush}: {row['max'][-1]:.3f} s", flush=True)
                rows.append(row)
    lines = [*_head(asked, watch.noise), *_table(rows, watch.noise)]
    machine.report("delay", lines, rows, whole=asked.rounds >= ROUNDS_MIN)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure how late scheduled messages are.")
    parser.add_argument("--rounds", type=int, default=ROUNDS_MIN)
    parser.add_argument("--folder", type=Path, default=machine.ROOT / "build" / "bench")
    return parser.parse_args()


def _measure(
    folder: Path, flush: str, run: Callable[[Standalone], list[float]], row: dict[str, Any]
) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    server = Standalone(
        folder,
        settings={
            "flushDiskType": flush,
            "messageDelayLevel": SPREAD,
            "waitTimeMillsInSendQueue": 60_000,
        },
    )
    server.start()
    try:
        with closing(Wire(server.broker)) as wire:
            wire.create_topic(TOPIC, QUEUES)
            wire.send(frames_of(TOPIC, range(MESSAGES), queues=QUEUES, levels=LEVELS))
            if wire.waiting() < MESSAGES:
                sys.exit("the first messages were due before the last was sent: too slow a machine")
        started_ms = run(server)
        _until(server, lambda wire: wire.waiting() == 0)
        server.stop()
        found = journeys(folder / "store", TOPIC, queues=QUEUES)
        late_s = sorted(_lateness_s(journey, started_ms) for journey in found.values())
        cuts = quantiles(late_s, n=100)
        times = sorted(journey.delivered_ms[0] for journey in found.values())
        row["p50"].append(cuts[49])
        row["p99"].append(cuts[98])
        row["max"].append(late_s[-1])
        row["rate"].append(len(times) / max((times[-1] - times[0]) / 1000, 0.001))
        row["twice"].append(sum(len(journey.delivered_ms) > 1 for journey in found.values()))
    finally:
        if server.running:
            server.stop()
        shutil.rmtree(folder, ignore_errors=True)


def _lateness_s(journey: Journey, started_ms: Sequence[float]) -> float:
    """Return how late a message was, the time without a broker left out."""
    at_ms = journey.delivered_ms[0]
    starts = [start for start in started_ms if journey.due_ms < start <= at_ms]
    return (at_ms - max([journey.due_ms, *starts])) / 1000


def _spread(server: Standalone) -> list[float]:
    return []


def _killed(server: Standalone) -> list[float]:
    _until(server, lambda wire: wire.delivered(TOPIC, QUEUES) >= MESSAGES // 2)
    server.kill()
    return _start(server)


def _at_once(server: Standalone) -> list[float]:
    server.stop()
    time.sleep(max(int(text[:-1]) for text in SPREAD.split()))
    return _start(server)


def _start(server: Standalone) -> list[float]:
    started_ms = time.time() * 1000
    server.start()
    return [started_ms]


LOADS: dict[str, Callable[[Standalone], list[float]]] = {
    "spread": _spread,
    "killed": _killed,
    "at once": _at_once,
}


def _until(server: Standalone, holds: Callable[[Wire], bool]) -> None:
    with closing(Wire(server.broker)) as wire:
        while not holds(wire):
            time.sleep(POLL_S)


def _head(asked: argparse.Namespace, noise: machine.Noise) -> list[str]:
    loads = {
        "load": f"{MESSAGES:,} messages of {LEVELS} levels ({SPREAD}) to {QUEUES} queues, all of"
        " which wait at the same time",
    }
    return machine.page_head(
        "How late scheduled messages are delivered",
        loads,
        rounds=asked.rounds,
        noise=noise,
        noise_max=NOISE_MAX,
    )


def _table(rows: Sequence[dict[str, Any]], noise: machine.Noise) -> list[str]:
    lines = [
        "| due | flush | median, s | 99 of 100 within, s | latest, s | target | messages/s"
        " | delivered twice |",
        "|---|---|--:|--:|--:|---|--:|--:|",
    ]
    for row in rows:
        latest = row["max"]
        if row["load"] not in TARGETED:
            verdict = ""
        elif len(latest) < ROUNDS_MIN or noise.total > NOISE_MAX:
            verdict = f"≤ {TARGET_S:g} no verdict"
        else:
            verdict = f"≤ {TARGET_S:g} " + ("met" if max(latest) <= TARGET_S else "missed")
        cells = [machine.cell(row[name], ".3f") for name in ("p50", "p99", "max")]
        lines.append(
            f"| {row['load']} | {row['flush']} | {' | '.join(cells)} | {verdict}"
            f" | {machine.cell(row['rate'], ',.0f')} | {machine.cell(row['twice'], ',.0f')} |"
        )
    return lines


if __name__ == "__main__":
    main()
