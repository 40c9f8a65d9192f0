"""Which build runs: the compiled hot modules or their sources.

A module is hot when a ``.pxd`` file lies beside it. Source: ours.
"""

from __future__ import annotations

from importlib.machinery import EXTENSION_SUFFIXES
from importlib.util import find_spec
from pathlib import Path

import cometmq


def build() -> str:
    """Say which build runs: ``compiled``, ``interpreted``, or ``mixed`` of both."""
    hot = hot_modules()
    compiled = [name for name in hot if _is_compiled(name)]
    if not compiled:
        return "interpreted"
    return "compiled" if len(compiled) == len(hot) else "mixed"


def hot_modules() -> list[str]:
    """Name the modules that a compiler makes faster."""
    root = Path(cometmq.__file__).parent
    paths = sorted(path.relative_to(root.parent) for path in root.rglob("*.pxd"))
    return [".".join(path.with_suffix("").parts) for path in paths if path.stem != "__init__"]


def version_line() -> str:
    """Say version, build and Python in one line."""
    import platform

    return f"cometmq {cometmq.__version__} ({build()}), Python {platform.python_version()}"


def _is_compiled(name: str) -> bool:
    spec = find_spec(name)
    origin = spec.origin if spec else None
    return origin is not None and origin.endswith(tuple(EXTENSION_SUFFIXES))
