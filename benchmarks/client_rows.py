"""What clients are measured at, and the table of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import figures
import loadgen
from figures import Figures

OURS, BEFORE = "cometmq", "cometmq-before"
JAVAS = ("java-4.9.8", "java-5.3.3")
WINDOW = 64
SAME = 0.97
"""Costs within this ratio of those before count as the same: equal clients differ as much."""


@dataclass(frozen=True)
class Metric:
    """One figure of a row; without ``more_is_better`` it is a cost."""

    name: str
    unit: str
    times: float | None = None
    """Target: how many times better than each Java client."""
    target: float | None = None
    """Target: a value."""
    more_is_better: bool = False


RATE = Metric("rate", "k/s", more_is_better=True)
CPU = Metric("CPU per message", "CPU s per million")
CPU_AT_REST = Metric("CPU at rest", "% of a core")
MEMORY = Metric("memory at rest", "MiB")
LOADED = (RATE, replace(CPU, times=3))


@dataclass(frozen=True)
class Row:
    """One load."""

    name: str
    title: str
    metrics: tuple[Metric, ...]
    flush: str = "ASYNC_FLUSH"
    """How the server flushes."""
    work: str = ""
    """What the client's program is told to do; empty for the row's name."""
    fill: loadgen.Load | None = None
    """What the topic holds before; without a count, more than the clients can consume."""
    queues: int = 0
    """The queues of the topic, if it is made without messages."""
    at_rest: bool = False
    """Whether nothing is sent while the figures are taken."""


SENDS = f"async sends of 128 B, {WINDOW} in flight"
BACKLOG = loadgen.Load(batch=32, window=4)
ROWS = {
    row.name: row
    for row in (
        Row(
            "send",
            f"{SENDS}, synchronous flush",
            (replace(RATE, times=2), CPU),
            flush="SYNC_FLUSH",
        ),
        Row("send-async", SENDS, (RATE, CPU), work="send"),
        Row("awaited", f"awaited sends of 128 B, {WINDOW} in flight", LOADED),
        Row("handler", "messages of 128 B through a handler, one by one", LOADED, fill=BACKLOG),
        Row("consume", "messages of 128 B through a handler, batches of 32", LOADED, fill=BACKLOG),
        Row(
            "decode",
            "messages cut out of a pull's response, decoded lazily",
            (replace(RATE, target=1000), CPU),
        ),
        Row(
            "idle",
            "idle consumer of 64 queues",
            (replace(CPU_AT_REST, target=0.3), MEMORY),
            queues=64,
            at_rest=True,
        ),
        Row(
            "many",
            "1,000 consumers in one process",
            (CPU_AT_REST, MEMORY, Metric("start", "s")),
            fill=loadgen.Load(conns=1, window=1, queues=1, count=1),
            at_rest=True,
        ),
    )
}
FLUSHES = {"SYNC_FLUSH": "synchronous", "ASYNC_FLUSH": "asynchronous"}
LOADS = ("send", "send-async", "awaited", "handler", "consume")


def table_lines(results: Figures, clients: Iterable[str]) -> list[str]:
    """A line for each figure of each client, with the verdicts."""
    names = list(dict.fromkeys(clients))
    return [
        "| load | flush | client | measured | figure | x | target |",
        "|---|---|---|---|---|---|---|",
        *(
            _table_line(results, row, metric, name)
            for row in ROWS.values()
            for metric in row.metrics
            for name in names
            if results.values(row.name, name, metric.name)
        ),
    ]


def _table_line(results: Figures, row: Row, metric: Metric, client: str) -> str:
    better = metric.more_is_better
    ours = results.values(row.name, OURS, metric.name)
    values = results.values(row.name, client, metric.name)
    times = figures.ratios(ours, values, more_is_better=better)
    in_doubt = results.is_in_doubt(row.name, OURS)
    wanted = metric.times if client in JAVAS else None
    if client == BEFORE and not better:
        wanted = SAME
    target = ""
    if wanted is not None:
        target = figures.target_cell(
            times, wanted, more_is_better=True, sign="x", in_doubt=in_doubt
        )
    elif client == OURS and metric.target is not None:
        target = figures.target_cell(
            values.values(), metric.target, more_is_better=better, in_doubt=in_doubt
        )
    cells = [
        row.title,
        "-" if row.name == "decode" else FLUSHES[row.flush],
        results.servers[client]["title"],
        metric.name,
        figures.cell(values.values(), rounds=results.rounds, more_is_better=better)
        + f" {metric.unit}",
        "" if client == OURS else figures.cell(times, more_is_better=True, sign="x"),
        target,
    ]
    return "| " + " | ".join(cells) + " |"
