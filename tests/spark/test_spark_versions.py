"""Other versions of Spark than the installed one, and the jars that the page about them names.

Each version has a folder of its own with PySpark, which ``PYTHONPATH`` puts before the installed
one; all other packages are those of this environment.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest
import toolchain

from support.spark.spark_versions import spark_versions

pytestmark = [pytest.mark.long, pytest.mark.local_only, pytest.mark.only_on("comet")]

ROOT = Path(__file__).resolve().parents[2]
VERSIONS = {each.minor: each for each in spark_versions()}
OTHERS = [minor for minor in VERSIONS if not pyspark.__version__.startswith(f"{minor}.")]
COORDINATES = sorted({each for row in VERSIONS.values() for each in row.artifacts.values()})
FILES = (
    "tests/unit/spark/test_compat.py",
    "tests/spark/test_stream_outages.py",
    "tests/spark/test_topic_batch.py",
    "tests/spark/test_topic_stream.py",
    "tests/spark/test_topic_write.py",
)
SECONDS_MAX = 3_600


@pytest.mark.parametrize("coordinates", COORDINATES)
def test_maven_central_has_each_artifact_of_the_page(coordinates: str) -> None:
    _, artifact, version = coordinates.split(":")

    assert f"{artifact}-{version}.jar" in [path.name for path in toolchain.spark_jars(coordinates)]


@pytest.mark.parametrize("minor", OTHERS)
def test_the_formats_work_with_each_version(minor: str, tmp_path: Path) -> None:
    """PySpark 4.1 leaves the closing of sockets to the garbage collector."""
    ignored = ("ResourceWarning", "pytest.PytestUnraisableExceptionWarning")
    command = [sys.executable, "-m", "pytest", "-q", "--basetemp", str(tmp_path / "base")]
    command += [word for each in ignored for word in ("-W", f"ignore::{each}")]
    variables = {name: text for name, text in os.environ.items() if name != "COMETMQ_TIER"}
    done = subprocess.run(
        [*command, *FILES],
        cwd=ROOT,
        env=variables | {"PYTHONPATH": str(toolchain.pyspark(minor))},
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )

    assert done.returncode == 0, done.stdout[-5_000:]
