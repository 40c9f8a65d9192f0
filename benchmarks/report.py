"""The table of the comparison with other servers."""

from __future__ import annotations

from collections.abc import Sequence

from figures import Figures, cell, doubt_lines, head_lines, noise_lines, ratios, target_cell
from rows import OURS, REFERENCE, ROWS, Metric, Row

FLUSHES = {"async": "asynchronous", "sync": "synchronous", "idle": "asynchronous"}
HEAPS = {"none": "no fixed heap", "512m": "heap 512 MiB", "1g": "heap 1 GiB", "2g": "heap 2 GiB"}


def markdown(figures: Figures, order: Sequence[str]) -> str:
    """The whole report; servers in the given order."""
    servers = [name for name in order if name in figures.servers]
    parts = head_lines("Comparison with other servers", figures)
    parts += [
        "- Columns of other servers: their figure, then how many times better CometMQ's is (x "
        "above 1) or worse (below 1): the ratio within each round, median and worse quartile.",
        "- 16x32: 16 connections with 32 requests in flight each. shared: server and load "
        "generator use both cores; split: one core each.",
        f"- Targets with x are ratios to {REFERENCE}, others are values. Processor time and memory "
        "are those of the broker and the name server on both sides.",
        "- k/s: thousand messages per second; CPU, s/M: processor seconds per million messages.",
        "- Settings of each server:",
    ]
    for name in servers:
        facts = figures.servers[name]
        parts.append(
            f"  - {name}: {facts['version']}; asynchronous: {facts['ASYNC_FLUSH']}; "
            f"synchronous: {facts['SYNC_FLUSH']}"
        )
    parts += ["", *_table(figures, servers), "", *noise_lines(figures), *doubt_lines(figures)]
    return "\n".join(parts) + "\n"


def _table(figures: Figures, servers: Sequence[str]) -> list[str]:
    head = ["load", "flush", "figure"]
    for name in servers:
        heap = figures.servers[name]["heap"]
        head.append(f"{name}<br>{HEAPS.get(heap, heap)}<br>warm memory {_warm(figures, name)}")
    head += ["target", "later target"]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for row in ROWS:
        if not any(each.row == row.name for each in figures.taken):
            continue
        for metric in row.metrics:
            cells = [row.title, FLUSHES[row.flush], f"{metric.name}, {metric.unit}"]
            cells += [_cell(figures, row, metric, name) for name in servers]
            cells += [_target(figures, row, metric, each) for each in (metric.target, metric.later)]
            lines.append("| " + " | ".join(cells) + " |")
    return lines


def _warm(figures: Figures, server: str) -> str:
    found = (each.warm_memory for each in figures.taken if each.server == server)
    return ", ".join(dict.fromkeys(text or "as found" for text in found)) or "-"


def _cell(figures: Figures, row: Row, metric: Metric, server: str) -> str:
    values = figures.values(row.name, server, metric.name)
    said = cell(values.values(), rounds=figures.rounds, more_is_better=metric.more_is_better)
    times = _ratios(figures, row, metric, server)
    if server == OURS or not times:
        return said
    return f"{said}<br>{cell(times, more_is_better=True, sign='x')}"


def _ratios(figures: Figures, row: Row, metric: Metric, server: str) -> list[float]:
    ours = figures.values(row.name, OURS, metric.name)
    other = figures.values(row.name, server, metric.name)
    found: list[float] = ratios(ours, other, more_is_better=metric.more_is_better)
    return found


def _target(figures: Figures, row: Row, metric: Metric, target: float | None) -> str:
    if target is None:
        return ""
    in_doubt = figures.is_in_doubt(row.name, OURS)
    if metric.is_ratio:
        times = _ratios(figures, row, metric, REFERENCE)
        return target_cell(times, target, more_is_better=True, sign="x", in_doubt=in_doubt)
    values = figures.values(row.name, OURS, metric.name).values()
    return target_cell(values, target, more_is_better=metric.more_is_better, in_doubt=in_doubt)
