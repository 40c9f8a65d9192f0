"""What an installation gets: from a source distribution, and where no C compiler works."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import build_ext

KEPT = ("src", "docs", "conf", "examples")
FILES = (
    "pyproject.toml",
    "setup.py",
    "build_ext.py",
    "MANIFEST.in",
    "README.md",
    "LICENSE",
    "NOTICE",
)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of the sources without anything compiled."""
    copy = tmp_path / "tree"
    left_out = shutil.ignore_patterns("*.so", "__pycache__", "*.egg-info")
    for name in KEPT:
        shutil.copytree(build_ext.ROOT / name, copy / name, ignore=left_out)
    for name in (*FILES, "CHANGELOG.md"):
        shutil.copy(build_ext.ROOT / name, copy)
    return copy


def run(*command: str, cwd: Path, **environment: str) -> str:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("COMETMQ_")}
    done = subprocess.run(
        [sys.executable, *command],
        cwd=cwd,
        env=kept | {"PYTHONPATH": ""} | environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_wheel_without_a_compiler_is_whole_and_runs_interpreted(
    tree: Path, tmp_path: Path
) -> None:
    command = ("-m", "pip", "wheel", "--no-build-isolation", "--no-deps", "-w", str(tmp_path), ".")
    run(*command, cwd=tree, CC="/bin/false")

    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        archive.extractall(tmp_path / "installed")
    sources = {str(path.relative_to(tree / "src")) for path in (tree / "src").rglob("*.p[yx]*")}
    assert sources <= names
    assert "cometmq/py.typed" in names
    assert not [name for name in names if name.endswith((".so", ".c"))]
    said = run("-m", "cometmq", "version", cwd=tmp_path, PYTHONPATH=str(tmp_path / "installed"))
    assert "interpreted" in said


def test_a_source_distribution_has_all_that_a_build_needs(tree: Path, tmp_path: Path) -> None:
    program = "from setuptools.build_meta import build_sdist; import sys; build_sdist(sys.argv[1])"
    run("-c", program, str(tmp_path), cwd=tree)

    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        names = {name.partition("/")[2] for name in opened.getnames()}
    assert set(FILES) <= names
    for module in build_ext.COMPILED:
        assert "src/" + module.replace(".", "/") + ".py" in names
    assert {str(path.relative_to(tree)) for path in (tree / "src").rglob("*.pxd")} <= names
    assert not [name for name in names if name.startswith("tests/") or name.endswith(".so")]
