"""Tables about traces: latencies, and lost or repeated messages.

Deliveries are joined from the record before a handler's call and the one after it, by request and
message; what was sent is joined to them by message.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - everybody calls it so

from cometmq.client.handlers import LocalState
from cometmq.client.hooks import SendKind
from cometmq.spark.pipelines.trace.records import (
    AFTER,
    BEFORE,
    END,
    ENDS,
    PUBLISH,
)

PERCENTILES = (("p50", 0.5), ("p90", 0.9), ("p99", 0.99))
HALF, DELAYED = int(SendKind.TRANSACTION_HALF), int(SendKind.DELAYED)
ON_PURPOSE = (HALF, int(SendKind.TRANSACTION_COMMIT), DELAYED)
"""Kinds of messages that wait because they should."""
ACCURACY = 10_000
"""Of percentiles: a rank is off by one in so many at most."""


def sent(records: DataFrame) -> DataFrame:
    """Give the messages that producers say they sent; ``stored`` is when the broker had them."""
    half_ms = F.col("cost_ms") / 2
    stored = F.timestamp_millis((F.unix_millis("time") + half_ms).cast("bigint"))
    return records.where((F.col("kind") == PUBLISH) & F.col("problem").isNull()).select(
        "msg_id", "topic", "tags", "keys", "group", "client", "time", "cost_ms", "send_kind",
        "success", "body_bytes", stored.alias("stored"),
    )  # fmt: skip


def deliveries(records: DataFrame) -> DataFrame:
    """Give one row per call of a handler and message, with how it ended if that is known."""
    good = records.where(F.col("problem").isNull())
    before, after = _before(good), _after(good)
    joined = before.join(after, ["request_id", "msg_id"], "full_outer")
    return joined.select(
        "request_id",
        "msg_id",
        F.coalesce("before_group", "after_group").alias("group"),
        F.coalesce("before_client", "after_client").alias("client"),
        "begun", "ended", "retries", "cost_ms", "success", "end",
    )  # fmt: skip


def stream_deliveries(records: DataFrame, *, late: str = "10 minutes") -> DataFrame:
    """Give the same of a stream of records.

    A call whose end is not told within ``late`` comes out without one; what is told later than
    that is dropped, which bounds what the stream keeps in memory.
    """
    good = records.where(F.col("problem").isNull())
    before = _before(good).withWatermark("begun", late)
    after = _after(good).withWatermark("ended", late)
    after = after.withColumnsRenamed({"request_id": "after_request", "msg_id": "after_msg"})
    same = (F.col("request_id") == F.col("after_request")) & (F.col("msg_id") == F.col("after_msg"))
    in_time = (F.col("ended") >= F.col("begun") - F.expr(f"INTERVAL {late}")) & (
        F.col("ended") <= F.col("begun") + F.expr(f"INTERVAL {late}")
    )
    joined = before.join(after, same & in_time, "left_outer")
    return joined.select(
        "request_id", "msg_id", F.col("before_group").alias("group"),
        F.col("before_client").alias("client"), "begun", "ended", "retries", "cost_ms", "success",
        "end",
    )  # fmt: skip


def with_topics(calls: DataFrame, messages: DataFrame) -> DataFrame:
    """Add to each delivery what the sender's record knows: topic, tags, when it was stored.

    Consumers do not record the topic; where the sender left no record, it is null.
    """
    known = messages.where(F.col("success")).select(
        "msg_id", "topic", "tags", "stored", "send_kind"
    )
    return calls.join(known.dropDuplicates(["msg_id"]), ["msg_id"], "left")


def send_costs(messages: DataFrame) -> DataFrame:
    """Per topic, group and client: how many were sent, how many failed, what a send cost."""
    return messages.groupBy("topic", "group", "client").agg(
        F.count("*").alias("sent"),
        F.count_if(~F.col("success")).alias("failed"),
        F.sum("body_bytes").alias("body_bytes"),
        *spread("cost_ms", "cost_"),
    ).orderBy(F.desc("cost_p99"))  # fmt: skip


def waits(calls: DataFrame) -> DataFrame:
    """Per topic, group and client: from the store to the first delivery.

    Delayed and transactional messages wait on purpose and do not count. ``backwards`` counts
    deliveries that seem to be before the store: clocks of two machines differ.
    """
    first = Window.partitionBy("msg_id", "group").orderBy("begun", "request_id")
    begun = calls.where(F.col("begun").isNotNull() & F.col("stored").isNotNull())
    begun = begun.where(~F.col("send_kind").isin(*ON_PURPOSE))
    begun = begun.withColumn("turn", F.row_number().over(first)).where("turn = 1 AND retries = 0")
    wait = F.unix_millis("begun") - F.unix_millis("stored")
    return begun.withColumn("wait_ms", wait).groupBy("topic", "group", "client").agg(
        F.count("*").alias("messages"),
        *spread("wait_ms", "wait_"),
        F.count_if(F.col("wait_ms") < 0).alias("backwards"),
    ).orderBy(F.desc("wait_p99"))  # fmt: skip


def handler_costs(calls: DataFrame) -> DataFrame:
    """Per topic, group and client: how often handlers were called, how it ended, what it cost."""
    ends = [F.count_if(F.col("end") == end).alias(end.lower()) for end in ENDS if end != "SUCCESS"]
    return calls.groupBy("topic", "group", "client").agg(
        F.count("*").alias("deliveries"),
        F.count_if(F.col("success")).alias("succeeded"),
        *ends,
        F.count_if(F.col("ended").isNull()).alias("unended"),
        F.count_if(F.col("retries") > 0).alias("retried"),
        *spread("cost_ms", "cost_"),
    ).orderBy(F.desc("cost_p99"))  # fmt: skip


def not_consumed(
    messages: DataFrame, calls: DataFrame, records: DataFrame, *, settle_s: int
) -> DataFrame:
    """Messages that were sent and that a group did not handle successfully.

    A group counts for a topic and tag if the traces show that it got any such message: only so is
    it known what it subscribes to. Messages of the last ``settle_s`` seconds, delayed ones, and
    transactions that were not committed are not expected anywhere yet.
    """
    due = _due(messages, records, settle_s)
    groups = calls.where(F.col("topic").isNotNull()).select("topic", "tags", "group").distinct()
    same_tag = due["tags"].eqNullSafe(groups["tags"])
    expected = due.join(groups, (due["topic"] == groups["topic"]) & same_tag, "left").select(
        "msg_id", due["topic"], due["tags"], "keys", "sent_by", groups["group"], "time"
    )
    tried = calls.groupBy("msg_id", "group").agg(
        F.max(F.coalesce("success", F.lit(False))).alias("handled"),
        F.count("*").alias("deliveries"),
        F.max_by("end", "begun").alias("last_end"),
    )
    found = expected.join(tried, ["msg_id", "group"], "left")
    reason = (
        F.when(F.col("group").isNull(), "no group is seen to consume it")
        .when(F.col("deliveries").isNull(), "never delivered")
        .when(F.col("last_end").isNull(), "delivered, no end recorded")
        .otherwise("every delivery failed")
    )
    return found.where(~F.coalesce("handled", F.lit(False))).select(
        "topic", "group", reason.alias("reason"), "msg_id", "tags", "keys", "sent_by",
        F.col("time").alias("sent"), "deliveries", "last_end",
    )  # fmt: skip


def not_consumed_counts(missing: DataFrame) -> DataFrame:
    """Per topic, group and reason: how many messages that are, and from when."""
    return missing.groupBy("topic", "group", "reason").agg(
        F.count("*").alias("messages"),
        F.min("sent").alias("first_sent"),
        F.max("sent").alias("last_sent"),
        F.min("msg_id").alias("example"),
    ).orderBy(F.desc("messages"))  # fmt: skip


def consumed_twice(calls: DataFrame) -> DataFrame:
    """Messages that one group handled successfully more than once."""
    done = calls.where("success").groupBy("topic", "group", "msg_id").agg(
        F.countDistinct("request_id").alias("times"),
        F.min("ended").alias("first"),
        F.max("ended").alias("last"),
        F.array_join(F.sort_array(F.collect_set("client")), ", ").alias("clients"),
    )  # fmt: skip
    return done.where("times > 1").orderBy(F.desc("times"), "first")


def timeline(messages: DataFrame, calls: DataFrame) -> DataFrame:
    """Per minute: what was sent and handled, and how long it took."""
    sends = messages.select(_minute("time"), F.lit("sent").alias("what"), F.col("cost_ms"))
    done = calls.where("success").select(
        _minute("ended"), F.lit("handled").alias("what"), F.col("cost_ms")
    )
    failed = calls.where(~F.col("success")).select(
        _minute("ended"), F.lit("failed").alias("what"), F.col("cost_ms")
    )
    every = sends.unionByName(done).unionByName(failed).where(F.col("minute").isNotNull())
    return every.groupBy("minute", "what").agg(
        F.count("*").alias("messages"), *spread("cost_ms", "cost_")
    ).orderBy("minute", "what")  # fmt: skip


def transactions(records: DataFrame) -> DataFrame:
    """Per topic and group: how transactions ended, and how many only when the broker asked."""
    ended = records.where((F.col("kind") == END) & F.col("problem").isNull())
    return ended.groupBy("topic", "group", "state").agg(
        F.count("*").alias("transactions"), F.count_if("from_check").alias("asked")
    ).orderBy("topic", "group", "state")  # fmt: skip


def unreadable(records: DataFrame) -> DataFrame:
    """Records that could not be read, with where the message is that has them."""
    return records.where(F.col("problem").isNotNull()).select(
        F.col("trace_topic").alias("topic"), F.col("trace_broker").alias("broker_name"),
        F.col("trace_queue").alias("queue_id"), F.col("trace_offset").alias("queue_offset"),
        "problem", F.substring("record", 1, 200).alias("record"),
    )  # fmt: skip


def spread(column: str, prefix: str) -> Sequence[Column]:
    """Give the percentiles and the maximum of a column, named after the prefix."""
    shares = [
        F.percentile_approx(column, share, ACCURACY).alias(f"{prefix}{name}")
        for name, share in PERCENTILES
    ]
    return [*shares, F.max(column).alias(f"{prefix}max")]


def _before(records: DataFrame) -> DataFrame:
    return records.where(F.col("kind") == BEFORE).select(
        "request_id", "msg_id", F.col("time").alias("begun"), "retries",
        F.col("group").alias("before_group"), F.col("client").alias("before_client"),
    )  # fmt: skip


def _after(records: DataFrame) -> DataFrame:
    return records.where(F.col("kind") == AFTER).select(
        "request_id", "msg_id", F.col("time").alias("ended"), "cost_ms", "success", "end",
        F.col("group").alias("after_group"), F.col("client").alias("after_client"),
    )  # fmt: skip


def _due(messages: DataFrame, records: DataFrame, settle_s: int) -> DataFrame:
    """Messages that every subscribed group should have handled by the end of the traces."""
    committed = records.where(
        (F.col("kind") == END) & (F.col("state") == LocalState.COMMIT.value)
    ).select("msg_id", F.lit(True).alias("committed")).distinct()  # fmt: skip
    last = records.agg(F.max("time").alias("last"))
    known = messages.where("success").join(committed, ["msg_id"], "left")
    whole = (F.col("send_kind") != HALF) | F.coalesce("committed", F.lit(False))
    old = F.col("time") <= F.col("last") - F.make_dt_interval(secs=F.lit(settle_s))
    due = known.crossJoin(F.broadcast(last)).where(old & whole & (F.col("send_kind") != DELAYED))
    return due.dropDuplicates(["msg_id"]).withColumnRenamed("group", "sent_by")


def _minute(time: str) -> Column:
    return F.date_trunc("minute", time).alias("minute")
