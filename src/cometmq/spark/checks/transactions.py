"""Faults of transactions: half messages without an end, ends without one, two commits.

The end of a half message is in the op topic, in the queue of the same number, as its queue offset;
RocketMQ 5 writes several with commas between. A message that a commit made visible has the physical
offset of its half message. Source: TransactionalMessageBridge, RocketMQ 5.3.
"""

from __future__ import annotations

from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name that Spark's documentation uses

from cometmq.model import property_names as names
from cometmq.model.flags import SysFlag
from cometmq.model.topic import HALF_TOPIC, OP_HALF_TOPIC

_QUEUE = ("broker_name", "queue_id")


def transactions(messages: DataFrame, *, settle_s: int = 60) -> DataFrame:
    """Return half messages without an end, ends without a half message, and double commits.

    ``finding`` is ``half-without-end``, ``end-without-half`` or ``committed-twice``; the other
    columns are of the half message, of the end, or of the first committed message. ``topic`` is
    the application's, null for an end.

    Args:
        messages: rows of a log or of an archive with ``includeProperties``, or of the topics
            ``RMQ_SYS_TRANS_HALF_TOPIC``, ``RMQ_SYS_TRANS_OP_HALF_TOPIC`` and the application's.
        settle_s: half messages that are younger than this may have no end yet.
    """
    halves = messages.where(F.col("topic") == HALF_TOPIC).select(
        *_QUEUE, "queue_offset", "msg_id", "store_timestamp", "phy_offset",
        _property(names.REAL_TOPIC).alias("topic"),
        _property(names.PGROUP).alias("producer_group"),
    )  # fmt: skip
    ended = F.explode(F.split(F.col("body").cast("string"), ","))
    ends = messages.where(F.col("topic") == OP_HALF_TOPIC).select(
        *_QUEUE, "msg_id", "store_timestamp", "phy_offset", ended.alias("ended")
    )
    ends = ends.withColumn("queue_offset", F.trim("ended").try_cast("bigint")).drop("ended")
    found = [_open(halves, ends, settle_s), _unknown(halves, ends), _committed_twice(messages)]
    return reduce(lambda a, b: a.unionByName(b, allowMissingColumns=True), found).select(
        "finding", "topic", *_QUEUE, "queue_offset", "msg_id", "producer_group",
        "store_timestamp", "phy_offset",
    )  # fmt: skip


def _open(halves: DataFrame, ends: DataFrame, settle_s: int) -> DataFrame:
    settled = F.current_timestamp() - F.make_dt_interval(secs=F.lit(settle_s))
    due = halves.where(F.col("store_timestamp") < settled)
    rows = due.join(ends, _same_offset(due, ends), "left_anti")
    return rows.withColumn("finding", F.lit("half-without-end"))


def _unknown(halves: DataFrame, ends: DataFrame) -> DataFrame:
    """Ends of half messages that are not there, though they have not expired either."""
    oldest = halves.groupBy(*_QUEUE).agg(F.min("queue_offset").alias("oldest"))
    lost = ends.where(F.col("queue_offset").isNotNull())
    lost = lost.join(halves, _same_offset(lost, halves), "left_anti")
    same = lost["broker_name"].eqNullSafe(oldest["broker_name"]) & (
        lost["queue_id"] == oldest["queue_id"]
    )
    rows = lost.join(F.broadcast(oldest), same).where(F.col("queue_offset") >= F.col("oldest"))
    return rows.select(*(lost[name] for name in lost.columns)).withColumn(
        "finding", F.lit("end-without-half")
    )


def _committed_twice(messages: DataFrame) -> DataFrame:
    kind = F.col("sys_flag").bitwiseAND(SysFlag.TRANSACTION_MASK)
    committed = messages.where(
        (kind == SysFlag.TRANSACTION_COMMIT) & (F.col("prepared_offset") > 0)
    )
    columns = ("topic", *_QUEUE, "queue_offset", "msg_id", "store_timestamp", "phy_offset")
    twice = committed.groupBy("broker_name", "prepared_offset").agg(
        F.count("*").alias("copies"),
        F.min(F.struct("store_timestamp", "queue_offset", F.struct(*columns).alias("row"))).alias(
            "one"
        ),
    )
    return twice.where("copies > 1").select(F.lit("committed-twice").alias("finding"), "one.row.*")


def _same_offset(left: DataFrame, right: DataFrame) -> Column:
    return (
        left["broker_name"].eqNullSafe(right["broker_name"])
        & (left["queue_id"] == right["queue_id"])
        & (left["queue_offset"] == right["queue_offset"])
    )


def _property(name: str) -> Column:
    return F.col("properties")[name]
