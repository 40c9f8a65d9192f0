"""Measures what 10,000 hostile connections do to an honest client of a broker.

Each kind of hostile connection gets a new broker with default settings in each round. The honest
client sends and pulls at a fixed rate on one connection all the time: first alone, then while the
hostile connections are opened, then beside all of them, and at last while all of them end at once.
The hostile peers are one process without CometMQ; a connection that the broker closes is opened
again at the same rate.

In each round the same is measured once more with the hostile connections at `plain_server.py`, a
process beside the broker that accepts them and takes the processor time that the broker took for
each. The broker has no part in what the honest client notices then: it is the kernel of this
machine, and the competition for its processors.

Examples::

    .venv/bin/python benchmarks/hostile_connections.py   writes results/hostile-connections.md
    .venv/bin/python benchmarks/hostile_connections.py --rounds 1 --kinds slow   a look
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import itertools
import json
import os
import resource
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import machine
from hostile_peers import Plan

TESTS = Path(__file__).resolve().parent.parent / "tests"
sys.path[:0] = [str(TESTS), str(TESTS / "conformance")]

import kit  # noqa: E402
import wire  # noqa: E402

from support.processes.server import Standalone  # noqa: E402

ROUNDS_MIN = 3
"""Fewer rounds give no verdict, and no result file."""
TARGET = 3.0
NOISE_MAX = 0.3
"""In cores; verdicts of a machine on which more runs beside it are marked."""
CONNECTIONS = 10_000
OPENED_PER_S = 1000.0
RATE = 200.0
"""Requests of the honest client in a second, half of them sends and half of them pulls."""
PHASES_S = {"alone": 8.0, "opening": 11.0, "steady": 8.0, "ending": 3.0}
DRIP_S = 5.0
ANSWER_BYTES = 32 * 1024
"""The plain server sends so much to a peer that reads nothing: what the broker hands to the kernel
of a connection at first."""
LARGE_TOPIC = "large"
LARGE_BYTES = 8 * 1024
LARGE_COUNT = 32
"""One pull returns all of them: 256 KiB."""
PULLS = 8
FILES = 20_000


@dataclass(frozen=True)
class Kind:
    """One kind of hostile connections: what they do, and what each sends."""

    does: str
    begin: Callable[[], bytes] = bytes
    drip: Callable[[], bytes] = bytes
    reads: bool = True


def _send_frame(body_bytes: int) -> bytes:
    fields = kit.send_fields("honest")
    return wire.encode(wire.Command(kit.Request.SEND_MESSAGE_V2, fields, bytes(body_bytes)))


def _pulls() -> bytes:
    fields = kit.pull_fields("hostile", LARGE_TOPIC, count=LARGE_COUNT)
    return b"".join(
        wire.encode(wire.Command(kit.Request.PULL_MESSAGE, fields, opaque=number))
        for number in range(PULLS)
    )


KINDS = {
    "silent": Kind("sends nothing"),
    "slow": Kind(
        f"sends one byte of a send of 1 KiB every {DRIP_S:g} s", drip=lambda: _send_frame(1024)
    ),
    "half a frame": Kind(
        "sends the first 64 KiB of a send of 128 KiB",
        begin=lambda: _send_frame(128 * 1024)[: 64 * 1024],
    ),
    "huge length": Kind(
        "sends the first 64 KiB of a send of 15 MiB",
        begin=lambda: _send_frame(15 << 20)[: 64 * 1024],
    ),
    "no reads": Kind(
        f"sends {PULLS} pulls with responses of 256 KiB each, and reads nothing",
        begin=_pulls,
        reads=False,
    ),
}


def main() -> None:
    """Measure what was asked for, print it, and write the result file of a whole run."""
    asked = _arguments()
    machine.refuse_other_sources()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = min(FILES, hard) if hard != resource.RLIM_INFINITY else FILES
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))
    rows: dict[str, list[dict[str, float]]] = {name: [] for name in asked.kinds}
    loads = [os.getloadavg()[0]]
    with machine.NoiseWatch() as watch:
        for _ in range(asked.rounds):
            for name in asked.kinds:
                found = _measure(asked.folder / "hostile", KINDS[name], asked.connections)
                plain = _measure(
                    asked.folder / "hostile",
                    KINDS[name],
                    asked.connections,
                    plain_work_s=_work_s(found, asked.connections),
                )
                found |= {
                    f"plain {key}": figure
                    for key, figure in plain.items()
                    if key.startswith(("p99", "ratio"))
                }
                rows[name].append(found)
                loads.append(os.getloadavg()[0])
                print(name, json.dumps({k: round(v, 2) for k, v in found.items()}), flush=True)
    lines = [*_head(asked, watch.noise, loads), *_table(rows, watch.noise)]
    is_whole = tuple(asked.kinds) == tuple(KINDS) and asked.connections >= CONNECTIONS
    machine.report(
        "hostile-connections", lines, rows, whole=is_whole and asked.rounds >= ROUNDS_MIN
    )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure a broker beside hostile connections.")
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=list(KINDS))
    parser.add_argument("--rounds", type=int, default=ROUNDS_MIN)
    parser.add_argument("--connections", type=int, default=CONNECTIONS)
    parser.add_argument("--folder", type=Path, default=machine.ROOT / "build" / "bench")
    return parser.parse_args()


def _work_s(found: dict[str, float], count: int) -> float:
    """The processor time that the broker took for each connection that was opened."""
    own_s = found["cpu alone"] / PHASES_S["alone"] * PHASES_S["opening"]
    opened = min(count, OPENED_PER_S * PHASES_S["opening"])
    return max(0.0, found["cpu opening"] - own_s) / opened


def _measure(
    folder: Path, kind: Kind, count: int, *, plain_work_s: float | None = None
) -> dict[str, float]:
    """Run one round of one kind on a new broker; with a work, on a plain server beside it."""
    shutil.rmtree(folder, ignore_errors=True)
    answer = 0 if kind.reads else ANSWER_BYTES
    server = Standalone(folder, settings={"flushDiskType": "ASYNC_FLUSH"})
    server.start()
    try:
        _store_large(server)
        with (
            _program("honest_client.py", str(server.ports.broker), str(RATE)) as honest,
            _program("plain_server.py", str(answer), str(plain_work_s or 0)) as other,
        ):
            assert honest.stdout is not None
            assert honest.stdout.readline() == "ready\n"
            assert other.stdout is not None
            port = int(other.stdout.readline())
            watch = BrokerWatch(server)
            edges = {"begin": time.monotonic()}
            _wait(edges, "alone", watch)
            plan = Plan(
                server.ports.broker if plain_work_s is None else port,
                count,
                OPENED_PER_S,
                begin=_text(kind.begin()),
                drip=_text(kind.drip()),
                drip_s=DRIP_S if kind.drip() else 0.0,
                reads=kind.reads,
            )
            with _program("hostile_peers.py", json.dumps(asdict(plan))) as hostile:
                reports = Reports(hostile)
                _wait(edges, "opening", watch)
                _wait(edges, "steady", watch)
                held = reports.newest()
                hostile.kill()
            _wait(edges, "ending", watch)
            out, _ = honest.communicate("", timeout=120.0)
        return _figures(json.loads(out), edges) | watch.figures() | held
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)


def _store_large(server: Standalone) -> None:
    connection = wire.Connection(server.broker, timeout=30.0)
    try:
        kit.ok(kit.create_topic(connection, LARGE_TOPIC))
        for _ in range(LARGE_COUNT):
            kit.store(connection, LARGE_TOPIC, bytes(LARGE_BYTES))
        kit.wait_for_queue(connection, LARGE_TOPIC, LARGE_COUNT)
    finally:
        connection.close()


@contextlib.contextmanager
def _program(name: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, str(Path(__file__).with_name(name)), *arguments]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                stream.close()


class Reports:
    """Reads what the hostile peers report, so that they never wait for their output."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._newest = {"open": 0.0, "closed": 0.0}
        threading.Thread(target=self._read, daemon=True).start()

    def newest(self) -> dict[str, float]:
        """How many connections are open, and how many the broker has closed."""
        return {name: float(self._newest[name]) for name in ("open", "closed")}

    def _read(self) -> None:
        with contextlib.suppress(ValueError):  # closed at the end
            for line in self._process.stdout or ():
                self._newest = json.loads(line)


