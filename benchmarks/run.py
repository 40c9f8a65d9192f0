"""Compares our broker with others, side by side on this machine.

In each round every server is started on fresh files, warmed up, measured on every row and stopped,
one server at a time; each round begins with another server. A figure that was taken while other
work disturbed it is discarded and taken again. Table and raw figures land in
``benchmarks/results``, after each figure, so that a run can be continued.

Examples::

    make bench                                       five rounds: prints its plan first
    make bench BENCH='--quick'                       each row once, very short: no verdicts
    make bench BENCH='--minutes 9 --continue'        what is missing, for at most nine minutes
    make bench BENCH='--servers cometmq,rocketmq-5.3.3 --rows send-shared,send-16x1'
    make bench BENCH='--servers cometmq,cometmq-interpreted --save builds'
    make bench BENCH='--servers cometmq --before ../before --save before'   another checkout's, too
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import cold
import figures
import loadgen
import machine
import report
import rivals
import servers
from figures import Figure, Figures
from loadgen import Load, LoadError
from processes import ProcessError
from rows import ROWS, Row
from servers import Server
from verdict import ROUNDS_MIN
from warm_memory import warm_memory

KINDS: dict[str, type[Server]] = {**servers.KINDS, **rivals.KINDS}
DEFAULT_SERVERS = ",".join(KINDS)
QUICK_SERVERS = "cometmq,rocketmq-5.3.3,rocketmq-5.3.3-512m,nats,kafka"
"""Every row is among theirs."""
STARTS = ("idle", "async", "sync")
NOISE_CORES_MAX = 0.3
IDLE_SETTLE_S = 30.0
IDLE_WATCH_S = 30.0
"""A tick of 10 ms in this time is 0.03 % of a core."""
WARM_MEMORY_S = 12.0
WARM_RATE = 10_000
"""Messages per second of warm-up for rows of paced sends."""
WARM_SLICE_S = 2.0
WARM_SLICES_MAX = 8
STILL_WARMING = 0.9
"""A server is warm when a slice of load costs no less than this share of the slice before it."""
COLD_CACHED_MAX = 0.05
"""A backlog is cold when at most this share of it is in the page cache."""
OVERHEAD_S = 0.5
"""Seconds that a figure takes beside its load: the generator's start and its checks."""


@dataclass(frozen=True)
class Options:
    """What the command line asks for."""

    quick: bool
    rounds: int
    duration: float
    warm: float
    rows: list[Row]
    kinds: list[type[Server]]
    save: str
    resume: bool
    minutes: float
    noise_max: float
    quiet_wait: float
    folder: Path
    dirty: bool
    plan: bool
    before: Path | None


def main() -> int:
    """Run the comparison that the command line asks for."""
    options = _options()
    _print_plan(options)
    if options.plan:
        return 0
    machine.refuse_other_sources()
    machine.refuse_dirty_tree(allowed=options.quick or options.dirty)
    loadgen.compile_generator()
    kinds, left_out = figures.available(options.kinds, lambda kind: kind.prepare())
    options = replace(options, kinds=kinds)
    results = Figures(
        figures.where(options.save, quick=options.quick),
        machine.facts(),
        {"seconds per figure": options.duration, "quick": options.quick}
        | ({"before": machine.commit(options.before)} if options.before else {}),
        options.noise_max,
    )
    if options.resume:
        results.resume()
    results.left_out = left_out
    try:
        _run(options, results)
    except KeyboardInterrupt:
        print("stopped early; --continue goes on from here", file=sys.stderr)
    table = report.markdown(results, list(dict.fromkeys([*KINDS, *(k.name for k in kinds)])))
    results.path.with_suffix(".md").write_text(table)
    print(f"\n{table}\nsaved as {results.path.with_suffix('.md')}")
    return 1 if results.doubts() or results.missing() else 0


