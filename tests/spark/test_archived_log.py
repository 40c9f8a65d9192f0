"""A log and its archive are compared: equal they have no rows, and each fault is a row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from cometmq.spark.archive import ArchiveLogSettings, archive_log, archived_to
from cometmq.spark.checks import compare_log_with_archive
from cometmq.spark.errors import PlaceError
from support.spark.archives import all_files, maintain
from support.stores.small_stores import opened, put

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

COUNT = 300
TOPICS = ("orders", "%RETRY%g", "a.b|c")


@pytest.fixture
def settings(tmp_path: Path) -> ArchiveLogSettings:
    """The log of a store, to be archived in one range."""
    store = opened(tmp_path / "store", commit_log_file_bytes=16 * 1024)
    for number in range(COUNT):
        properties = {"UNIQ_KEY": f"{number:032X}", "own": "é", "TAGS": "t"}
        put(
            store, b"%d" % number, topic=TOPICS[number % 3], queue_id=number % 2,
            properties=properties if number % 5 else {},
        )  # fmt: skip
    store.close()
    return ArchiveLogSettings(
        store=str(tmp_path / "store"), broker_name="broker-a", to=str(tmp_path / "archive")
    )


def compared(spark: SparkSession, settings: ArchiveLogSettings, **more: object) -> DataFrame:
    return compare_log_with_archive(
        spark,
        settings.store,
        settings,
        broker_name=settings.broker_name,
        **more,  # type: ignore[arg-type]
    )


def differing(spark: SparkSession, settings: ArchiveLogSettings) -> list[Row]:
    return compared(spark, settings).orderBy("topic", "queue_id").collect()


@pytest.mark.parametrize("table", ["delta", "iceberg"])
def test_a_log_and_its_archive_are_equal(
    spark: SparkSession, settings: ArchiveLogSettings, table: str
) -> None:
    """Also if the table was maintained, and if the log goes on beyond the archive."""
    settings = replace(settings, table=table)
    archive_log(spark, settings)
    assert differing(spark, settings) == []
    maintain(settings)
    store = opened(Path(settings.store), commit_log_file_bytes=16 * 1024)
    put(store, b"later", topic="orders")
    store.close()
    assert differing(spark, settings) == []
    first = sorted((Path(settings.store) / "commitlog").iterdir())[0]
    first.unlink()
    assert differing(spark, settings) == []


def changed(path: Path, change: Callable[[pa.Table], pa.Table]) -> None:
    """Write a file of an archive again with other rows, as a fault of a disk or a program."""
    rows = pq.ParquetFile(path).read()
    pq.write_table(change(rows), path, store_schema=False)


def with_value(rows: pa.Table, name: str, value: object) -> pa.Table:
    column = rows[name].combine_chunks()
    mask = pa.array([True] + [False] * (len(column) - 1))
    at = rows.schema.get_field_index(name)
    return rows.set_column(
        at,
        rows.schema.field(name),
        pc.replace_with_mask(column, mask, pa.array([value], column.type)),
    )


FAULTS: dict[str, Callable[[pa.Table], pa.Table]] = {
    "a row is missing": lambda rows: rows.slice(1),
    "a row is there twice": lambda rows: pa.concat_tables([rows, rows.slice(0, 1)]),
    "a body is another": lambda rows: with_value(rows, "body", b"other"),
    "a tag is another": lambda rows: with_value(rows, "tags", "other"),
    "a time is another": lambda rows: with_value(rows, "born_timestamp", 7),
}


def test_each_fault_is_found(spark: SparkSession, settings: ArchiveLogSettings) -> None:
    archive_log(spark, settings)
    files = all_files(settings)
    for number, fault in enumerate(FAULTS):
        path = files[number % len(files)]
        topic = pq.ParquetFile(path).read(columns=["topic"])["topic"][0].as_py()
        kept = path.read_bytes()
        changed(path, FAULTS[fault])
        found = differing(spark, settings)
        path.write_bytes(kept)
        assert [row["topic"] for row in found] == [topic], fault
        assert found[0]["checksum_log"] != found[0]["checksum_archive"]
    assert differing(spark, settings) == []


def test_what_only_one_side_has_is_found(spark: SparkSession, settings: ArchiveLogSettings) -> None:
    archive_log(spark, replace(settings, topics=("orders",)))
    met = [
        (row["topic"], row["messages_log"], row["messages_archive"])
        for row in differing(spark, settings)
    ]
    assert met == [(topic, 50, None) for topic in ("%RETRY%g", "a.b|c") for _ in range(2)]
    assert compared(spark, settings, topics=["orders"]).count() == 0


def test_the_end_lies_in_log_and_archive(spark: SparkSession, settings: ArchiveLogSettings) -> None:
    archive_log(spark, settings)
    end = archived_to(settings, "broker-a")
    assert end is not None
    assert compared(spark, settings, end=end).count() == 0
    for wrong in (0, end + 1):
        with pytest.raises(PlaceError, match=f"the archive goes to {end}, .* met {wrong}"):
            compared(spark, settings, end=wrong)
    with pytest.raises(PlaceError, match="the archive goes to None"):
        compare_log_with_archive(spark, settings.store, settings.to, broker_name="broker-b")
