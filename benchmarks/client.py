"""Compares our client with others: Java's, and the C++ client's Python binding.

One broker, ours and compiled, serves all of them in the same round, on one core; the client under
test has the other core to itself. Each round begins with another client. JVMs are warmed up for
twenty seconds, short runs included. Table and raw figures land in ``benchmarks/results/client.md``
and ``client.json``, after each figure, so that a run can be continued.

Examples::

    python benchmarks/client.py                        five rounds: prints its plan first
    python benchmarks/client.py --quick                each row once, very short: no verdicts
    python benchmarks/client.py --minutes 9 --continue
    python benchmarks/client.py --clients cometmq,java-5.3.3 --rows send
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import figures
import loadgen
import machine
import servers
import toolchain
from figures import Figure, Figures
from processes import ProcessError
from timing import measure
from verdict import ROUNDS_MIN
from warm_memory import warm_memory

from cometmq.cli.build import version_line
from cometmq.protocol.lazy_record import decode_lazily
from cometmq.protocol.record import encode_record

HERE = Path(__file__).resolve().parent
FILES = Path("build/bench/client")
BROKER_CORE, CLIENT_CORE = 0, 1
OURS, REFERENCE = "cometmq", "java-5.3.3"
JVM_WARM_S, WARM_S = 20.0, 1.0
CONSUMED_PER_S_MAX = 600_000
"""Faster than any client consumed so far: so much backlog lasts."""
FILL = loadgen.Load(batch=32, window=4)
FILL_S_MAX = 120.0
IDLE_S = 20.0
BACKLOG, IDLE = "bench-backlog", "bench-idle"
IDLE_QUEUES = 64
WINDOW = 64
JAVA_FLAGS = ["-Xms256m", "-Xmx512m", "-XX:+UseSerialGC", "-Drocketmq.client.logLevel=ERROR"]
DECODE_MESSAGES = 32
NOISE_CORES_MAX = 0.3
START_S = 4.0
"""What the start of a client takes, for the plan."""


class BenchmarkError(Exception):
    """A client did not do its work; the text carries what it printed."""


FAILURES = (
    BenchmarkError,
    loadgen.LoadError,
    ProcessError,
    OSError,
    subprocess.SubprocessError,
)
"""What makes a figure fail, while the others still count."""


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    name: str
    title: str
    unit: str
    target: float | None = None
    more_is_better: bool = True
    is_ratio: bool = True
    """Whether the target is a ratio to the reference, and not a value."""
    flush: str = "ASYNC_FLUSH"
    """How the broker flushes."""
    work: str = ""
    """What the client's program is told to do; empty for the row's name."""

    @property
    def metric(self) -> str:
        """The name of the row's main figure."""
        return "rate" if self.more_is_better else "CPU"


SENDS = f"async sends of 128 B, {WINDOW} in flight"
SENDS_SYNC = f"{SENDS}, synchronous flush"
ROWS = {
    row.name: row
    for row in (
        Row("send", SENDS_SYNC, "k/s", 2, flush="SYNC_FLUSH"),
        Row("send-async", SENDS, "k/s", work="send"),
        Row("consume", "messages of 128 B through a listener, batches of 32", "k/s", 0.9),
        Row(
            "decode",
            "messages cut out of a pull's response, decoded lazily",
            "k/s",
            1000,
            is_ratio=False,
        ),
        Row(
            "idle",
            "idle consumer of 64 queues",
            "% of a core",
            1,
            more_is_better=False,
            is_ratio=False,
        ),
    )
}
FLUSHES = {"SYNC_FLUSH": "synchronous", "ASYNC_FLUSH": "asynchronous"}
SENT = ("send", "send-async", "consume")


@dataclass(frozen=True)
class Client:
    """One client, and what it can be measured at."""

    name: str
    rows: tuple[str, ...]
    title: str
    environment: Mapping[str, str] = field(default_factory=dict)
    loop: str = "asyncio"

    @property
    def is_jvm(self) -> bool:
        """Whether it needs a JVM's warm-up."""
        return self.name.startswith("java")

    @property
    def warm_s(self) -> float:
        """Seconds of load before the figure counts."""
        return JVM_WARM_S if self.is_jvm else WARM_S

    def command(self) -> list[str]:
        """The program; its arguments are those of ``client_programs/ours.py``."""
        if self.name.startswith(OURS):
            return [sys.executable, str(HERE / "client_programs" / "ours.py")]
        if self.name.startswith("cpp"):
            return [str(toolchain.cpp_python()), str(HERE / "client_programs" / "cpp.py")]
        jars = toolchain.rocketmq_jars("client", self.name.partition("-")[2])
        classes = toolchain.java_classes("bench", jars)
        return [toolchain.command("java"), *JAVA_FLAGS, "-cp", classes, "Bench"]


