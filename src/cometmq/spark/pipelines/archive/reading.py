"""Reads an archive: the rows of the files that its manifest names, and no others."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

from cometmq.spark.pipelines.archive.manifest import ArchiveFile, Manifest
from cometmq.spark.pipelines.running.folders import open_folder
from cometmq.spark.schema import chosen, ddl, log_columns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COLUMNS = log_columns(properties=True, validate=False)
"""What an archive has."""


def archived_files(
    place: str | Path,
    topics: Collection[str] = (),
    since_ms: int | None = None,
    until_ms: int | None = None,
) -> list[ArchiveFile]:
    """Return the files of an archive that can have what is wanted.

    Args:
        place: the archive's folder.
        topics: some topics; all if empty.
        since_ms, until_ms: when records were stored; the end excluded.

    Raises:
        PlaceError: there is no archive.
    """
    manifest = Manifest(open_folder(place))
    manifest.kind()
    return [
        file
        for entry in manifest.entries()
        for file in entry.files
        if (not topics or file.topic in topics)
        and (since_ms is None or file.max_store_ms >= since_ms)
        and (until_ms is None or file.min_store_ms < until_ms)
    ]


def read_archive(
    spark: SparkSession,
    place: str | Path,
    *,
    topics: Collection[str] = (),
    columns: Collection[str] = (),
    since_ms: int | None = None,
    until_ms: int | None = None,
) -> DataFrame:
    """Return the rows of an archive as a data frame.

    Args:
        spark: the session; a place in object storage needs Spark's own way to it.
        place: the archive's folder.
        topics: some topics; all if empty.
        columns: some columns, in the order of the archive; all if empty.
        since_ms, until_ms: when records were stored; the end excluded.

    Raises:
        PlaceError: there is no archive.
    """
    folder = open_folder(place)
    files = archived_files(place, topics, since_ms, until_ms)
    names = [each.name for each in COLUMNS if not columns or each.name in columns]
    schema = ddl(each._replace(nullable=True) for each in chosen(COLUMNS, names))
    if not files:
        return spark.createDataFrame([], schema)
    within = []
    if since_ms is not None:
        within.append(f"store_timestamp >= timestamp_millis({int(since_ms)})")
    if until_ms is not None:
        within.append(f"store_timestamp < timestamp_millis({int(until_ms)})")
    whole = ddl(each._replace(nullable=True) for each in COLUMNS)
    paths = [_escaped(folder.path(file.name)) for file in files]
    frame = spark.read.schema(whole).parquet(*paths)
    return frame.where(" AND ".join(within) or "true").select(*names)


def _escaped(path: str) -> str:
    """A path that Spark takes as it stands; it reads some signs as patterns."""
    return "".join(f"\\{sign}" if sign in "*?[]{}\\" else sign for sign in path)
