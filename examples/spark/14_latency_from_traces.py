"""Print the latencies of messages, and what was not consumed or consumed twice, from traces.

    text   := { record 0x02 }
    record := kind { 0x01 field }

Spark splits the texts itself: no row passes through Python. How many fields a record has depends
on the client that wrote it, so what comes last is found by the number of fields. A delivery is the
record before a handler's call, joined with the one after it by request and message id. What was
sent is joined to deliveries by message id, because consumers do not record the topic.

Source: TraceDataEncoder, RocketMQ 4.9 and 5.3.
Run: ``python examples/spark/14_latency_from_traces.py [name server] [trace topic]``.
"""

import sys
from collections.abc import Mapping

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f

from cometmq.client.handlers import LocalState
from cometmq.client.hooks import ConsumeEnd, SendKind
from cometmq.spark.sessions import local_session

PUBLISH, BEFORE, AFTER = "Pub", "SubBefore", "SubAfter"
END, RECALL = "EndTransaction", "Recall"
RECORD_END, FIELD_END = "\x02", "\x01"

FIELDS_MIN: Mapping[str, int] = {PUBLISH: 13, BEFORE: 8, AFTER: 6, END: 13, RECALL: 7}
"""Fields a record of each kind has at least, its kind included."""
_PUBLISH_WITHOUT_ID = 13

ENDS = tuple(end.name for end in sorted(ConsumeEnd))
"""How the call of a handler ended, by the number in the record."""
HALF, DELAYED = int(SendKind.TRANSACTION_HALF), int(SendKind.DELAYED)
WAIT_ON_PURPOSE = (HALF, int(SendKind.TRANSACTION_COMMIT), DELAYED)
"""Kinds of messages that wait because they should."""
ACCURACY = 10_000
"""A percentile's rank is off by one in this many at most."""


def records(messages: DataFrame) -> DataFrame:
    """Return one row per record and message id of a trace topic; also of a stream.

    Columns: ``kind``, ``time``, ``region``, ``group``, ``topic``, ``request_id``, ``msg_id``,
    ``tags``, ``keys``, ``store_host``, ``body_bytes``, ``cost_ms``, ``send_kind``,
    ``offset_msg_id``, ``success``, ``client``, ``retries``, ``end``, ``transaction_id``,
    ``state``, ``from_check``, ``problem``, and where the trace message is: ``trace_topic``,
    ``trace_broker``, ``trace_queue``, ``trace_offset``.

    A record of a batch gives a row per message. ``client`` is the address that the record names,
    else the ``address@process`` that the sender's ids are made of. A record that cannot be read
    keeps its text in ``record``, and ``problem`` says what is wrong with it.

    Args:
        messages: rows of the topic, as any source gives them.
    """
    texts = f.split(f.col("body").cast("string"), RECORD_END)
    rows = messages.select(
        f.col("topic").alias("trace_topic"),
        f.col("broker_name").alias("trace_broker"),
        f.col("queue_id").alias("trace_queue"),
        f.col("queue_offset").alias("trace_offset"),
        f.col("store_timestamp").alias("stored"),
        f.explode(texts).alias("record"),
    ).where(f.col("record") != "")
    split = rows.withColumn("fields", f.split("record", FIELD_END)).withColumn("kind", _field(0))
    read = split.select("*", *_columns())
    return _one_per_message(_with_problem(read)).drop("fields", "stored")


def client_of(unique_id: Column) -> Column:
    """Give ``address@process`` out of a client's unique id; null if it is not one."""
    v4 = f.length(unique_id) == 32
    v6 = f.length(unique_id) == 56
    octets = [_number(f.substring(unique_id, place, 2)) for place in (1, 3, 5, 7)]
    parts = [f.lower(f.substring(unique_id, place, 4)) for place in range(1, 33, 4)]
    address4, address6 = f.concat_ws(".", *octets), f.concat_ws(":", *parts)
    named = (
        f.when(v4, f.concat(address4, f.lit("@"), _number(f.substring(unique_id, 9, 4))))
        .when(v6, f.concat(address6, f.lit("@"), _number(f.substring(unique_id, 33, 4))))
        .otherwise(None)
    )
    return f.when(unique_id.rlike("^[0-9A-F]+$"), named)


