"""Counts messages and bytes by topic, tag, day and producer.

Bytes are those of whole records, as they lie in the log. A producer is the address that the log has
of it, else the one that its message ids are made of.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from datetime import UTC, datetime, time
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - everybody calls it so

from cometmq.spark.pipelines.findings import charts
from cometmq.spark.pipelines.findings.analysis import (
    Analysis,
    AnalysisSettings,
    new_report,
    planned,
    total,
)
from cometmq.spark.pipelines.findings.figures import Unit, count, size
from cometmq.spark.pipelines.findings.inputs import Topics
from cometmq.spark.pipelines.findings.report import Report, top_rows
from cometmq.spark.pipelines.findings.rows import Finding, Findings, Severity
from cometmq.spark.pipelines.running.command import main
from cometmq.spark.pipelines.running.progress import Progress, silent
from cometmq.spark.pipelines.running.registry import Pipeline, Result
from cometmq.spark.pipelines.trace.records import client_of
from cometmq.system.settings import setting

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WAYS: dict[str, tuple[str, ...]] = {
    "usage": ("topic", "tags", "day", "producer"),
    "by_topic": ("topic",),
    "by_tag": ("topic", "tags"),
    "by_day": ("day",),
    "by_topic_and_day": ("topic", "day"),
    "by_producer": ("producer", "topic"),
}
"""The tables, and what each is divided by."""
COLUMNS = ("topic", "tags", "msg_id", "store_timestamp", "store_size", "born_host")
"""What is read of each message; the body is not among it."""
LARGE = 1024 * 1024
"""Bytes from which on a record is large."""
DAY_MS = 86_400_000
_UNITS = {"bytes": Unit.BYTES, "largest": Unit.BYTES, "mean_bytes": Unit.BYTES}


@dataclass(frozen=True)
class UsageSettings(AnalysisSettings):
    """What is counted."""

    topics: tuple[str, ...] = setting(())
    """Topics to count. Default: all except system topics."""
    system: bool = setting(False)
    """Whether system topics are counted too."""

    @property
    def wanted(self) -> Topics:
        """The topics to count."""
        return Topics(frozenset(self.topics), system=self.system)


def counted_by_all(messages: DataFrame) -> DataFrame:
    """Count messages by topic, tag, day and producer at once; the rest is summed up from this."""
    return messages.groupBy(
        "topic",
        F.coalesce("tags", F.lit("(none)")).alias("tags"),
        _day("store_timestamp").alias("day"),
        _producer().alias("producer"),
    ).agg(
        F.count("*").alias("messages"),
        F.sum(F.col("store_size").cast("bigint")).alias("bytes"),
        F.max("store_size").alias("largest"),
        F.count_if(F.col("store_size") >= LARGE).alias("large"),
        F.min("store_timestamp").alias("first"),
        F.max("store_timestamp").alias("last"),
    )


def _day(time: str) -> Column:
    """The day in UTC, whatever the time zone of the session."""
    return F.date_from_unix_date(F.floor(F.unix_millis(time) / DAY_MS).cast("int"))


def summed(counted: DataFrame, keys: tuple[str, ...]) -> DataFrame:
    """Sum up the finest counts by some of their keys, the most bytes first."""
    sums = counted.groupBy(*keys).agg(
        F.sum("messages").alias("messages"),
        F.sum("bytes").alias("bytes"),
        (F.sum("bytes") / F.sum("messages")).alias("mean_bytes"),
        F.max("largest").alias("largest"),
        F.sum("large").alias("large"),
        F.min("first").alias("first"),
        F.max("last").alias("last"),
    )
    return sums.orderBy("day") if keys == ("day",) else sums.orderBy(F.desc("bytes"), *keys)


def usage(
    spark: SparkSession,
    settings: UsageSettings,
    *,
    progress: Progress = silent,
    dry_run: bool = False,
) -> Result:
    """Count messages and bytes by topic, tag, day and producer.

    Args:
        spark: a session that knows our formats.
        settings: the source, the topics and the output folder.
        progress: is told of each step.
        dry_run: say what would be read and written, only.

    Returns:
        The run record and the tables ``findings``, ``usage``, ``by_topic``, ``by_tag``,
        ``by_day``, ``by_topic_and_day`` and ``by_producer``; the same are in the output folder,
        with a report.

    Raises:
        ConfigError: there is no source or no output, or nothing to go on with.
    """
    if dry_run:
        return planned("usage", settings, settings.wanted, WAYS)
    analysis = Analysis("usage", settings, progress, len(WAYS))
    with analysis.recorded():
        messages = settings.messages.messages(spark, settings.wanted, COLUMNS, span=settings.span)
        counts = counted_by_all(messages).persist()
        try:
            for name, keys in WAYS.items():
                analysis.table(name, lambda keys=keys: summed(counts, keys))  # type: ignore[misc]
        finally:
            counts.unpersist()
        analysis.findings.add(*find(analysis.tables))
        topics = analysis.tables["by_topic"]
        sums = {name: total(topics, name) for name in ("messages", "bytes", "large")}
        return analysis.finish(report_of(settings, analysis.tables, analysis.findings), sums)


def find(tables: dict[str, pa.Table]) -> list[Finding]:
    """Name the topics with large messages, which cost brokers most."""
    rows = [row for row in tables["by_topic"].to_pylist() if row["large"]]
    return [
        Finding.shown_by(
            row,
            "large-messages",
            Severity.NOTE,
            f"{count(row['large'])} messages of {size(LARGE)} or more",
            count=row["large"],
        )
        for row in rows
    ]


def report_of(settings: UsageSettings, tables: dict[str, pa.Table], findings: Findings) -> Report:
    """Make the report out of the tables."""
    report = new_report("Usage", settings)
    topics = tables["by_topic"]
    messages, stored = total(topics, "messages"), total(topics, "bytes")
    overview = report.section("Overview").figures(
        {
            "messages": count(messages),
            "bytes": size(stored),
            "topics": count(topics.num_rows),
            "bytes of a message": size(stored / messages) if messages else "0",
        }
    )
    if len(findings):
        overview.findings(findings)
    days = tables["by_day"].to_pylist()
    report.section("Days").plots(
        ("Messages per day", charts.lines("Messages per day", _per_day(days, "messages"))),
        ("Bytes per day", charts.lines("Bytes per day", _per_day(days, "bytes"), Unit.BYTES)),
    ).table(tables["by_day"], _UNITS)
    for name, title, labels in (
        ("by_topic", "Topics", ("topic",)),
        ("by_tag", "Tags", ("topic", "tags")),
        ("by_producer", "Producers", ("producer", "topic")),
    ):
        rows = top_rows(tables[name], labels, "bytes")
        drawn = charts.bars(f"Bytes: {title.lower()}", rows, Unit.BYTES)
        report.section(title).plots(("Most bytes", drawn)).table(tables[name], _UNITS)
    return report


def _per_day(days: list[dict[str, Any]], name: str) -> dict[str, list[tuple[float, float]]]:
    points = [
        (datetime.combine(row["day"], time(), UTC).timestamp() * 1000, float(row[name] or 0))
        for row in days
    ]
    return {name: points}


def _producer() -> Column:
    host = F.col("born_host")
    without_port = F.regexp_replace(host, ":\\d+$", "")
    from_id = F.substring_index(client_of(F.col("msg_id")), "@", 1)
    return F.coalesce(without_port, from_id, F.lit("(unknown)"))


PIPELINE = Pipeline(
    "usage",
    "Count messages and bytes by topic, tag, day and producer.",
    UsageSettings,
    usage,
)

if __name__ == "__main__":
    sys.exit(main("usage"))
