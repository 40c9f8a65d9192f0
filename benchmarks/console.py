"""Measures the console over a cluster with 1,000 topics, 10,000 queues and 1,000 groups.

Each round starts a console, and requests the first part of each page once, as HTML. The time of the
first page includes what the console reads of the cluster before it.

Examples::

    .venv/bin/python benchmarks/console.py              writes results/console.md
    .venv/bin/python benchmarks/console.py --rounds 1   a look: prints, writes nothing
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from urllib.parse import urlencode

import machine

from cometmq.client import AdminClient, Message, Producer

ROUNDS_MIN = 9
"""Fewer rounds write no result file."""
TOPICS, QUEUES, GROUPS = 1_000, 10, 1_000
MESSAGES = 10_000
IN_FLIGHT = 64
LIMIT_S, LIMIT_MIB = 1.0, 100.0
REQUEST_S = 60.0
ONE = {
    "/topics/topic": {"topic": "topic-0000"},
    "/groups/group": {"group": "group-0000"},
    "/messages": {"topic": "topic-0000", "key": "key-0"},
    "/topics": {"search": "77"},
    "/groups": {"search": "77"},
}
"""Pages with parameters, which are requested as well."""
MEMORY, START = "memory, at most", "start of the console"
NO_LIST = ("/doctor/run",)
"""Runs checks for seconds, as it says."""


def main() -> None:
    """Measure, print, and write the result file of a whole run."""
    parser = argparse.ArgumentParser(description="Time the pages of the console.")
    parser.add_argument("--rounds", type=int, default=ROUNDS_MIN)
    parser.add_argument("--folder", type=Path, default=machine.ROOT / "build" / "bench")
    parser.add_argument("--dirty", action="store_true", help="measure changed sources, too")
    asked = parser.parse_args()
    machine.refuse_other_sources()
    machine.refuse_dirty_tree(allowed=asked.dirty)
    folder = asked.folder.resolve() / "console"
    shutil.rmtree(folder, ignore_errors=True)
    rows: dict[str, list[float]] = {}
    try:
        with served(folder) as name_servers:
            asyncio.run(fill(name_servers))
            with machine.NoiseWatch() as watch:
                for _ in range(asked.rounds):
                    for name, value in visit(name_servers).items():
                        rows.setdefault(name, []).append(value)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    lines = [*_head(asked.rounds, watch.noise), *_table(rows)]
    machine.report("console", lines, rows, whole=asked.rounds >= ROUNDS_MIN)


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Run a name server and a broker; gives the address of the name server."""
    folder.mkdir(parents=True)
    command = ("standalone", "--namesrv-port", "0", "--broker-port", "0", "--log-level", "error")
    with run(*command, "--store", str(folder / "store")) as (_, ready):
        yield re.search(r"namesrv=(\S+)", ready)[1]  # type: ignore[index]


@contextmanager
def run(*arguments: str) -> Iterator[tuple[int, str]]:
    """Run a command; gives its process id and its first line."""
    process = subprocess.Popen(
        [sys.executable, "-m", "cometmq", *arguments], text=True, stdout=subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        yield process.pid, process.stdout.readline()
    finally:
        process.terminate()
        process.communicate()


async def fill(name_servers: str) -> None:
    """Make topics with messages, and groups with offsets and a lag in each queue of one topic."""
    slots = asyncio.Semaphore(IN_FLIGHT)
    async with AdminClient(name_servers) as admin, Producer(name_servers, group="p") as producer:
        [broker] = (await admin.cluster_info()).registered()

        async def topic(number: int) -> None:
            async with slots:
                await admin.create_topic(f"topic-{number:04}", queues=QUEUES)

        async def group(number: int) -> None:
            name, consumed = f"group-{number:04}", f"topic-{number:04}"
            async with slots:
                await admin.create_group(name)
                for queue in await admin.queue_bounds(consumed):
                    await admin.commit_offset(broker.address, name, queue, 0)

        async def message(number: int) -> None:
            async with slots:
                name = f"topic-{number % TOPICS:04}"
                await producer.send(Message(name, b"x" * 128, keys=[f"key-{number}"]))

        await asyncio.gather(*map(topic, range(TOPICS)))
        await asyncio.gather(*map(message, range(MESSAGES)))
        await asyncio.gather(*map(group, range(GROUPS)))


def visit(name_servers: str) -> dict[str, float]:
    """Start a console and request each page; return seconds by page, and MiB."""
    found: dict[str, float] = {}
    begin = time.perf_counter()
    with run("console", "-n", name_servers, "--port", "0") as (pid, ready):
        site = re.search(r"(http\S+)/ ", ready)[1]  # type: ignore[index]
        found[START] = time.perf_counter() - begin
        for address in addresses(json.loads(get(f"{site}/api/openapi.json"))):
            begin = time.perf_counter()
            get(site + address)
            found[address] = time.perf_counter() - begin
        status = Path(f"/proc/{pid}/status").read_text()
        found[MEMORY] = int(re.search(r"VmHWM:\s+(\d+)", status)[1]) / 1024  # type: ignore[index]
    return found


def addresses(schema: Mapping[str, Mapping[str, Mapping[str, Mapping[str, object]]]]) -> list[str]:
    """Return the pages that need no parameter, and some that have one."""
    found = []
    for api, operations in schema["paths"].items():
        path = api.removeprefix("/api").replace("/overview", "/")
        parameters = operations.get("get", {}).get("parameters", ())
        is_page = "get" in operations and "post" not in operations and path not in NO_LIST
        if is_page and not any(each["required"] for each in parameters):  # type: ignore[index,union-attr]
            found.append(path)
        if path in ONE:
            found.append(f"{path}?{urlencode(ONE[path])}")
    return found


def get(address: str) -> bytes:
    """Return the content of an address."""
    with urllib.request.urlopen(address, timeout=REQUEST_S) as response:
        content: bytes = response.read()
    return content


def _head(rounds: int, noise: machine.Noise) -> list[str]:
    title = f"The console over {TOPICS:,} topics, {TOPICS * QUEUES:,} queues and {GROUPS:,} groups"
    loads = {
        "cluster": f"one broker of ours with {MESSAGES:,} messages, and a lag in each group",
        "figures": "seconds of the first request of a page after the start of a console, as HTML;"
        " memory is the resident set at its highest",
    }
    return machine.page_head(title, loads, rounds=rounds, noise=noise)


def _table(rows: Mapping[str, Sequence[float]]) -> list[str]:
    lines = ["| page | seconds | target |", "|---|---|---|"]
    for name, values in rows.items():
        if name == MEMORY:
            verdict = "met" if max(values) <= LIMIT_MIB else "missed"
            lines.append(f"| {name} | {machine.cell(values, '.0f')} MiB | ≤ 100 MiB {verdict} |")
        elif name == START:
            lines.append(f"| {name} | {machine.cell(values, '.2f')} | |")
        else:
            verdict = "met" if median(values) <= LIMIT_S else "missed"
            lines.append(f"| `{name}` | {machine.cell(values, '.2f')} | ≤ 1 {verdict} |")
    return lines


if __name__ == "__main__":
    main()
