"""Measures what grows with topics, connections, groups and held pulls.

Two brokers run side by side: one has one of each, the other has more from step to step. A figure is
the ratio of what a send or a wake-up costs them, in processor seconds per million, taken in turns,
so that other work on the machine meets both. At last one broker has everything at once. The results
land in ``benchmarks/results/scale.*`` and the curves in ``docs/images``.

Examples::

    .venv/bin/python benchmarks/scale.py                    all, about fifteen minutes
    .venv/bin/python benchmarks/scale.py --quick            small sizes, prints only
    .venv/bin/python benchmarks/scale.py --parts topics,full
    .venv/bin/python benchmarks/scale.py --plot             the curves again, from the results
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import re
import resource
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import loadgen
import machine
from loadgen import Load
from servers import Comet, kit, make_topic
from wire import Connection, encode

from cometmq.remoting.ports import free_ports

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"
IMAGES = HERE.parent / "docs" / "images"
SIZES = (1, 10, 100, 1_000, 10_000)
FULL = {"topics": 10_000, "queues": 8, "connections": 10_000, "groups": 1_000, "pulls": 5_000}
SEND, PULL, HEARTBEAT, CREATE_TOPIC = 310, 11, 34, 17
REST_S = 65.0
"""Two registrations, and the jobs that run every few seconds."""
CREATORS = 64
FIRST_OPAQUE = 10_000_000
_OPAQUE = re.compile(rb'"opaque":(\d+)')


class ScaleError(Exception):
    """A figure cannot be trusted."""


class Subject(Comet):
    """A broker whose objects grow."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, flush="ASYNC_FLUSH")
        self.sockets: list[Connection] = []
        self._consumers: list[Connection] = []
        self.topics = 0
        self.lanes: list[Lane] = []

    def settings(self) -> dict[str, str | int]:
        """Room for all held pulls; no refusals while 80,000 queue files are made."""
        return super().settings() | {
            "pullThreadPoolQueueCapacity": 100_000,
            "brokerFastFailureEnable": "false",
        }

    @property
    def cpu_s(self) -> float:
        """Processor time so far."""
        return machine.cpu_seconds(self.pids)

    def create_topics(self, prefix: str, first: int, last: int) -> None:
        """Create topics over many connections, each with one request in flight.

        A connection's requests are served one after the other, those of several connections share
        the writes of the table.
        """
        with ExitStack() as stack:
            brokers = [stack.enter_context(connected(self.port)) for _ in range(CREATORS)]
            waiting: deque[tuple[Connection, int]] = deque()
            for number in range(first, last):
                fields = {
                    "topic": f"{prefix}{number:04d}", "defaultTopic": "TBW102", "perm": 6,
                    "readQueueNums": 8, "writeQueueNums": 8, "topicFilterType": "SINGLE_TAG",
                    "topicSysFlag": 0, "order": "false",
                }  # fmt: skip
                broker = brokers[number % CREATORS]
                waiting.append((broker, broker.send(CREATE_TOPIC, fields)))
                if len(waiting) == CREATORS:
                    broker, opaque = waiting.popleft()
                    kit.ok(broker.response(opaque))
            for broker, opaque in waiting:
                kit.ok(broker.response(opaque))

    def connect(self, count: int) -> None:
        """Open connections that make one request and then rest."""
        body = {"clientID": "rest", "consumerDataSet": [], "producerDataSet": [{"groupName": "p"}]}
        while len(self.sockets) < count:
            client = Connection(("127.0.0.1", self.port), timeout=60.0)
            kit.ok(client.request(HEARTBEAT, body=body | {"clientID": f"c{len(self.sockets)}"}))
            self.sockets.append(client)

    def add_groups(self, count: int) -> None:
        """Register consumer groups, at most a hundred with each heartbeat."""
        client = Connection(("127.0.0.1", self.port), timeout=60.0)
        self.sockets.append(client)
        for begin in range(0, count, 100):
            groups = [
                kit.consumer(f"g{n}", kit.subscription("load", version=1))
                for n in range(begin, min(begin + 100, count))
            ]
            kit.ok(kit.heartbeat(client, f"members-{begin}", *groups))

    def hold(self, count: int) -> None:
        """Hold pulls until there are so many, each of another queue."""
        with connected(self.port) as asking:
            while len(self.lanes) < count:
                number = len(self.lanes)
                if number % 500 == 0:
                    self._consumers.append(Connection(("127.0.0.1", self.port), timeout=60.0))
                lane = Lane(number, self._consumers[-1])
                lane.offset = kit.max_offset(asking, lane.topic, lane.queue)
                lane.pull()
                self.lanes.append(lane)

    def wake(self, count: int, *, in_flight: int = 1) -> None:
        """Send messages to queues with held pulls, in turn; each woken pull is repeated.

        Args:
            count: messages.
            in_flight: messages that are sent and not yet received.
        """
        with connected(self.port) as producer, select.epoll() as poll:
            readers = {each._socket.fileno(): Frames(each._socket) for each in self._consumers}
            answers = Frames(producer._socket)
            for number in [*readers, producer._socket.fileno()]:
                poll.register(number, select.EPOLLIN)
            idle = deque(self.lanes)
            sent = acknowledged = woken = 0
            while woken < count or acknowledged < count:
                requests = []
                while idle and sent < count and sent - woken < in_flight:
                    lane = idle.popleft()
                    fields = kit.send_fields(lane.topic, e=lane.queue)
                    requests.append(encode(producer.command(SEND, fields, b"x" * 128)))
                    sent += 1
                if requests:
                    producer.send_raw(b"".join(requests))
                events = poll.poll(60.0)
                if not events:
                    raise ScaleError(f"{woken} of {count} pulls woke; then none for a minute")
                for number, _ in events:
                    if number not in readers:
                        acknowledged += sum(1 for _ in answers.read())
                        continue
                    for head in readers[number].read():
                        lane = self.lanes[int(_OPAQUE.search(head)[1]) - FIRST_OPAQUE]  # type: ignore[index]
                        if b'"code":0' in head:
                            lane.offset += 1
                            woken += 1
                            idle.append(lane)
                        lane.pull()

    def restart(self) -> tuple[float, float]:
        """Stop and start again; returns how long each took."""
        for each in [*self.sockets, *self._consumers]:
            each.close()
        began = time.monotonic()
        os.kill(self.pids[0], signal.SIGTERM)
        while self.processes[0].is_running:
            time.sleep(0.005)
        stopped = time.monotonic()
        self.launch()
        return stopped - began, self._until(self._send_is_acknowledged)


