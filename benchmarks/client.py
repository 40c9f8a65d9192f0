"""Compares our client with others: Java's, and the C++ client's Python binding.

One broker, ours and compiled, serves all of them in the same run, on one core; the client under
test has the other core to itself. Rounds are interleaved, so that a slow minute meets everybody.
Table and raw figures land in ``benchmarks/results/client.md`` and ``client.json``.

Examples::

    python benchmarks/client.py                        three rounds, about six minutes
    python benchmarks/client.py --rounds 1 --seconds 2 --clients ours,java-5.3.3 --rows send
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import loadgen
import machine
import servers
import toolchain
from timing import measure

from cometmq.cli.build import version_line
from cometmq.protocol.lazy_record import decode_lazily
from cometmq.protocol.record import encode_record

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"
FILES = Path("build/bench/client")
BROKER_CORE, CLIENT_CORE = 0, 1
FILL = loadgen.Load(batch=32, window=4)
FILL_S = 3.0
BACKLOG, IDLE = "bench-backlog", "bench-idle"
IDLE_QUEUES = 64
JAVA_FLAGS = ["-Xms256m", "-Xmx512m", "-XX:+UseSerialGC", "-Drocketmq.client.logLevel=ERROR"]
DECODE_MESSAGES = 32


class BenchmarkError(Exception):
    """A client did not do its work; the text carries what it printed."""


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    name: str
    title: str
    unit: str
    goal: float
    more_is_better: bool = True

    def reached(self, value: float) -> bool:
        """Whether a figure is as good as it has to be."""
        return value >= self.goal if self.more_is_better else value <= self.goal


ROWS = {
    row.name: row
    for row in (
        Row("send", "async sends of 128 B, {window} in flight", "k/s", 40),
        Row("consume", "messages of 128 B through a listener, batches of 32", "k/s", 100),
        Row("decode", "messages cut out of a pull's answer, decoded lazily", "k/s", 1000),
        Row("idle", "idle consumer of 64 queues", "% of a core", 1, more_is_better=False),
    )
}


@dataclass(frozen=True)
class Client:
    """One client, and what it can be measured at."""

    name: str
    rows: tuple[str, ...]
    title: str
    environment: Mapping[str, str] = field(default_factory=dict)
    loop: str = "asyncio"

    def command(self) -> list[str]:
        """The program; its arguments are those of ``client_programs/ours.py``."""
        if self.name.startswith("ours"):
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
        Client("ours", ("send", "consume", "decode", "idle"), "ours", loop="uvloop"),
        Client("ours-asyncio", ("send", "consume"), "ours, asyncio's own loop"),
        Client("ours-interpreted", ("send", "consume", "decode"), "ours, interpreted", INTERPRETED),
        Client("cpp-0.4.4", ("send", "consume"), "C++ client's Python binding 0.4.4"),
        Client("java-4.9.8", ("send", "consume"), "Java 4.9.8"),
        Client("java-5.3.3", ("send", "consume", "idle"), "Java 5.3.3"),
    )
}


def main() -> int:
    """Run the comparison that the command line asks for; 1 if a goal is missed."""
    options = _options()
    loadgen.compile_generator()
    clients = _chosen(options.clients, CLIENTS)
    rows = _chosen(options.rows, ROWS)
    values: dict[str, dict[str, list[dict[str, float]]]] = {}
    for number in range(1, options.rounds + 1):
        for row, client, figures in _round(clients, rows, options):
            values.setdefault(row.name, {}).setdefault(client.name, []).append(figures)
            print(
                f"round {number}  {row.name:<8} {client.name:<17} {_line(row, figures)}", flush=True
            )
            _save(options, values)
    print(f"\n{_markdown(options, values)}")
    ours = {row: of["ours"] for row, of in values.items() if "ours" in of}
    return 0 if all(ROWS[row].reached(_median(ROWS[row], of)) for row, of in ours.items()) else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0, help="per figure")
    parser.add_argument("--window", type=int, default=64, help="sends in flight")
    parser.add_argument("--clients", default=",".join(CLIENTS))
    parser.add_argument("--rows", default=",".join(ROWS))
    parser.add_argument("--save", default="client", metavar="NAME", help="name of the result files")
    return parser.parse_args()


def _chosen(names: str, known: Mapping[str, Any]) -> list[Any]:
    unknown = [name for name in names.split(",") if name not in known]
    if unknown:
        sys.exit(f"no such {', '.join(unknown)}; there are {', '.join(known)}")
    return [known[name] for name in names.split(",")]


def _round(
    clients: Sequence[Client], rows: Sequence[Row], options: argparse.Namespace
) -> Iterator[tuple[Row, Client, dict[str, float]]]:
    """Measure everybody on one fresh broker."""
    broker = servers.Comet(FILES.absolute(), flush="ASYNC_FLUSH")
    try:
        broker.start()
        _pin(broker.pids, BROKER_CORE)
        if any(row.name == "consume" for row in rows):
            _fill(broker)
        if any(row.name == "idle" for row in rows):
            _make_topic(broker)
        for row in rows:
            for client in clients:
                if row.name not in client.rows:
                    continue
                if row.name == "decode":
                    yield row, client, _decode(client)
                else:
                    yield row, client, _measure(client, row, broker, options)
    finally:
        broker.stop()


def _fill(broker: servers.Server) -> None:
    """Leave a backlog that no client can get through in its time."""
    loadgen.run(
        FILL,
        address=broker.address,
        pids=broker.broker_pids,
        topic=BACKLOG,
        warmup_s=0,
        duration_s=FILL_S,
    )
    _pin(broker.pids, BROKER_CORE)


def _make_topic(broker: servers.Server) -> None:
    connection = servers.Connection(("127.0.0.1", broker.port), timeout=10.0)
    try:
        servers.kit.ok(
            servers.kit.create_topic(connection, IDLE, read=IDLE_QUEUES, write=IDLE_QUEUES)
        )
    finally:
        connection.close()


def _pin(pids: Sequence[int], core: int) -> None:
    for pid in pids:
        for task in Path(f"/proc/{pid}/task").iterdir():
            os.sched_setaffinity(int(task.name), {core})


def _measure(
    client: Client, row: Row, broker: servers.Server, options: argparse.Namespace
) -> dict[str, float]:
    topic = {"send": "bench-sends", "consume": BACKLOG, "idle": IDLE}[row.name]
    seconds = max(options.seconds, 20.0) if row.name == "idle" else options.seconds
    command = ["taskset", "-c", str(CLIENT_CORE), *client.command()]
    command += [f"127.0.0.1:{broker.namesrv_port}", row.name, topic, str(seconds)]
    command += [str(options.window), client.loop]
    environment = {k: v for k, v in os.environ.items() if k != "COMETMQ_BUILD"}
    home = FILES.absolute() / "homes" / client.name
    home.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=seconds + 120,
        check=False,
        env=environment | {"HOME": str(home)} | dict(client.environment),
    )
    if done.returncode:
        raise BenchmarkError(f"{client.name} {row.name}: {done.stderr[-2000:]}")
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    if figures.get("errors"):
        raise BenchmarkError(f"{client.name} {row.name}: {figures['errors']} sends failed")
    return figures


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
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


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


def _value(row: Row, figures: Mapping[str, float]) -> float:
    if row.name == "idle":
        return 100 * figures["cpu_seconds"] / figures["seconds"]
    return figures["messages"] / figures["seconds"] / 1e3


def _line(row: Row, figures: Mapping[str, float]) -> str:
    text = f"{_value(row, figures):8.1f} {row.unit}"
    if not figures["messages"]:
        return text
    return f"{text}, {1e6 * figures['cpu_seconds'] / figures['messages']:.1f} CPU s/M"


def _median(row: Row, rounds: Sequence[Mapping[str, float]]) -> float:
    return median(_value(row, figures) for figures in rounds)


def _save(
    options: argparse.Namespace, values: Mapping[str, Mapping[str, list[dict[str, float]]]]
) -> None:
    RESULTS.mkdir(parents=True, exist_ok=True)
    raw = {"machine": machine.facts(), "settings": vars(options), "values": values}
    (RESULTS / f"{options.save}.json").write_text(json.dumps(raw, indent=1) + "\n")
    (RESULTS / f"{options.save}.md").write_text(_markdown(options, values))


def _markdown(
    options: argparse.Namespace, values: Mapping[str, Mapping[str, list[dict[str, float]]]]
) -> str:
    lines = ["# Our client beside others", ""]
    lines += [f"- {name}: {fact}" for name, fact in machine.facts().items()]
    lines += [
        f"- {version_line()}",
        f"- one broker, ours, on core {BROKER_CORE}; each client alone on core {CLIENT_CORE}",
        f"- {_rounds(values)} rounds of {options.seconds:g} s per figure; median, and how far the"
        " rounds lie apart in % of it",
        "",
        "| load | client | figure | CPU s per million | goal |",
        "|---|---|---|---|---|",
    ]
    for name, row in ROWS.items():
        for client in CLIENTS.values():
            if rounds := values.get(name, {}).get(client.name):
                lines.append(_table_line(row, client, rounds, options.window))
    return "\n".join(lines) + "\n"


def _rounds(values: Mapping[str, Mapping[str, list[dict[str, float]]]]) -> int:
    """How many rounds were finished; a run that is stopped early has some."""
    return min((len(rounds) for of in values.values() for rounds in of.values()), default=0)


def _table_line(
    row: Row, client: Client, rounds: Sequence[Mapping[str, float]], window: int
) -> str:
    all_values = [_value(row, figures) for figures in rounds]
    middle = median(all_values)
    spread = 50 * (max(all_values) - min(all_values)) / middle if middle else 0
    cpu = [1e6 * f["cpu_seconds"] / f["messages"] for f in rounds if f["messages"]]
    goal = ""
    if client.name == "ours":
        sign = "≥" if row.more_is_better else "≤"
        goal = f"{sign} {row.goal:g} {'met' if row.reached(middle) else 'MISSED'}"
    return (
        f"| {row.title.format(window=window)} | {client.title} |"
        f" {middle:.1f} {row.unit} ±{spread:.0f}% |"
        f" {f'{median(cpu):.1f}' if cpu else ''} | {goal} |"
    )


if __name__ == "__main__":
    if sys.argv[1:] == ["decode"]:
        decode()
    else:
        try:
            sys.exit(main())
        finally:
            shutil.rmtree(FILES, ignore_errors=True)
