"""Archives made by Spark are read back whole, in tables of three kinds, killed or not."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyspark
import pytest

from cometmq.cli.pipeline import script
from cometmq.model.errors import ConfigError
from cometmq.spark.pipelines.archive import ArchiveSettings, archive
from cometmq.spark.pipelines.archive.manifest import Manifest
from cometmq.spark.pipelines.archive.reading import read_archive
from cometmq.spark.pipelines.archive.tables import DeltaArchive, IcebergArchive
from cometmq.spark.pipelines.running.folders import open_folder
from cometmq.spark.pipelines.verify import VerifySettings, verify
from golden.test_stores import facts_of
from support.stores.small_stores import opened, put
from support.wire.recorded import unpack_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COUNT = 900
TOPICS = ("orders", "%RETRY%g", "a.b|c")


@pytest.fixture
def settings(tmp_path: Path) -> ArchiveSettings:
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
    return ArchiveSettings(
        store=str(tmp_path / "store"),
        broker_name="broker-a",
        to=str(tmp_path / "archive"),
        range_bytes=8000,
    )


def numbers(rows: Sequence[Any]) -> list[int]:
    return sorted(int(bytes(row["body"])) for row in rows)


def test_the_log_that_spark_reads_is_what_spark_archived(
    spark: SparkSession, settings: ArchiveSettings
) -> None:
    result = archive(spark, settings)
    assert result.run.counts["rows"] == COUNT
    archived = read_archive(spark, settings.to)
    log = spark.read.format("rocketmq-log").option("includeProperties", "true")
    read = log.option("brokerName", "broker-a").load(settings.store)
    rows = sorted(archived.select(*read.columns).collect(), key=itemgetter("phy_offset"))
    assert rows == sorted(read.collect(), key=itemgetter("phy_offset"))
    assert len(rows) == COUNT
    assert rows[1]["topic"] == "%RETRY%g"
    assert rows[1]["properties"]["own"] == "é"


def test_an_archive_is_read_by_topic_and_time(
    spark: SparkSession, settings: ArchiveSettings
) -> None:
    archive(spark, settings)
    some = read_archive(spark, settings.to, topics=["a.b|c"], columns=["body", "topic"])
    assert some.columns == ["topic", "body"]
    assert numbers(some.collect()) == list(range(2, COUNT, 3))
    first = read_archive(spark, settings.to).agg({"store_timestamp": "min"}).first()
    assert first is not None
    begin_ms = int(first[0].timestamp() * 1000)
    assert read_archive(spark, settings.to, until_ms=begin_ms).count() == 0
    assert read_archive(spark, settings.to, since_ms=begin_ms).count() == COUNT


@pytest.mark.local_only
def test_a_killed_driver_leaves_an_archive_that_is_gone_on_with(
    spark: SparkSession, settings: ArchiveSettings, tmp_path: Path
) -> None:
    """A process of its own is killed between two waves or within one; another goes on."""
    many = replace(settings, range_bytes=4096)
    words = [
        *("archive", "--store", many.store, "--to", many.to, "--broker-name", "broker-a"),
        *("--range-bytes", "4096", "--quiet"),
    ]
    log = (tmp_path / "killed.log").open("wb")
    program = subprocess.Popen(
        [sys.executable, "-m", "cometmq", "pipeline", *words],
        stdout=log,
        stderr=log,
        start_new_session=True,
    )
    manifest = Manifest(open_folder(many.to))
    try:
        deadline = time.monotonic() + 60
        while not manifest.entries() and program.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.005)
    finally:
        with_group(program, signal.SIGKILL)
        log.close()
    done = len(manifest.entries())
    planned = len(manifest.plan("broker-a").ranges)
    assert done > 0
    if program.returncode == -signal.SIGKILL:
        assert done < planned
    archive(spark, replace(many, resume="latest" if done < planned else ""))
    assert numbers(read_archive(spark, many.to).collect()) == list(range(COUNT))
    named = {file.name for entry in manifest.entries() for file in entry.files}
    there = {path.relative_to(many.to).as_posix() for path in Path(many.to).rglob("*.parquet")}
    assert there == named


def with_group(program: subprocess.Popen[bytes], number: int) -> None:
    """End a program and all that it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(program.pid, number)
    program.wait(10)


