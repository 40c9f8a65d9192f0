"""The records in the messages of a trace topic, as rows.

    text   := { record 0x02 }
    record := kind { 0x01 field }

Spark splits the texts itself: no row passes through Python. How many fields a record has depends
on the client that wrote it, so what comes last is found by the number of fields. A record that
cannot be read keeps its text in ``problem``. All of it works on streams as well.

Source: TraceDataEncoder, RocketMQ 4.9 and 5.3.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name that Spark's documentation uses

from cometmq.client.hooks import ConsumeEnd

PUBLISH, BEFORE, AFTER = "Pub", "SubBefore", "SubAfter"
END, RECALL = "EndTransaction", "Recall"
RECORD_END, FIELD_END = "\x02", "\x01"

FIELDS_MIN: Mapping[str, int] = {PUBLISH: 13, BEFORE: 8, AFTER: 6, END: 13, RECALL: 7}
"""Fields a record of each kind has at least, its kind included."""
_PUBLISH_WITHOUT_ID = 13

ENDS = tuple(end.name for end in sorted(ConsumeEnd))
"""How the call of a handler ended, by the number in the record."""


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
    texts = F.split(F.col("body").cast("string"), RECORD_END)
    rows = messages.select(
        F.col("topic").alias("trace_topic"),
        F.col("broker_name").alias("trace_broker"),
        F.col("queue_id").alias("trace_queue"),
        F.col("queue_offset").alias("trace_offset"),
        F.col("store_timestamp").alias("stored"),
        F.explode(texts).alias("record"),
    ).where(F.col("record") != "")
    fields = rows.withColumn("f", F.split("record", FIELD_END)).withColumn("kind", _field(0))
    read = fields.select("*", *_columns())
    return _one_per_message(_with_problem(read)).drop("f", "stored")


def client_of(unique_id: Column) -> Column:
    """Give ``address@process`` out of a client's unique id; null if it is not one."""
    v4 = F.length(unique_id) == 32
    v6 = F.length(unique_id) == 56
    octets = [_number(F.substring(unique_id, place, 2)) for place in (1, 3, 5, 7)]
    parts = [F.lower(F.substring(unique_id, place, 4)) for place in range(1, 33, 4)]
    address4, address6 = F.concat_ws(".", *octets), F.concat_ws(":", *parts)
    named = (
        F.when(v4, F.concat(address4, F.lit("@"), _number(F.substring(unique_id, 9, 4))))
        .when(v6, F.concat(address6, F.lit("@"), _number(F.substring(unique_id, 33, 4))))
        .otherwise(None)
    )
    return F.when(unique_id.rlike("^[0-9A-F]+$"), named)


def _field(place: int) -> Column:
    """A field of the record; null beyond its end and where the text says null."""
    found = F.get(F.col("f"), F.lit(place))
    return F.when(found == "null", None).otherwise(found)


def _of_kind(places: Mapping[str, int]) -> Column:
    """The field that lies elsewhere in each kind of record."""
    return F.coalesce(
        *(F.when(F.col("kind") == kind, _field(place)) for kind, place in places.items())
    )


def _columns() -> list[Column]:
    begins = F.col("kind").isin(PUBLISH, BEFORE, END, RECALL)
    time = F.when(begins, _field(1)).when(F.col("kind") == AFTER, _field(7))
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
        F.when(F.col("kind") == PUBLISH, _field(14)).alias("client"),
        _as_int({BEFORE: 6}).alias("retries"),
        _end().alias("end"),
        (_of_kind({END: 12}) == "true").alias("from_check"),
    ]


def _as_int(places: Mapping[str, int]) -> Column:
    return _of_kind(places).try_cast("bigint")


def _time(text: Column) -> Column:
    """Milliseconds as a time; records of the cloud form have none, so their message's is taken."""
    known = F.when(text.try_cast("bigint") > 0, F.timestamp_millis(text.try_cast("bigint")))
    return F.coalesce(known, F.col("stored"))


def _offset_id() -> Column:
    has_one = (F.col("kind") == PUBLISH) & (F.size("f") > _PUBLISH_WITHOUT_ID)
    return F.when(has_one, _field(12))


def _success() -> Column:
    short = (F.col("kind") == PUBLISH) & (F.size("f") <= _PUBLISH_WITHOUT_ID)
    return F.when(short, _field(12) == "true").otherwise(
        _of_kind({PUBLISH: 13, AFTER: 4, RECALL: 6}) == "true"
    )


def _end() -> Column:
    """How a handler's call ended; clients before 4.4 wrote only whether it did well."""
    names = F.array(*map(F.lit, ENDS))
    number = F.coalesce(_field(6).try_cast("int"), F.when(_field(4) == "true", 0).otherwise(4))
    return F.when(F.col("kind") == AFTER, F.get(names, number))


def _with_problem(read: DataFrame) -> DataFrame:
    """Say what is wrong with a record of a kind we know."""
    problem = F.lit(None).cast("string")
    for kind, fields_min in FIELDS_MIN.items():
        cut = (F.col("kind") == kind) & (F.size("f") < fields_min)
        told = F.format_string(f"a {kind} record of %d fields: at least {fields_min} expected",
                               F.size("f"))  # fmt: skip
        problem = F.when(cut, told).otherwise(problem)
    for kind, name in ((PUBLISH, "cost_ms"), (AFTER, "cost_ms"), (BEFORE, "retries")):
        wrong = (F.col("kind") == kind) & F.col(name).isNull() & problem.isNull()
        problem = F.when(wrong, F.lit(f"a {kind} record whose {name} is no number")).otherwise(
            problem
        )
    known = F.col("kind").isin(*FIELDS_MIN)
    return read.withColumn("problem", F.when(known, problem).otherwise("a record of no known kind"))


def _one_per_message(read: DataFrame) -> DataFrame:
    """Batches are recorded once, with the ids of all their messages."""
    ids = F.coalesce(F.split("msg_id", ","), F.array(F.lit(None).cast("string")))
    single = read.withColumn("msg_id", F.explode(ids))
    source = F.when(F.col("kind").isin(BEFORE, AFTER), F.col("request_id"))
    client = F.coalesce("client", client_of(F.coalesce(source, F.col("msg_id"))))
    return single.withColumn("client", client)


def _number(digits: Column) -> Column:
    return F.conv(digits, 16, 10)
