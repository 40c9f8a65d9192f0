"""The functions of examples of Spark, for tests of them."""

from __future__ import annotations

import runpy
from functools import cache
from pathlib import Path
from types import SimpleNamespace

FOLDER = Path(__file__).resolve().parents[3] / "examples" / "spark"


@cache
def recipe(name: str) -> SimpleNamespace:
    """Return what an example defines, without running it."""
    return SimpleNamespace(**runpy.run_path(str(FOLDER / f"{name}.py")))