class Lane:
    """A queue with one pull that is held or under way."""

    def __init__(self, number: int, connection: Connection) -> None:
        self.topic, self.queue = f"held{number // 8:04d}", number % 8
        self.offset = 0
        self._number = number
        self._connection = connection

    def pull(self) -> None:
        """Pull from the next offset; held as long as the broker allows."""
        fields = kit.pull_fields(
            "held", self.topic, self.offset, queue=self.queue, suspend_ms=300_000
        )
        opaque = FIRST_OPAQUE + self._number
        self._connection.send_raw(
            encode(self._connection.command(PULL, fields, b"", opaque=opaque))
        )


class Frames:
    """The frames that arrive at a socket."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._data = b""

    def read(self) -> Iterator[bytes]:
        """Yield the headers of the frames that one read completes."""
        data = self._data + self._connection.recv(1 << 20)
        at = 0
        while len(data) - at >= 8:
            size = int.from_bytes(data[at : at + 4], "big")
            if len(data) - at < 4 + size:
                break
            yield data[at + 8 : at + 8 + int.from_bytes(data[at + 5 : at + 8], "big")]
            at += 4 + size
        self._data = data[at:]


@contextmanager
def connected(port: int) -> Iterator[Connection]:
    """Connect for a moment."""
    connection = Connection(("127.0.0.1", port), timeout=60.0)
    try:
        yield connection
    finally:
        connection.close()


# --- what is measured -----------------------------------------------------------------------------


def send_cost(subject: Subject, *, topics: int = 1, seconds: float) -> float:
    """Return the processor seconds of a million sends."""
    topic = "load" if topics == 1 else "t"
    found = loadgen.run(
        Load(topics=topics),
        loadgen.Target(subject.address, subject.pids),
        topic=topic,
        warmup_s=0.2,
        duration_s=seconds,
        create=False,
    )
    if doubt := loadgen.doubts(found):
        raise ScaleError(doubt)
    return float(found["server"]["cpu_per_million"])


def wake_cost(subject: Subject, *, seconds: float) -> float:
    """Return the processor seconds of a million wake-ups: send, notify, pull again."""
    count = int(6_000 * seconds)
    before = subject.cpu_s
    subject.wake(count)
    return (subject.cpu_s - before) / count * 1e6


def fill(subject: Subject, topics: int) -> None:
    """Send at least one message to each queue of so many topics."""
    if topics == 1:
        return
    found = loadgen.run(
        Load(topics=topics, count=topics * 8, conns=2, window=4),
        loadgen.Target(subject.address, subject.pids),
        topic="t",
        warmup_s=0.0,
        duration_s=300.0,
        create=False,
    )
    if doubt := loadgen.doubts(found, at_least=topics * 8):
        raise ScaleError(doubt)


def grow_topics(subject: Subject, size: int) -> None:
    """Create topics, with a message in each queue."""
    subject.create_topics("t", subject.topics, size)
    subject.topics = size
    fill(subject, size)


def grow_pulls(subject: Subject, size: int) -> None:
    """Hold pulls, of eight queues of each topic."""
    topics = -(-size // 8)
    subject.create_topics("held", subject.topics, topics)
    subject.topics = max(subject.topics, topics)
    subject.hold(size)


CURVES: dict[str, tuple[str, Callable[[Subject, int], None], Sequence[int]]] = {
    "topics": ("topics, sends to all of them", grow_topics, SIZES),
    "connections": ("idle connections", Subject.connect, SIZES),
    "groups": ("consumer groups", Subject.add_groups, SIZES[:4]),
    "pulls": ("held pulls, sends to another topic", grow_pulls, SIZES),
    "wake": ("held pulls, woken in turn", grow_pulls, SIZES),
}


def measure_curve(name: str, options: argparse.Namespace) -> list[dict[str, float]]:
    """Measure one curve: at each size the ratio to a broker with one."""
    title, grow, sizes = CURVES[name]
    points = []
    with running(options, "one") as one, running(options, "many") as many:
        for subject in (one, many):
            make_topic(subject, "load", queues=8)
        grow(one, 1)
        for size in (size for size in sizes if size <= options.size_max):
            began, cpu = time.monotonic(), many.cpu_s
            grow(many, size)
            took, used = time.monotonic() - began, many.cpu_s - cpu
            pairs = [
                (cost(name, one, 1, options), cost(name, many, size, options))
                for _ in range(options.rounds)
            ]
            point = {
                "size": size,
                "cost_of_one": median(first for first, _ in pairs),
                "cost": median(second for _, second in pairs),
                "ratio": median(second / first for first, second in pairs),
                "worst_ratio": max(second / first for first, second in pairs),
                "grow_s": took,
                "grow_cpu_s": used,
                "anon_mib": machine.anonymous_mib(many.pids),
            }
            points.append(point)
            print(f"{title:<36}{size:>7}  " + figures_of(point), flush=True)
    return points


def cost(name: str, subject: Subject, size: int, options: argparse.Namespace) -> float:
    """Take one figure of a curve."""
    if name == "wake":
        return wake_cost(subject, seconds=options.duration)
    return send_cost(subject, topics=size if name == "topics" else 1, seconds=options.duration)


def figures_of(point: Mapping[str, float]) -> str:
    """Return the figures of a point as text."""
    return "  ".join(f"{key} {value:.2f}" for key, value in point.items() if key != "size")


def measure_full(options: argparse.Namespace) -> dict[str, float]:
    """Measure one broker that has everything at once."""
    sizes = {name: min(size, options.size_max) for name, size in FULL.items()}
    found: dict[str, float] = {}
    with running(options, "full") as subject:
        make_topic(subject, "load", queues=8)
        found["idle_anon_mib"] = machine.anonymous_mib(subject.pids)
        began, cpu = time.monotonic(), subject.cpu_s
        subject.create_topics("t", 0, sizes["topics"])
        found["create_s"] = time.monotonic() - began
        found["create_cpu_s"] = subject.cpu_s - cpu
        fill(subject, sizes["topics"])
        subject.connect(sizes["connections"])
        subject.add_groups(sizes["groups"])
        grow_pulls(subject, sizes["pulls"])
        print("full: all is there", flush=True)
        found["anon_mib"] = machine.anonymous_mib(subject.pids)
        found["mappings"] = float(Path(f"/proc/{subject.pids[0]}/maps").read_text().count("\n"))
        found["send_cpu"] = send_cost(subject, seconds=options.duration)
        found["send_to_all_cpu"] = send_cost(
            subject, topics=sizes["topics"], seconds=options.duration
        )
        found["wake_cpu"] = wake_cost(subject, seconds=options.duration)
        cpu = subject.cpu_s
        time.sleep(options.rest)
        found["rest_percent"] = 100 * (subject.cpu_s - cpu) / options.rest
        found["anon_after_mib"] = machine.anonymous_mib(subject.pids)
        found["stop_s"], found["start_s"] = subject.restart()
        found["start_anon_mib"] = machine.anonymous_mib(subject.pids)
    print("full  " + figures_of(found), flush=True)
    return {**sizes, **found}


@contextmanager
def running(options: argparse.Namespace, name: str) -> Iterator[Subject]:
    """Run a broker on fresh files."""
    subject = Subject(options.folder / name)
    try:
        subject.start()
        yield subject
    finally:
        subject.stop()


# --- several processes ----------------------------------------------------------------------------


def measure_processes(options: argparse.Namespace) -> list[dict[str, float]]:
    """Measure one broker and two broker processes, each with a load generator of its own."""
    rounds: dict[int, list[dict[str, float]]] = {1: [], 2: []}
    for _ in range(options.rounds):
        for count, taken in rounds.items():
            with brokers(options.folder / "processes", count) as (addresses, pids):
                taken.append(_sends_at_once(addresses, pids, options.duration))
    points = []
    for count, taken in rounds.items():
        point = {key: median(each[key] for each in taken) for key in taken[0]}
        points.append({"size": float(count), **point})
        print(f"processes {count}  " + figures_of(point), flush=True)
    return points


def _sends_at_once(
    addresses: Sequence[str], pids: Sequence[int], seconds: float
) -> dict[str, float]:
    command = [str(loadgen.compile_generator()), "--mode", "send", "--conns", "16"]
    command += ["--window", "32", "--topic", "load", "--warmup", "0", "--duration", str(seconds)]
    before = machine.cpu_seconds(pids)
    began = time.monotonic()
    generators = [
        subprocess.Popen([*command, "--addr", address], stdout=subprocess.PIPE, text=True)
        for address in addresses
    ]
    found = [json.loads(generator.communicate(timeout=seconds + 90)[0]) for generator in generators]
    took, used = time.monotonic() - began, machine.cpu_seconds(pids) - before
    for each in found:
        if doubt := loadgen.doubts(each):
            raise ScaleError(doubt)
    sent = sum(each["acked_total"] for each in found)
    return {
        "rate": sum(each["msg_s"] for each in found),
        "cpu": used / sent * 1e6,
        "sent_per_cpu_s": sent / used,
        "server_cores": used / took,
    }


@contextmanager
def brokers(folder: Path, count: int) -> Iterator[tuple[list[str], list[int]]]:
    """Run one broker, or several below a supervisor; gives their addresses and processes."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "broker.conf").write_text("brokerName=broker\nflushDiskType=ASYNC_FLUSH\n")
    command = [sys.executable, "-m", "cometmq", "broker", "--port", str(free_ports(40) + 2)]
    command += ["--store", str(folder / "store"), "-c", str(folder / "broker.conf")]
    command += ["--processes", str(count)] if count > 1 else []
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
    try:
        assert process.stdout is not None
        addresses = process.stdout.readline().split("broker=")[1].split()[0].split(";")
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        yield addresses, [int(child) for child in children] or [process.pid]
    finally:
        process.terminate()
        process.wait(60)
        shutil.rmtree(folder, ignore_errors=True)


