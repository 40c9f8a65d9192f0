"""The figures of a comparison, round by round: taken, saved, loaded and told apart from noise.

A figure is what one round measured of one row on one server. It is saved as soon as it is taken,
so that a run that ends early can be continued.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import machine
import pytest
from verdict import ROUNDS_MIN, verdict, worse_quartile

RESULTS = Path(__file__).resolve().parent / "results"
QUICK_RESULTS = Path("build/bench/results")
REPEATS_MAX = 2
"""How often a figure is taken again because of noise."""
REPEATS_PER_RUN_MAX = 60


@dataclass(frozen=True)
class Figure:
    """What one round measured of one row on one server."""

    round: int
    server: str
    row: str
    values: Mapping[str, float]
    """By the name of the metric."""
    noise: machine.Noise
    warm_memory: str = ""
    doubt: str = ""
    """Why the values are in doubt, and count in no median and no verdict; empty if they do."""

    @property
    def key(self) -> tuple[int, str, str]:
        """Round, server and row."""
        return self.round, self.server, self.row


@dataclass(frozen=True)
class Failure:
    """A figure that could not be taken."""

    round: int
    """0 for the warm-up."""
    server: str
    row: str
    reason: str

    def __str__(self) -> str:
        return f"round {self.round}, {self.server}, {self.row}: {self.reason}"


@dataclass
class Figures:
    """All figures of a comparison."""

    path: Path
    """The raw figures, as JSON."""
    machine: Mapping[str, str]
    settings: Mapping[str, Any]
    noise_max: float
    """Figures above so many cores of noise are discarded."""
    servers: dict[str, dict[str, str]] = field(default_factory=dict)
    taken: list[Figure] = field(default_factory=list)
    discarded: list[Figure] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    """Servers whose programs are missing, with the reason."""

    @property
    def rounds(self) -> int:
        """The rounds that were begun."""
        return max((each.round for each in [*self.taken, *self.discarded]), default=0)

    def has(self, number: int, server: str, row: str) -> bool:
        """Whether a round has a figure, or has discarded it for good."""
        key = (number, server, row)
        repeats = sum(each.key == key for each in self.discarded)
        return repeats > REPEATS_MAX or any(each.key == key for each in self.taken)

    def values(self, row: str, server: str, metric: str) -> dict[int, float]:
        """The values of one metric by round, without those in doubt."""
        return {
            each.round: each.values[metric]
            for each in self.taken
            if (each.row, each.server) == (row, server) and metric in each.values and not each.doubt
        }

    def take(self, measure: Callable[[], Figure]) -> Figure:
        """Measure until a figure is quiet enough, and keep it; noisy ones are listed.

        Raises:
            Whatever ``measure`` raises.
            SystemExit: the tree is not the one that the figures are named after.
        """
        while True:
            machine.refuse_changed_tree(self.machine["commit"])
            figure = measure()
            is_noisy = figure.noise.total > self.noise_max
            (self.discarded if is_noisy else self.taken).append(figure)
            self.save()
            if not is_noisy or not self._may_repeat(figure):
                return figure
            print(f"  noise of {figure.noise.total:.2f} cores: once more", flush=True)

    def fail(self, number: int, server: str, rows: Iterable[str], error: Exception) -> None:
        """Record that the figures of some rows could not be taken; a later run may retake them."""
        for row in rows:
            reason = f"{type(error).__name__}: {error}"[:2000]
            self.failures.append(Failure(number, server, row, reason))
            print(f"FAILED {self.failures[-1]}", file=sys.stderr, flush=True)
        self.save()

    def _may_repeat(self, figure: Figure) -> bool:
        repeats = sum(each.key == figure.key for each in self.discarded)
        return repeats <= REPEATS_MAX and len(self.discarded) <= REPEATS_PER_RUN_MAX

    def save(self) -> None:
        """Write all figures."""
        raw = {
            "machine": self.machine,
            "settings": self.settings,
            "noise": self.noise_max,
            "servers": self.servers,
            "taken": [asdict(each) for each in self.taken],
            "discarded": [asdict(each) for each in self.discarded],
            "failures": [asdict(each) for each in self.failures],
            "left out": self.left_out,
        }
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps(raw, indent=1) + "\n")

    def resume(self) -> None:
        """Load what an earlier run saved; end the program if it was another comparison."""
        if not self.path.exists():
            return
        raw = json.loads(self.path.read_text())
        same = ("machine", self.machine), ("settings", self.settings), ("noise", self.noise_max)
        for name, mine in same:
            if raw.get(name) != mine:
                sys.exit(
                    f"{self.path} was taken with {name} {raw.get(name)}, but these are {mine}: "
                    "repeat it without --continue"
                )
        self.servers = raw["servers"]
        self.taken = [_figure(each) for each in raw["taken"]]
        self.discarded = [_figure(each) for each in raw["discarded"]]
        # What failed is missing, and is taken again.
        self.failures = [Failure(**each) for each in raw["failures"]]

    def is_in_doubt(self, row: str, server: str) -> bool:
        """Whether a figure of a row failed or is in doubt in any round, also if it was repeated."""
        return any((each.row, each.server) == (row, server) for each in self._doubts())

    def doubts(self) -> list[str]:
        """The figures that cannot be trusted, and those that failed."""
        return [str(each) for each in self._doubts()]

    def _doubts(self) -> list[Failure]:
        """Noise does not excuse a doubt, so discarded figures count."""
        found = [
            Failure(each.round, each.server, each.row, each.doubt)
            for each in [*self.taken, *self.discarded]
            if each.doubt
        ]
        return [*found, *self.failures]

    def missing(self) -> list[str]:
        """The figures that stayed too noisy, so that their round has none."""
        taken = {each.key for each in self.taken}
        lost = dict.fromkeys(each.key for each in self.discarded if each.key not in taken)
        return [f"round {number}, {server}, {row}" for number, server, row in lost]


def _figure(raw: dict[str, Any]) -> Figure:
    return Figure(**(raw | {"noise": machine.Noise(**raw["noise"])}))


def available(
    items: Iterable[Any], prepare: Callable[[Any], object]
) -> tuple[list[Any], list[str]]:
    """The items whose programs are there or can be installed, and the others with the reason."""
    found, left_out = [], []
    for item in items:
        try:
            prepare(item)
            found.append(item)
        except pytest.skip.Exception as missing:
            left_out.append(f"{item.name}: {missing}")
            print(f"left out: {left_out[-1]}", file=sys.stderr)
    return found, left_out


def rotated(items: list[Any], number: int) -> list[Any]:
    """The order of a round: each begins with another item, and every other one goes backwards.

    So an item does not always come after the same one.
    """
    start = (number - 1) % len(items)
    step = 1 if number % 2 else -1
    return [items[(start + step * at) % len(items)] for at in range(len(items))]


def ratios(ours: Mapping[int, float], other: Mapping[int, float], *, more_is_better: bool) -> Any:
    """How many times better CometMQ's figure is, for each round that has both.

    A figure that cannot be divided by, such as no processor time at all, gives no ratio.
    """
    pairs = [(ours[number], other[number]) for number in sorted(ours) if number in other]
    if not more_is_better:
        pairs = [(theirs, mine) for mine, theirs in pairs]
    return [above / below for above, below in pairs if below]


def number(value: float) -> str:
    """A figure with three digits that count."""
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}" if value >= 1 else f"{value:.3f}"


def cell(values: Iterable[float], *, rounds: int = 0, more_is_better: bool, sign: str = "") -> str:
    """Median, and in brackets the worse quartile; says so if rounds are missing."""
    found = list(values)
    if not found:
        return "-"
    said = f"{sign}{number(median(found))}"
    if len(found) > 1:
        said += f" ({sign}{number(worse_quartile(found, more_is_better=more_is_better))})"
    return (
        f"{said} [{len(found)} of {rounds} rounds]"
        if len(found) < min(rounds, ROUNDS_MIN)
        else said
    )


def target_cell(
    values: Iterable[float],
    target: float,
    *,
    more_is_better: bool,
    sign: str = "",
    in_doubt: bool = False,
) -> str:
    """A target and the verdict on it."""
    said = f"{'≥' if more_is_better else '≤'} {sign}{target:g}"
    found = verdict(list(values), target, more_is_better=more_is_better)
    return f"{said} {'in doubt' if in_doubt else found or 'no verdict'}"


def noise_lines(figures: Figures) -> list[str]:
    """A table of the noise of each round and server, and the list of discarded figures."""
    lines = [
        "## Noise",
        "",
        "In cores, mean and worst of the rows. "
        + (
            f"A figure above {figures.noise_max:g} cores of steal and other processes together is "
            f"discarded and taken again, at most {REPEATS_MAX} times."
            if math.isfinite(figures.noise_max)
            else "No figure was discarded."
        ),
        "",
        "| round | server | warm memory | steal | other processes | figures | discarded |",
        "|---|---|---|---|---|---|---|",
    ]
    everything = [*figures.taken, *figures.discarded]
    for key in sorted({(each.round, each.server) for each in everything}):
        of_key = [each for each in everything if (each.round, each.server) == key]
        cells = [
            str(key[0]),
            key[1],
            ", ".join(dict.fromkeys(each.warm_memory or "as found" for each in of_key)),
            _mean_and_worst([each.noise.steal for each in of_key]),
            _mean_and_worst([each.noise.others for each in of_key]),
            str(sum((each.round, each.server) == key for each in figures.taken)),
            str(sum((each.round, each.server) == key for each in figures.discarded)),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    for each in figures.discarded:
        lines.append(
            f"- discarded: round {each.round}, {each.server}, {each.row}: steal "
            f"{each.noise.steal:.2f}, other processes {each.noise.others:.2f} cores"
        )
    return lines


def doubt_lines(figures: Figures) -> list[str]:
    """Sections for the figures that are in doubt, missing or left out."""
    sections = {
        "Figures in doubt": figures.doubts(),
        "Figures that stayed too noisy": figures.missing(),
        "Left out": figures.left_out,
    }
    lines = []
    for title, found in sections.items():
        if found:
            lines += ["", f"## {title}", "", *[f"- {each}" for each in found]]
    return lines


def _mean_and_worst(values: list[float]) -> str:
    return f"{sum(values) / len(values):.2f}, {max(values):.2f}"


def head_lines(title: str, figures: Figures) -> list[str]:
    """Title, machine and settings, and how to read the figures."""
    dirty = figures.machine["commit"].endswith("-dirty")
    lines = [f"# {title}", ""]
    if dirty:
        lines += ["**Taken from a tree that differs from its commit: no result.**", ""]
    lines += [f"- {name}: {fact}" for name, fact in figures.machine.items()]
    lines += [f"- {name}: {fact}" for name, fact in figures.settings.items()]
    lines += [
        f"- rounds: {figures.rounds}; each cell is the median of the rounds, in brackets the "
        "worse quartile",
        f"- A target is met only if the worse quartile of at least {ROUNDS_MIN} rounds meets it, "
        '"met by the median" if only the median does. Fewer rounds give no verdict. If our own '
        'figure failed or is in doubt in any round, the verdict is "in doubt".',
    ]
    return lines


def add_run_arguments(parser: argparse.ArgumentParser, noise_max: float) -> None:
    """The options that all comparisons have."""
    parser.add_argument("--plan", action="store_true", help="print the plan and end")
    parser.add_argument(
        "--continue", dest="resume", action="store_true", help="measure what an earlier run lacks"
    )
    parser.add_argument(
        "--minutes", type=float, default=0, help="start no figure that would end later"
    )
    parser.add_argument(
        "--noise-max", type=float, default=noise_max, help="cores; a figure with more is discarded"
    )
    parser.add_argument(
        "--quiet-wait", type=float, default=30, help="seconds to wait for other work to end"
    )
    parser.add_argument("--dirty", action="store_true", help="allow a dirty tree, and mark it")


def where(save: str, *, quick: bool) -> Path:
    """The file of the raw figures; quick runs do not touch the results of the project."""
    return (QUICK_RESULTS if quick else RESULTS) / f"{save}.json"
