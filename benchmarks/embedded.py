"""Measures an embedded broker: time until it is ready, memory, messages a second.

The application is a process with the client loaded. Memory is the sum of the proportional set sizes
of both processes, minus the memory of the application alone: shared pages count once. The last rows
compare it with a broker in a thread of the application, while another process sends to it.

    .venv/bin/python benchmarks/embedded.py            prints a table
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import multiprocessing
import os
import resource
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path

import msgspec

from cometmq import embedded
from cometmq.cli.build import build
from cometmq.client import Producer, blocking

BODY = b"x" * 200
KIB = 1024
STALL_S = 1.0


def memory_kib(pid: int) -> int:
    """The proportional set size of a process."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1])
    raise LookupError(f"no Pss of the process {pid}")


@contextmanager
def folder() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="embedded-", dir=Path.cwd()))
    try:
        yield path
    finally:
        shutil.rmtree(path)


def server_pid(path: Path) -> int:
    """The process of the broker, from its address file."""
    data = (path / embedded.FILES / embedded.ADDRESS).read_bytes()
    return msgspec.json.decode(data, type=embedded.Address).pid


def child_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def start() -> dict[str, float]:
    """Open an empty folder, send one message, and close it."""
    with folder() as path:
        cpu_s, began = child_cpu_s(), time.perf_counter()
        with embedded.open(path) as broker:
            ready_s = time.perf_counter() - began
            with blocking.Producer(broker) as producer:
                producer.send("orders", b"hello")
                both = memory_kib(os.getpid()) + memory_kib(server_pid(path))
                first_s = time.perf_counter() - began
            began = time.perf_counter()
        close_s = time.perf_counter() - began
        alone = memory_kib(os.getpid())
        return {
            "ready, s": ready_s,
            "first message stored, s": first_s,
            "close, s": close_s,
            "processor time of the broker, start to end, s": child_cpu_s() - cpu_s,
            "memory of both above the client alone, MiB": (both - alone) / KIB,
        }


async def rate(producer: Producer, seconds: float) -> float:
    """Messages a second of 64 tasks."""
    sent, end = 0, time.perf_counter() + seconds

    async def send() -> None:
        nonlocal sent
        while time.perf_counter() < end:
            await producer.send("rate", BODY)
            sent += 1

    await asyncio.gather(*(send() for _ in range(64)))
    return sent / seconds


async def sends(seconds: float) -> dict[str, float]:
    with folder() as path:
        async with embedded.open(path) as broker, Producer(broker) as producer:
            await rate(producer, 0.3)
            return {"sends of 200 bytes from 64 tasks, a second": await rate(producer, seconds)}


def other_process(name_servers: str, seconds: float, pipe: Connection) -> None:
    """Send messages one by one, and report how long the longest took, in ms."""
    with blocking.Producer(name_servers) as producer:
        producer.send("stalls", BODY)
        pipe.send(0.0)
        longest, end = 0.0, time.perf_counter() + seconds
        while (began := time.perf_counter()) < end:
            producer.send("stalls", BODY)
            longest = max(longest, time.perf_counter() - began)
        pipe.send(longest * 1000)


async def longest_lag(seconds: float) -> float:
    """How much later than asked this event loop went on, at most, in ms."""
    longest, end = 0.0, time.perf_counter() + seconds
    while (began := time.perf_counter()) < end:
        await asyncio.sleep(0.001)
        longest = max(longest, time.perf_counter() - began - 0.001)
    return longest * 1000


def beside(name_servers: str, kind: str, *, holds: bool) -> dict[str, float]:
    """Measure how much the application and another process delay each other."""
    ours, theirs = multiprocessing.Pipe()
    spawn = multiprocessing.get_context("spawn")
    other = spawn.Process(target=other_process, args=(name_servers, STALL_S + 0.5, theirs))
    other.start()
    ours.recv()
    found: dict[str, float] = {}
    if holds:  # as a long call of an extension holds the interpreter
        ctypes.PyDLL(None).usleep(int(STALL_S * 1e6))
    else:
        found[f"longest lag of the event loop while another process sends, {kind}, ms"] = (
            asyncio.run(longest_lag(STALL_S))
        )
    longest_ms = ours.recv()
    other.join()
    if holds:
        found[f"longest send of another process, interpreter held for 1 s, {kind}, ms"] = longest_ms
    return found


def stalls() -> dict[str, float]:
    """The same beside a broker in a process and beside one in a thread."""
    from cometmq.testing import ThreadedCluster  # loads a broker, which `start` must not share

    found: dict[str, float] = {}
    with folder() as path, embedded.open(path) as broker:
        for holds in (False, True):
            found |= beside(broker.name_servers, "process", holds=holds)
    with ThreadedCluster() as cluster:
        for holds in (False, True):
            found |= beside(cluster.name_servers, "thread", holds=holds)
    return found


def main() -> None:
    """Measure, and print each figure as median, least and most."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=2.0)
    options = parser.parse_args()
    found: dict[str, list[float]] = {}
    subjects = (start, lambda: asyncio.run(sends(options.seconds)), stalls)
    for subject in subjects:
        for _ in range(options.rounds):
            for name, value in subject().items():
                found.setdefault(name, []).append(value)
    print(f"build {build()}, {os.cpu_count()} processors, load {os.getloadavg()[0]:.1f}")
    print("\n| Figure | Median | Least | Most |\n|---|--:|--:|--:|")
    for name, values in found.items():
        row = (statistics.median(values), min(values), max(values))
        print(f"| {name} | " + " | ".join(f"{value:,.3g}" for value in row) + " |")


if __name__ == "__main__":
    main()
