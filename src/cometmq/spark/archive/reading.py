"""Reads an archive as a data frame, through the table's list of files.

Spark's own Parquet reader reads the files, so no jar is needed. With the jar of the table's format,
``spark.read.format("delta").load(…)`` reads the same rows.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

from cometmq.spark.archive.data_files import COLUMNS
from cometmq.spark.archive.tables import Chosen, StoredFile, TableSettings, open_table
from cometmq.spark.errors import PlaceError
from cometmq.spark.schema import chosen, ddl

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_NULLABLE = tuple(column._replace(nullable=True) for column in COLUMNS)


def read_archive(
    spark: SparkSession,
    table: str | Path | TableSettings,
    *,
    topics: Collection[str] = (),
    columns: Collection[str] = (),
    since_ms: int | None = None,
    until_ms: int | None = None,
    version: int | None = None,
) -> DataFrame:
    """Return the rows of an archive as a data frame.

    Args:
        spark: the session; a table in object storage needs Spark's own access to it.
        table: the path or address of a Delta table, or the settings of any table.
        topics: the topics to read; all if empty.
        columns: the columns to read, in the order of the archive; all if empty.
        since_ms, until_ms: when the messages were stored; the end is excluded.
        version: an older version of a Delta table, or a snapshot of an Iceberg table.

    Raises:
        PlaceError: there is no table, or rows of its files are marked as deleted.
    """
    settings = table if isinstance(table, TableSettings) else TableSettings(to=str(table))
    opened = open_table(settings, create=False, version=version)
    files = opened.files(Chosen(topics, since_ms, until_ms))
    if marked := [file for file in files if file.has_deletes]:
        raise PlaceError(
            f"{opened.place}: rows of {len(marked)} files are marked as deleted, which the files do"
            " not show: rewrite them first, with REORG TABLE … APPLY (PURGE) for Delta or"
            " rewrite_data_files for Iceberg, or read the table with the jar of its format"
        )
    frame = _with_topic(spark, [file for file in files if file.has_topic])
    if rewritten := [file for file in files if not file.has_topic]:
        frame = frame.unionByName(_without_topic(spark, rewritten))
    if topics:
        frame = frame.where(frame["topic"].isin(*topics))
    if since_ms is not None:
        frame = frame.where(f"store_timestamp >= timestamp_millis({int(since_ms)})")
    if until_ms is not None:
        frame = frame.where(f"store_timestamp < timestamp_millis({int(until_ms)})")
    return frame.select(*(each.name for each in COLUMNS if not columns or each.name in columns))


def _with_topic(spark: SparkSession, files: Collection[StoredFile]) -> DataFrame:
    schema = ddl(_NULLABLE)
    if not files:
        return spark.createDataFrame([], schema)
    return spark.read.schema(schema).parquet(*(_escaped(file.uri) for file in files))


def _without_topic(spark: SparkSession, files: Collection[StoredFile]) -> DataFrame:
    """Read files that Delta's tools rewrote: the table has their topic, and not the file."""
    from pyspark.sql import functions as f

    names = [column.name for column in COLUMNS if column.name != "topic"]
    topics = [(file.uri.rpartition("/")[2], file.topic) for file in files]
    of_files = spark.createDataFrame(topics, "file STRING, topic STRING")
    rows = spark.read.schema(ddl(chosen(_NULLABLE, names))).parquet(
        *(_escaped(file.uri) for file in files)
    )
    named = rows.select("*", f.col("_metadata.file_name").alias("file"))
    return named.join(f.broadcast(of_files), "file").drop("file")


def _escaped(path: str) -> str:
    """Return a path without patterns: Spark expands some characters."""
    return "".join(f"\\{sign}" if sign in "*?[]{}\\" else sign for sign in path)
