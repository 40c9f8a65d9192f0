"""Measures what a broker spends to create topics by sends, and how long those sends wait.

Each send goes to a topic that does not exist. The broker and its name server are one process, so
the figures contain the registration of the topics. With one connection a topic is created after the
other, because the sends of a connection keep their order; with several, creations share the writes
of the file of topics.

Examples::

    .venv/bin/python benchmarks/auto_creation.py                writes results/auto-creation.md
    .venv/bin/python benchmarks/auto_creation.py --rounds 1     a look: prints, writes nothing
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import machine

TESTS = Path(__file__).resolve().parent.parent / "tests"
sys.path[:0] = [str(TESTS), str(TESTS / "conformance")]

from cometmq.protocol.codes import RequestCode  # noqa: E402
from cometmq.remoting import RemotingClient  # noqa: E402
from support.processes.server import Standalone  # noqa: E402

COUNTS = (1_000, 2_000, 4_000, 10_000)
CONNECTIONS = (1, 32)
FIELDS = {"a": "p", "c": "TBW102", "d": "4", "e": "0", "f": "0", "h": "0"}
SETTINGS = {"flushDiskType": "ASYNC_FLUSH", "waitTimeMillsInSendQueue": 60_000}
"""The files of topics are synced all the same; a slow disk must not lead to flow control."""
ROUNDS_MIN = 3
"""Fewer rounds write no result file."""
TIMEOUT_S = 120.0

Figures = dict[str, float]


def main() -> None:
    """Measure, print, and write the result file of a whole run."""
    parser = argparse.ArgumentParser(description="The cost of topics that sends create.")
    parser.add_argument("--rounds", type=int, default=ROUNDS_MIN)
    parser.add_argument("--counts", type=int, nargs="+", default=COUNTS)
    parser.add_argument("--connections", type=int, nargs="+", default=CONNECTIONS)
    parser.add_argument("--folder", type=Path, default=machine.ROOT / "build" / "bench")
    asked = parser.parse_args()
    rows: dict[int, dict[int, list[Figures]]] = {
        connections: {count: [] for count in asked.counts} for connections in asked.connections
    }
    with machine.NoiseWatch() as watch:
        for _ in range(asked.rounds):
            for connections, counts in rows.items():
                for count, taken in counts.items():
                    figures = _measure(asked.folder / "auto-creation", count, connections)
                    print(connections, count, figures, flush=True)
                    taken.append(figures)
    load = "one send to each topic, the next one of a connection after the response"
    head = machine.page_head(
        "Topics that sends create", {"load": load}, rounds=asked.rounds, noise=watch.noise
    )
    lines = [*head, *_table(rows)]
    machine.report("auto-creation", lines, rows, whole=asked.rounds >= ROUNDS_MIN)


def _measure(folder: Path, count: int, connections: int) -> Figures:
    shutil.rmtree(folder, ignore_errors=True)
    server = Standalone(folder, settings=SETTINGS)
    server.start()
    try:
        before_s = machine.cpu_seconds([server.pid])
        began_s = time.monotonic()
        waits = asyncio.run(_send_all("%s:%d" % server.broker, count, connections))
        took_s = time.monotonic() - began_s
        time.sleep(2.0)  # what follows in the background counts, too
        spent_s = machine.cpu_seconds([server.pid]) - before_s
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)
    waits.sort()
    return {
        "cpu_s": round(spent_s, 2),
        "seconds": round(took_s, 2),
        "p50_ms": round(waits[len(waits) // 2] * 1000, 2),
        "max_ms": round(waits[-1] * 1000, 1),
    }


async def _send_all(address: str, count: int, connections: int) -> list[float]:
    """Send to each topic; return how long each send has waited."""
    waits: list[float] = []
    numbers = iter(range(count))

    async def send_some() -> None:
        client = RemotingClient(name="sends")
        for number in numbers:
            fields = FIELDS | {"b": f"topic-of-application-{number}", "g": str(number)}
            began_s = time.monotonic()
            response = await client.call(
                address, RequestCode.SEND_MESSAGE_V2, fields=fields, body=b"x", timeout=TIMEOUT_S
            )
            if response.code != 0:
                raise RuntimeError(f"{response.code}: {response.remark}")
            waits.append(time.monotonic() - began_s)
        await client.close()

    await asyncio.gather(*(send_some() for _ in range(connections)))
    return waits


def _table(rows: dict[int, dict[int, list[Figures]]]) -> list[str]:
    lines = [
        "| connections | topics | processor seconds of broker and name server | seconds"
        " | p50 of a send, ms | longest send, ms |",
        "|--:|--:|---|---|---|---|",
    ]
    for connections, counts in rows.items():
        for count, taken in counts.items():
            cells = " | ".join(
                _cell([each[name] for each in taken])
                for name in ("cpu_s", "seconds", "p50_ms", "max_ms")
            )
            lines.append(f"| {connections} | {count:,} | {cells} |")
    return lines


def _cell(values: Sequence[float]) -> str:
    if len(values) == 1:
        return _shown(values[0])
    return f"{_shown(median(values))} ({_shown(min(values))}, {_shown(max(values))})"


def _shown(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


if __name__ == "__main__":
    main()
