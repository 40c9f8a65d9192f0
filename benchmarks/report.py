"""Turns the figures of all rounds into one table and saves it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from rows import ROWS, Metric, Row

REFERENCE = "java-5.3.3"
"""Whose figures tell how quick this machine is beside the one where bars and goals were set."""
RESULTS = Path(__file__).resolve().parent / "results"


@dataclass
class Results:
    """Every figure that was taken: by row, server and metric, one value per round."""

    machine: Mapping[str, str]
    settings: Mapping[str, Any]
    servers: dict[str, str] = field(default_factory=dict)
    values: dict[str, dict[str, dict[str, list[float]]]] = field(default_factory=dict)
    doubts: list[str] = field(default_factory=list)
    warm_memory: list[str] = field(default_factory=list)
    """How much each server found, in the order they ran."""

    def add(self, row: Row, server: str, figures: Mapping[str, Any]) -> str:
        """Take a round's figures of a row; returns them as one line of text."""
        said = []
        for metric in row.metrics:
            value = metric.read(figures)
            of_row = self.values.setdefault(row.name, {}).setdefault(server, {})
            of_row.setdefault(metric.name, []).append(value)
            said.append(f"{metric.name} {_number(value)} {metric.unit}")
        return ", ".join(said)

    def of(self, row: Row, server: str, metric: Metric) -> list[float]:
        """The values of one figure, one per round; empty when it was not taken."""
        return self.values.get(row.name, {}).get(server, {}).get(metric.name, [])

    def save(self, name: str) -> Path:
        """Write the table and the raw figures; returns the table's path."""
        RESULTS.mkdir(parents=True, exist_ok=True)
        raw = {
            "machine": self.machine,
            "settings": self.settings,
            "servers": self.servers,
            "values": self.values,
            "doubts": self.doubts,
            "warm memory": self.warm_memory,
        }
        (RESULTS / f"{name}.json").write_text(json.dumps(raw, indent=1) + "\n")
        path = RESULTS / f"{name}.md"
        path.write_text(self.markdown())
        return path

    def markdown(self) -> str:
        """The whole report."""
        parts = ["# Comparison with Java brokers\n", *self._facts(), "", *self._table()]
        if self.doubts:
            parts += ["", "Figures in doubt:", "", *[f"- {doubt}" for doubt in self.doubts]]
        return "\n".join(parts) + "\n"

    def _facts(self) -> list[str]:
        lines = [f"- {name}: {fact}" for name, fact in self.machine.items()]
        lines += [f"- {name}: {fact}" for name, fact in self.settings.items()]
        lines.append(f"- warm memory: {', '.join(dict.fromkeys(self.warm_memory))}")
        lines += [f"- {name}: {fact}" for name, fact in self.servers.items()]
        lines.append(
            "- Each cell: median of the rounds, and how far the rounds lie apart in % of it. "
            "'x' is how many times better ours is (above 1) or worse (below 1). Bar and goal were "
            f"set on another machine; 'scaled' is what ours would be there, going by {REFERENCE}."
        )
        return lines

    def _table(self) -> list[str]:
        ours = [name for name in self.servers if name.startswith("ours")]
        others = [name for name in self.servers if name not in ours]
        first = ours[:1]
        head = ["load", "figure", *others, *ours]
        head += [f"x {name}" for name in [*others, *ours[1:]] if first] + ["first bar", "goal"]
        lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
        for row in ROWS:
            if row.name not in self.values:
                continue
            for metric in row.metrics:
                cells = [row.title, f"{metric.name}, {metric.unit}"]
                cells += [_cell(self.of(row, name, metric)) for name in [*others, *ours]]
                cells += [
                    self._ratio(row, metric, first[0], name)
                    for name in [*others, *ours[1:]]
                    if first
                ]
                value = _median(self.of(row, first[0], metric)) if first else None
                java = _median(self.of(row, REFERENCE, metric))
                scaled = metric.scaled(value, java) if value is not None and java else None
                cells += [_mark(metric, mark, value, scaled) for mark in (metric.bar, metric.goal)]
                lines.append("| " + " | ".join(cells) + " |")
        return lines

    def _ratio(self, row: Row, metric: Metric, ours: str, other: str) -> str:
        mine, theirs = _median(self.of(row, ours, metric)), _median(self.of(row, other, metric))
        if mine is None or theirs is None or not mine or not theirs:
            return "-"
        return f"{metric.better_by(mine, theirs):.2f}"


def _median(values: Sequence[float]) -> float | None:
    return median(values) if values else None


def _cell(values: Sequence[float]) -> str:
    if not values:
        return "-"
    middle = median(values)
    if len(values) == 1 or not middle:
        return _number(middle)
    spread = 100 * (max(values) - min(values)) / middle
    return f"{_number(middle)} ±{spread / 2:.0f}%"


def _mark(metric: Metric, mark: float | None, value: float | None, scaled: float | None) -> str:
    if mark is None:
        return ""
    said = f"{'≥' if metric.more_is_better else '≤'} {mark:g}"
    if value is not None:
        said += f" {_verdict(metric, mark, value)}"
    if scaled is not None:
        said += f"; scaled {_number(scaled)} {_verdict(metric, mark, scaled)}"
    return said


def _verdict(metric: Metric, mark: float, value: float) -> str:
    return "met" if metric.reaches(value, mark) else "MISSED"


def _number(value: float) -> str:
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}" if value >= 1 else f"{value:.3f}"