def _field(place: int) -> Column:
    """A field of the record; null beyond its end and where the text says null."""
    found = f.get(f.col("fields"), f.lit(place))
    return f.when(found == "null", None).otherwise(found)


def _of_kind(places: Mapping[str, int]) -> Column:
    """The field that lies elsewhere in each kind of record."""
    return f.coalesce(
        *(f.when(f.col("kind") == kind, _field(place)) for kind, place in places.items())
    )


def _columns() -> list[Column]:
    begins = f.col("kind").isin(PUBLISH, BEFORE, END, RECALL)
    time = f.when(begins, _field(1)).when(f.col("kind") == AFTER, _field(7))
    texts = {
        "region": {PUBLISH: 2, BEFORE: 2, END: 2, RECALL: 2},
        "group": {PUBLISH: 3, BEFORE: 3, END: 3, RECALL: 3, AFTER: 8},
        "topic": {PUBLISH: 4, END: 4, RECALL: 4},
        "request_id": {BEFORE: 4, AFTER: 1},
        "msg_id": {PUBLISH: 5, BEFORE: 5, END: 5, RECALL: 5, AFTER: 2},
        "tags": {PUBLISH: 6, END: 6},
        "keys": {PUBLISH: 7, BEFORE: 7, END: 7, AFTER: 5},
        "store_host": {PUBLISH: 8, END: 8},
        "transaction_id": {END: 10},
        "state": {END: 11},
    }
    return [
        _time(time).alias("time"),
        *(_of_kind(places).alias(name) for name, places in texts.items()),
        _as_int({PUBLISH: 9}).alias("body_bytes"),
        _as_int({PUBLISH: 10, AFTER: 3}).alias("cost_ms"),
        _as_int({PUBLISH: 11, END: 9}).alias("send_kind"),
        _offset_id().alias("offset_msg_id"),
        _success().alias("success"),
        f.when(f.col("kind") == PUBLISH, _field(14)).alias("client"),
        _as_int({BEFORE: 6}).alias("retries"),
        _end().alias("end"),
        (_of_kind({END: 12}) == "true").alias("from_check"),
    ]


def _as_int(places: Mapping[str, int]) -> Column:
    return _of_kind(places).try_cast("bigint")


def _time(text: Column) -> Column:
    """Milliseconds as a time; records of the cloud form have none, so their message's is taken."""
    known = f.when(text.try_cast("bigint") > 0, f.timestamp_millis(text.try_cast("bigint")))
    return f.coalesce(known, f.col("stored"))


def _offset_id() -> Column:
    has_one = (f.col("kind") == PUBLISH) & (f.size("fields") > _PUBLISH_WITHOUT_ID)
    return f.when(has_one, _field(12))


def _success() -> Column:
    short = (f.col("kind") == PUBLISH) & (f.size("fields") <= _PUBLISH_WITHOUT_ID)
    return f.when(short, _field(12) == "true").otherwise(
        _of_kind({PUBLISH: 13, AFTER: 4, RECALL: 6}) == "true"
    )


def _end() -> Column:
    """How a handler's call ended; clients before 4.4 wrote only whether it did well."""
    names = f.array(*map(f.lit, ENDS))
    number = f.coalesce(_field(6).try_cast("int"), f.when(_field(4) == "true", 0).otherwise(4))
    return f.when(f.col("kind") == AFTER, f.get(names, number))


