"""Compares a broker's log with its archive, before files of the log are deleted."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 - the name that Spark's documentation uses

from cometmq.spark.archive import TableSettings, archived_to, read_archive
from cometmq.spark.checks.comparison import hashable, row_hash
from cometmq.spark.errors import PlaceError
from cometmq.spark.logs import open_log

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_QUEUE = ["topic", "queue_id"]
_FACTS = ("messages", "first_offset", "last_offset", "checksum")


def compare_log_with_archive(
    spark: SparkSession,
    store: str,
    table: str | Path | TableSettings,
    *,
    broker_name: str = "",
    end: int | None = None,
    topics: Collection[str] = (),
    decompress: bool = True,
) -> DataFrame:
    """Return the queues whose messages differ between a log and its archive.

    The data frame has the columns ``topic``, ``queue_id`` and, for ``log`` and ``archive`` each,
    ``messages``, ``first_offset``, ``last_offset`` and ``checksum``, with the name behind them as
    in ``messages_log``. It has no rows if everything is equal: every column of every message
    between the log's first byte and ``end``.

    Args:
        spark: the session; its executors must see the log and the archive.
        store: the log: a store's directory, its ``commitlog``, or an address.
        table: the path or address of a Delta table, or the settings of any table.
        broker_name: the broker's name, as in the archive.
        end: the physical offset up to which to compare; how far the archive goes by default.
        topics: the archived topics, if the archive has only some; all if empty.
        decompress: whether the archive was made with ``decompress``.

    Raises:
        PlaceError: there is no table, or it has nothing of the log before ``end``.
    """
    settings = table if isinstance(table, TableSettings) else TableSettings(to=str(table))
    source = open_log(store, broker=broker_name or None)
    archived = archived_to(settings, broker_name)
    stop = archived if end is None else end
    if archived is None or stop is None or not source.min_offset < stop <= archived:
        raise PlaceError(
            f"log of {source.name} at {store}: its files begin at byte {source.min_offset}, and the"
            f" archive goes to {archived}, expected an end between these, met {stop}"
        )
    log = (
        spark.read.format("rocketmq-log")
        .option("includeProperties", "true")
        .option("decompress", str(decompress).lower())
        .option("endingOffsets", json.dumps({source.name: stop}))
        .option("logEnd", "log")
    )
    if broker_name:
        log = log.option("brokerName", broker_name)
    if topics:
        log = log.option("subscribe", ",".join(topics))
    kept = read_archive(spark, settings, topics=topics).where(
        F.col("broker_name").eqNullSafe(F.lit(broker_name or None))
        & (F.col("phy_offset") >= source.min_offset)
        & (F.col("phy_offset") < stop)
    )
    read = log.load(store)
    sides = (_facts(read, read.columns, "log"), _facts(kept, read.columns, "archive"))
    same = [F.col(f"{name}_log").eqNullSafe(F.col(f"{name}_archive")) for name in _FACTS]
    return (
        sides[0]
        .join(sides[1], _QUEUE, "full_outer")
        .where(~(same[0] & same[1] & same[2] & same[3]))
    )


def _facts(messages: DataFrame, columns: Sequence[str], side: str) -> DataFrame:
    """Count the messages of each queue, and combine their hashes."""
    return messages.groupBy(_QUEUE).agg(
        F.count("*").alias(f"messages_{side}"),
        F.min("queue_offset").alias(f"first_offset_{side}"),
        F.max("queue_offset").alias(f"last_offset_{side}"),
        F.bit_xor(row_hash(columns, hashable)).alias(f"checksum_{side}"),
    )