def _options() -> Options:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = ", ".join(row.name for row in ROWS)
    parser.add_argument("--quick", action="store_true", help="each row once, very short")
    parser.add_argument("--rounds", type=int, help=f"default {ROUNDS_MIN}, the least for verdicts")
    parser.add_argument("--duration", type=float, help="seconds per figure, default 2")
    parser.add_argument("--rows", default="all", help=f"some of: {names}")
    parser.add_argument("--servers", help=f"some of: {', '.join(KINDS)}")
    parser.add_argument("--save", metavar="NAME", help="name of the result files")
    parser.add_argument(
        "--before", type=Path, metavar="CHECKOUT", help="measure the server there as well"
    )
    figures.add_run_arguments(parser, NOISE_CORES_MAX)
    parser.add_argument("--folder", type=Path, default=Path("build/bench/files"))
    given = parser.parse_args()
    before = given.before and given.before.resolve()
    kinds = _chosen(
        given.servers or (QUICK_SERVERS if given.quick else DEFAULT_SERVERS), KINDS, "server"
    )
    return Options(
        quick=given.quick,
        rounds=given.rounds or (1 if given.quick else ROUNDS_MIN),
        duration=given.duration or (0.5 if given.quick else 2.0),
        warm=0.2 if given.quick else 0.5,
        rows=_chosen(given.rows, {row.name: row for row in ROWS}, "row"),
        kinds=[*kinds, servers.before(before)] if before else kinds,
        save=given.save or ("quick" if given.quick else "comparison"),
        resume=given.resume,
        minutes=given.minutes,
        noise_max=float("inf") if given.quick else given.noise_max,
        quiet_wait=0.0 if given.quick else given.quiet_wait,
        folder=given.folder.absolute(),
        dirty=given.dirty,
        plan=given.plan,
        before=before,
    )


def _chosen(names: str, known: dict[str, Any], what: str) -> list[Any]:
    if names == "all":
        return list(known.values())
    unknown = [name for name in names.split(",") if name not in known]
    if unknown:
        sys.exit(f"no such {what}: {', '.join(unknown)}; there are {', '.join(known)}")
    return [known[name] for name in dict.fromkeys(names.split(","))]


def _print_plan(options: Options) -> None:
    total = 0.0
    for kind in options.kinds:
        seconds = _expected_s(kind, _rows_of(kind, options.rows), options)
        total += seconds
        rows = len(_rows_of(kind, options.rows))
        print(f"plan: {kind.name:<18}{rows:>3} rows {seconds:>6.0f} s a round")
    print(
        f"plan: {options.rounds} rounds of {total / 60:.1f} minutes: "
        f"{options.rounds * total / 60:.0f} minutes on a quiet machine\n",
        flush=True,
    )


def _expected_s(kind: type[Server], rows: list[Row], options: Options) -> float:
    seconds = 0.0 if options.quick else WARM_MEMORY_S
    for start in STARTS:
        chosen = [row for row in rows if row.flush == start]
        if chosen and start == "idle":
            seconds += len(chosen) * kind.start_s
            seconds += sum(_idle_s(options)) if any(row.name == "idle" for row in chosen) else 0.0
        elif chosen:
            seconds += kind.start_s + kind.settle_s + 2 * WARM_SLICE_S
        for row in chosen:
            if row.load is not None:
                fill_s = options.duration / 2 if row.fill is not None else 0.0
                seconds += options.warm + options.duration + fill_s + OVERHEAD_S + row.seconds
    return seconds


def _idle_s(options: Options) -> tuple[float, float]:
    """How long an idle server settles, and how long it is watched."""
    return (1.0, 1.0) if options.quick else (IDLE_SETTLE_S, IDLE_WATCH_S)


def _rows_of(kind: type[Server], rows: list[Row]) -> list[Row]:
    return [row for row in rows if (kind.measured_as or kind.name) in row.servers]


