"""Which build is under test: the compiled modules, or the same files interpreted."""

from __future__ import annotations

import os
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.util import find_spec
from pathlib import Path

import build_ext

EXPECTED = os.environ.get("COMETMQ_EXPECT_BUILD")
"""``compiled`` or ``interpreted`` where a run insists on one, else None."""


def hot_modules() -> tuple[str, ...]:
    """The modules that a compiler would make faster."""
    return tuple(build_ext.COMPILED)


def compiled_modules() -> list[str]:
    """Those of the hot modules that this process would load from compiled files."""
    return [name for name in hot_modules() if _loads_compiled(name)]


def describe() -> str:
    """One line about the build, for the head of a report."""
    hot, compiled = hot_modules(), compiled_modules()
    name = "compiled" if compiled and len(compiled) == len(hot) else "interpreted"
    if compiled and len(compiled) < len(hot):
        name = "mixed"
    return f"{name} ({len(compiled)} of {len(hot)} hot modules compiled)"


def mismatch() -> str | None:
    """Why this is not the build that the run expects, or None when it is."""
    compiled = set(compiled_modules())
    if EXPECTED == "compiled" and compiled != set(hot_modules()):
        return f"not compiled: {', '.join(sorted(set(hot_modules()) - compiled))}"
    if EXPECTED == "interpreted" and compiled:
        return f"compiled: {', '.join(sorted(compiled))}"
    return None


def libraries_of_process(pid: int) -> list[str]:
    """Compiled modules of ours that a running process has loaded."""
    maps = Path(f"/proc/{pid}/maps").read_text().splitlines()
    paths = {line.split(maxsplit=5)[-1] for line in maps if "/cometmq/" in line}
    return sorted(path for path in paths if path.endswith(tuple(EXTENSION_SUFFIXES)))


def _loads_compiled(name: str) -> bool:
    spec = find_spec(name)
    return spec is not None and (spec.origin or "").endswith(tuple(EXTENSION_SUFFIXES))
