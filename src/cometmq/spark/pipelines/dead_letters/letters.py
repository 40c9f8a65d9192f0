"""Dead letters as rows: group, time, error, and properties that they share.

A dead letter lies in ``%DLQ%group``. It keeps the topic it was sent to in ``RETRY_TOPIC`` and the
broker's id of the first copy in ``ORIGIN_MESSAGE_ID``; its own unique id is that of the message.
Where our own client gave up, ``CONSUME_ERROR`` says what its handler raised last.
Copies that waited for another try lie in ``%RETRY%group`` and say the same of themselves.

The properties are those that RocketMQ's brokers and clients set.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - everybody calls it so

from cometmq.model import property_names as names
from cometmq.model.dead_letter import (
    CONSUME_ERROR,
    CONSUME_ERROR_TIME_MS,
    CONSUME_RETRIES,
    ORIGINAL_ID,
    ORIGINAL_TOPIC,
    RESENT_FROM,
    RESENT_TIME_MS,
    SENT_AGAIN,
)
from cometmq.model.topic import DLQ_PREFIX, RETRY_PREFIX
from cometmq.spark.pipelines.trace.records import client_of

LETTER_COLUMNS = (
    "topic", "broker_name", "queue_id", "queue_offset", "msg_id", "offset_msg_id", "tags", "keys",
    "body", "born_timestamp", "store_timestamp", "reconsume_times", "properties",
)  # fmt: skip
"""What is read of each message."""

PATTERN_CHARS = 160
_TEXT_CHARS = 1_000
_VALUE_CHARS = 60
_REPLACED = (
    (r"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}", "<uuid>"),
    (r"\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d([.,]\d+)?)?(Z|[+-]\d\d:?\d\d)?)?", "<time>"),
    (r'(:\s*)"(?!<time>|<uuid>)[^"]+"', r'$1"<text>"'),
    (r"(?<![\w.<-])-\d+(\.\d+)?(?![\w.])", "<negative>"),
    (r"(?<![\w.])\d+(\.\d+)?(?![\w.])", "<n>"),
    (r"\b(?=[0-9a-fA-F]*\d)[0-9a-fA-F]{8,}\b", "<hex>"),
    (r"\d+", "<n>"),
    (r"\s+", " "),
)
"""What differs from message to message, and what stands for it in a pattern."""


def letters(messages: DataFrame) -> DataFrame:
    """Give the dead letters among messages."""
    return _copies(messages, DLQ_PREFIX).select(
        "group", "origin_topic", "origin_id", "msg_id", "tags", "keys", "broker_name",
        F.col("topic").alias("dead_topic"), "queue_id", "queue_offset",
        F.col("born_timestamp").alias("born"), F.col("store_timestamp").alias("died"),
        "reconsume_times", "body", "properties", pattern(F.col("body")).alias("pattern"),
        F.col("properties")[CONSUME_ERROR].alias("error"),
        _abstract(F.col("properties")[CONSUME_ERROR]).alias("error_pattern"),
    )  # fmt: skip


def retries(messages: DataFrame) -> DataFrame:
    """Give the copies among messages that waited for another try.

    Where ``sent_again`` is set, the copy is the first one of the dead letter with this id, which
    was sent again to its group: it is no retry.
    """
    first = F.col("reconsume_times") == 0
    return _copies(messages, RETRY_PREFIX).select(
        "group", "origin_topic", "origin_id", "msg_id", "tags",
        F.col("store_timestamp").alias("tried"), "reconsume_times",
        F.when(first, F.col("properties")[SENT_AGAIN]).alias("sent_again"),
    )  # fmt: skip


def pattern(body: Column) -> Column:
    """Give what bodies of one kind have in common: numbers, ids, times and texts are replaced."""
    size = F.length(body)
    return (
        F.when(body.isNull() | (size == 0), "(empty)")
        .when(
            ~F.is_valid_utf8(body.cast("string")), F.concat(F.lit("(binary) "), _size_class(size))
        )
        .otherwise(_abstract(body.cast("string")))
    )


def facts(messages: DataFrame) -> DataFrame:
    """Add to each message a column ``facts``: what can be said of it in one comparison.

    They are its tag, its sender, its own properties, and the fields of its body where that is a
    JSON object: their values if those are short, their absence of content, and their sign.
    """
    fields = F.from_json(F.col("body").cast("string"), "map<string,string>")
    own = F.map_filter("properties", lambda name, _: ~name.isin(*sorted(_SYSTEM_PROPERTIES)))
    said = [
        F.array(F.concat(F.lit("tag = "), F.coalesce("tags", F.lit("(none)")))),
        F.array(F.concat(F.lit("sender = "), F.coalesce(client_of(F.col("msg_id")), F.lit("?")))),
        F.when(F.length("body") == 0, F.array(F.lit("the body is empty"))),
        F.transform(F.map_entries(own), lambda each: _equal("property ", each)),
        F.transform(F.map_entries(fields), lambda each: _equal("", each)),
        F.transform(F.map_entries(fields), _sign),
        F.transform(F.map_keys(fields), lambda name: F.concat(F.lit("has "), name)),
        F.when(fields.isNull(), F.array(F.lit("the body is no JSON object"))),
    ]
    nothing = F.array().cast("array<string>")
    every = F.flatten(F.array(*(F.coalesce(each, nothing) for each in said)))
    return messages.withColumn("facts", F.array_distinct(F.array_compact(every)))


_SYSTEM_PROPERTIES = {
    *names.RESERVED,
    names.TRACE_ON,
    names.MSG_REGION,
    names.MAX_RECONSUME_TIMES,
    names.TRANSACTION_ID,
    names.SHARDING_KEY,
    CONSUME_ERROR,
    CONSUME_ERROR_TIME_MS,
    CONSUME_RETRIES,
    RESENT_FROM,
    RESENT_TIME_MS,
    SENT_AGAIN,
}


def _copies(messages: DataFrame, prefix: str) -> DataFrame:
    """The messages of topics with this prefix, with the group and where they come from."""

    def property_of(*keys: str) -> Column:
        return F.coalesce(*(F.col("properties")[key] for key in keys))

    return messages.where(F.col("topic").startswith(prefix)).select(
        "*",
        F.substring("topic", len(prefix) + 1, 1000).alias("group"),
        property_of(*ORIGINAL_TOPIC).alias("origin_topic"),
        property_of(*ORIGINAL_ID).alias("origin_id"),
    )


def _abstract(text: Column) -> Column:
    """A text with numbers, ids, times and quoted values replaced."""
    text = F.substring(text, 1, _TEXT_CHARS)
    for expression, instead in _REPLACED:
        text = F.regexp_replace(text, expression, instead)
    return F.substring(F.trim(text), 1, PATTERN_CHARS)


def _equal(kind: str, entry: Column) -> Column:
    """``name = value`` of a map's entry, unless the value is long."""
    name, value = entry["key"], entry["value"]
    told = F.concat(F.lit(kind), name, F.lit(" = "), value)
    return F.when(value.isNull(), F.concat(F.lit(kind), name, F.lit(" is null"))).when(
        F.length(value) <= _VALUE_CHARS, told
    )


def _sign(entry: Column) -> Column:
    """``name < 0`` of a number that is."""
    number = entry["value"].try_cast("double")
    return F.when(number < 0, F.concat(entry["key"], F.lit(" < 0")))


def _size_class(size: Column) -> Column:
    """A number of bytes, up to the next power of two."""
    power = F.ceil(F.log2(size.cast("double"))).cast("int")
    return F.concat(F.lit("up to "), F.pow(F.lit(2), power).cast("bigint"), F.lit(" bytes"))
