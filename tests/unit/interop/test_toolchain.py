"""Which Java the tests take, and which they refuse."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import toolchain


@pytest.fixture(autouse=True)
def _asked_anew() -> Iterator[None]:
    toolchain.java_home.cache_clear()
    yield
    toolchain.java_home.cache_clear()


def java_that_says(home: Path, line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho '{line}' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(home))
    monkeypatch.setattr(toolchain, "ON_CI", False)


@pytest.mark.parametrize("version", ["17.0.15", "21", "25.0.1"])
def test_a_java_that_spark_runs_on_is_taken(
    version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    java_that_says(tmp_path, f'openjdk version "{version}" 2025-04-15', monkeypatch)

    assert toolchain.java_home() == tmp_path


@pytest.mark.parametrize(("version", "number"), [("1.8.0_402", 8), ("11.0.26", 11)])
def test_an_older_java_skips_the_test_with_what_is_needed(
    version: str, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    java_that_says(tmp_path, f'java version "{version}"', monkeypatch)

    with pytest.raises(pytest.skip.Exception, match=f"needs Java 17 .* is of version {number}"):
        toolchain.java_home()
