"""Checks queues: gaps, repeats, clocks that go back, damage, ids that occur twice.

Messages of a queue have offsets without gaps, in the order in which they were stored. A checksum is
compared where the body is as it was stored. The rules are those of RocketMQ's store.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - everybody calls it so

from cometmq.model.flags import SysFlag
from cometmq.model.topic import DLQ_PREFIX, RETRY_PREFIX
from cometmq.protocol.record import CRC_MASK, RECORD_BYTES_MIN
from cometmq.spark.pipelines.findings.frames import findings, together
from cometmq.spark.pipelines.findings.rows import Severity

AUDIT_COLUMNS = (
    "topic", "broker_name", "queue_id", "queue_offset", "msg_id", "body", "store_timestamp",
    "sys_flag", "body_crc", "phy_offset", "store_size",
)  # fmt: skip
"""What is read of each message, and ``record_valid`` where there is a log."""

_QUEUE = ["topic", "broker_name", "queue_id"]
_COMPRESSION = SysFlag.COMPRESSED | SysFlag.COMPRESSION_MASK


def checked(messages: DataFrame) -> DataFrame:
    """Add to each message of a queue what is wrong with it, and what was before it."""
    valid = F.col("record_valid") if "record_valid" in messages.columns else F.lit(None)
    read = messages.select(
        *_QUEUE, "queue_offset", "msg_id", "store_timestamp", "phy_offset",
        F.xxhash64("body").alias("body_hash"),
        (_is_as_stored() & (_crc() != F.col("body_crc"))).alias("crc_wrong"),
        F.crc32("body").alias("crc_found"), F.col("body_crc").alias("crc_expected"),
        (~F.coalesce(valid, F.lit(True))).alias("damaged"),
    )  # fmt: skip
    within = Window.partitionBy(*_QUEUE).orderBy("queue_offset", "phy_offset")
    before = {
        name: F.when(~F.col("damaged"), F.lag(name).over(within))
        for name in ("queue_offset", "store_timestamp", "phy_offset")
    }
    return read.select("*", *(made.alias(f"{name}_before") for name, made in before.items()))


def queues(found: DataFrame) -> DataFrame:
    """Per queue: what it holds, and how much of it is wrong."""
    step = F.col("queue_offset") - F.col("queue_offset_before")
    return found.where(~F.col("damaged")).groupBy(*_QUEUE).agg(
        F.count("*").alias("messages"),
        F.min("queue_offset").alias("first"),
        F.max("queue_offset").alias("last"),
        F.min("store_timestamp").alias("first_stored"),
        F.max("store_timestamp").alias("last_stored"),
        F.sum(F.when(step > 1, step - 1).otherwise(0)).alias("missing"),
        F.count_if(step == 0).alias("repeated"),
        F.count_if(_went_back()).alias("clock_back"),
        F.count_if("crc_wrong").alias("crc_wrong"),
    ).orderBy(*_QUEUE)  # fmt: skip


def queue_findings(found: DataFrame) -> DataFrame:
    """What is wrong within queues, as findings."""
    return together([_gaps(found), _repeats(found), _backwards(found), _order(found),
                     _checksums(found), _damage(found)])  # fmt: skip


def duplicates(found: DataFrame) -> DataFrame:
    """Messages that are in a topic more than once under one id, with where they are.

    Copies in retry and dead-letter topics are what those are for. All messages of a batch that a
    5.x client sent share one id: what differs in its body is no copy.
    """
    wanted = ~(F.col("topic").startswith(RETRY_PREFIX) | F.col("topic").startswith(DLQ_PREFIX))
    place = F.struct("store_timestamp", "broker_name", "queue_id", "queue_offset")
    same = found.where(wanted & ~F.col("damaged")).groupBy("topic", "msg_id", "body_hash").agg(
        F.count("*").alias("copies"), F.min(place).alias("one"), F.max(place).alias("other")
    ).where("copies > 1")  # fmt: skip
    return same.select(
        "topic", "msg_id", "copies",
        F.col("one.broker_name").alias("first_broker"), F.col("one.queue_id").alias("first_queue"),
        F.col("one.queue_offset").alias("first_offset"),
        F.col("one.store_timestamp").alias("first_stored"),
        F.col("other.broker_name").alias("last_broker"),
        F.col("other.queue_id").alias("last_queue"),
        F.col("other.queue_offset").alias("last_offset"),
        F.col("other.store_timestamp").alias("last_stored"),
    ).orderBy("topic", "first_stored", "msg_id")  # fmt: skip


def duplicate_findings(copies: DataFrame) -> DataFrame:
    """Messages that are there more than once, as findings."""
    named = copies.withColumnsRenamed({"first_broker": "broker_name", "first_queue": "queue_id"})
    text = F.format_string("message %s is in the topic %d times", "msg_id", "copies")
    evidence = [name for name in named.columns if name != "topic"]
    return findings(
        named, "duplicate", Severity.WARNING, text,
        evidence=evidence, first="first_offset", count="copies",
    )  # fmt: skip


def _gaps(found: DataFrame) -> DataFrame:
    missing = F.col("queue_offset") - F.col("queue_offset_before") - 1
    rows = found.where(missing > 0).select(
        "*",
        missing.alias("missing"),
        (F.col("queue_offset_before") + 1).alias("first"),
        (F.col("queue_offset") - 1).alias("last"),
    )
    text = F.format_string("%d messages of the queue are missing", "missing")
    return findings(
        rows, "gap", Severity.ERROR, text, first="first", last="last", count="missing",
        evidence=["queue_offset_before", "queue_offset", "msg_id", "store_timestamp"],
    )  # fmt: skip


def _repeats(found: DataFrame) -> DataFrame:
    rows = found.where(F.col("queue_offset") == F.col("queue_offset_before"))
    return findings(
        rows, "repeated-offset", Severity.ERROR,
        F.format_string("offset %d of the queue is there twice", "queue_offset"),
        first="queue_offset", evidence=["msg_id", "phy_offset", "phy_offset_before"],
    )  # fmt: skip


def _backwards(found: DataFrame) -> DataFrame:
    back = F.unix_millis("store_timestamp_before") - F.unix_millis("store_timestamp")
    rows = found.where(_went_back()).withColumn("back_ms", back)
    return findings(
        rows, "clock-back", Severity.WARNING,
        F.format_string("stored %d ms before the message in front of it", "back_ms"),
        first="queue_offset", evidence=["store_timestamp_before", "store_timestamp", "msg_id"],
    )  # fmt: skip


def _order(found: DataFrame) -> DataFrame:
    """A log keeps the order of each queue; places are unknown where they are 0."""
    rows = found.where(
        (F.col("phy_offset") < F.col("phy_offset_before")) & (F.col("phy_offset") > 0)
    )
    return findings(
        rows, "log-order", Severity.ERROR,
        F.lit("its record is in the log before that of the previous message"),
        first="queue_offset", evidence=["phy_offset_before", "phy_offset", "msg_id"],
    )  # fmt: skip


def _checksums(found: DataFrame) -> DataFrame:
    rows = found.where(F.col("crc_wrong") & ~F.col("damaged"))
    return findings(
        rows, "checksum", Severity.ERROR,
        F.lit("the checksum is not that of the body"), first="queue_offset",
        evidence=["msg_id", "phy_offset", "crc_expected", "crc_found"],
    )  # fmt: skip


def _damage(found: DataFrame) -> DataFrame:
    rows = found.where("damaged")
    return findings(
        rows, "damaged-record", Severity.ERROR,
        F.format_string("no whole record at byte %d of the log", "phy_offset"),
        evidence=["phy_offset"],
    )  # fmt: skip


def _went_back() -> Column:
    return F.col("store_timestamp") < F.col("store_timestamp_before")


def _is_as_stored() -> Column:
    """Whether the body surely has the bytes that the broker stored."""
    known = F.col("body").isNotNull() & F.col("body_crc").isNotNull()
    rest = F.coalesce("store_size", F.lit(RECORD_BYTES_MIN)) - F.length("body")
    whole = (F.col("store_size").isNull()) | (rest >= RECORD_BYTES_MIN)
    packed = F.coalesce("sys_flag", F.lit(0)).bitwiseAND(_COMPRESSION) != 0
    return known & whole & ~packed


def _crc() -> Column:
    return F.crc32("body").bitwiseAND(CRC_MASK)
