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
    failures: list[str] = field(default_factory=list)

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
        """
        while True:
            figure = measure()
            is_noisy = figure.noise.total > self.noise_max
            (self.discarded if is_noisy else self.taken).append(figure)
            self.save()
            if not is_noisy or not self._may_repeat(figure):
                return figure
            print(f"  noise of {figure.noise.total:.2f} cores: once more", flush=True)

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
            "failures": self.failures,
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
        self.failures = raw["failures"]  # what failed is missing, and is taken again

    def is_in_doubt(self, row: str, server: str) -> bool:
        """Whether a figure of a row failed or is in doubt in any round, also if it was repeated."""
        named = f", {server}, {row}: "
        return any(named in each for each in self.doubts())

    def doubts(self) -> list[str]:
        """The figures that cannot be trusted, and the rows that failed."""
        found = [
            f"round {each.round}, {each.server}, {each.row}: {each.doubt}"
            for each in self.taken
            if each.doubt
        ]
        return [*found, *self.failures]


def _figure(raw: dict[str, Any]) -> Figure:
    return Figure(**(raw | {"noise": machine.Noise(**raw["noise"])}))


def available(items: Iterable[Any], prepare: Callable[[Any], object]) -> list[Any]:
    """The items whose programs are there or can be installed; the others are named."""
    found = []
    for item in items:
        try:
            prepare(item)
            found.append(item)
        except pytest.skip.Exception as missing:
            print(f"left out: {item.name}: {missing}", file=sys.stderr)
    return found


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


def cell(values: Iterable[float], *, more_is_better: bool, sign: str = "") -> str:
    """Median, and in brackets the worse quartile."""
    found = list(values)
    if not found:
        return "-"
    middle = f"{sign}{number(median(found))}"
    if len(found) == 1:
        return middle
    worse = number(worse_quartile(found, more_is_better=more_is_better))
    return f"{middle} ({sign}{worse})"


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
    if in_doubt:
        return f"{said} in doubt"
    return f"{said} {found}" if found else said


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


def _mean_and_worst(values: list[float]) -> str:
    return f"{sum(values) / len(values):.2f}, {max(values):.2f}"


def head_lines(title: str, figures: Figures) -> list[str]:
    """Title, machine and settings, and how to read the figures."""
    rounds = len({each.round for each in figures.taken})
    dirty = figures.machine["commit"].endswith("-dirty")
    lines = [f"# {title}", ""]
    if dirty:
        lines += ["**Taken from a tree that differs from its commit: no result.**", ""]
    lines += [f"- {name}: {fact}" for name, fact in figures.machine.items()]
    lines += [f"- {name}: {fact}" for name, fact in figures.settings.items()]
    lines += [
        f"- rounds with figures: {rounds}; each cell is the median of the rounds, in brackets the "
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
        "--continue", dest="resume", action="store_true", help="take what is missing in the files"
    )
    parser.add_argument(
        "--minutes", type=float, default=0, help="start nothing that ends later than in so many"
    )
    parser.add_argument(
        "--noise-max", type=float, default=noise_max, help="cores; more discards a figure"
    )
    parser.add_argument(
        "--quiet-wait", type=float, default=30, help="seconds to wait for other work to end"
    )
    parser.add_argument("--dirty", action="store_true", help="allow a dirty tree, and mark it")


def where(save: str, *, quick: bool) -> Path:
    """The file of the raw figures; quick runs do not touch the results of the project."""
    return (QUICK_RESULTS if quick else RESULTS) / f"{save}.json"