INTERPRETED = {"COMETMQ_BUILD": "interpreted"}
CLIENTS = {
    client.name: client
    for client in (
        Client(OURS, (*SENT, "decode", "idle"), "CometMQ, uvloop", loop="uvloop"),
        Client("cometmq-asyncio", SENT, "CometMQ, asyncio's own loop"),
        Client("cometmq-interpreted", (*SENT, "decode"), "CometMQ, interpreted", INTERPRETED),
        Client("cpp-0.4.4", SENT, "C++ client's Python binding 0.4.4"),
        Client("java-4.9.8", SENT, "Java 4.9.8, heap 512 MiB"),
        Client("java-5.3.3", (*SENT, "idle"), "Java 5.3.3, heap 512 MiB"),
    )
}


def main() -> int:
    """Run the comparison that the command line asks for."""
    options = _options()
    clients, rows = _chosen(options.clients, CLIENTS), _chosen(options.rows, ROWS)
    _print_plan(clients, rows, options)
    if options.plan:
        return 0
    machine.refuse_other_sources()
    machine.refuse_dirty_tree(allowed=options.quick or options.dirty)
    loadgen.compile_generator()
    clients, left_out = figures.available(clients, lambda client: client.command())
    results = Figures(
        figures.where(options.save, quick=options.quick),
        machine.facts() | {"CometMQ": version_line()},
        {"seconds per figure": options.seconds, "quick": options.quick},
        options.noise_max,
    )
    if options.resume:
        results.resume()
    results.left_out = left_out
    try:
        _run(clients, rows, options, results)
    except KeyboardInterrupt:
        print("stopped early; --continue goes on from here", file=sys.stderr)
    table = _markdown(results)
    results.path.with_suffix(".md").write_text(table)
    print(f"\n{table}\nsaved as {results.path.with_suffix('.md')}")
    return 1 if results.doubts() or results.missing() else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="each row once, very short")
    parser.add_argument("--rounds", type=int, help=f"default {ROUNDS_MIN}, the least for verdicts")
    parser.add_argument("--seconds", type=float, help="per figure, default 3")
    names = ", ".join(CLIENTS)
    parser.add_argument("--clients", default=",".join(CLIENTS), help=f"some of: {names}")
    parser.add_argument("--rows", default=",".join(ROWS), help=f"some of: {', '.join(ROWS)}")
    parser.add_argument("--save", metavar="NAME", help="name of the result files")
    figures.add_run_arguments(parser, NOISE_CORES_MAX)
    options = parser.parse_args()
    options.rounds = options.rounds or (1 if options.quick else ROUNDS_MIN)
    options.seconds = options.seconds or (1.0 if options.quick else 3.0)
    options.save = options.save or ("client-quick" if options.quick else "client")
    if options.quick:
        options.noise_max = float("inf")
    return options


def _chosen(names: str, known: Mapping[str, Any]) -> list[Any]:
    unknown = [name for name in names.split(",") if name not in known]
    if unknown:
        sys.exit(f"no such {', '.join(unknown)}; there are {', '.join(known)}")
    return [known[name] for name in dict.fromkeys(names.split(","))]


def _expected_s(client: Client, row: Row, options: argparse.Namespace) -> float:
    if row.name == "decode":
        return 4.0
    if row.name == "idle":
        return START_S + 10.0 + _idle_s(options)
    return START_S + client.warm_s + float(options.seconds)


def _idle_s(options: argparse.Namespace) -> float:
    return float(options.seconds) if options.quick else IDLE_S


def _fill_count(options: argparse.Namespace) -> int:
    return int((JVM_WARM_S + options.seconds + 2) * CONSUMED_PER_S_MAX)


