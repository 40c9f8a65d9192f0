"""Compares how fast messages are matched against SQL92 expressions: ours, and RocketMQ's module.

For each message a broker takes the properties out of the record and evaluates the expression. Ours
is called for each message, once from compiled code and once from Python. RocketMQ's module gets the
property string as bytes, as its broker does, in one JVM per measurement, warmed up as long as it is
measured. The rounds alternate. A figure is messages per CPU second; of RocketMQ's it is that of the
whole JVM, with its garbage collection. All must match the same messages.

Examples::

    .venv/bin/python benchmarks/sql92.py                       writes benchmarks/results/sql92.md
    .venv/bin/python benchmarks/sql92.py --rounds 1 --seconds 1   a look: prints, writes nothing
"""

from __future__ import annotations

import argparse
import importlib
import json
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import machine
from verdict import ROUNDS_MIN, verdict

TESTS = Path(__file__).resolve().parent.parent / "tests"
sys.path[:0] = [str(TESTS), str(TESTS / "interop")]

import toolchain  # noqa: E402

from cometmq.cli.build import version_line  # noqa: E402
from cometmq.protocol import octets  # noqa: E402
from cometmq.protocol.properties import encode_properties  # noqa: E402
from cometmq.sql92 import Expression, compile_expression  # noqa: E402

Loop = Callable[[Expression, list[bytes]], int]

VERSIONS = ("4.9.7", "5.3.3")
MESSAGES = 1000
SECONDS = 5.0
PER_SECOND_MIN = 500_000
TIMES_JAVA_MIN = 5.0
NOISE_MAX = 0.3
"""In cores; a machine on which more runs beside it gives no verdict."""

EXPRESSIONS = {
    "typical": "(color = 'blue' AND price > 10) OR region IN ('eu','us')",
    "one text": "color = 'blue'",
    "one integer": "price > 99",
    "decimals": "weight BETWEEN 0.5 AND 2.5 AND price >= 10",
    "missing property": "discount > 5",
    "list of 100": "region IN ({})".format(",".join(f"'r{number}'" for number in range(100))),
}
TYPICAL = "typical"


@dataclass
class Row:
    """The rounds of one expression: messages per CPU second, and how many of 1000 match."""

    name: str
    ours: list[float] = field(default_factory=list)
    from_python: list[float] = field(default_factory=list)
    java: dict[str, list[float]] = field(default_factory=dict)
    matching: set[float] = field(default_factory=set)


def main() -> None:
    """Measure, print, and write the result file of a whole run."""
    asked = _arguments()
    machine.refuse_other_sources()
    messages = list(_messages())
    loop = _compiled_loop()
    rows = [Row(name) for name in EXPRESSIONS]
    with machine.NoiseWatch() as watch:
        for _ in range(asked.rounds):
            for row in rows:
                _measure(row, messages, loop, asked.seconds)
    for row in rows:
        if len(row.matching) != 1:
            raise SystemExit(f"{row.name}: not the same messages match: {row.matching}")
    lines = [*_head(asked, watch.noise), *_table(rows, watch.noise)]
    figures = [
        {"expression": row.name, "ours": row.ours, "from Python": row.from_python, "java": row.java}
        for row in rows
    ]
    whole = asked.rounds >= ROUNDS_MIN and asked.seconds >= SECONDS
    machine.report("sql92", lines, figures, whole=whole)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Compare SQL92 expressions with RocketMQ's module."
    )
    parser.add_argument("--rounds", type=int, default=ROUNDS_MIN)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of each measurement")
    return parser.parse_args()


def _compiled_loop() -> Loop:
    """Compile sql92_loop.pyx."""
    from Cython.Build import cythonize
    from setuptools import Distribution, Extension

    if not octets.is_compiled():
        sys.exit("the hot modules are interpreted; expected the compiled build: make compile")
    folder = machine.ROOT / "build" / "bench" / "sql92"
    source = Path(__file__).with_name("sql92_loop.pyx")
    modules = cythonize(
        [Extension("sql92_loop", [str(source)])],
        build_dir=str(folder),
        include_path=[str(machine.ROOT / "src")],
        quiet=True,
    )
    command = Distribution({"ext_modules": modules}).get_command_obj("build_ext")
    command.build_lib = command.build_temp = str(folder)
    command.ensure_finalized()
    command.run()
    sys.path.insert(0, str(folder))
    loop: Loop = importlib.import_module("sql92_loop").count_matches
    return loop


def _from_python(expression: Expression, messages: list[bytes]) -> int:
    """What the compiled loop does, in Python."""
    matching = 0
    for data in messages:
        if expression.matches(data, 0, len(data)):
            matching += 1
    return matching


