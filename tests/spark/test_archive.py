"""Archives made by Spark are read back whole, in both formats, maintained, killed or not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyspark
import pytest

from cometmq.cli.pipeline import script
from cometmq.spark.archive import ArchiveLogSettings, archive_log, read_archive
from golden.test_stores import facts_of
from support.spark.archives import delta, iceberg, maintain
from support.stores.small_stores import opened, put
from support.wire.recorded import unpack_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COUNT = 900
TOPICS = ("orders", "%RETRY%g", "a.b|c")


@pytest.fixture
def settings(tmp_path: Path) -> ArchiveLogSettings:
    """How the log of a store is archived in many small ranges."""
    store = opened(tmp_path / "store", commit_log_file_bytes=64 * 1024)
    for number in range(COUNT):
        put(
            store,
            b"%d" % number,
            topic=TOPICS[number % 3],
            queue_id=number % 2,
            properties={"UNIQ_KEY": f"{number:032X}", "own": "é"},
        )
    store.close()
    return ArchiveLogSettings(
        store=str(tmp_path / "store"),
        broker_name="broker-a",
        to=str(tmp_path / "archive"),
        range_bytes=16_000,
    )


@pytest.fixture(params=["delta", "iceberg"])
def both(request: pytest.FixtureRequest, settings: ArchiveLogSettings) -> ArchiveLogSettings:
    return replace(settings, table=request.param)


def numbers(rows: Sequence[Any]) -> list[int]:
    return sorted(int(bytes(row["body"])) for row in rows)


def test_the_log_that_spark_reads_is_what_spark_archived(
    spark: SparkSession, both: ArchiveLogSettings
) -> None:
    """Before and after the table's files were rewritten, which drops Delta's partition columns."""
    assert archive_log(spark, both).rows == COUNT
    log = spark.read.format("rocketmq-log").option("includeProperties", "true")
    read = log.option("brokerName", "broker-a").load(both.store)
    expected = sorted(read.collect(), key=itemgetter("phy_offset"))
    for _ in range(2):
        archived = read_archive(spark, both).select(*read.columns)
        rows = sorted(archived.collect(), key=itemgetter("phy_offset"))
        assert rows == expected
        assert len(rows) == COUNT
        assert rows[1]["topic"] == "%RETRY%g"
        assert rows[1]["properties"]["own"] == "é"
        maintain(both)


def test_an_archive_is_read_by_topic_and_time(
    spark: SparkSession, both: ArchiveLogSettings
) -> None:
    archive_log(spark, both)
    for _ in range(2):
        some = read_archive(spark, both, topics=["a.b|c"], columns=["body", "topic"])
        assert some.columns == ["topic", "body"]
        assert numbers(some.collect()) == list(range(2, COUNT, 3))
        first = read_archive(spark, both).agg({"store_timestamp": "min"}).first()
        assert first is not None
        begin_ms = int(first[0].timestamp() * 1000)
        assert read_archive(spark, both, until_ms=begin_ms).count() == 0
        assert read_archive(spark, both, since_ms=begin_ms).count() == COUNT
        maintain(both)


def test_an_older_version_is_read(spark: SparkSession, both: ArchiveLogSettings) -> None:
    archive_log(spark, both)
    if both.table == "delta":
        version = delta(both).version()
    else:
        version = iceberg(both).current_snapshot().snapshot_id
    store = opened(Path(both.store), commit_log_file_bytes=64 * 1024)
    put(store, b"9999", topic="orders")
    store.close()
    assert archive_log(spark, both).rows == 1
    assert read_archive(spark, both).count() == COUNT + 1
    assert read_archive(spark, both, version=version).count() == COUNT


@pytest.mark.parametrize("name", ["4.9.7-main", "5.3.3-main"])
def test_stores_of_rocketmq_are_archived(spark: SparkSession, tmp_path: Path, name: str) -> None:
    place = str(unpack_store(name, tmp_path))
    to = str(tmp_path / "archive")
    archive_log(spark, ArchiveLogSettings(store=place, to=to, range_bytes=300_000))
    known = {message["physical_offset"] for message in facts_of(name)["messages"]}
    met = read_archive(spark, to, columns=["phy_offset"]).collect()
    assert known <= {row["phy_offset"] for row in met}


@pytest.mark.local_only
@pytest.mark.parametrize(
    "launcher", ["python", pytest.param("spark-submit", marks=pytest.mark.long)]
)
def test_the_command_prints_its_result(settings: ArchiveLogSettings, launcher: str) -> None:
    """As a script that starts a session, and as a script that spark-submit gives a session."""
    submit = str(Path(pyspark.__file__).parent / "bin" / "spark-submit")
    start = [sys.executable] if launcher == "python" else [submit, "--master", "local[2]"]
    words = ["archive", "--store", settings.store, "--to", settings.to, "--json"]
    done = subprocess.run(
        [*start, str(script()), *words],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        env=os.environ | {"PYSPARK_PYTHON": sys.executable},
    )
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout.splitlines()[-1])
    assert (document["rows"], document["lost"]) == (COUNT, [])
    assert f"archived rows={COUNT}" in done.stdout + done.stderr  # spark-submit joins the two
