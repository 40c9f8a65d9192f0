"""Every recorded value is read by a test or named as one for later."""

from __future__ import annotations

from pathlib import Path

import pytest

from golden.later import LATER
from golden.recordings import VECTORS, VERSIONS

TESTS = Path(__file__).resolve().parents[1]
SOURCES = "".join(
    path.read_text()
    for folder in ("unit", "golden", "integration", "faults")
    for path in sorted((TESTS / folder).rglob("test_*.py"))
    if path != Path(__file__)
)


@pytest.mark.parametrize("version", VERSIONS)
def test_each_file_of_values_is_tested_or_named_for_later(version: str) -> None:
    files = {path.stem for path in (VECTORS / "values" / version).glob("*.json")}
    tested = {name for name in files if f'"{name}"' in SOURCES}

    assert tested | set(LATER) == files
    assert not tested & set(LATER)