class BrokerWatch:
    """What the broker takes, and what the kernel keeps for all sockets of the machine."""

    def __init__(self, server: Standalone) -> None:
        self._server = server
        self._most: dict[str, float] = {}
        self._used_s = machine.cpu_seconds([server.pid])

    def look(self, phase: str) -> None:
        """Remember the most of a phase."""
        for name, size in (
            ("MiB", self._server.rss_bytes() / (1 << 20)),
            ("kernel MiB", _kernel_mib()),
        ):
            key = f"{name} {phase}"
            self._most[key] = max(self._most.get(key, 0.0), size)

    def end(self, phase: str) -> None:
        """Remember the processor time of a phase."""
        used_s = machine.cpu_seconds([self._server.pid])
        self._most[f"cpu {phase}"], self._used_s = used_s - self._used_s, used_s

    def figures(self) -> dict[str, float]:
        """The most memory of each phase, and its processor time."""
        return self._most


def _kernel_mib() -> float:
    for line in Path("/proc/net/sockstat").read_text().splitlines():
        if line.startswith("TCP:"):
            words = line.split()
            return int(words[words.index("mem") + 1]) * os.sysconf("SC_PAGE_SIZE") / (1 << 20)
    return 0.0


def _wait(edges: dict[str, float], phase: str, watch: BrokerWatch) -> None:
    end_s = time.monotonic() + PHASES_S[phase]
    while (left_s := end_s - time.monotonic()) > 0:
        time.sleep(min(0.5, left_s))
        watch.look(phase)
    watch.end(phase)
    edges[phase] = time.monotonic()


