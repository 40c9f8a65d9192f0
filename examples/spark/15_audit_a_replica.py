"""Check the log of a master, and compare it with the log of its replica.

It prints totals of all findings and the first rows of each check; the exit code is 1 if there are
any. Run: ``python examples/spark/15_audit_a_replica.py [store of the master] [store of the replica]
[rows to show]``.

The end of a half message is in the op topic, in the queue of the same number, as its queue offset;
RocketMQ 5 writes several with commas between. A message that a commit made visible has the physical
offset of its half message. Source: TransactionalMessageBridge, RocketMQ 5.3.
"""

import sys
from functools import reduce

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from cometmq.model import property_names
from cometmq.model.flags import SysFlag
from cometmq.model.topic import HALF_TOPIC, OP_HALF_TOPIC
from cometmq.spark import checks
from cometmq.spark.sessions import local_session

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
    halves = messages.where(f.col("topic") == HALF_TOPIC).select(
        *_QUEUE, "queue_offset", "msg_id", "store_timestamp", "phy_offset",
        _property(property_names.REAL_TOPIC).alias("topic"),
        _property(property_names.PGROUP).alias("producer_group"),
    )  # fmt: skip
    ended = f.explode(f.split(f.col("body").cast("string"), ","))
    ends = messages.where(f.col("topic") == OP_HALF_TOPIC).select(
        *_QUEUE, "msg_id", "store_timestamp", "phy_offset", ended.alias("ended")
    )
    ends = ends.withColumn("queue_offset", f.trim("ended").try_cast("bigint")).drop("ended")
    found = [_open(halves, ends, settle_s), _unknown(halves, ends), _committed_twice(messages)]
    return reduce(lambda a, b: a.unionByName(b, allowMissingColumns=True), found).select(
        "finding", "topic", *_QUEUE, "queue_offset", "msg_id", "producer_group",
        "store_timestamp", "phy_offset",
    )  # fmt: skip


def _open(halves: DataFrame, ends: DataFrame, settle_s: int) -> DataFrame:
    settled = f.current_timestamp() - f.make_dt_interval(secs=f.lit(settle_s))
    due = halves.where(f.col("store_timestamp") < settled)
    rows = due.join(ends, _same_offset(due, ends), "left_anti")
    return rows.withColumn("finding", f.lit("half-without-end"))


def _unknown(halves: DataFrame, ends: DataFrame) -> DataFrame:
    """Ends of half messages that are not there, though they have not expired either."""
    oldest = halves.groupBy(*_QUEUE).agg(f.min("queue_offset").alias("oldest"))
    lost = ends.where(f.col("queue_offset").isNotNull())
    lost = lost.join(halves, _same_offset(lost, halves), "left_anti")
    same = lost["broker_name"].eqNullSafe(oldest["broker_name"]) & (
        lost["queue_id"] == oldest["queue_id"]
    )
    rows = lost.join(f.broadcast(oldest), same).where(f.col("queue_offset") >= f.col("oldest"))
    return rows.select(*(lost[name] for name in lost.columns)).withColumn(
        "finding", f.lit("end-without-half")
    )


def _committed_twice(messages: DataFrame) -> DataFrame:
    kind = f.col("sys_flag").bitwiseAND(SysFlag.TRANSACTION_MASK)
    committed = messages.where(
        (kind == SysFlag.TRANSACTION_COMMIT) & (f.col("prepared_offset") > 0)
    )
    columns = ("topic", *_QUEUE, "queue_offset", "msg_id", "store_timestamp", "phy_offset")
    twice = committed.groupBy("broker_name", "prepared_offset").agg(
        f.count("*").alias("copies"),
        f.min(f.struct("store_timestamp", "queue_offset", f.struct(*columns).alias("row"))).alias(
            "one"
        ),
    )
    return twice.where("copies > 1").select(f.lit("committed-twice").alias("finding"), "one.row.*")


def _same_offset(left: DataFrame, right: DataFrame) -> Column:
    return (
        left["broker_name"].eqNullSafe(right["broker_name"])
        & (left["queue_id"] == right["queue_id"])
        & (left["queue_offset"] == right["queue_offset"])
    )


def _property(name: str) -> Column:
    return f.col("properties")[name]


def messages_of(spark: SparkSession, store: str) -> DataFrame:
    """Read a log with the rows of damaged records."""
    reader = spark.read.format("rocketmq-log").option("includeProperties", True)
    return reader.option("validate", True).option("badRecords", "permissive").load(store)


def main(master: str = "store", replica: str = "replica", rows: str = "20") -> None:
    spark = local_session()
    here, there = messages_of(spark, master), messages_of(spark, replica)
    found = {
        "gaps": checks.gaps(here),
        "duplicates": checks.duplicates(here),
        "transactions": transactions(here),
        "differences": checks.compare(here, there),
    }
    total = 0
    for name, rows_found in found.items():
        count = rows_found.cache().count()
        total += count
        print(f"{name}: {count}")
        if count:
            rows_found.show(int(rows), truncate=False)
    if total:
        raise SystemExit(1)


if __name__ == "__main__":
    main(*sys.argv[1:])
