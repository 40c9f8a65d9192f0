"""Compares our client with others: Java's, nats-py, and the C++ client's Python binding.

One broker, ours and compiled, serves all clients of RocketMQ in the same round, on one core; a NATS
server serves nats-py there. The client under test has the other core to itself. Each round begins
with another client. JVMs are warmed up for twenty seconds, short runs included. Table and raw
figures land in ``benchmarks/results/client.md`` and ``client.json``, after each figure, so that a
run can be continued.

Examples::

    python benchmarks/client.py                        five rounds: prints its plan first
    python benchmarks/client.py --quick                each row once, very short: no verdicts
    python benchmarks/client.py --minutes 9 --continue
    python benchmarks/client.py --clients cometmq,java-5.3.3 --rows send
    python benchmarks/client.py --before ../before     beside the client of another checkout
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import figures
import loadgen
import machine
import rivals
import servers
import toolchain
from client_rows import (
    BACKLOG,
    BEFORE,
    CPU,
    CPU_AT_REST,
    LOADS,
    MEMORY,
    OURS,
    RATE,
    ROWS,
    SAME,
    WINDOW,
    Row,
    table_lines,
)
from figures import Figure, Figures
from processes import ProcessError
from verdict import ROUNDS_MIN
from warm_memory import warm_memory

from cometmq.cli.build import version_line

HERE = Path(__file__).resolve().parent
FILES = Path("build/bench/client")
SERVER_CORE, CLIENT_CORE = 0, 1
JVM_WARM_S, WARM_S = 20.0, 1.0
REST_S = 60.0
"""Two heartbeats, three rebalances and four times the longest held pull."""
FILL_S_MAX = 120.0
JAVA_FLAGS = ["-Xms256m", "-Xmx512m", "-XX:+UseSerialGC", "-Drocketmq.client.logLevel=ERROR"]
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
class Client:
    """One client, and what it can be measured at."""

    name: str
    rows: tuple[str, ...]
    title: str
    program: Callable[[], list[str]]
    """Gives the command, installing what it needs; its arguments are those of
    ``client_programs/ours.py``."""
    environment: Mapping[str, str] = field(default_factory=dict)
    loop: str = "asyncio"
    warm_s: float = WARM_S
    """Seconds of load before the figure counts."""
    server: type[servers.Server] = servers.Comet
    consumes_per_s_max: int = 1_500_000
    """Faster than it consumed so far, so that a backlog lasts."""

    def prepare(self) -> None:
        """Install the programs; skips as tests do where a tool is missing."""
        self.server.prepare()
        self.program()


def _ours(python: str = sys.executable, checkout: Path = HERE.parent) -> list[str]:
    return [python, str(checkout / "benchmarks" / "client_programs" / "ours.py")]


def _cpp() -> list[str]:
    return [str(toolchain.cpp_python()), str(HERE / "client_programs" / "cpp.py")]


def _nats() -> list[str]:
    return [str(toolchain.nats_python()), str(HERE / "client_programs" / "nats_py.py")]


def _java(version: str) -> Client:
    def program() -> list[str]:
        jars = toolchain.rocketmq_jars("client", version)
        classes = toolchain.java_classes("bench", jars)
        return [toolchain.command("java"), *JAVA_FLAGS, "-cp", classes, "Bench"]

    return Client(
        f"java-{version}",
        # not "many": this client needs minutes to start 1,000 consumers
        (*LOADS, "idle") if version == "5.3.3" else LOADS,
        f"Java {version}, heap 512 MiB",
        program,
        warm_s=JVM_WARM_S,
        consumes_per_s_max=600_000,
    )


def _before(checkout: Path) -> Client:
    """The client of another checkout, driven by the program there, which knows its interface."""
    command = _ours(machine.python_of(checkout), checkout)
    title = f"{CLIENTS[OURS].title}, before"
    return replace(CLIENTS[OURS], name=BEFORE, title=title, program=lambda: command)


INTERPRETED = {"COMETMQ_BUILD": "interpreted"}
CLIENTS = {
    client.name: client
    for client in (
        Client(OURS, tuple(ROWS), "CometMQ, uvloop", _ours, loop="uvloop"),
        Client("cometmq-asyncio", LOADS, "CometMQ, asyncio's own loop", _ours),
        Client(
            "cometmq-interpreted", (*LOADS, "decode"), "CometMQ, interpreted", _ours, INTERPRETED
        ),
        *map(_java, ("4.9.8", "5.3.3")),
        Client(
            "nats-py",
            LOADS,
            "nats-py on a NATS server, uvloop",
            _nats,
            server=rivals.Nats,
            consumes_per_s_max=300_000,
        ),
        Client(
            "cpp-0.4.4",
            ("send", "send-async", "handler"),
            "C++ client's Python binding 0.4.4",
            _cpp,
            consumes_per_s_max=100_000,
        ),
    )
}


def main() -> int:
    """Run the comparison that the command line asks for."""
    options = _options()
    clients, rows = _chosen(options.clients, CLIENTS), _chosen(options.rows, ROWS)
    settings = {"seconds per figure": options.seconds, "quick": options.quick}
    if options.before:
        before = options.before.resolve()
        clients.append(_before(before))
        settings["before"] = machine.commit(before)
    _print_plan(clients, rows, options)
    if options.plan:
        return 0
    machine.refuse_other_sources()
    machine.refuse_dirty_tree(allowed=options.quick or options.dirty)
    loadgen.compile_generator()
    clients, left_out = figures.available(clients, Client.prepare)
    results = Figures(
        figures.where(options.save, quick=options.quick),
        machine.facts() | {"CometMQ": version_line()},
        settings,
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
    parser.add_argument(
        "--before", type=Path, metavar="CHECKOUT", help="measure the client there in each round too"
    )
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
    if row.at_rest:
        return (10 if row.name == "many" else 1) * START_S + 10.0 + _rest_s(options)
    return START_S + client.warm_s + float(options.seconds)


def _rest_s(options: argparse.Namespace) -> float:
    return float(options.seconds) if options.quick else REST_S


def _print_plan(
    clients: Sequence[Client], rows: Sequence[Row], options: argparse.Namespace
) -> None:
    total = 0.0
    for row in rows:
        seconds = sum(_expected_s(each, row, options) for each in clients if row.name in each.rows)
        total += seconds + (20.0 if row.fill == BACKLOG else 3.0)
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
    """Measure one row of every client, those of one protocol on one fresh server."""
    results.servers |= {client.name: {"title": client.title} for client in clients}
    with ExitStack() as stack:
        started: dict[str, servers.Server] = {}
        for client in clients:
            try:
                kind = client.server.name
                if kind not in started:
                    same = [each for each in clients if each.server is client.server]
                    started[kind] = stack.enter_context(_server(row, same, options))
                server = started[kind]
                results.take(
                    lambda client=client, server=server: _figure(
                        number, row, client, server, options, warm
                    )
                )
            except FAILURES as error:
                results.fail(number, client.name, [row.name], error)


@contextmanager
def _server(
    row: Row, clients: Sequence[Client], options: argparse.Namespace
) -> Iterator[servers.Server]:
    """A server on its core, with the topic of the row."""
    kind = clients[0].server
    server = kind(FILES.absolute() / kind.name, flush=row.flush)
    try:
        server.start()
        if row.fill is not None:
            fill = row.fill
            if not fill.count:
                most = [(c.warm_s + options.seconds + 2) * c.consumes_per_s_max for c in clients]
                fill = replace(fill, count=int(max(most)))
            if server.protocol == "nats":  # which has no batches
                fill = replace(fill, batch=0, window=32)
            filled = loadgen.run(
                fill,
                loadgen.Target(server.address, server.pids, server.protocol),
                topic=_topic(row),
                warmup_s=0,
                duration_s=FILL_S_MAX,
            )
            if doubt := loadgen.doubts(filled, at_least=fill.count):
                raise BenchmarkError(f"the topic is not filled as it should be: {doubt}")
        if row.queues:
            assert isinstance(server, servers.RocketServer)
            servers.make_topic(server, _topic(row), queues=row.queues)
        loadgen.pin(server.pids, {SERVER_CORE})
        yield server
    finally:
        server.stop()


def _topic(row: Row) -> str:
    return f"bench-{row.name}"


def _figure(
    number: int,
    row: Row,
    client: Client,
    server: servers.Server,
    options: argparse.Namespace,
    warm: str,
) -> Figure:
    with machine.NoiseWatch() as watch:
        found = _measure(client, row, server, options)
    if row.at_rest:
        values = {
            CPU_AT_REST.name: 100 * found["cpu_seconds"] / found["seconds"],
            MEMORY.name: found["mib"],
            "start": found.get("start_s", 0.0),
        }
    else:
        values = {
            RATE.name: found["messages"] / found["seconds"] / 1e3,
            CPU.name: 1e6 * found["cpu_seconds"] / found["messages"],
        }
    values = {metric.name: values[metric.name] for metric in row.metrics}
    text = ", ".join(f"{name} {figures.number(value)}" for name, value in values.items())
    print(
        f"round {number}  {row.name:<11} {client.name:<19} {text}  noise {watch.noise.total:.2f}",
        flush=True,
    )
    return Figure(number, client.name, row.name, values, watch.noise, warm)


def _measure(
    client: Client, row: Row, server: servers.Server, options: argparse.Namespace
) -> dict[str, float]:
    seconds = _rest_s(options) if row.at_rest else options.seconds
    command = ["taskset", "-c", str(CLIENT_CORE), *client.program()]
    command += [_address(server), row.work or row.name, _topic(row), str(seconds)]
    command += [str(WINDOW), client.loop, str(client.warm_s)]
    home = FILES.absolute() / "homes" / client.name
    home.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=client.warm_s + seconds + 400,
        check=False,
        env=machine.compiled_environment() | {"HOME": str(home)} | dict(client.environment),
    )
    if done.returncode:
        raise BenchmarkError(f"the program ended with {done.returncode}: {done.stderr[-2000:]}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    if found.get("errors"):
        raise BenchmarkError(f"{found['errors']} sends failed")
    if not row.at_rest and not found["messages"]:
        raise BenchmarkError(f"no message within {seconds:g} s")
    return found


def _address(server: servers.Server) -> str:
    """Where clients connect: to the name server, where there is one."""
    if isinstance(server, servers.RocketServer):
        return f"127.0.0.1:{server.namesrv_port}"
    return server.address


def _markdown(results: Figures) -> str:
    lines = figures.head_lines("Our client beside others", results)
    lines += [
        f"- one server on core {SERVER_CORE}, CometMQ's broker or for nats-py a NATS server; each "
        f"client alone on core {CLIENT_CORE}; the figures count the client's process",
        f"- warm-up: {JVM_WARM_S:g} s of load for a JVM, {WARM_S:g} s for the others",
        "- x: how many times better CometMQ's client is, in the same round; targets with x are "
        "ratios to the client of their line, others are values",
        f"- a client before: CometMQ's must cost no more, where x{SAME:g} counts as the same",
        "",
        *table_lines(results, [OURS, BEFORE, *CLIENTS]),
    ]
    lines += ["", *figures.noise_lines(results), *figures.doubt_lines(results)]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    try:
        sys.exit(main())
    finally:
        shutil.rmtree(FILES, ignore_errors=True)
