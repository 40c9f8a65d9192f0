"""The list of compiled modules agrees with the files."""

from __future__ import annotations

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
