"""The Java that Spark runs on is found, or one sentence says what to install."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cometmq.spark.java import SparkStartError, find_java


def fake_java(home: Path, script: str) -> Path:
    path = home / "bin" / "java"
    path.parent.mkdir(parents=True)
    path.write_text(script)
    path.chmod(0o755)
    return path


def test_java_of_java_home_is_found_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java = fake_java(tmp_path, "#!/bin/sh\n")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))

    assert find_java() == str(java)


def test_a_missing_java_is_said_with_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SparkStartError, match="JAVA_HOME is not set: Spark needs Java 17"):
        find_java()

    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    with pytest.raises(SparkStartError, match=r"below JAVA_HOME=\S+nowhere: Spark needs Java 17"):
        find_java()


def test_a_java_that_is_too_old_is_refused_with_its_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_java(tmp_path, "#!/bin/sh\necho 'openjdk version \"11.0.26\" 2025-01-21' >&2\n")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))

    with pytest.raises(SparkStartError, match=r"is of version 11: Spark needs Java 17 or newer"):
        find_java()


def test_one_sentence_says_what_is_missing_before_pyspark_is_there(tmp_path: Path) -> None:
    """PySpark cannot be imported in the process, as before its installation."""
    (tmp_path / "pyspark.py").write_text("raise ImportError('not installed')")
    environment = {name: text for name, text in os.environ.items() if name != "JAVA_HOME"}
    done = subprocess.run(
        [sys.executable, "-m", "cometmq.spark.java"],
        env=environment | {"PATH": str(tmp_path), "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr == (
        "no java on the PATH, and JAVA_HOME is not set: Spark needs Java 17 or newer (a JRE is"
        " enough, on Debian 'apt-get install openjdk-17-jre-headless')\n"
    )
