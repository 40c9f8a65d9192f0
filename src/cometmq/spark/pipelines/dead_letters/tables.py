"""Tables about dead letters: groups, times until the dead letter, shared properties.

A fact is worth telling if it holds for many of a group's dead letters and for few of the messages
that were sent to the same topic: its lift is how many times more often it holds for the dead.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - everybody calls it so

from cometmq.model.dead_letter import SENT_AGAIN
from cometmq.spark.pipelines.dead_letters.letters import facts
from cometmq.spark.pipelines.trace.tables import spread

_EXAMPLE_CHARS = 300
_OF_GROUP = ("group", "origin_topic")


@dataclass(frozen=True)
class Known:
    """What there is besides the dead letters themselves."""

    originals: DataFrame | None = None
    """Messages of the topics they were sent to."""
    calls: DataFrame | None = None
    """Deliveries, from traces."""
    retries: DataFrame | None = None
    """Copies that waited for another try, among them dead letters that were sent again."""


def details(letters: DataFrame, known: Known) -> DataFrame:
    """Give each dead letter with its history.

    ``first_seen`` is when it was first delivered, if traces tell (``first_seen_by`` is then
    ``trace``), else when it was first stored (``store``), else when its sender made it
    (``sender``). ``last_end`` is how the last traced call of a handler ended; ``handled_later``
    and ``sent_again`` are when it was handled successfully, or sent again, after it had died.
    """
    found = _with_first_store(letters, known.originals)
    found = _with_sent_again(found, known)
    found = _with_calls(found, known.calls)
    first = F.coalesce("first_delivered", "first_stored", "born")
    by = (
        F.when(F.col("first_delivered").isNotNull(), "trace")
        .when(F.col("first_stored").isNotNull(), "store")
        .otherwise("sender")
    )
    later = F.when(F.col("last_handled") > F.col("died"), F.col("last_handled"))
    waited = F.unix_millis("died") - F.unix_millis(first)
    return found.select(
        "group", "origin_topic", "tags", "keys", "msg_id", "origin_id", "born",
        first.alias("first_seen"), by.alias("first_seen_by"), "died", waited.alias("waited_ms"),
        "reconsume_times", "deliveries", "last_end", "error", "error_pattern",
        later.alias("handled_later"), "sent_again", "pattern", _shown("body").alias("body"),
        "dead_topic", "broker_name", "queue_id", "queue_offset",
    )  # fmt: skip


def groups(found: DataFrame) -> DataFrame:
    """Per group and topic: how many letters, from when to when, and how long they took to die."""
    return found.groupBy(*_OF_GROUP).agg(
        F.count("*").alias("letters"),
        F.min("died").alias("first"),
        F.max("died").alias("last"),
        *spread("waited_ms", "waited_"),
        F.max("reconsume_times").alias("tries_max"),
        F.count("handled_later").alias("handled_later"),
        F.count("sent_again").alias("sent_again"),
    ).orderBy(F.desc("letters"))  # fmt: skip


def patterns(found: DataFrame) -> DataFrame:
    """Per group and topic: what bodies look like, with their share of the group's letters."""
    counted = found.groupBy(*_OF_GROUP, "pattern").agg(
        F.count("*").alias("letters"),
        F.min("died").alias("first"),
        F.max("died").alias("last"),
        F.min_by("msg_id", "died").alias("example_id"),
        F.min_by("body", "died").alias("example"),
    )
    return _with_share(counted, "letters").orderBy(F.desc("letters"), "pattern")


def reasons(found: DataFrame) -> DataFrame:
    """Per group and topic: what handlers raised last, and how traces say their call ended."""
    counted = found.groupBy(*_OF_GROUP, "error_pattern", "last_end", "tags").agg(
        F.count("*").alias("letters"), F.min("error").alias("example")
    )
    return _with_share(counted, "letters").orderBy(F.desc("letters"))


def retried(known: DataFrame, found: DataFrame) -> DataFrame:
    """Per group and topic: how many messages were tried again, and how many of them died."""
    # Whichever id a copy says its first had, two copies of one message share the message's own id.
    tries = (
        known.where(F.col("sent_again").isNull())
        .groupBy(*_OF_GROUP, "msg_id")
        .agg(F.count("*").alias("tries"), F.max("tried").alias("last_try"))
    )
    dead = found.select(*_OF_GROUP, "msg_id", F.lit(True).alias("died")).distinct()
    return tries.join(dead, [*_OF_GROUP, "msg_id"], "left").groupBy(*_OF_GROUP).agg(
        F.count("*").alias("messages"),
        F.sum("tries").alias("tries"),
        F.count_if("died").alias("died"),
        F.count_if(F.col("died").isNull()).alias("not_died"),
        F.max("last_try").alias("last_try"),
    ).orderBy(F.desc("messages"))  # fmt: skip


def timeline(found: DataFrame) -> DataFrame:
    """Per hour and group: how many letters."""
    hour = F.date_trunc("hour", "died").alias("hour")
    return found.groupBy(hour, "group").agg(F.count("*").alias("letters")).orderBy("hour", "group")


