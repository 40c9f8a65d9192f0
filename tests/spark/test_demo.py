"""The demo of Spark finds what it sent, prints each finding once, and leaves nothing.

The demo is two files of the examples: pipeline_demo and pipeline_shop.
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import takewhile
from pathlib import Path

import pytest
from kit import eventually

from support.processes.process_marks import left_running, marked_environment

pytestmark = pytest.mark.local_only

PATIENCE_S = 900.0
DEMO = Path(__file__).resolve().parents[2] / "examples/spark/pipeline_demo.py"


@contextmanager
def demo(folder: Path, *options: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The demo as a process, and the mark that all it starts carry in their environment."""
    environment, mark = marked_environment()
    process = subprocess.Popen(
        [sys.executable, str(DEMO), "--folder", str(folder), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
    )
    try:
        yield process, mark
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def test_the_demo_finds_what_it_sent_and_leaves_its_tables_only(tmp_path: Path) -> None:
    with demo(tmp_path, "--seconds", "4", "--rate", "100") as (process, mark):
        said, _ = process.communicate(timeout=PATIENCE_S)

        assert process.returncode == 0, said
        eventually(lambda: not left_running(mark), timeout=PATIENCE_S)

    assert "live totals, batch" in said
    assert len(re.findall(r"^\d+ dead letters of billing: ", said, re.M)) == 1, said
    assert not re.search(r"\bNO\b", said)
    for what in ("orders in the live", "orders in the archive", "dead letters"):
        assert re.search(rf"{what}\W+([1-9]\d*)\W+\1\W+yes", said), said
    assert list(tmp_path.glob("*/archive/**/*.parquet"))
    assert list(tmp_path.glob("*/dead-letters/*.parquet"))


@pytest.mark.long
def test_a_demo_that_is_ended_leaves_nothing_running(tmp_path: Path) -> None:
    with demo(tmp_path, "--seconds", "60") as (process, mark):
        assert process.stdout is not None
        said = list(takewhile(lambda line: "live totals" not in line, process.stdout))
        assert process.poll() is None, said
        assert len(left_running(mark)) > 2

        process.send_signal(signal.SIGTERM)

        rest, _ = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 128 + signal.SIGTERM, rest
        eventually(lambda: not left_running(mark), timeout=PATIENCE_S)
