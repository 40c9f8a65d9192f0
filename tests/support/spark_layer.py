"""The tests outside ``tests/spark`` that need the Spark layer of ``.venv``."""

from __future__ import annotations

import os
from importlib.util import find_spec

TESTS = (
    "tests/unit/spark",
    "tests/unit/docs/test_spark_pages.py",
    "tests/golden/test_spark_logs.py",
)
PACKAGES = ("pyspark", "pyarrow", "deltalake", "pyiceberg")


def left_out() -> list[str]:
    """The packages for want of which these tests are left out; on CI they fail instead."""
    if os.environ.get("CI"):
        return []
    return [name for name in PACKAGES if find_spec(name) is None]