def _with_problem(read: DataFrame) -> DataFrame:
    """Say what is wrong with a record of a kind we know."""
    problem = f.lit(None).cast("string")
    for kind, fields_min in FIELDS_MIN.items():
        cut = (f.col("kind") == kind) & (f.size("fields") < fields_min)
        told = f.format_string(f"a {kind} record of %d fields: at least {fields_min} expected",
                               f.size("fields"))  # fmt: skip
        problem = f.when(cut, told).otherwise(problem)
    for kind, name in ((PUBLISH, "cost_ms"), (AFTER, "cost_ms"), (BEFORE, "retries")):
        wrong = (f.col("kind") == kind) & f.col(name).isNull() & problem.isNull()
        problem = f.when(wrong, f.lit(f"a {kind} record whose {name} is no number")).otherwise(
            problem
        )
    known = f.col("kind").isin(*FIELDS_MIN)
    return read.withColumn("problem", f.when(known, problem).otherwise("a record of no known kind"))


def _one_per_message(read: DataFrame) -> DataFrame:
    """Batches are recorded once, with the ids of all their messages."""
    ids = f.coalesce(f.split("msg_id", ","), f.array(f.lit(None).cast("string")))
    single = read.withColumn("msg_id", f.explode(ids))
    source = f.when(f.col("kind").isin(BEFORE, AFTER), f.col("request_id"))
    client = f.coalesce("client", client_of(f.coalesce(source, f.col("msg_id"))))
    return single.withColumn("client", client)


def _number(digits: Column) -> Column:
    return f.conv(digits, 16, 10)


def deliveries(records: DataFrame) -> DataFrame:
    """Return one row per call of a handler and message, with its end if that is recorded."""
    before, after = _before(_good(records)), _after(_good(records))
    joined = before.join(after, ["request_id", "msg_id"], "full_outer")
    return joined.select(
        "request_id", "msg_id", f.coalesce("before_group", "after_group").alias("group"),
        f.coalesce("before_client", "after_client").alias("client"),
        "begun", "ended", "retries", "cost_ms", "success", "end",
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
        ~f.col("send_kind").isin(*WAIT_ON_PURPOSE)
    )
    waits = waits.withColumn("turn", f.row_number().over(first)).where("turn = 1 AND retries = 0")
    wait_ms = f.unix_millis("begun") - f.unix_millis("stored")
    steps = (
        _step("send", sent, f.col("cost_ms"), ~f.col("success")),
        _step("wait", waits, wait_ms, f.lit(False)),
        _step("handle", calls, f.col("cost_ms"), ~f.col("success")),
    )
    every = steps[0].unionByName(steps[1]).unionByName(steps[2])
    shares = (("p50", 0.5), ("p90", 0.9), ("p99", 0.99))
    return every.groupBy("step", "topic", "group", "client").agg(
        f.count("*").alias("count"),
        f.count_if("failed").alias("failed"),
        f.min("ms").alias("min"),
        *(f.percentile_approx("ms", share, ACCURACY).alias(name) for name, share in shares),
        f.max("ms").alias("max"),
    )