def telling_facts(
    letters: DataFrame, originals: DataFrame | None, *, share_min: float, lift_min: float
) -> DataFrame:
    """Per group and topic: what holds for many dead letters and for few others.

    Without the messages of the topic there is no lift to tell, and the share alone decides.
    """
    dead = _counted(facts(letters), _OF_GROUP, "letters")
    dead = dead.where((F.col("letters") >= 2) & (F.col("share") >= share_min))
    if originals is None:
        nothing = F.lit(None)
        return dead.select(
            "*", nothing.cast("double").alias("share_of_all"), nothing.cast("double").alias("lift")
        ).orderBy(F.desc("share"), "fact")
    every = originals.withColumnRenamed("topic", "origin_topic")
    lived = _counted(facts(every), ("origin_topic",), "messages", only=dead)
    lived = lived.withColumnRenamed("share", "share_of_all")
    lift = F.col("share") / F.col("share_of_all")
    both = dead.join(lived, ["origin_topic", "fact"], "left").withColumn("lift", lift)
    told = both.where(F.coalesce("lift", F.lit(lift_min)) >= lift_min)
    weight = F.col("share") * F.log2(F.coalesce("lift", F.lit(2.0)))
    return told.orderBy(F.desc(weight), "fact").select(
        *_OF_GROUP, "fact", "letters", "share", "share_of_all", "lift"
    )


def _counted(
    with_facts: DataFrame, keys: tuple[str, ...], number: str, only: DataFrame | None = None
) -> DataFrame:
    """How often each fact holds within the keys, and for which share; some facts only."""
    totals = with_facts.groupBy(*keys).agg(F.count("*").alias("total"))
    each = with_facts.select(*keys, F.explode("facts").alias("fact"))
    if only is not None:
        wanted = only.select("origin_topic", "fact").distinct()
        each = each.join(F.broadcast(wanted), ["origin_topic", "fact"], "left_semi")
    counted = each.groupBy(*keys, "fact").agg(F.count("*").alias(number))
    share = (F.col(number) / F.col("total")).alias("share")
    return counted.join(F.broadcast(totals), list(keys)).select(*keys, "fact", number, share)


def _with_first_store(letters: DataFrame, originals: DataFrame | None) -> DataFrame:
    """When the first copy was stored, found by whichever id the letter has of it."""
    if originals is None:
        return letters.withColumn("first_stored", F.lit(None).cast("timestamp"))
    wanted = letters.select(F.explode(_ids("origin_id", "msg_id")).alias("id")).distinct()
    there = originals.where(~_is_sent_again()).select(
        F.explode(_ids("offset_msg_id", "msg_id")).alias("id"), "store_timestamp"
    )
    stored = there.join(F.broadcast(wanted), "id").groupBy("id")
    first = stored.agg(F.min("store_timestamp").alias("stored"))
    by_origin = first.select(F.col("id").alias("origin_id"), F.col("stored").alias("stored_1"))
    by_msg = first.select(F.col("id").alias("msg_id"), F.col("stored").alias("stored_2"))
    return (
        letters.join(F.broadcast(by_origin), "origin_id", "left")
        .join(F.broadcast(by_msg), "msg_id", "left")
        .withColumn("first_stored", F.coalesce("stored_1", "stored_2"))
    )


def _with_sent_again(found: DataFrame, known: Known) -> DataFrame:
    """When a copy was sent to the original topic, or to the group."""
    if known.originals is None:
        return found.withColumn("sent_again", F.lit(None).cast("timestamp"))
    again = known.originals.where(_is_sent_again()).groupBy(
        F.col("properties")[SENT_AGAIN].alias("msg_id")
    ).agg(F.min("store_timestamp").alias("to_topic"))  # fmt: skip
    found = found.join(again, "msg_id", "left").withColumn(
        "to_group", F.lit(None).cast("timestamp")
    )
    if known.retries is not None:
        again = known.retries.groupBy("group", F.col("sent_again").alias("msg_id")).agg(
            F.min("tried").alias("to_group")
        )
        found = found.drop("to_group").join(again, ["group", "msg_id"], "left")
    return found.withColumn("sent_again", F.least("to_topic", "to_group"))


def _with_calls(found: DataFrame, calls: DataFrame | None) -> DataFrame:
    if calls is None:
        return found.select(
            "*",
            F.lit(None).cast("timestamp").alias("first_delivered"),
            F.lit(None).cast("timestamp").alias("last_handled"),
            F.lit(None).cast("bigint").alias("deliveries"),
            F.lit(None).cast("string").alias("last_end"),
        )
    failed = F.when(~F.col("success"), F.col("end"))
    told = calls.groupBy("group", "msg_id").agg(
        F.min("begun").alias("first_delivered"),
        F.max(F.when(F.col("success"), F.col("ended"))).alias("last_handled"),
        F.count("*").alias("deliveries"),
        F.max_by(failed, F.when(failed.isNotNull(), F.col("ended"))).alias("last_end"),
    )
    return found.join(told, ["group", "msg_id"], "left")


def _with_share(counted: DataFrame, number: str) -> DataFrame:
    every = F.sum(number).over(Window.partitionBy(*_OF_GROUP))
    return counted.withColumn("share", F.col(number) / every)


def _ids(first: str, second: str) -> Column:
    return F.array_distinct(F.array_compact(F.array(first, second)))


def _is_sent_again() -> Column:
    return F.coalesce(F.col("properties")[SENT_AGAIN].isNotNull(), F.lit(False))


def _shown(body: str) -> Column:
    """The beginning of a body as text; of one that is none, its beginning in hex."""
    text = F.col(body).cast("string")
    binary = F.concat(F.lit("0x"), F.substring(F.hex(body), 1, _EXAMPLE_CHARS))
    return F.when(F.is_valid_utf8(text), F.substring(text, 1, _EXAMPLE_CHARS)).otherwise(binary)
