"""Every recorded value is read by a test, or listed for later."""

from __future__ import annotations

from pathlib import Path

import pytest

from golden.later import LATER, LATER_RECORDINGS
from golden.recordings import SCENARIOS, VECTORS, VERSIONS

TESTS = Path(__file__).resolve().parents[1]
SOURCES = "".join(
    path.read_text()
    for folder in ("unit", "golden", "integration", "faults")
    for path in sorted((TESTS / folder).rglob("test_*.py"))
    if path != Path(__file__)
)
READ_WHOLE = {"frames", "stores"}
"""Folders whose files the tests list themselves."""
TOOLS = {"mqadmin/scene.py", "mqadmin/normal.py", "mqadmin/scene.md", "ha/README.md"}
"""How recordings were made, and what they mean."""


def test_each_folder_is_accounted_for() -> None:
    folders = {path.name for path in VECTORS.iterdir() if path.is_dir()}

    assert folders == {"frames", "stores", "values", "ha", "mqadmin"}
    assert SCENARIOS
    for folder in READ_WHOLE:
        assert f'"{folder}"' in SOURCES, folder


@pytest.mark.parametrize("version", VERSIONS)
def test_each_file_of_values_is_tested_or_named_for_later(version: str) -> None:
    files = {path.stem for path in (VECTORS / "values" / version).glob("*.json")}
    tested = {name for name in files if f'"{name}"' in SOURCES or f'"{name}.json"' in SOURCES}

    assert tested | set(LATER) == files
    assert not tested & set(LATER)


def test_each_recording_is_tested_or_named_for_later() -> None:
    """A test that reads one names its path below ``tests/vectors`` in full."""
    files = {
        str(path.relative_to(VECTORS))
        for folder in ("ha", "mqadmin")
        for path in (VECTORS / folder).iterdir()
        if path.name != "__pycache__"
    }
    tested = {name for name in files if f'"{name}"' in SOURCES}

    assert files >= TOOLS
    assert tested | set(LATER_RECORDINGS) == files - TOOLS
    assert not tested & set(LATER_RECORDINGS)
