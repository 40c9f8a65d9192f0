"""Exports selected dead letters as an archive, which the replay pipeline sends again.

    <folder>  an archive: its rows are dead letters under the topic they were sent to at first;
              queue and offset are those they have as dead letters, so replay keeps their order

Exporting the same letters again writes the same files, so an export that was stopped is gone on
with.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - everybody calls it so

from cometmq.model.dead_letter import OF_DEATH, ORIGINAL_TOPIC
from cometmq.model.topic import DLQ_PREFIX
from cometmq.spark.logs import ByteRange
from cometmq.spark.pipelines.archive.manifest import Entry, Manifest
from cometmq.spark.pipelines.archive.parquet import Form, parts_of, write_parts
from cometmq.spark.pipelines.archive.reading import COLUMNS
from cometmq.spark.pipelines.running.folders import open_folder
from cometmq.spark.schema import arrow_schema

EXPORT_COLUMNS = tuple(column.name for column in COLUMNS)
CHUNK = 100_000
"""Offsets of a queue that are held in memory at once."""


@dataclass(frozen=True)
class Selection:
    """Which dead letters; what is empty selects all."""

    groups: tuple[str, ...] = ()
    topics: tuple[str, ...] = ()
    """The topics they were sent to at first."""
    tags: tuple[str, ...] = ()
    matching: str = ""
    """A regular expression that the body has a match of."""

    def column(self) -> Column:
        """The selection, for Spark."""
        chosen = F.col("topic").startswith(DLQ_PREFIX)
        if self.groups:
            chosen = chosen & F.col("topic").isin(*(DLQ_PREFIX + group for group in self.groups))
        if self.topics:
            chosen = chosen & _origin().isin(*self.topics)
        if self.tags:
            chosen = chosen & F.col("tags").isin(*self.tags)
        if self.matching:
            chosen = chosen & F.col("body").cast("string").rlike(self.matching)
        return chosen


def export(messages: DataFrame, selection: Selection, place: str) -> dict[str, Any]:
    """Write the selected letters; gives how many there are, and how many have no origin.

    Args:
        messages: with the columns ``EXPORT_COLUMNS``.
        selection: which of them.
        place: folder of the archive, new or of an export before.

    Raises:
        ConfigError: the folder is an archive of something else.
    """
    letters = messages.where(selection.column()).withColumn("origin", _origin())
    manifest = Manifest(open_folder(place))
    manifest.settle({"columns": list(EXPORT_COLUMNS), "dead_letters": True, "table": "parquet"})
    homeless = letters.where(F.col("origin").isNull()).count()
    known = letters.where(F.col("origin").isNotNull())
    rows = 0
    for part, chosen in _chunks(known):
        rows += _write(manifest, part, chosen)
    return {"rows": rows, "homeless": homeless}


def _origin() -> Column:
    return F.coalesce(*(F.col("properties")[name] for name in ORIGINAL_TOPIC))


def _chunks(letters: DataFrame) -> Iterator[tuple[ByteRange, DataFrame]]:
    """The letters in pieces that fit into memory, each with its place in the archive."""
    places = letters.groupBy("topic", "broker_name", "queue_id").agg(
        F.min("queue_offset").alias("first"), F.max("queue_offset").alias("last")
    )
    for row in places.orderBy("topic", "broker_name", "queue_id").collect():
        of_queue = (
            (F.col("topic") == row["topic"])
            & F.col("broker_name").eqNullSafe(F.lit(row["broker_name"]))
            & (F.col("queue_id") == row["queue_id"])
        )
        name = f"{row['topic']} {row['broker_name'] or ''} {row['queue_id']}"
        for start in range(row["first"], row["last"] + 1, CHUNK):
            end = min(start + CHUNK, row["last"] + 1)
            within = (F.col("queue_offset") >= start) & (F.col("queue_offset") < end)
            yield ByteRange(name, start, end), letters.where(of_queue & within)


def _write(manifest: Manifest, part: ByteRange, letters: DataFrame) -> int:
    columns: Sequence[str] = [name for name in EXPORT_COLUMNS if name != "topic"]
    alive = F.map_filter("properties", lambda name, _: ~name.isin(*sorted(OF_DEATH)))
    shown = letters.withColumn("properties", alive).select(
        F.col("origin").alias("topic"), *columns
    ).toArrow()  # fmt: skip
    rows = shown.select(EXPORT_COLUMNS).cast(arrow_schema(COLUMNS))
    parts, queues = parts_of(rows)
    files = tuple(write_parts(manifest.folder, part, parts, Form()))
    manifest.replace(Entry(part.broker, part.start, part.end, rows.num_rows, files, tuple(queues)))
    return int(rows.num_rows)
