"""The list of compiled modules agrees with the files."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import build_ext
from support import build

SOURCES = build_ext.ROOT / "src"


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(SOURCES).with_suffix("").parts)


def test_every_module_with_a_pxd_is_on_the_list() -> None:
    with_pxd = {module_name(path) for path in SOURCES.rglob("*.pxd") if path.stem != "__init__"}

    assert with_pxd == set(build_ext.COMPILED)


def test_every_module_on_the_list_says_why() -> None:
    unexplained = [name for name, why in build_ext.COMPILED.items() if not why.strip()]

    assert unexplained == []


def test_the_build_under_test_is_the_one_asked_for() -> None:
    assert build.mismatch() is None


def test_the_package_is_imported_from_a_zip_whichever_build_is_asked_for(tmp_path: Path) -> None:
    """As Spark's ``--py-files`` brings it to executors."""
    with zipfile.ZipFile(tmp_path / "cometmq.zip", "w") as archive:
        for path in (SOURCES / "cometmq" / "model").glob("*.py"):
            archive.write(path, path.relative_to(SOURCES))
        archive.write(SOURCES / "cometmq" / "__init__.py", "cometmq/__init__.py")
    program = "from cometmq.model import topic; print(topic.__file__)"
    for asked in ("interpreted", ""):
        environment = os.environ | {"COMETMQ_BUILD": asked}
        environment["PYTHONPATH"] = str(tmp_path / "cometmq.zip")
        said = subprocess.run(
            [sys.executable, "-c", program],
            cwd=tmp_path, env=environment, capture_output=True, text=True, check=True, timeout=30,
        )  # fmt: skip
        assert said.stdout.strip() == str(tmp_path / "cometmq.zip" / "cometmq/model/topic.py")