def unconsumed(records: DataFrame, *, settle_s: int = 60) -> DataFrame:
    """Return the messages that were sent and that a group did not handle successfully.

    A group is expected to consume a topic and tag if it got such a message: traces do not have
    subscriptions. ``reason`` is ``no group consumes it``, ``never delivered``, ``no end recorded``
    or ``every delivery failed``. Delayed messages, and transactions that were not committed, are
    not expected anywhere.

    Args:
        records: rows of `records`.
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
        f.max(f.coalesce("success", f.lit(False))).alias("handled"),
        f.count("*").alias("deliveries"),
        f.max_by("end", "begun").alias("last_end"),
    )
    reason = (
        f.when(f.col("group").isNull(), "no group consumes it")
        .when(f.col("deliveries").isNull(), "never delivered")
        .when(f.col("last_end").isNull(), "no end recorded")
        .otherwise("every delivery failed")
    )
    found = expected.join(tried, ["msg_id", "group"], "left")
    return found.where(~f.coalesce("handled", f.lit(False))).select(
        "topic", "group", reason.alias("reason"), "msg_id", "tags", "keys", "sent_by",
        f.col("time").alias("sent"), "deliveries", "last_end",
    )  # fmt: skip


def consumed_twice(records: DataFrame) -> DataFrame:
    """Return the messages that one group handled successfully more than once."""
    done = _with_topics(records).where("success").groupBy("topic", "group", "msg_id").agg(
        f.countDistinct("request_id").alias("times"),
        f.min("ended").alias("first"),
        f.max("ended").alias("last"),
        f.sort_array(f.collect_set("client")).alias("clients"),
    )  # fmt: skip
    return done.where("times > 1")


def _good(records: DataFrame) -> DataFrame:
    """Leave out unreadable records, and those that were stored twice as after a repeated send."""
    return records.where("problem IS NULL").dropDuplicates(["record", "msg_id"])


def _sent(records: DataFrame) -> DataFrame:
    """What producers have sent; the broker stored it in the middle of the send."""
    stored_ms = f.unix_millis("time") + f.col("cost_ms") / 2
    return _good(records).where(f.col("kind") == PUBLISH).select(
        "msg_id", "topic", "tags", "keys", "group", "client", "time", "cost_ms", "send_kind",
        "success", f.timestamp_millis(stored_ms.cast("bigint")).alias("stored"),
    )  # fmt: skip


def _with_topics(records: DataFrame) -> DataFrame:
    known = _sent(records).where("success").dropDuplicates(["msg_id"])
    known = known.select("msg_id", "topic", "tags", "stored", "send_kind")
    return deliveries(records).join(known, ["msg_id"], "left")


def _step(name: str, rows: DataFrame, ms: Column, failed: Column) -> DataFrame:
    return rows.select(
        f.lit(name).alias("step"), "topic", "group", "client", ms.alias("ms"),
        failed.alias("failed"),
    )  # fmt: skip


def _before(records: DataFrame) -> DataFrame:
    return records.where(f.col("kind") == BEFORE).select(
        "request_id", "msg_id", f.col("time").alias("begun"), "retries",
        f.col("group").alias("before_group"), f.col("client").alias("before_client"),
    )  # fmt: skip


def _after(records: DataFrame) -> DataFrame:
    return records.where(f.col("kind") == AFTER).select(
        "request_id", "msg_id", f.col("time").alias("ended"), "cost_ms", "success", "end",
        f.col("group").alias("after_group"), f.col("client").alias("after_client"),
    )  # fmt: skip


def _due(records: DataFrame, settle_s: int) -> DataFrame:
    """Messages that every group should have handled by the end of the traces."""
    is_commit = (f.col("kind") == END) & (f.col("state") == LocalState.COMMIT.value)
    committed = records.where(is_commit).select("msg_id").distinct()
    committed = committed.withColumn("committed", f.lit(True))
    known = _sent(records).where("success").join(committed, ["msg_id"], "left")
    whole = (f.col("send_kind") != HALF) | f.coalesce("committed", f.lit(False))
    old = f.col("time") <= f.col("last") - f.make_dt_interval(secs=f.lit(settle_s))
    last = f.broadcast(records.agg(f.max("time").alias("last")))
    due = known.crossJoin(last).where(old & whole & (f.col("send_kind") != DELAYED))
    return due.dropDuplicates(["msg_id"]).withColumnRenamed("group", "sent_by")


def main(name_server: str = "127.0.0.1:9876", trace_topic: str = "RMQ_SYS_TRACE_TOPIC") -> None:
    spark = local_session()
    reader = spark.read.format("rocketmq").option("nameServer", name_server)
    found = records(reader.option("subscribe", trace_topic).load()).cache()
    for row in latencies(found).orderBy("step", f.desc("p99")).collect():
        print(
            f"{row.step} {row.topic} by {row.group}: {row['count']} in {row.p50} ms (p50),"
            f" {row.p99} ms (p99), {row.failed} failed"
        )
    lost = unconsumed(found).groupBy("topic", "group", "reason").count()
    for row in lost.orderBy("topic", "group", "reason").collect():
        print(f"{row['count']} messages of {row.topic} not consumed by {row.group}: {row.reason}")
    print(f"{consumed_twice(found).count()} messages consumed twice")


if __name__ == "__main__":
    main(*sys.argv[1:])
