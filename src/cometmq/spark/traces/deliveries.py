"""Latencies of messages, and messages that were not consumed or were consumed twice.

All functions take the rows of `cometmq.spark.traces.records`. A delivery is the record before a
handler's call, joined with the one after it by request and message id. What was sent is joined to
deliveries by message id, because consumers do not record the topic.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - the name that Spark's documentation uses

from cometmq.client.handlers import LocalState
from cometmq.client.hooks import SendKind
from cometmq.spark.traces.records import AFTER, BEFORE, END, PUBLISH

HALF, DELAYED = int(SendKind.TRANSACTION_HALF), int(SendKind.DELAYED)
WAIT_ON_PURPOSE = (HALF, int(SendKind.TRANSACTION_COMMIT), DELAYED)
"""Kinds of messages that wait because they should."""
ACCURACY = 10_000
"""A percentile's rank is off by one in this many at most."""


def deliveries(records: DataFrame) -> DataFrame:
    """Return one row per call of a handler and message, with its end if that is recorded."""
    before, after = _before(_good(records)), _after(_good(records))
    joined = before.join(after, ["request_id", "msg_id"], "full_outer")
    return joined.select(
        "request_id", "msg_id", F.coalesce("before_group", "after_group").alias("group"),
        F.coalesce("before_client", "after_client").alias("client"),
        "begun", "ended", "retries", "cost_ms", "success", "end",
    )  # fmt: skip


def stream_deliveries(records: DataFrame, *, late: str = "10 minutes") -> DataFrame:
    """Return the same of a stream of records.

    A call whose end does not arrive within ``late`` is returned without an end; an end that arrives
    later is dropped, which bounds the state of the query.
    """
    before = _before(_good(records, stream=True)).withWatermark("begun", late)
    after = _after(_good(records, stream=True)).withWatermark("ended", late)
    after = after.withColumnsRenamed({"request_id": "after_request", "msg_id": "after_msg"})
    interval = F.expr(f"INTERVAL {late}")
    same = (F.col("request_id") == F.col("after_request")) & (F.col("msg_id") == F.col("after_msg"))
    in_time = F.col("ended").between(F.col("begun") - interval, F.col("begun") + interval)
    return before.join(after, same & in_time, "left_outer").select(
        "request_id", "msg_id", F.col("before_group").alias("group"),
        F.col("before_client").alias("client"), "begun", "ended", "retries", "cost_ms", "success",
        "end",
    )  # fmt: skip


def latencies(records: DataFrame) -> DataFrame:
    """Return percentiles in milliseconds per step, topic, group and client.

    ``step`` is ``send`` (the duration of a send), ``wait`` (from the store to the first delivery)
    or ``handle`` (the duration of a handler's call). Delayed and transactional messages wait on
    purpose, so they have no ``wait``. Clocks of two machines differ, so a wait can be below 0.
    """
    sent, calls = _sent(records), _with_topics(records)
    first = Window.partitionBy("msg_id", "group").orderBy("begun", "request_id")
    waits = calls.where("begun IS NOT NULL AND stored IS NOT NULL").where(
        ~F.col("send_kind").isin(*WAIT_ON_PURPOSE)
    )
    waits = waits.withColumn("turn", F.row_number().over(first)).where("turn = 1 AND retries = 0")
    wait_ms = F.unix_millis("begun") - F.unix_millis("stored")
    steps = (
        _step("send", sent, F.col("cost_ms"), ~F.col("success")),
        _step("wait", waits, wait_ms, F.lit(False)),
        _step("handle", calls, F.col("cost_ms"), ~F.col("success")),
    )
    every = steps[0].unionByName(steps[1]).unionByName(steps[2])
    shares = (("p50", 0.5), ("p90", 0.9), ("p99", 0.99))
    return every.groupBy("step", "topic", "group", "client").agg(
        F.count("*").alias("count"),
        F.count_if("failed").alias("failed"),
        F.min("ms").alias("min"),
        *(F.percentile_approx("ms", share, ACCURACY).alias(name) for name, share in shares),
        F.max("ms").alias("max"),
    )


