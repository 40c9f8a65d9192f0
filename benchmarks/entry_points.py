"""Measures what the package costs programs that only share an environment with it.

pytest loads the plugins of all packages in every run, and Spark imports the modules ``pyspark_*``
of all packages to find a format. Each program runs with and without the package, in turns; the
figure is processor time, which depends less on what else runs on the machine.

Examples::

    .venv/bin/python benchmarks/entry_points.py              writes results/entry-points.md
    .venv/bin/python benchmarks/entry_points.py --rounds 3   a look: prints, writes nothing
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

import machine

ROUNDS_MIN = 15
"""Fewer rounds write no result file."""
LIMIT_MS = 20.0
SPARK_LOOKUP = "from pyspark.sql.worker import lookup_data_sources"
SPARK_MODULES = ("", "_log", "_meta")
Commands = Mapping[str, tuple[Sequence[str], Sequence[str]]]
"""The command without the package and with it, by the name of the row."""


def main() -> None:
    """Measure, print, and write the result file of a whole run."""
    parser = argparse.ArgumentParser(description="Time programs beside which the package lies.")
    parser.add_argument("--rounds", type=int, default=ROUNDS_MIN)
    parser.add_argument("--folder", type=Path, default=machine.ROOT / "build" / "bench")
    asked = parser.parse_args()
    folder = asked.folder.resolve() / "entry-points"
    shutil.rmtree(folder, ignore_errors=True)
    try:
        commands = {"pytest, one empty test": _pytest(folder), "Spark looks for a format": _spark()}
        with machine.NoiseWatch() as watch:
            rows = {name: _measure(pair, asked.rounds) for name, pair in commands.items()}
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    lines = [*_head(asked.rounds, watch.noise), *_table(rows)]
    machine.report("entry-points", lines, rows, whole=asked.rounds >= ROUNDS_MIN)


def _pytest(folder: Path) -> tuple[Sequence[str], Sequence[str]]:
    """Make an environment with pytest and one that has the package as well, from a wheel."""
    tests = folder / "tests"
    tests.mkdir(parents=True)
    (tests / "pytest.ini").write_text("[pytest]\n")  # or pytest reads this project's
    (tests / "test_empty.py").write_text("def test_nothing():\n    pass\n")
    build = {**os.environ, "COMETMQ_BUILD": "interpreted"}
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    wheel = [*pip, "wheel", "--no-deps", "--wheel-dir", str(folder), str(machine.ROOT)]
    subprocess.run(wheel, check=True, env=build)
    commands = []
    for name, packages in {"without": [], "with": [str(next(folder.glob("*.whl")))]}.items():
        venv = folder / name
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
        python = str(venv / "bin" / "python")
        # Both get the same dependencies: only the package itself is to make the difference.
        needed = ["pytest", "msgspec", "typer", "rich"]
        subprocess.run([*pip, "--python", python, "install", *needed, *packages], check=True)
        commands.append([python, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tests)])
    return commands[0], commands[1]


def _spark() -> tuple[Sequence[str], Sequence[str]]:
    modules = ", ".join(f"pyspark_cometmq{suffix}" for suffix in SPARK_MODULES)
    python = [sys.executable, "-c"]
    return [*python, SPARK_LOOKUP], [*python, f"{SPARK_LOOKUP}; import {modules}"]


def _measure(pair: tuple[Sequence[str], Sequence[str]], rounds: int) -> dict[str, list[float]]:
    for command in pair:  # writes the bytecode that later runs read
        _processor_ms(command)
    taken: dict[str, list[float]] = {"without_ms": [], "with_ms": []}
    for _ in range(rounds):
        for values, command in zip(taken.values(), pair, strict=True):
            values.append(_processor_ms(command))
    return taken


def _processor_ms(command: Sequence[str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return 1e3 * (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def _head(rounds: int, noise: machine.Noise) -> list[str]:
    title = "What the package costs programs beside it"
    loads = {"figures": "milliseconds of a processor; `more` is the difference of the medians"}
    return machine.page_head(title, loads, rounds=rounds, noise=noise)


def _table(rows: Mapping[str, Mapping[str, Sequence[float]]]) -> list[str]:
    lines = ["| program | without | with | more | target |", "|---|---|---|--:|---|"]
    for name, row in rows.items():
        without, present = row["without_ms"], row["with_ms"]
        more = median(present) - median(without)
        verdict = "met" if more <= LIMIT_MS else "missed"
        cells = (
            f"{median(each):.0f} ({min(each):.0f}, {max(each):.0f})" for each in (without, present)
        )
        lines.append(f"| {name} | {' | '.join(cells)} | {more:.0f} | ≤ {LIMIT_MS:g} {verdict} |")
    return lines


if __name__ == "__main__":
    main()
