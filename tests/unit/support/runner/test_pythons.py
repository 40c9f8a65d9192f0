"""Which Pythons the tests of releases find."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from support.runner import pythons

THIS = f"{sys.version_info.major}.{sys.version_info.minor}"
NO_VERSION = "3.99"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home folder, with nothing on the path and nothing cached."""
    pythons.find.cache_clear()
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    for name in ("PYENV_ROOT", "UV_PYTHON_INSTALL_DIR"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def interpreter(path: Path, version: str) -> Path:
    """A program that names a version, as an interpreter does when it is asked."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho {version}\n")
    path.chmod(0o755)
    return path


def test_the_tests_run_on_a_supported_python_and_find_it() -> None:
    assert THIS in pythons.supported()
    assert pythons.find(THIS) == Path(sys.executable)


@pytest.mark.parametrize(
    "place",
    [
        "bin/python3.99",
        ".pyenv/versions/3.99.1/bin/python3.99",
        ".local/share/uv/python/cpython-3.99.1-linux/bin/python3.99",
    ],
)
def test_an_interpreter_is_found_where_it_usually_is(home: Path, place: str) -> None:
    expected = interpreter(home / place, NO_VERSION)

    assert pythons.find(NO_VERSION) == expected


def test_a_launcher_that_has_no_such_version_is_passed_over(home: Path) -> None:
    interpreter(home / "bin" / "python3.99", "3.98")
    expected = interpreter(home / ".pyenv/versions/3.99.1/bin/python3.99", NO_VERSION)

    assert pythons.find(NO_VERSION) == expected


def test_without_an_interpreter_nothing_is_found(home: Path) -> None:
    assert pythons.find(NO_VERSION) is None