def _print_plan(
    clients: Sequence[Client], rows: Sequence[Row], options: argparse.Namespace
) -> None:
    total = 0.0
    for row in rows:
        seconds = sum(_expected_s(each, row, options) for each in clients if row.name in each.rows)
        total += seconds + (20.0 if row.name == "consume" else 3.0)
        print(f"plan: {row.name:<12}{seconds:>6.0f} s a round")
    print(
        f"plan: {options.rounds} rounds of {total / 60:.1f} minutes: "
        f"{options.rounds * total / 60:.0f} minutes on a quiet machine\n",
        flush=True,
    )


def _run(
    clients: Sequence[Client],
    rows: Sequence[Row],
    options: argparse.Namespace,
    results: Figures,
) -> None:
    ends = time.monotonic() + 60 * options.minutes if options.minutes else float("inf")
    for number in range(1, options.rounds + 1):
        for row in rows:
            able = [client for client in clients if row.name in client.rows]
            missing = [
                client
                for client in figures.rotated(able, number)
                if not results.has(number, client.name, row.name)
            ]
            if not missing:
                continue
            needed = sum(_expected_s(client, row, options) for client in missing)
            if time.monotonic() + needed > ends:
                print("the time is up; --continue goes on from here")
                return
            if not options.quick:
                machine.wait_until_quiet(options.quiet_wait, options.noise_max)
            with ExitStack() as stack:
                warm = "as found" if options.quick else stack.enter_context(warm_memory())
                _round(number, row, missing, options, results, warm)


def _round(
    number: int,
    row: Row,
    clients: Sequence[Client],
    options: argparse.Namespace,
    results: Figures,
    warm: str,
) -> None:
    """Measure one row of every client on one fresh broker."""
    results.servers |= {client.name: {"title": client.title} for client in clients}
    broker = servers.Comet(FILES.absolute() / "broker", flush=row.flush)
    try:
        try:
            broker.start()
            loadgen.pin(broker.pids, {BROKER_CORE})
            _prepare(row, broker, options)
        except FAILURES as error:
            for client in clients:
                results.fail(number, client.name, [row.name], error)
            return
        for client in clients:
            try:
                results.take(
                    lambda client=client: _figure(number, row, client, broker, options, warm)
                )
            except FAILURES as error:
                results.fail(number, client.name, [row.name], error)
    finally:
        broker.stop()


def _prepare(row: Row, broker: servers.RocketServer, options: argparse.Namespace) -> None:
    if row.name == "consume":
        count = _fill_count(options)
        fill = loadgen.run(
            replace(FILL, count=count),
            loadgen.Target(broker.address, broker.pids),
            topic=BACKLOG,
            warmup_s=0,
            duration_s=FILL_S_MAX,
        )
        if doubt := loadgen.doubts(fill, at_least=count):
            raise BenchmarkError(f"the backlog is not as it should be: {doubt}")
        loadgen.pin(broker.pids, {BROKER_CORE})
    if row.name == "idle":
        servers.make_topic(broker, IDLE, queues=IDLE_QUEUES)


def _figure(
    number: int,
    row: Row,
    client: Client,
    broker: servers.RocketServer,
    options: argparse.Namespace,
    warm: str,
) -> Figure:
    with machine.NoiseWatch() as watch:
        found = _decode(client) if row.name == "decode" else _measure(client, row, broker, options)
    if row.name == "idle":
        values = {"CPU": 100 * found["cpu_seconds"] / found["seconds"]}
    else:
        values = {
            "rate": found["messages"] / found["seconds"] / 1e3,
            "CPU per message": 1e6 * found["cpu_seconds"] / found["messages"],
        }
    text = ", ".join(f"{name} {figures.number(value)}" for name, value in values.items())
    print(
        f"round {number}  {row.name:<11} {client.name:<17} {text}  noise {watch.noise.total:.2f}",
        flush=True,
    )
    return Figure(number, client.name, row.name, values, watch.noise, warm)