def _messages() -> Iterator[bytes]:
    """Property strings of a shop's messages, with eight properties each."""
    source = random.Random(92)
    for number in range(MESSAGES):
        yield encode_properties(
            {
                "KEYS": f"order-{number}",
                "UNIQ_KEY": f"7F00000100002A9F{number:016X}",
                "TAGS": source.choice(("paid", "sent", "new")),
                "WAIT": "true",
                "color": source.choice(("red", "green", "blue", "black")),
                "price": str(source.randrange(200)),
                "region": source.choice(("eu", "us", "r7", "asia", "africa", "south-america")),
                "weight": f"{source.random() * 5:.3f}",
            }
        )


def _measure(row: Row, messages: list[bytes], loop: Loop, seconds: float) -> None:
    print(row.name, end=": ", flush=True)
    for figures, once in ((row.ours, loop), (row.from_python, _from_python)):
        per_second, matching = _ours(once, EXPRESSIONS[row.name], messages, seconds)
        figures.append(per_second)
        row.matching.add(matching)
        print(f"{per_second:,.0f}", end=", ", flush=True)
    for version in VERSIONS:
        per_second, matching = _java(version, EXPRESSIONS[row.name], messages, seconds)
        row.java.setdefault(version, []).append(per_second)
        row.matching.add(matching)
        print(f"RocketMQ {version} {per_second:,.0f}", end=", ", flush=True)
    print()


def _ours(once: Loop, text: str, messages: list[bytes], seconds: float) -> tuple[float, float]:
    """Messages per CPU second, and the share that matches."""
    expression = compile_expression(text)
    matching = count = 0
    end = time.monotonic() + seconds
    began = time.process_time()
    while time.monotonic() < end:
        matching += once(expression, messages)
        count += len(messages)
    return count / (time.process_time() - began), matching / count


def _java(
    version: str, expression: str, messages: list[bytes], seconds: float
) -> tuple[float, float]:
    classes = toolchain.java_classes("filter", toolchain.rocketmq_jars("servers", version))
    asked = {"expression": expression, "messages": [data.decode() for data in messages]}
    ran = subprocess.run(
        [toolchain.command("java"), "-cp", classes, "Expressions", "bench", str(seconds)],
        input=json.dumps(asked) + "\n",
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    count, matching, nanoseconds = map(int, ran.stdout.split())
    return count / nanoseconds * 1e9, matching / count


def _head(asked: argparse.Namespace, noise: machine.Noise) -> Iterator[str]:
    yield "# Messages matched against SQL92 expressions"
    yield ""
    for name, value in machine.facts().items():
        yield f"- {name}: {value}"
    yield f"- build: {version_line()}"
    yield f"- messages: {MESSAGES} property strings with eight properties, again and again"
    yield (
        f"- rounds: {asked.rounds} of {asked.seconds:.0f} s; each cell is the median of messages"
        " per CPU second, in brackets least and most"
    )
    yield (
        f"- noise: {noise.steal:.2f} cores of steal, {noise.others:.2f} of other processes; above"
        f" {NOISE_MAX} in all there is no verdict"
    )
    yield ""


def _table(rows: list[Row], noise: machine.Noise) -> Iterator[str]:
    titles = [
        "expression",
        "matching",
        "CometMQ",
        "called from Python",
        *(f"RocketMQ {v}" for v in VERSIONS),
    ]
    titles += ["times the faster one", "targets"]
    yield f"| {' | '.join(titles)} |"
    yield "|---|--:|--:|--:|" + "--:|" * len(VERSIONS) + "--:|---|"
    for row in rows:
        times = [
            ours / max(values)
            for ours, *values in zip(row.ours, *(row.java[v] for v in VERSIONS), strict=True)
        ]
        [share] = row.matching
        cells = [f"{row.name}: `{_short(EXPRESSIONS[row.name])}`", f"{share:.0%}"]
        cells += [machine.cell(row.ours, ",.0f"), machine.cell(row.from_python, ",.0f")]
        cells += [machine.cell(row.java[version], ",.0f") for version in VERSIONS]
        cells += [f"{median(times):.1f}", _targets(row, times, noise)]
        yield f"| {' | '.join(cells)} |"


def _targets(row: Row, times: list[float], noise: machine.Noise) -> str:
    if row.name != TYPICAL:
        return ""
    found = [
        (f"≥ {PER_SECOND_MIN:,}", verdict(row.ours, PER_SECOND_MIN, more_is_better=True)),
        (f"≥ {TIMES_JAVA_MIN:.0f} times", verdict(times, TIMES_JAVA_MIN, more_is_better=True)),
    ]
    doubt = noise.total > NOISE_MAX
    return ", ".join(f"{target} {'in doubt' if doubt else said}".rstrip() for target, said in found)


def _short(expression: str) -> str:
    return expression if len(expression) <= 60 else f"{expression[:57]}..."


if __name__ == "__main__":
    main()
