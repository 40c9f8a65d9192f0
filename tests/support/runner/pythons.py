"""Finds the Pythons of this machine that CometMQ supports."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import build_ext

PREFIX = "Programming Language :: Python :: 3."


def supported() -> list[str]:
    """The versions that the project's classifiers name, such as ``3.11``."""
    project = tomllib.loads((build_ext.ROOT / "pyproject.toml").read_text())["project"]
    return [
        f"3.{name[len(PREFIX) :]}" for name in project["classifiers"] if name.startswith(PREFIX)
    ]


@cache
def find(version: str) -> Path | None:
    """Find an interpreter of that version that can make virtual environments, or none."""
    return next(filter(lambda path: _is(path, version), _candidates(version)), None)


def _candidates(version: str) -> Iterator[Path]:
    if version == f"{sys.version_info.major}.{sys.version_info.minor}":
        yield Path(sys.executable)
    name, home = f"python{version}", Path.home()
    folders = (*os.get_exec_path(), "/usr/local/bin", "/usr/bin")
    yield from (Path(found) for folder in folders if (found := shutil.which(name, path=folder)))
    pyenv = Path(os.environ.get("PYENV_ROOT", home / ".pyenv"))
    uv = Path(os.environ.get("UV_PYTHON_INSTALL_DIR", home / ".local/share/uv/python"))
    yield from sorted(pyenv.glob(f"versions/{version}.*/bin/{name}"), reverse=True)
    yield from sorted(uv.glob(f"cpython-{version}.*/bin/{name}"), reverse=True)


def _is(path: Path, version: str) -> bool:
    """Ask the interpreter: a launcher of a version manager may have none of that version."""
    program = "import ensurepip, sys, venv; print('%d.%d' % sys.version_info[:2])"
    try:
        said = subprocess.run(
            [path, "-c", program], capture_output=True, text=True, timeout=60, check=False
        )
    except OSError:
        return False
    return said.returncode == 0 and said.stdout.strip() == version
