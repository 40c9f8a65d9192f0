"""The session of the tests runs where they say, on the build they say, and knows our formats."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import AnalysisException

from cometmq.spark import register
from cometmq.spark.sources import FORMATS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

AUTOMATIC = """
import sys
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
for name in sys.argv[1:]:
    try:
        spark.read.format(name).option("no such option", "1").load()
    except AnalysisException as error:
        print("found" if "OptionError" in str(error) else error)
spark.stop()
"""
"""Says for each format whether Spark finds it without being told."""

REGISTERED = """
import sys
from cometmq.spark import register
from cometmq.spark.sessions import local_session

spark = local_session(1)
register(spark.newSession())
manager = spark._jsparkSession.sessionState().clone(spark._jsparkSession).dataSourceManager()
print(all(manager.dataSourceExists(name) for name in sys.argv[1:]))
spark.stop()
"""
"""Registers formats that Spark finds itself, and clones the session as a stream does at first."""


def test_tasks_run_where_the_run_says(spark: SparkSession) -> None:
    place = os.environ.get("COMETMQ_SPARK", "local")
    executors = spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size() - 1

    assert spark.sparkContext.master.startswith("local" if place == "local" else "spark://")
    assert executors == (0 if place == "local" else 1)


def test_tasks_use_the_build_under_test(spark: SparkSession) -> None:
    from cometmq.protocol import record

    tasks = spark.sparkContext.parallelize([0], 1).map(
        lambda _: __import__("cometmq.protocol.record", fromlist=["record"]).__file__
    )

    assert tasks.collect() == [record.__file__]


@pytest.mark.parametrize("name", FORMATS)
def test_a_registered_format_refuses_an_unknown_option_by_name(
    spark: SparkSession, name: str
) -> None:
    with pytest.raises(AnalysisException, match=r"OptionError.*nosuchoption"):
        spark.read.format(name).option("noSuchOption", "1").load()


def test_registering_changes_no_setting_and_no_other_session(spark: SparkSession) -> None:
    other = spark.newSession()
    before = [dict(each.conf.getAll) for each in (spark, other)]

    register(spark)
    register(spark)

    assert [dict(each.conf.getAll) for each in (spark, other)] == before


def run_with_formats(program: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a program in a process of its own, with the names of all formats as its arguments."""
    return subprocess.run(
        [sys.executable, "-c", program, *FORMATS],
        cwd=folder,
        env=os.environ | {"PYSPARK_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


@pytest.mark.local_only
def test_formats_are_found_without_being_registered(tmp_path: Path) -> None:
    done = run_with_formats(AUTOMATIC, tmp_path)

    assert done.stdout.splitlines() == ["found"] * len(FORMATS), done.stdout + done.stderr


@pytest.mark.local_only
def test_registering_what_spark_has_found_is_no_warning(tmp_path: Path) -> None:
    done = run_with_formats(REGISTERED, tmp_path)
    assert done.stdout == "True\n", done.stderr
    assert "replaced" not in done.stderr