def unconsumed(records: DataFrame, *, settle_s: int = 60) -> DataFrame:
    """Return the messages that were sent and that a group did not handle successfully.

    A group is expected to consume a topic and tag if it got such a message: traces do not have
    subscriptions. ``reason`` is ``no group consumes it``, ``never delivered``, ``no end recorded``
    or ``every delivery failed``. Delayed messages, and transactions that were not committed, are
    not expected anywhere.

    Args:
        records: rows of `cometmq.spark.traces.records`.
        settle_s: messages sent less than this before the last record may not be consumed yet.
    """
    calls = _with_topics(records)
    due = _due(records, settle_s)
    groups = calls.where("topic IS NOT NULL").select("topic", "tags", "group").distinct()
    same = (due["topic"] == groups["topic"]) & due["tags"].eqNullSafe(groups["tags"])
    expected = due.join(groups, same, "left").select(
        "msg_id", due["topic"], due["tags"], "keys", "sent_by", groups["group"], "time"
    )
    tried = calls.groupBy("msg_id", "group").agg(
        F.max(F.coalesce("success", F.lit(False))).alias("handled"),
        F.count("*").alias("deliveries"),
        F.max_by("end", "begun").alias("last_end"),
    )
    reason = (
        F.when(F.col("group").isNull(), "no group consumes it")
        .when(F.col("deliveries").isNull(), "never delivered")
        .when(F.col("last_end").isNull(), "no end recorded")
        .otherwise("every delivery failed")
    )
    found = expected.join(tried, ["msg_id", "group"], "left")
    return found.where(~F.coalesce("handled", F.lit(False))).select(
        "topic", "group", reason.alias("reason"), "msg_id", "tags", "keys", "sent_by",
        F.col("time").alias("sent"), "deliveries", "last_end",
    )  # fmt: skip


def consumed_twice(records: DataFrame) -> DataFrame:
    """Return the messages that one group handled successfully more than once."""
    done = _with_topics(records).where("success").groupBy("topic", "group", "msg_id").agg(
        F.countDistinct("request_id").alias("times"),
        F.min("ended").alias("first"),
        F.max("ended").alias("last"),
        F.sort_array(F.collect_set("client")).alias("clients"),
    )  # fmt: skip
    return done.where("times > 1")


def _good(records: DataFrame, *, stream: bool = False) -> DataFrame:
    """Leave out unreadable records, and those that were stored twice as after a repeated send."""
    good = records.where("problem IS NULL")
    return good if stream else good.dropDuplicates(["record", "msg_id"])


def _sent(records: DataFrame) -> DataFrame:
    """What producers have sent; the broker stored it in the middle of the send."""
    stored_ms = F.unix_millis("time") + F.col("cost_ms") / 2
    return _good(records).where(F.col("kind") == PUBLISH).select(
        "msg_id", "topic", "tags", "keys", "group", "client", "time", "cost_ms", "send_kind",
        "success", F.timestamp_millis(stored_ms.cast("bigint")).alias("stored"),
    )  # fmt: skip


def _with_topics(records: DataFrame) -> DataFrame:
    known = _sent(records).where("success").dropDuplicates(["msg_id"])
    known = known.select("msg_id", "topic", "tags", "stored", "send_kind")
    return deliveries(records).join(known, ["msg_id"], "left")


def _step(name: str, rows: DataFrame, ms: Column, failed: Column) -> DataFrame:
    return rows.select(
        F.lit(name).alias("step"), "topic", "group", "client", ms.alias("ms"),
        failed.alias("failed"),
    )  # fmt: skip


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


def _due(records: DataFrame, settle_s: int) -> DataFrame:
    """Messages that every group should have handled by the end of the traces."""
    is_commit = (F.col("kind") == END) & (F.col("state") == LocalState.COMMIT.value)
    committed = records.where(is_commit).select("msg_id").distinct()
    committed = committed.withColumn("committed", F.lit(True))
    known = _sent(records).where("success").join(committed, ["msg_id"], "left")
    whole = (F.col("send_kind") != HALF) | F.coalesce("committed", F.lit(False))
    old = F.col("time") <= F.col("last") - F.make_dt_interval(secs=F.lit(settle_s))
    last = F.broadcast(records.agg(F.max("time").alias("last")))
    due = known.crossJoin(last).where(old & whole & (F.col("send_kind") != DELAYED))
    return due.dropDuplicates(["msg_id"]).withColumnRenamed("group", "sent_by")
