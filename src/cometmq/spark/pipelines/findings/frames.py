"""Findings as data frames.

Rows with the columns of `cometmq.spark.pipelines.findings.rows.SCHEMA`.
"""

from __future__ import annotations

from functools import reduce

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - everybody calls it so

from cometmq.spark.pipelines.findings.rows import Severity

COLUMNS = (
    ("finding", "string"), ("severity", "string"), ("topic", "string"), ("broker_name", "string"),
    ("queue_id", "int"), ("first", "bigint"), ("last", "bigint"), ("count", "bigint"),
    ("text", "string"), ("evidence", "string"),
)  # fmt: skip


def findings(
    rows: DataFrame,
    kind: str | Column,
    severity: Severity | Column,
    text: Column,
    *,
    evidence: list[str],
    first: str | None = None,
    last: str | None = None,
    count: str | None = None,
) -> DataFrame:
    """Make a finding of each row.

    Args:
        rows: what was found; ``topic``, ``broker_name`` and ``queue_id`` are taken from it.
        kind: of the findings.
        severity: of the findings.
        text: a sentence about the row.
        evidence: the columns that show it.
        first, last: columns with queue offsets.
        count: the column with the number of messages; 1 each without it.
    """
    given = {
        "finding": F.lit(kind) if isinstance(kind, str) else kind,
        "severity": F.lit(severity.value) if isinstance(severity, Severity) else severity,
        "first": F.col(first) if first else F.lit(None),
        "last": F.col(last or first) if last or first else F.lit(None),  # type: ignore[arg-type]
        "count": F.col(count) if count else F.lit(1),
        "text": text,
        "evidence": F.to_json(F.struct(*evidence)),
    }
    for name in ("topic", "broker_name", "queue_id"):
        given[name] = F.col(name) if name in rows.columns else F.lit(None)
    return rows.select(*(given[name].cast(kind_).alias(name) for name, kind_ in COLUMNS))


def together(frames: list[DataFrame]) -> DataFrame:
    """Put findings together, the worst first, so that a limit leaves out the least."""
    every = reduce(DataFrame.unionByName, frames)
    rank = F.when(F.col("severity") == Severity.ERROR, 0).when(
        F.col("severity") == Severity.WARNING, 1
    )
    return every.orderBy(F.coalesce(rank, F.lit(2)), "finding", "topic", "queue_id", "first")


def ranges(rows: DataFrame, keys: list[str], offset: str, **evidence: Column) -> DataFrame:
    """Make one row of offsets that follow each other: ``first``, ``last`` and ``count``.

    Args:
        rows: one per offset.
        keys: columns within which offsets are counted.
        offset: the column with the offset.
        evidence: aggregates to keep of each range.
    """
    number = F.row_number().over(Window.partitionBy(*keys).orderBy(offset))
    return (
        rows.withColumn("island", F.col(offset) - number)
        .groupBy(*keys, "island")
        .agg(
            F.min(offset).alias("first"),
            F.max(offset).alias("last"),
            F.count("*").alias("count"),
            *(made.alias(name) for name, made in evidence.items()),
        )
        .drop("island")
    )
