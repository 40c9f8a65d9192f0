"""Checks transactions: half messages without an end, ends without a half message.

A finished half message is noted in the op topic, in the queue of the same number, as its queue
offset; 5.x writes several with commas between. The message that a commit made visible says where
its half lies in the log. The rules are those of RocketMQ's transactions.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - everybody calls it so

from cometmq.model import property_names as names
from cometmq.model.flags import SysFlag
from cometmq.model.topic import HALF_TOPIC, OP_HALF_TOPIC
from cometmq.spark.pipelines.findings.frames import findings, together
from cometmq.spark.pipelines.findings.rows import Severity

TRANSACTION_COLUMNS = (
    "topic", "broker_name", "queue_id", "queue_offset", "msg_id", "body", "store_timestamp",
    "sys_flag", "phy_offset", "prepared_offset", "properties",
)  # fmt: skip
"""What is read of each message, in the topics of transactions."""

_QUEUE = ("broker_name", "queue_id")


def transactions(messages: DataFrame, *, settle_s: int) -> DataFrame:
    """What is wrong with the transactions among the messages, as findings.

    Args:
        messages: of the topics of half messages and of their ends.
        settle_s: a half message that is younger is only noted.
    """
    halves = _halves(messages).persist()
    ends = _ends(messages)
    return together([_open(halves, ends, settle_s), _unknown(halves, ends)])


def commits(messages: DataFrame) -> DataFrame:
    """What is wrong with committed messages in ordinary topics, as findings."""
    committed = messages.where(
        F.col("sys_flag").bitwiseAND(SysFlag.TRANSACTION_MASK) == SysFlag.TRANSACTION_COMMIT
    ).where(F.col("prepared_offset") > 0)
    twice = committed.groupBy("broker_name", "prepared_offset").agg(
        F.count("*").alias("copies"),
        F.first("topic").alias("topic"),
        F.min("queue_id").alias("queue_id"),
        F.min("queue_offset").alias("queue_offset"),
        F.min("msg_id").alias("msg_id"),
    ).where("copies > 1")  # fmt: skip
    return findings(
        twice, "committed-twice", Severity.WARNING,
        F.format_string("transaction of message %s was committed %d times", "msg_id", "copies"),
        evidence=["msg_id", "prepared_offset"], first="queue_offset", count="copies",
    )  # fmt: skip


def _halves(messages: DataFrame) -> DataFrame:
    return messages.where(F.col("topic") == HALF_TOPIC).select(
        *_QUEUE, "queue_offset", "msg_id", "store_timestamp", "phy_offset",
        F.col("properties")[names.PGROUP].alias("producer_group"),
        _property(names.REAL_TOPIC).alias("topic"),
        _property(names.TRANSACTION_CHECK_TIMES).alias("checks"),
    )  # fmt: skip


def _ends(messages: DataFrame) -> DataFrame:
    offsets = F.split(F.col("body").cast("string"), ",")
    told = messages.where(F.col("topic") == OP_HALF_TOPIC).select(
        *_QUEUE, F.col("queue_offset").alias("op_offset"), F.explode(offsets).alias("told")
    )
    offset = F.trim("told").try_cast("bigint")
    return told.withColumn("half_offset", offset).where(F.col("half_offset").isNotNull())


def _open(halves: DataFrame, ends: DataFrame, settle_s: int) -> DataFrame:
    known = ends.select(*_QUEUE, F.col("half_offset").alias("queue_offset")).distinct()
    rows = halves.join(known, _same_queue(halves, known, "queue_offset"), "left_anti")
    old = F.col("store_timestamp") < F.current_timestamp() - F.make_dt_interval(
        secs=F.lit(settle_s)
    )
    severity = F.when(old, Severity.WARNING.value).otherwise(Severity.NOTE.value)
    return findings(
        rows, "half-without-end", severity,
        F.format_string("the transaction of group %s was never ended", _said("producer_group")),
        first="queue_offset",
        evidence=["msg_id", "store_timestamp", "producer_group", "checks", "phy_offset"],
    )  # fmt: skip


def _unknown(halves: DataFrame, ends: DataFrame) -> DataFrame:
    """Ends of half messages that are not there, though they are not expired either."""
    oldest = halves.groupBy(*_QUEUE).agg(F.min("queue_offset").alias("oldest"))
    place = halves.select(*_QUEUE, F.col("queue_offset").alias("half_offset"))
    lost = ends.join(place, _same_queue(ends, place, "half_offset"), "left_anti")
    same = lost["broker_name"].eqNullSafe(oldest["broker_name"]) & (
        lost["queue_id"] == oldest["queue_id"]
    )
    rows = lost.join(F.broadcast(oldest), same).where(F.col("half_offset") >= F.col("oldest"))
    rows = rows.select(
        lost["broker_name"], lost["queue_id"], "half_offset", "op_offset", "oldest",
        F.lit(HALF_TOPIC).alias("topic"),
    )  # fmt: skip
    return findings(
        rows, "end-without-half", Severity.ERROR,
        F.format_string("half message %d was ended and is not there", "half_offset"),
        first="half_offset", evidence=["op_offset", "oldest"],
    )  # fmt: skip


def _same_queue(left: DataFrame, right: DataFrame, offset: str) -> Column:
    return (
        left["broker_name"].eqNullSafe(right["broker_name"])
        & (left["queue_id"] == right["queue_id"])
        & (left[offset] == right[offset])
    )


def _property(name: str) -> Column:
    return F.col("properties")[name]


def _said(name: str) -> Column:
    return F.coalesce(name, F.lit("(none)"))
