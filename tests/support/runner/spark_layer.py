"""The tests outside ``tests/spark`` that need the Spark layer of ``.venv``."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

TESTS = (
    "tests/unit/spark",
    "tests/unit/docs/test_spark_pages.py",
    "tests/unit/support/spark/test_spark_versions.py",
    "tests/golden/test_spark_logs.py",
)
JAVA_OLDEST = 17
"""Spark 4 needs it; RocketMQ's jars run on it too."""
PACKAGES = ("pyspark", "pyarrow", "deltalake", "pyiceberg")


def left_out() -> list[str]:
    """The missing packages, which leave out these tests; empty on CI, where the tests fail."""
    if os.environ.get("CI"):
        return []
    return [name for name in PACKAGES if find_spec(name) is None]


def has_java() -> bool:
    """Whether a Java that runs Spark is here, or CI, which installs one; says so if not."""
    if os.environ.get("CI"):
        return True
    home = os.environ.get("JAVA_HOME")
    java = shutil.which(Path(home, "bin", "java") if home else "java")
    if java is not None and (version := java_version(Path(java))) >= JAVA_OLDEST:
        return True
    met = "found none" if java is None else f"{java} is of version {version}"
    print(f"left out: the Spark stages need Java {JAVA_OLDEST} or newer; {met}", flush=True)
    return False


def java_version(java: Path) -> int:
    """The main version of a Java, such as 17."""
    output = subprocess.run([java, "-version"], capture_output=True, text=True, check=True).stderr
    return int(re.findall(r'version "(?:1\.)?(\d+)', output)[0])
