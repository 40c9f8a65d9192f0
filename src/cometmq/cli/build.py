"""Finds which build runs: compiled hot modules, or the same files interpreted."""

from __future__ import annotations

from importlib.machinery import EXTENSION_SUFFIXES
from importlib.util import find_spec
from pathlib import Path

import cometmq

_PACKAGE = Path(cometmq.__file__).parent


def build() -> str:
    """Return the build that runs: ``compiled`` or ``interpreted``.

    One module stands for all, because an installation compiles all hot modules or none. A server
    that starts must not search the whole package for compiled files.
    """
    return "compiled" if _loads_compiled("cometmq.protocol.octets") else "interpreted"


def compiled_modules() -> list[str]:
    """Name the modules that this process loads from compiled files."""
    found = {
        _module(path)
        for suffix in EXTENSION_SUFFIXES
        for path in _PACKAGE.rglob(f"*{suffix}")
        if _is_hot(path)
    }
    return sorted(name for name in found if _loads_compiled(name))


def version_line() -> str:
    """Return version, build and Python in one line."""
    import platform

    count = len(compiled_modules())
    kind = f"compiled: {count} modules" if count else "interpreted"
    return f"cometmq {cometmq.__version__} ({kind}), Python {platform.python_version()}"


def _is_hot(path: Path) -> bool:
    """Whether a compiled file has a source beside it; Cython's own helpers have none."""
    return path.with_name(path.name.partition(".")[0] + ".py").exists()


def _module(path: Path) -> str:
    folder = path.relative_to(_PACKAGE.parent).parent
    return ".".join((*folder.parts, path.name.partition(".")[0]))


def _loads_compiled(name: str) -> bool:
    """Whether imports load the compiled file; ``COMETMQ_BUILD`` may make them load the source."""
    spec = find_spec(name)
    return spec is not None and (spec.origin or "").endswith(tuple(EXTENSION_SUFFIXES))