# --- the command ----------------------------------------------------------------------------------


def main() -> int:
    """Measure what the command line asks for."""
    options = _options()
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    path = RESULTS / "scale.json"
    results: dict[str, Any] = {}
    if path.exists():
        results = json.loads(path.read_text())
    if not options.plot:
        machine.refuse_dirty_tree(allowed=options.quick or options.dirty)
        loadgen.compile_generator()
        for part in options.parts:
            if part == "full":
                results[part] = measure_full(options)
            elif part == "processes":
                results[part] = measure_processes(options)
            else:
                results[part] = measure_curve(part, options)
            results.setdefault("facts", {})[part] = {**machine.facts(), **_load(options)}
            if not options.quick:
                path.write_text(json.dumps(results, indent=1) + "\n")
    if not options.quick:
        (RESULTS / "scale.md").write_text(report(results))
        plot(results)
    return 0


def _load(options: argparse.Namespace) -> dict[str, str]:
    """What else a reader must know: where the stores were, and what else the machine did."""
    said = subprocess.run(
        ["stat", "-f", "-c", "%T", options.folder.parent], capture_output=True, text=True
    )
    return {
        "store on": said.stdout.strip(),
        "load average of the last minutes": "%.1f %.1f %.1f" % os.getloadavg(),
        "open files": str(resource.getrlimit(resource.RLIMIT_NOFILE)[1]),
    }


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parts = [*CURVES, "full", "processes"]
    parser.add_argument("--parts", default=",".join(parts), help="some of: " + ", ".join(parts))
    parser.add_argument("--quick", action="store_true", help="small sizes; prints only")
    parser.add_argument("--plot", action="store_true", help="only the curves, from the results")
    parser.add_argument("--dirty", action="store_true", help="allow a tree without a commit")
    parser.add_argument("--rounds", type=int, default=5, help="figures of each point")
    parser.add_argument("--duration", type=float, default=1.5, help="seconds of each figure")
    parser.add_argument("--folder", type=Path, default=Path("build/bench/scale"))
    options = parser.parse_args()
    options.parts = options.parts.split(",")
    if unknown := set(options.parts) - set(parts):
        sys.exit(f"no such part: {', '.join(sorted(unknown))}; there are {', '.join(parts)}")
    options.folder = options.folder.absolute()
    options.size_max, options.rest = max(SIZES), REST_S
    if options.quick:
        options.size_max, options.rest, options.rounds, options.duration = 100, 1.0, 1, 0.3
    return options


