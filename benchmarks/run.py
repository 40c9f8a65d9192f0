"""Compares our broker with RocketMQ's own, side by side on this machine.

Rounds are interleaved: in each, every server is started on fresh files, warmed up, measured on
every row and stopped, so that a slow minute of the machine meets all of them. One server runs at a
time. The table and the raw figures land in ``benchmarks/results``.

Examples::

    make bench                                       the whole comparison
    make bench BENCH='--quick'                       one short round
    make bench BENCH='--quick --servers ours --rows send-shared,send-16x1'
    make bench BENCH='--build both --servers ours'   compiled against interpreted
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import loadgen
import machine
from report import Results
from rows import ROWS, Row
from servers import KINDS, Server
from warm_memory import warm_memory

BUSY_CORES_MAX = 0.3
IDLE_SETTLE_S = 5.0
DEFAULT_SERVERS = "ours,java-4.9.7,java-5.3.3"


def main() -> int:
    """Run the comparison that the command line asks for."""
    options = _options()
    rows = _chosen(options.rows, {row.name: row for row in ROWS}, "row")
    kinds = _chosen(",".join(_server_names(options)), KINDS, "server")
    loadgen.compile_generator()
    settings = {
        "rounds": options.rounds,
        "seconds per figure": options.duration,
        "flush": "asynchronous and synchronous as the row says, all else at its default",
    }
    results = Results(machine.facts(), settings)
    try:
        for number in range(1, options.rounds + 1):
            for kind in kinds:
                _wait_until_quiet(options.patience)
                with nullcontext("as found") if options.quick else warm_memory() as warm:
                    results.warm_memory.append(warm)
                    _measure(kind, rows, options, results, number)
                results.save(options.save)  # what is there counts, whatever comes
    except KeyboardInterrupt:
        print("stopped early; the figures so far count", file=sys.stderr)
    print(f"\n{results.markdown()}")
    print(f"saved as {results.save(options.save)}")
    return 1 if results.doubts else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = ", ".join(row.name for row in ROWS)
    parser.add_argument("--quick", action="store_true", help="one round of two seconds per row")
    parser.add_argument("--rounds", type=int, help="default 3")
    parser.add_argument("--duration", type=float, help="seconds per figure, default 5")
    parser.add_argument("--rows", default="all", help=f"some of: {names}")
    parser.add_argument("--servers", default=DEFAULT_SERVERS, help=f"some of: {', '.join(KINDS)}")
    parser.add_argument("--build", choices=("compiled", "interpreted", "both"), default="compiled")
    parser.add_argument("--save", default="latest", metavar="NAME", help="name of the result files")
    parser.add_argument("--folder", type=Path, default=Path("build/bench/files"))
    parser.add_argument(
        "--patience", type=float, default=30, help="seconds to wait for other work to end"
    )
    options = parser.parse_args()
    options.rounds = options.rounds or (1 if options.quick else 3)
    options.duration = options.duration or (2.0 if options.quick else 5.0)
    options.warm = 0.4 if options.quick else 1.0
    return options


def _server_names(options: argparse.Namespace) -> Iterator[str]:
    for name in options.servers.split(","):
        if name != "ours" or options.build in ("compiled", "both"):
            yield name
        if name == "ours" and options.build in ("interpreted", "both"):
            yield "ours-interpreted"


def _chosen(names: str, known: dict[str, Any], what: str) -> list[Any]:
    if names == "all":
        return list(known.values())
    unknown = [name for name in names.split(",") if name not in known]
    if unknown:
        sys.exit(f"no such {what}: {', '.join(unknown)}; there are {', '.join(known)}")
    return [known[name] for name in dict.fromkeys(names.split(","))]


def _wait_until_quiet(patience_s: float) -> None:
    """Wait for other work on the machine to end, and say so when it does not."""
    deadline = time.monotonic() + patience_s
    while (busy := machine.busy_cores(1.0)) > BUSY_CORES_MAX:
        if time.monotonic() > deadline:
            print(f"the machine is busy: {busy:.1f} cores of other work", file=sys.stderr)
            return


def _measure(
    kind: type[Server], rows: list[Row], options: argparse.Namespace, results: Results, number: int
) -> None:
    for start in ("idle", "async", "sync"):
        chosen = [row for row in rows if row.start == start]
        if not chosen:
            continue
        flush = "SYNC_FLUSH" if start == "sync" else "ASYNC_FLUSH"
        server = kind(options.folder.absolute() / kind.name, flush=flush)
        try:
            started = server.start()
            results.servers[kind.name] = server.describe()
            if start == "idle":
                started |= _idle(server, options)
            else:
                _warm_up(server, chosen, options)
            for row in chosen:
                figures = started if row.load is None else _load(server, row, options)
                _note(results, row, kind.name, figures, number)
        finally:
            server.stop()


def _note(results: Results, row: Row, server: str, figures: dict[str, Any], number: int) -> None:
    doubt = loadgen.doubts(figures) if row.load else ""
    if doubt:
        results.doubts.append(f"{row.name}, {server}, round {number}: {doubt}")
    line = results.add(row, server, figures)
    print(f"round {number}  {server:<17}{row.name:<13}{line}  {doubt}", flush=True)


def _idle(server: Server, options: argparse.Namespace) -> dict[str, float]:
    """Memory and CPU time of a broker that nobody uses, once it has settled."""
    time.sleep(IDLE_SETTLE_S)
    watch_s = 2 * options.duration
    before = machine.cpu_seconds(server.pids)
    time.sleep(watch_s)
    used = machine.cpu_seconds(server.pids) - before
    return {
        "cpu_percent": 100 * used / watch_s,
        "anon_mb": machine.anonymous_mib(server.pids),
    }


def _warm_up(server: Server, rows: list[Row], options: argparse.Namespace) -> None:
    """Run every kind of load for a while: the first seconds of a server are not its usual ones."""
    loads = list(dict.fromkeys(row.load for row in rows if row.load and row.load.mode == "send"))
    if any(row.fill for row in rows):
        loads.append(loadgen.Load(batch=32, window=4))
    share_s = server.settle_s * options.warm / max(1, len(loads))
    for load in loads:
        _run(server, load, "warm", 0, max(0.2, share_s))
    if any(row.load and row.load.mode == "pull" for row in rows):
        pull = loadgen.Load(mode="pull", conns=4, window=1)
        _run(server, pull, "warm", 0, max(0.2, share_s))


def _load(server: Server, row: Row, options: argparse.Namespace) -> dict[str, Any]:
    assert row.load is not None
    topic = f"bench-{row.name}"
    if row.fill is not None:
        _run(server, row.fill, topic, 0, options.duration / 2)
    return _run(server, row.load, topic, options.warm, options.duration)


def _run(
    server: Server, load: loadgen.Load, topic: str, warmup_s: float, duration_s: float
) -> dict[str, Any]:
    return loadgen.run(
        load,
        address=server.address,
        pids=server.broker_pids,
        topic=topic,
        warmup_s=warmup_s,
        duration_s=duration_s,
    )


if __name__ == "__main__":
    sys.exit(main())
