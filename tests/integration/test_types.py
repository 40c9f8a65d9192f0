"""Type checkers accept right calls of the public interface, and report wrong ones.

Each file of the folder ``typed`` is an application that type checkers read and that never runs. A
line that ends in ``# error`` is a mistake that each checker has to report; no other line is one.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "tests/integration/typed"
SAMPLES = sorted(FOLDER.glob("*.py"))
CHECK_S = 300

Line = tuple[str, int]


@pytest.fixture(scope="module")
def mistakes() -> set[Line]:
    return {
        (sample.name, number)
        for sample in SAMPLES
        for number, line in enumerate(sample.read_text().splitlines(), start=1)
        if line.endswith("# error")
    }


def test_mypy_reports_the_mistakes_and_nothing_else(mistakes: set[Line]) -> None:
    said = run("mypy", "--strict", "--no-error-summary", *map(str, SAMPLES))

    found = re.findall(r"([\w.]+):(\d+): error:", said)

    assert {(name, int(number)) for name, number in found} == mistakes, said


@pytest.mark.needs("node")  # the package pyright downloads its own, and the checker
def test_pyright_reports_the_mistakes_and_nothing_else(mistakes: set[Line]) -> None:
    said = run("pyright", "--outputjson", "-p", str(FOLDER), "--pythonpath", sys.executable)

    found = json.loads(said)["generalDiagnostics"]
    places = {(Path(one["file"]).name, one["range"]["start"]["line"] + 1) for one in found}
    assert places == mistakes, json.dumps(found, indent=1)


def run(module: str, *arguments: str) -> str:
    """What a checker prints; exit status 1 means that it has found mistakes."""
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=CHECK_S,
    )  # fmt: skip
    assert done.returncode == 1, done.stdout + done.stderr
    return done.stdout