def test_a_delta_table_has_every_record_once(
    spark: SparkSession, settings: ArchiveSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the driver dies between the table's commit and the manifest's entry."""
    deltalake = pytest.importorskip("deltalake")
    delta = replace(settings, table="delta")
    with monkeypatch.context() as patched:
        patched.setattr(Manifest, "add", _die)
        with pytest.raises(KilledError):
            archive(spark, delta)
    table = deltalake.DeltaTable(delta.to)
    first = table.version()
    assert DeltaArchive(delta.to).committed("broker-a") > 0
    archive(spark, delta)
    table.update_incremental()
    assert table.version() > first
    rows = table.to_pyarrow_table()
    assert sorted(int(body) for body in rows["body"].to_pylist()) == list(range(COUNT))
    assert set(rows["topic"].to_pylist()) == set(TOPICS)
    last = Manifest(open_folder(delta.to)).entries()[-1].end
    assert DeltaArchive(delta.to).committed("broker-a") == last


def test_an_iceberg_table_has_every_record_once(
    spark: SparkSession, settings: ArchiveSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the driver dies between the table's commit and the manifest's entry."""
    pytest.importorskip("pyiceberg")
    iceberg = replace(settings, table="iceberg", range_bytes=40_000)
    with monkeypatch.context() as patched:
        patched.setattr(Manifest, "add", _die)
        with pytest.raises(KilledError):
            archive(spark, iceberg)
    assert IcebergArchive(iceberg.to, "").committed("broker-a") > 0
    archive(spark, iceberg)
    rows = IcebergArchive(iceberg.to, "").table().scan().to_arrow()
    assert sorted(int(body) for body in rows["body"].to_pylist()) == list(range(COUNT))
    assert set(rows["topic"].to_pylist()) == set(TOPICS)


class KilledError(BaseException):
    """Ends a run where it stands."""


def _die(*_: object) -> None:
    raise KilledError


def test_an_archive_stays_of_its_kind(spark: SparkSession, settings: ArchiveSettings) -> None:
    archive(spark, settings)
    with pytest.raises(ConfigError, match="table='parquet', met 'delta'"):
        archive(spark, replace(settings, table="delta"))


@pytest.mark.parametrize("name", ["4.9.7-main", "5.3.3-main"])
def test_stores_of_rocketmq_are_archived_and_verified(
    spark: SparkSession, tmp_path: Path, name: str
) -> None:
    place = str(unpack_store(name, tmp_path))
    archived = str(tmp_path / "archive")
    archive(spark, ArchiveSettings(store=place, to=archived, range_bytes=300_000))
    told = verify(
        spark,
        VerifySettings(
            store=place,
            archive=archived,
        ),
    )
    assert told.good
    assert told.run.counts["archive_verified"] == told.run.counts["archive_ranges"] > 0
    known = {message["physical_offset"] for message in facts_of(name)["messages"]}
    met = read_archive(spark, archived, columns=["phy_offset"]).collect()
    assert known <= {row["phy_offset"] for row in met}


@pytest.mark.local_only
@pytest.mark.parametrize(
    "launcher", ["python", pytest.param("spark-submit", marks=pytest.mark.long)]
)
def test_the_command_says_what_it_did(settings: ArchiveSettings, launcher: str) -> None:
    """As a script that brings its own session, and as one that spark-submit gives one."""
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
    assert document["counts"]["rows"] == COUNT
    assert document["status"] == "done"
    assert "archive: " in done.stdout + done.stderr  # spark-submit joins the two