# --- the report -----------------------------------------------------------------------------------


def report(results: Mapping[str, Any]) -> str:
    """Return the results as a page."""
    lines = [
        "# Scale",
        "",
        "Made by `benchmarks/scale.py`. A broker with one and a broker with more run side by side. "
        "*Ratio*: what a send or a wake-up costs the second, divided by what it costs the first, "
        "in processor seconds; median of the rounds, and the worst. Target: at most 1.20. "
        "Asynchronous flush, 16 connections with 32 sends in flight each, 128 bytes, compiled "
        "build. If the load average is far above the number of cores, other work disturbed the "
        "figures: trust ratios, not rates. Wake-ups come one at a time: a send, the response to "
        "the held pull, the next pull.",
        "",
        "| Grows | Number | s/M of one | s/M | Ratio (worst) | Memory, MiB |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    for name, (title, _, _) in CURVES.items():
        lines += [
            f"| {title} | {point['size']:,} | {point['cost_of_one']:.1f} | {point['cost']:.1f} "
            f"| {point['ratio']:.2f} ({point['worst_ratio']:.2f}) | {point['anon_mib']:.0f} |"
            for point in results.get(name, ())
        ]
    if full := results.get("full"):
        lines += ["", "## Everything at once", "", "| Figure | Value |", "|---|--:|"]
        lines += [f"| {text} | {full[key]:,.1f} |" for key, text in _FULL_ROWS.items()]
    if processes := results.get("processes"):
        lines += [
            "",
            "## Several processes",
            "",
            "`cometmq broker --processes N`, one load generator for each broker. Brokers and "
            "generators share the machine's cores.",
            "",
            "| Brokers | Messages/s | s/M | Messages per processor second | Cores of the brokers |",
            "|--:|--:|--:|--:|--:|",
        ]
        lines += [
            f"| {point['size']:.0f} | {point['rate']:,.0f} | {point['cpu']:.2f} "
            f"| {point['sent_per_cpu_s']:,.0f} | {point['server_cores']:.2f} |"
            for point in processes
        ]
    lines += ["", "## Machine", ""]
    for name, facts in results["facts"].items():
        text = ", ".join(f"{key} {value}" for key, value in facts.items() if value != "none")
        lines.append(f"- {name}: {text}")
    return "\n".join(lines) + "\n"


_FULL_ROWS = {
    "topics": "topics",
    "queues": "queues of each, with a message at least",
    "connections": "connections",
    "groups": "consumer groups",
    "pulls": "held pulls",
    "create_s": "creating the topics, 64 connections, s",
    "create_cpu_s": "the same, processor s",
    "idle_anon_mib": "memory before, MiB",
    "anon_mib": "memory, MiB",
    "mappings": "mappings",
    "send_cpu": "a million sends to one topic, processor s",
    "send_to_all_cpu": "a million sends to all topics, processor s",
    "wake_cpu": "a million wake-ups, processor s",
    "rest_percent": "at rest, % of a core",
    "stop_s": "stop, s",
    "start_s": "start until the first acknowledged send, s",
    "start_anon_mib": "memory after the start, MiB",
}


def plot(results: Mapping[str, Any]) -> None:
    """Draw the curves; needs matplotlib (extra ``bench``)."""
    importlib.import_module("matplotlib").use("Agg")
    pyplot = importlib.import_module("matplotlib.pyplot")
    IMAGES.mkdir(exist_ok=True)
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4), layout="constrained")
    for name, (title, _, _) in CURVES.items():
        if points := results.get(name):
            sizes = [point["size"] for point in points]
            left.plot(sizes, [point["ratio"] for point in points], marker="o", label=title)
            right.plot(sizes, [point["anon_mib"] for point in points], marker="o", label=title)
    left.axhline(1.2, color="grey", linestyle="--", linewidth=1)
    left.set(xscale="log", xlabel="number", ylabel="cost, relative to one", ylim=(0, None))
    right.set(xscale="log", xlabel="number", ylabel="memory, MiB", ylim=(0, None))
    left.legend(fontsize=8)
    figure.savefig(IMAGES / "scale.png", dpi=110)


if __name__ == "__main__":
    sys.exit(main())
