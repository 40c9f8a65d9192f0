"""Faults of queues: missing and repeated offsets, wrong order, damage, copies.

The messages of a queue have offsets without gaps, in the order in which they were stored. A
checksum is compared where the body is as it was stored. Source: CommitLog, RocketMQ 5.3.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - the name that Spark's documentation uses

from cometmq.model.flags import SysFlag
from cometmq.model.topic import DLQ_PREFIX, RETRY_PREFIX, SYSTEM_PREFIX, SYSTEM_TOPICS
from cometmq.protocol.record import CRC_MASK, RECORD_BYTES_MIN

QUEUE = ("topic", "broker_name", "queue_id")
_COMPRESSION = SysFlag.COMPRESSED | SysFlag.COMPRESSION_MASK


def gaps(messages: DataFrame) -> DataFrame:
    """Return the faults within queues.

    ``finding`` is ``gap``, ``repeated-offset``, ``clock-back`` (a smaller store time than the
    message before), ``log-order`` (a smaller physical offset), ``checksum``, or
    ``damaged-record`` (no record at that physical offset). ``first`` and ``last`` are queue
    offsets, ``count`` the messages; the other columns are of the message where it was found, which
    is the one behind a gap.

    Args:
        messages: rows of the formats ``rocketmq`` or ``rocketmq-log``, or of an archive. Without
            the columns ``body``, ``body_crc``, ``phy_offset`` or ``record_valid`` their checks are
            left out. To read past damage in a log, set ``validate`` and ``badRecords=permissive``.
    """
    valid = F.coalesce(_optional(messages, "record_valid", "boolean"), F.lit(True))
    rows = messages.select(
        *QUEUE, "queue_offset", "msg_id", "store_timestamp",
        _optional(messages, "phy_offset", "bigint").alias("phy_offset"),
        (~valid & (F.col("topic") == "")).alias("no_record"),
        (~valid | _has_wrong_checksum(messages)).alias("wrong_checksum"),
    )  # fmt: skip
    of_queue = Window.partitionBy(*QUEUE).orderBy("queue_offset", "phy_offset")

    def before(name: str) -> Column:
        return F.when(~F.col("no_record"), F.lag(name).over(of_queue))

    rows = rows.select(
        "*", before("queue_offset").alias("offset_before"),
        before("store_timestamp").alias("time_before"), before("phy_offset").alias("phy_before"),
    )  # fmt: skip
    offset, offset_before = F.col("queue_offset"), F.col("offset_before")
    late_ms = F.unix_millis("time_before") - F.unix_millis("store_timestamp")
    faults = [
        _fault("gap", offset - offset_before > 1, first=offset_before + 1, last=offset - 1),
        _fault("repeated-offset", offset == offset_before),
        _fault("clock-back", late_ms > 0, detail=F.format_string("%d ms", late_ms)),
        _fault("log-order", (F.col("phy_offset") < F.col("phy_before")) & (F.col("phy_offset") > 0),
               detail=F.format_string("behind physical offset %d", "phy_before")),
        _fault("checksum", F.col("wrong_checksum") & ~F.col("no_record")),
        _fault("damaged-record", F.col("no_record")),
    ]  # fmt: skip
    found = rows.withColumn("fault", F.explode(F.array_compact(F.array(*faults))))
    of_record = [F.when(~F.col("no_record"), F.col(name)).alias(name) for name in QUEUE]
    return found.select(
        "fault.finding", *of_record, "fault.first", "fault.last", "fault.count", "fault.detail",
        "msg_id", "store_timestamp", "phy_offset",
    )  # fmt: skip


def _fault(
    finding: str,
    condition: Column,
    *,
    first: Column | None = None,
    last: Column | None = None,
    detail: Column | None = None,
) -> Column:
    first = F.col("queue_offset") if first is None else first
    last = F.col("queue_offset") if last is None else last
    return F.when(
        condition,
        F.struct(
            F.lit(finding).alias("finding"),
            first.alias("first"),
            last.alias("last"),
            (last - first + 1).alias("count"),
            (F.lit(None).cast("string") if detail is None else detail).alias("detail"),
        ),
    )


def _optional(messages: DataFrame, name: str, kind: str) -> Column:
    return (F.col(name) if name in messages.columns else F.lit(None)).cast(kind)


def _has_wrong_checksum(messages: DataFrame) -> Column:
    """Whether the body has surely the bytes that the broker stored, and another checksum."""
    if not {"body", "body_crc"} <= set(messages.columns):
        return F.lit(False)
    size = _optional(messages, "store_size", "int")
    is_whole = size.isNull() | (size - F.length("body") >= RECORD_BYTES_MIN)
    flags = F.coalesce(_optional(messages, "sys_flag", "int"), F.lit(0))
    is_as_stored = is_whole & (flags.bitwiseAND(_COMPRESSION) == 0)
    differs = F.crc32("body").bitwiseAND(CRC_MASK) != F.col("body_crc")
    return F.coalesce(is_as_stored & differs, F.lit(False))


def duplicates(messages: DataFrame) -> DataFrame:
    """Return the messages that a topic has more than once, by unique id and body.

    Copies in retry, dead-letter and system topics are not meant. All messages of a batch that a
    client of RocketMQ 5 sent share one id, so messages with different bodies are no copies.

    Args:
        messages: rows with the columns of `gaps`, ``body`` included.
    """
    position = F.struct("store_timestamp", *QUEUE[1:], "queue_offset")
    topic = F.col("topic")
    of_brokers = topic.isin("", *sorted(SYSTEM_TOPICS))
    for prefix in (RETRY_PREFIX, DLQ_PREFIX, SYSTEM_PREFIX):
        of_brokers = of_brokers | topic.startswith(prefix)
    same = messages.where(~of_brokers).groupBy("topic", "msg_id", F.xxhash64("body").alias("body"))
    copies = same.agg(
        F.count("*").alias("copies"), F.min(position).alias("first"), F.max(position).alias("last")
    )
    return copies.where("copies > 1").drop("body")
