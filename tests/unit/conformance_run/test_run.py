"""The runner of the conformance suites fails when one of its suites does."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

SUITE = """
import os, signal, sys
if "--suite={failing}" in sys.argv:
    {ends}
"""


@pytest.mark.parametrize("failing", ["protocol", "acl-plain", "acl-auth"])
@pytest.mark.parametrize(
    ("ends", "status"), [("os.kill(os.getpid(), signal.SIGKILL)", -9), ("sys.exit(1)", 1)]
)
def test_the_run_fails_when_any_suite_ends_by_a_signal_or_with_a_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str, ends: str, status: int
) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "conformance_run")
    from conformance_run import run

    script = tmp_path / "suite.py"
    script.write_text(SUITE.format(failing=failing, ends=ends))
    monkeypatch.setattr(run, "__file__", str(script))
    monkeypatch.setattr(sys, "argv", ["run.py", f"--junitxml={tmp_path / 'whole.xml'}"])

    assert run.main() == status
