"""The benchmarks' load generator against our broker: every way of sending and pulling it has."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support.processes.root import need_open_files

ROOT = Path(__file__).resolve().parents[2]
ROWS = (
    "send-1x1",
    "batch",
    "frames-java-binary",
    "frames-go",
    "frames-cpp",
    "frames-node",
    "pull-tag",
    "latency",
)
CONNECTIONS = ("connections",)
"""It opens 1,000 connections."""
WRONG = ("MISMATCH", "bad_opaque", "lost_conns", "ERRORS")
"""What no load of the machine explains; a busy broker may refuse sends."""


@pytest.mark.skipif(not shutil.which("cc"), reason="needs a C compiler")
@pytest.mark.parametrize(("rows", "open_files"), [(ROWS, 256), (CONNECTIONS, 1_200)])
def test_a_quick_comparison_measures_every_row(
    tmp_path: Path, rows: tuple[str, ...], open_files: int
) -> None:
    need_open_files(open_files)
    done = subprocess.run(
        [
            sys.executable, str(ROOT / "benchmarks" / "run.py"), "--quick", "--duration", "0.3",
            "--servers", "cometmq", "--rows", ",".join(rows), "--folder", str(tmp_path / "files"),
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )  # fmt: skip
    saved = json.loads((tmp_path / "build/bench/results/quick.json").read_text())
    assert saved["failures"] == [], done.stderr
    assert {figure["row"] for figure in saved["taken"]} == set(rows)
    doubts = [figure["doubt"] for figure in saved["taken"]]
    assert [doubt for doubt in doubts if any(word in doubt for word in WRONG)] == []
    assert "verdict" in done.stdout
    assert " met" not in done.stdout.partition("| load |")[2]