def _figures(
    found: Sequence[tuple[float, str, float]], edges: dict[str, float]
) -> dict[str, float]:
    """Median, p99 and worst latency of each phase, in milliseconds."""
    times = list(edges.items())
    figures = {}
    for (_, from_s), (phase, to_s) in itertools.pairwise(times):
        latencies = sorted(took_s * 1e3 for due_s, _, took_s in found if from_s <= due_s < to_s)
        figures[f"p50 {phase}"] = latencies[len(latencies) // 2]
        figures[f"p99 {phase}"] = latencies[int(len(latencies) * 0.99)]
        figures[f"worst {phase}"] = latencies[-1]
        figures[f"refused {phase}"] = sum(
            name == "refused" for due_s, name, _ in found if from_s <= due_s < to_s
        )
    for phase in list(PHASES_S)[1:]:
        figures[f"ratio {phase}"] = figures[f"p99 {phase}"] / figures["p99 alone"]
    return figures


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _head(asked: argparse.Namespace, noise: machine.Noise, loads: Sequence[float]) -> list[str]:
    about = {
        "honest client": f"{RATE:g} requests a second on one connection, a send of 1 KiB and a pull"
        " of one message in turn; a latency counts from the time at which the request was due",
        "hostile connections": f"{asked.connections:,}, opened at {OPENED_PER_S:,.0f} a second from"
        " 16 addresses; what the broker closes is opened again at this rate",
        "phases": ", ".join(f"{name} {seconds:g} s" for name, seconds in PHASES_S.items())
        + "; all connections end at once at the begin of the last one",
        "broker": "a new `cometmq standalone` with default settings and asynchronous flush in each"
        f" round, {FILES:,} open files; honest client and hostile peers are on the same processors,"
        " the hostile peers with the scheduling class idle, as if they had their own machine: work"
        " of the kernel for them counts, their own does not",
        "load": f"average of the machine {min(loads):.1f} to {max(loads):.1f}: other work ran"
        " beside the measurement",
        **{name: kind.does for name, kind in KINDS.items()},
    }
    return machine.page_head(
        "An honest client beside hostile connections", about, rounds=asked.rounds, noise=noise
    )


def _table(rows: dict[str, list[dict[str, float]]], noise: machine.Noise) -> list[str]:
    """One line for each kind and phase; the worse quartile decides, of few rounds the worst."""
    lines = [
        "| hostile connections | phase | p50, ms | p99, ms | worst, ms | p99 beside p99 alone"
        f" | ≤ {TARGET:g} | p99, ms, connections at a plain server | beside p99 alone | broker, MiB"
        " | sockets of the machine, MiB | processor time of the broker, s |",
        "|---|---|--:|--:|--:|--:|---|--:|--:|--:|--:|--:|",
    ]
    for name, rounds in rows.items():
        for phase in PHASES_S:
            cells = [_cell(rounds, f"{figure} {phase}") for figure in ("p50", "p99", "worst")]
            verdict = ratio = plain_ratio = ""
            if phase != "alone":
                ratios = sorted(found[f"ratio {phase}"] for found in rounds)
                ratio = _cell(rounds, f"ratio {phase}")
                plain_ratio = _cell(rounds, f"plain ratio {phase}")
                if len(ratios) < ROUNDS_MIN:
                    verdict = "no verdict"
                else:
                    worse = ratios[-2] if len(ratios) >= 5 else ratios[-1]
                    verdict = "met" if worse <= TARGET else "missed"
                    verdict += ", noisy" if noise.total > NOISE_MAX else ""
            memory = [f"{max(found[f'{key} {phase}'] for found in rounds):,.0f}" for key in _MEMORY]
            cpu = _cell(rounds, f"cpu {phase}")
            plain = [_cell(rounds, f"plain p99 {phase}"), plain_ratio]
            row = [name, phase, *cells, ratio, verdict, *plain, *memory, cpu]
            lines.append(f"| {' | '.join(row)} |")
    lines += ["", "Connections at the end of the phase *steady*:", ""]
    lines += ["| hostile connections | open | closed by the broker |", "|---|--:|--:|"]
    for name, rounds in rows.items():
        counts = [f"{median(found[key] for found in rounds):,.0f}" for key in ("open", "closed")]
        lines.append(f"| {name} | {' | '.join(counts)} |")
    return lines


_MEMORY = ("MiB", "kernel MiB")


def _cell(rounds: list[dict[str, Any]], key: str) -> str:
    return machine.cell([found[key] for found in rounds], ".2f")


if __name__ == "__main__":
    main()