def _run(options: Options, results: Figures) -> None:
    ends = time.monotonic() + 60 * options.minutes if options.minutes else float("inf")
    for number in range(1, options.rounds + 1):
        for kind in figures.rotated(options.kinds, number):
            rows = [
                row
                for row in _rows_of(kind, options.rows)
                if not results.has(number, kind.name, row.name)
            ]
            if not rows:
                continue
            if time.monotonic() + _expected_s(kind, rows, options) > ends:
                print("the time is up; --continue goes on from here")
                return
            if not options.quick:
                machine.wait_until_quiet(options.quiet_wait, options.noise_max)
            with ExitStack() as stack:
                warm = "as found" if options.quick else stack.enter_context(warm_memory())
                for start in STARTS:
                    if chosen := [row for row in rows if row.flush == start]:
                        Measurement(kind, options, results, number, warm).measure(start, chosen)


class Measurement:
    """One server in one round."""

    def __init__(
        self,
        kind: type[Server],
        options: Options,
        results: Figures,
        number: int,
        warm: str,
    ) -> None:
        self.kind = kind
        self.options = options
        self.results = results
        self.number = number
        self.warm = warm

    def measure(self, start: str, rows: list[Row]) -> None:
        """Take the figures of the rows that need the server started this way."""
        try:
            if start == "idle":
                self._measure_start(rows)
            else:
                self._measure_loads(start, rows)
        except (LoadError, ProcessError, OSError) as error:
            self._failed([each for each in rows if not self._has(each)], error)

    def _failed(self, rows: list[Row], error: Exception) -> None:
        names = [row.name for row in rows]
        self.results.fail(self.number, self.kind.name, names, error)

    def _has(self, row: Row) -> bool:
        return self.results.has(self.number, self.kind.name, row.name)

    def _server(self, start: str) -> Server:
        flush = "SYNC_FLUSH" if start == "sync" else "ASYNC_FLUSH"
        return self.kind(self.options.folder / self.kind.name, flush=flush)

    def _started(self, server: Server) -> dict[str, float]:
        took = server.start()
        self.results.servers[self.kind.name] = server.describe()
        return took

    def _measure_start(self, rows: list[Row]) -> None:
        for row in rows:
            self._take(row, lambda watch, row=row: self._start_figures(row, watch))

    def _start_figures(self, row: Row, watch: machine.NoiseWatch) -> dict[str, Any]:
        server = self._server("idle")
        try:
            with watch:
                took = self._started(server)
            return took if row.name == "start" else self._idle(server, watch)
        finally:
            server.stop()

    def _idle(self, server: Server, watch: machine.NoiseWatch) -> dict[str, float]:
        """Memory and processor time of a server that nobody uses, once it has settled."""
        settle_s, watch_s = _idle_s(self.options)
        time.sleep(settle_s)
        before = machine.cpu_seconds(server.pids)
        with watch:
            time.sleep(watch_s)
        used = machine.cpu_seconds(server.pids) - before
        return {
            "cpu_percent": 100 * used / watch_s,
            "anon_mb": machine.anonymous_mib(server.pids),
        }

    def _measure_loads(self, start: str, rows: list[Row]) -> None:
        server = self._server(start)
        try:
            self._started(server)
            self._warm_up(server, rows)
            for row in rows:
                try:
                    self._take(row, lambda watch, row=row: self._load(server, row, watch))
                except (LoadError, cold.ColdError) as error:
                    self._failed([row], error)
        finally:
            server.stop()

    def _take(self, row: Row, measure: Callable[[machine.NoiseWatch], Any]) -> None:
        """Take a figure; ``measure`` enters the watch for as long as the figure is measured."""

        def once() -> Figure:
            watch = machine.NoiseWatch()
            found = measure(watch)
            values = {metric.name: metric.read(found) for metric in row.metrics}
            doubt = loadgen.doubts(found) if row.load is not None else ""
            figure = Figure(
                self.number, self.kind.name, row.name, values, watch.noise, self.warm, doubt
            )
            said = ", ".join(
                f"{metric.name} {figures.number(values[metric.name])} {metric.unit}"
                for metric in row.metrics
            )
            print(
                f"round {self.number}  {self.kind.name:<16} {row.name:<20}{said}  "
                f"noise {watch.noise.total:.2f}  {doubt}",
                flush=True,
            )
            return figure

        self.results.take(once)

    def _warm_up(self, server: Server, rows: list[Row]) -> None:
        """Run every kind of load, and then one until it costs no less from slice to slice."""
        sends = [row.load for row in rows if row.load and row.load.mode == "send"]
        loads = [replace(load, split=False) for load in sends if load.topics == 1]
        loads = [load for load in dict.fromkeys(loads) if load.conns <= 64] or [Load()]
        pulls = [row for row in rows if row.load and row.load.mode == "pull" and not row.cold]
        if pulls:
            loads.append(_fill_for(server, Load(batch=32, window=4, tags=4)))
            loads += dict.fromkeys(replace(row.load, split=False) for row in pulls if row.load)
        loads += [
            replace(row.load, rate=WARM_RATE) for row in rows if row.load and row.load.mode == "e2e"
        ]
        share_s = max(0.3, server.settle_s / len(loads))
        for load in loads:
            self._generate(server, load, "warm", 0, share_s)
        before = 0.0
        for _ in range(WARM_SLICES_MAX):
            found = self._generate(server, Load(), "warm", 0, min(WARM_SLICE_S, server.settle_s))
            cost = float(found["server"]["cpu_per_million"])
            if before and cost > STILL_WARMING * before:
                return
            before = cost

    def _load(self, server: Server, row: Row, watch: machine.NoiseWatch) -> dict[str, Any]:
        assert row.load is not None
        topic = f"bench-{row.name}-{time.monotonic_ns() % 10**9}"
        load, duration = row.load, self.options.duration
        if row.fill is not None:
            fill = _fill_for(server, row.fill)
            if fill.count and self.options.quick:
                fill = replace(fill, count=fill.count // 10)
            filled = self._generate(server, fill, topic, 0, 60.0 if fill.count else duration / 2)
            if doubt := loadgen.doubts(filled, at_least=fill.count):
                raise LoadError(f"what fills the topic is in doubt: {doubt}")
        if row.cold:
            assert row.fill is not None
            backlog_mib = row.fill.body * fill.count / 2**20
            return self._load_cold(server, row, topic, backlog_mib, watch)
        with watch:
            return loadgen.run(
                load,
                _target(server),
                topic=topic,
                warmup_s=self.options.warm,
                duration_s=duration,
                create=row.fill is None,
            )

    def _load_cold(
        self, server: Server, row: Row, topic: str, backlog_mib: float, watch: machine.NoiseWatch
    ) -> dict[str, Any]:
        """Read a backlog from the disk while a producer sends."""
        assert row.load is not None
        assert row.beside is not None
        left_mib = cold.drop(server.pids, server.store, cold.COLD_ENOUGH * backlog_mib)
        with watch:
            found = loadgen.run_beside(
                row.load, row.beside, _target(server), topic=topic, duration_s=30.0
            )
        if left_mib > COLD_CACHED_MAX * backlog_mib:
            raise LoadError(
                f"{left_mib:.0f} MiB stayed in the page cache, beside a backlog of "
                f"{backlog_mib:.0f} MiB"
            )
        return found

    def _generate(
        self, server: Server, load: Load, topic: str, warmup_s: float, duration_s: float
    ) -> dict[str, Any]:
        return loadgen.run(
            load, _target(server), topic=topic, warmup_s=warmup_s, duration_s=duration_s
        )


def _target(server: Server) -> loadgen.Target:
    return loadgen.Target(server.address, server.pids, server.protocol)


def _fill_for(server: Server, fill: Load) -> Load:
    """The fill, without batches and tags where the protocol has none."""
    if server.protocol != "rocketmq":
        fill = replace(fill, tags=Load().tags)
    return replace(fill, batch=0, window=32) if server.protocol == "nats" else fill


if __name__ == "__main__":
    sys.exit(main())
