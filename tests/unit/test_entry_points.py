"""Entry points: other programs load them unasked, so each module that they import delays all."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CONSOLE = PROJECT["scripts"]["cometmq"].partition(":")[0]
PLUGIN = PROJECT["entry-points"]["pytest11"]["cometmq"]


def loaded_by(module: str, *, after: str = "sys") -> set[str]:
    """The modules that importing one loads in a new interpreter which has loaded another."""
    program = (
        f"import sys, {after}; before = set(sys.modules); import {module};"
        "print(*(set(sys.modules) - before))"
    )
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    return set(run.stdout.split())


def test_pytest_loads_three_small_modules_with_the_plugin() -> None:
    loaded = loaded_by(PLUGIN, after="pytest")

    assert loaded == {"cometmq", "cometmq.testing", "cometmq.testing.plugin"}


def test_the_console_loads_no_library_for_options_and_no_server() -> None:
    loaded = loaded_by(CONSOLE)

    assert CONSOLE in loaded
    assert loaded.isdisjoint({"typer", "rich", "asyncio", "logging", "ssl", "cometmq.remoting"})
