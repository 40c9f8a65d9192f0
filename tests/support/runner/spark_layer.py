"""The tests outside ``tests/spark`` that need the Spark layer of ``.venv``."""

from __future__ import annotations

import os
from importlib.util import find_spec

from cometmq.spark.java import SparkStartError, find_java

TESTS = (
    "tests/unit/spark",
    "tests/unit/docs/test_spark_pages.py",
    "tests/unit/support/spark/test_spark_versions.py",
    "tests/golden/test_spark_logs.py",
)
PACKAGES = ("pyspark", "pyarrow", "deltalake")


def left_out() -> list[str]:
    """The missing packages, which leave out these tests; empty on CI, where the tests fail."""
    if os.environ.get("CI"):
        return []
    return [name for name in PACKAGES if find_spec(name) is None]


def has_java() -> bool:
    """Whether a Java that runs Spark is here, or CI, which installs one; says so if not."""
    if os.environ.get("CI"):
        return True
    try:
        find_java()
    except SparkStartError as error:
        print(f"left out: the Spark stages: {error}", flush=True)
        return False
    return True
