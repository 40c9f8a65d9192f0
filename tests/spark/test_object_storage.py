"""A store in object storage, read and archived by Spark: as if it lay on a disk.

Planner and workers reach it by themselves, with the keys in their environment; Spark does not.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.spark.log_files import FilledStore
from support.spark.object_storage import KEYS, ObjectStorage, object_storage
from support.spark.recipes import recipe
from support.spark.spark_logs import RECORDED, LogStream, log, recorded_store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

EVERYTHING = {"includeProperties": True, "validate": True, "brokerName": "broker-a"}


@pytest.fixture
def storage(tmp_path: Path) -> Iterator[ObjectStorage]:
    """A bucket; whoever asked it for something had the keys of the environment."""
    (tmp_path / "bucket").mkdir()
    with object_storage(tmp_path / "bucket") as server:
        yield server
    assert server.asked_by <= {KEYS["AWS_ACCESS_KEY_ID"]}


@pytest.fixture
def filled(tmp_path: Path) -> Iterator[FilledStore]:
    """A store of this project that can grow."""
    store = FilledStore(tmp_path / "store")
    store.fill(120)
    yield store
    store.close()


def upload(root: Path, storage: ObjectStorage, name: str, *parts: str) -> str:
    """Copy a store, or some of its directories, into the bucket; its URL."""
    for part in parts or ("",):
        shutil.copytree(root / part, storage.root / name / part, dirs_exist_ok=True)
    return storage.url(name)


def in_order(frame: DataFrame) -> list[Row]:
    return frame.orderBy("phy_offset").collect()


@pytest.mark.parametrize("name", RECORDED)
def test_a_store_of_rocketmq_has_the_rows_that_it_has_on_disk(
    spark: SparkSession, storage: ObjectStorage, name: str, tmp_path: Path
) -> None:
    root, facts = recorded_store(name, tmp_path)
    expected = in_order(log(spark, root, **EVERYTHING))
    assert len(expected) == len(facts["messages"])

    whole = upload(root, storage, "whole")
    alone = upload(root, storage, "alone", "commitlog")
    assert in_order(log(spark, whole, **EVERYTHING, maxPartitionBytes=100_000)) == expected
    assert in_order(log(spark, alone, **EVERYTHING)) == expected
    assert storage.asked_by == {KEYS["AWS_ACCESS_KEY_ID"]}, "nobody read from the bucket"


def test_a_stream_takes_what_was_uploaded_since(
    spark: SparkSession, storage: ObjectStorage, filled: FilledStore, tmp_path: Path
) -> None:
    def uploaded() -> list[tuple[str, int, int]]:
        upload(filled.root, storage, "log", "commitlog")
        return sorted(("orders", n % 2, n // 2) for n in range(len(filled.records)))

    first = uploaded()
    query = LogStream(
        spark,
        tmp_path,
        path=storage.url("log"),
        startingOffsets="earliest",
        maxBytesPerTrigger=8_000,
    )
    query.once()
    assert query.found() == first
    batches = len(query.ends())
    assert batches > 2
    filled.fill(100)
    later = uploaded()
    query.once()
    assert query.found() == later
    assert len(query.ends()) > batches


def test_an_archive_is_made_and_continued_from_the_bucket(
    spark: SparkSession, storage: ObjectStorage, filled: FilledStore, tmp_path: Path
) -> None:
    url, to = upload(filled.root, storage, "store"), str(tmp_path / "archive")
    program = recipe("archive_log")
    assert program.archive(spark, url, to, "b", range_bytes=8_000) == 120
    assert program.archive(spark, url, to, "b") == 0
    filled.fill(50)
    upload(filled.root, storage, "store")
    assert program.archive(spark, url, to, "b") == 50

    disk = log(spark, filled.root, includeProperties=True, brokerName="b")
    assert in_order(program.read(spark, to)) == in_order(disk)
