"""The part of Kombu's own tests of transports that takes seconds; `celery_suites` runs the rest."""

from __future__ import annotations

import sys
from pathlib import Path

from processes import Process

LIMIT_S = 300.0


def test_kombus_own_tests_pass(tmp_path: Path) -> None:
    program = Path(__file__).with_name("celery_suites.py")
    options = ["-k", "functionality or priority or message"]
    process = Process([sys.executable, str(program), "kombu", *options], tmp_path / "log")
    assert process.wait(LIMIT_S) == 0, (tmp_path / "log").read_text()[-3000:]
    assert "21 passed" in (tmp_path / "log").read_text()