def _measure(
    client: Client, row: Row, broker: servers.RocketServer, options: argparse.Namespace
) -> dict[str, float]:
    work = row.work or row.name
    topic = {"send": "bench-sends", "consume": BACKLOG, "idle": IDLE}[work]
    seconds = _idle_s(options) if work == "idle" else options.seconds
    command = ["taskset", "-c", str(CLIENT_CORE), *client.command()]
    command += [f"127.0.0.1:{broker.namesrv_port}", work, topic, str(seconds)]
    command += [str(WINDOW), client.loop, str(client.warm_s)]
    environment = {k: v for k, v in os.environ.items() if k != "COMETMQ_BUILD"}
    home = FILES.absolute() / "homes" / client.name
    home.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=client.warm_s + seconds + 300,
        check=False,
        env=environment | {"HOME": str(home)} | dict(client.environment),
    )
    if done.returncode:
        raise BenchmarkError(f"the program ended with {done.returncode}: {done.stderr[-2000:]}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    if found.get("errors"):
        raise BenchmarkError(f"{found['errors']} sends failed")
    return found


def _decode(client: Client) -> dict[str, float]:
    """Decode in a process of its own, which has the build that is wanted."""
    environment = {k: v for k, v in os.environ.items() if k != "COMETMQ_BUILD"}
    command = ["taskset", "-c", str(CLIENT_CORE), sys.executable, str(HERE / "client.py"), "decode"]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
        env=environment | dict(client.environment),
    )
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def decode() -> None:
    """Print how long lazy decoding takes in this process."""
    properties = (
        b"KEYS\x01K00000000042\x02UNIQ_KEY\x017F000001000000000000000000000042\x02TAGS\x01A"
    )
    host = bytes((127, 0, 0, 1)) + (10911).to_bytes(4)
    record = encode_record(
        b"bench",
        b"x" * 128,
        properties,
        queue_id=1,
        queue_offset=2,
        log_offset=3,
        born_time_ms=4,
        born_host=host,
        store_time_ms=5,
        store_host=host,
    )
    body = record * DECODE_MESSAGES
    timing = measure("decode", lambda: decode_lazily(body), per_call=DECODE_MESSAGES)
    seconds = timing.ns / 1e9
    print(json.dumps({"messages": 1, "seconds": seconds, "cpu_seconds": seconds}))


def _markdown(results: Figures) -> str:
    lines = figures.head_lines("Our client beside others", results)
    lines += [
        f"- one broker, CometMQ's, on core {BROKER_CORE}; each client alone on core {CLIENT_CORE}; "
        "the figures count the client's process",
        f"- warm-up: {JVM_WARM_S:g} s of load for a JVM, {WARM_S:g} s for the others",
        "- x: how many times better CometMQ's client is, in the same round; targets with x are "
        f"ratios to {REFERENCE}, others are values",
        "",
        "| load | flush | client | warm memory | figure | CPU s per million | x | target |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in ROWS.values():
        for client in CLIENTS.values():
            if results.values(row.name, client.name, row.metric):
                lines.append(_table_line(results, row, client))
    lines += ["", *figures.noise_lines(results), *figures.doubt_lines(results)]
    return "\n".join(lines) + "\n"


def _target(results: Figures, row: Row, target: float) -> str:
    better = row.more_is_better
    ours = results.values(row.name, OURS, row.metric)
    in_doubt = results.is_in_doubt(row.name, OURS)
    if not row.is_ratio:
        return figures.target_cell(ours.values(), target, more_is_better=better, in_doubt=in_doubt)
    other = results.values(row.name, REFERENCE, row.metric)
    times = figures.ratios(ours, other, more_is_better=better)
    return figures.target_cell(times, target, more_is_better=True, sign="x", in_doubt=in_doubt)


def _table_line(results: Figures, row: Row, client: Client) -> str:
    values = results.values(row.name, client.name, row.metric)
    cpu = results.values(row.name, client.name, "CPU per message").values()
    times = figures.ratios(
        results.values(row.name, OURS, row.metric), values, more_is_better=row.more_is_better
    )
    warm = dict.fromkeys(
        each.warm_memory
        for each in results.taken
        if (each.server, each.row) == (client.name, row.name)
    )
    better = row.more_is_better
    target = ""
    if client.name == OURS and row.target is not None:
        target = _target(results, row, row.target)
    cells = [
        row.title,
        "-" if row.name == "decode" else FLUSHES[row.flush],
        client.title,
        ", ".join(warm),
        figures.cell(values.values(), rounds=results.rounds, more_is_better=better)
        + f" {row.unit}",
        figures.cell(cpu, more_is_better=False),
        "" if client.name == OURS else figures.cell(times, more_is_better=True, sign="x"),
        target,
    ]
    return "| " + " | ".join(cells) + " |"


if __name__ == "__main__":
    if sys.argv[1:] == ["decode"]:
        decode()
    else:
        try:
            sys.exit(main())
        finally:
            shutil.rmtree(FILES, ignore_errors=True)
