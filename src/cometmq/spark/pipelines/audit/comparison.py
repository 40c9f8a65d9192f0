"""Compares two sources: whether they have the same messages.

First each queue (or each part of a topic's keys) is summed up: how many messages, and two sums over
the hashes of what is compared. Only rows of what differs are then set side by side.

    by offset   the same topic, queue and offset must hold the same message: a master and its
                replica, a log and its archive
    by key      the same message id must be there equally often, with the same content, wherever it
                lies: a cluster and another that it is copied to. A message that was sent again
                has its first id in the property ORIGIN_MSG_ID.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - everybody calls it so

from cometmq.model import property_names as names
from cometmq.model.dead_letter import RESENT_FROM, RESENT_TIME_MS, SENT_AGAIN
from cometmq.spark.pipelines.findings.frames import findings, ranges, together
from cometmq.spark.pipelines.findings.rows import Severity

OFFSET, KEY = "offset", "key"
COMPARED = (
    "msg_id", "tags", "keys", "body", "flag", "born_timestamp", "store_timestamp",
    "reconsume_times", "properties",
)  # fmt: skip
"""What must be equal by offset, unless told otherwise."""
COMPARED_BY_KEY = ("tags", "keys", "body", "flag", "properties")
"""What must be equal by key; of properties those that applications set."""
COMPARE_COLUMNS = ("topic", "broker_name", "queue_id", "queue_offset", *COMPARED)

HERE, THERE = "here", "there"
PARTS = 256
"""Parts that the keys of a topic are divided into."""
REPLAY_JOB = "REPLAY_JOB"
_CHANGED = {
    *names.RESERVED,
    names.SHARDING_KEY,
    SENT_AGAIN,
    REPLAY_JOB,
    RESENT_FROM,
    RESENT_TIME_MS,
}
"""Properties that are not an application's own, or that sending again sets anew."""
_QUEUE = ["topic", "broker", "queue_id"]
_LOW = 0xFFFFFFFF


class Comparison:
    """Two sources by offset.

    Args:
        here, there: messages with the columns ``COMPARE_COLUMNS``.
        ignored: columns that may differ.
        brokers: whether brokers' names must be the same.
    """

    def __init__(
        self, here: DataFrame, there: DataFrame, *, ignored: Sequence[str] = (), brokers: bool
    ) -> None:
        self._compared = [name for name in COMPARED if name not in ignored]
        self._here = _hashed(here, self._compared, brokers)
        self._there = _hashed(there, self._compared, brokers)

    def queues(self) -> DataFrame:
        """Per queue: what each side has of it, and whether that is the same."""
        here, there = _summed(self._here, HERE), _summed(self._there, THERE)
        both = here.join(there, _QUEUE, "full_outer")
        same = reduce(
            Column.__and__,
            (
                F.col(f"{name}_{HERE}").eqNullSafe(F.col(f"{name}_{THERE}"))
                for name in ("messages", "first", "last", "low", "high")
            ),
        )
        return both.withColumn("same", same)

    def differences(self, queues: DataFrame) -> DataFrame:
        """Per message of the queues that differ: what is wrong with it."""
        bounds = queues.where(~F.col("same")).select(
            *_QUEUE, *(f"{name}_{side}" for name in ("first", "last") for side in (HERE, THERE))
        )
        differing = bounds.select(*_QUEUE)
        here = _side(self._here.join(F.broadcast(differing), _QUEUE, "left_semi"), HERE)
        there = _side(self._there.join(F.broadcast(differing), _QUEUE, "left_semi"), THERE)
        both = here.join(there, [*_QUEUE, "queue_offset"], "full_outer")
        unlike = ~F.col(f"row_{HERE}").eqNullSafe(F.col(f"row_{THERE}"))
        rows = both.where(unlike).join(F.broadcast(bounds), _QUEUE)
        fields = F.array_compact(F.array(*(_unlike(name) for name in self._compared)))
        return rows.select(
            *_QUEUE, "queue_offset", _kind().alias("kind"), fields.alias("fields"),
            F.coalesce(f"msg_id_{HERE}", f"msg_id_{THERE}").alias("msg_id"),
            F.coalesce(f"stored_{HERE}", f"stored_{THERE}").alias("stored"),
        )  # fmt: skip


def offset_findings(differences: DataFrame) -> DataFrame:
    """Differences by offset as findings, one per range of offsets."""
    every = ranges(
        differences, [*_QUEUE, "kind"], "queue_offset",
        msg_id=F.min_by("msg_id", "queue_offset"), stored=F.min("stored"),
        fields=F.array_distinct(F.flatten(F.collect_list("fields"))),
    ).withColumnRenamed("broker", "broker_name")  # fmt: skip
    severity = F.when(F.col("kind").startswith("expired"), Severity.NOTE.value).when(
        F.col("kind").startswith("behind"), Severity.WARNING.value
    )
    number = F.col("count")
    text = F.concat(
        number.cast("string"), F.lit(" "), F.when(number == 1, "message").otherwise("messages"),
        F.lit(" "), _told(F.col("kind")),
        F.when(F.size("fields") > 0, F.concat(F.lit(": "), F.array_join("fields", ", ")))
        .otherwise(""),
    )  # fmt: skip
    return together([
        findings(
            every, F.col("kind"), F.coalesce(severity, F.lit(Severity.ERROR.value)), text,
            first="first", last="last", count="count", evidence=["msg_id", "stored", "fields"],
        )
    ])  # fmt: skip


def key_parts(here: DataFrame, there: DataFrame, topics: dict[str, str]) -> DataFrame:
    """Per topic and part of its keys: what each side has of it, and whether that is the same.

    Args:
        here, there: messages with the columns ``COMPARE_COLUMNS``.
        topics: the names there of topics that are called otherwise here.
    """
    left = _parts(_keyed(here, topics), HERE)
    both = left.join(_parts(_keyed(there, {}), THERE), ["topic", "part"], "full_outer")
    same = reduce(
        Column.__and__,
        (
            F.col(f"{name}_{HERE}").eqNullSafe(F.col(f"{name}_{THERE}"))
            for name in ("messages", "low", "high")
        ),
    )
    return both.withColumn("same", same)


def key_differences(
    here: DataFrame, there: DataFrame, parts: DataFrame, topics: dict[str, str]
) -> DataFrame:
    """Per message id of the parts that differ: what is wrong with it."""
    differing = F.broadcast(parts.where(~F.col("same")).select("topic", "part"))
    left = _per_key(_keyed(here, topics).join(differing, ["topic", "part"], "left_semi"), HERE)
    right = _per_key(_keyed(there, {}).join(differing, ["topic", "part"], "left_semi"), THERE)
    both = left.join(right, ["topic", "msg_id"], "full_outer")
    copies_here = F.coalesce(f"copies_{HERE}", F.lit(0))
    copies_there = F.coalesce(f"copies_{THERE}", F.lit(0))
    content = F.col(f"content_{HERE}").eqNullSafe(F.col(f"content_{THERE}"))
    kind = (
        F.when(copies_there == 0, "missing-there")
        .when(copies_here == 0, "missing-here")
        .when(copies_there > copies_here, "more-often-there")
        .when(copies_here > copies_there, "more-often-here")
        .when(~content, "differs")
    )
    return both.withColumn("kind", kind).where(F.col("kind").isNotNull()).select(
        "topic", "msg_id", "kind",
        copies_here.alias("copies_here"), copies_there.alias("copies_there"),
        F.coalesce(f"place_{HERE}", f"place_{THERE}").alias("place"),
    )  # fmt: skip


def key_findings(differences: DataFrame) -> DataFrame:
    """Differences by key as findings, one per topic and kind."""
    counted = differences.groupBy("topic", "kind").agg(
        F.count("*").alias("count"),
        F.min_by(F.struct("msg_id", "copies_here", "copies_there", "place"), "msg_id").alias("one"),
    )
    rows = counted.select("topic", "kind", "count", "one.*")
    text = F.concat(F.col("count").cast("string"), F.lit(" message ids: "), _told(F.col("kind")))
    severity = F.when(F.col("kind").startswith("more"), Severity.WARNING.value).otherwise(
        Severity.ERROR.value
    )
    return together([
        findings(
            rows, F.col("kind"), severity, text, count="count",
            evidence=["msg_id", "copies_here", "copies_there", "place"],
        )
    ])  # fmt: skip


def _hashed(messages: DataFrame, compared: Sequence[str], brokers: bool) -> DataFrame:
    broker = F.coalesce("broker_name", F.lit("")) if brokers else F.lit("")
    parts = [F.xxhash64(_hashable(name)).alias(f"of_{name}") for name in compared]
    whole = _hash(compared, _hashable)
    return messages.select(
        "topic", broker.alias("broker"), "queue_id", "queue_offset", "msg_id",
        F.col("store_timestamp").alias("stored"), whole.alias("row"), *parts,
    )  # fmt: skip


def _hash(compared: Sequence[str], value: Callable[[str], Column]) -> Column:
    """A hash of several columns; their numbers keep a null in one from being one in another."""
    return F.xxhash64(
        *(part for n, each in enumerate(compared) for part in (F.lit(n), value(each)))
    )


def _hashable(name: str) -> Column:
    if name != "properties":
        return F.col(name)
    return F.array_sort(F.map_entries("properties"))


def _own_hashable(name: str) -> Column:
    """The same, with no property but those that applications set."""
    if name != "properties":
        return F.col(name)
    own = F.map_filter("properties", lambda key, _: ~key.isin(*sorted(_CHANGED)))
    return F.array_sort(F.map_entries(own))


def _summed(rows: DataFrame, side: str) -> DataFrame:
    return rows.groupBy(*_QUEUE).agg(
        F.count("*").alias(f"messages_{side}"),
        F.min("queue_offset").alias(f"first_{side}"),
        F.max("queue_offset").alias(f"last_{side}"),
        *_sums(F.xxhash64("queue_offset", "row"), side),
    )


def _sums(hashed: Column, side: str) -> list[Column]:
    """Sums of both halves of a hash, which do not overflow below two thousand million rows."""
    low, high = hashed.bitwiseAND(_LOW), F.shiftrightunsigned(hashed, 32)
    return [F.sum(low).alias(f"low_{side}"), F.sum(high).alias(f"high_{side}")]


def _side(rows: DataFrame, side: str) -> DataFrame:
    kept = {
        name: f"{name}_{side}" for name in rows.columns if name not in (*_QUEUE, "queue_offset")
    }
    return rows.withColumnsRenamed(kept)


def _unlike(name: str) -> Column:
    here, there = F.col(f"of_{name}_{HERE}"), F.col(f"of_{name}_{THERE}")
    both = F.col(f"row_{HERE}").isNotNull() & F.col(f"row_{THERE}").isNotNull()
    return F.when(both & (here != there), name)


def _kind() -> Column:
    """What it means that a row is on one side only: lost, not yet there, or no longer there."""
    offset = F.col("queue_offset")

    def only(side: str, other: str) -> Column:
        first, last = F.col(f"first_{other}"), F.col(f"last_{other}")
        return (
            F.when(last.isNotNull() & (offset > last), f"behind-{other}")
            .when(first.isNotNull() & (offset < first), f"expired-{other}")
            .otherwise(f"missing-{other}")
        )

    return (
        F.when(F.col(f"row_{THERE}").isNull(), only(HERE, THERE))
        .when(F.col(f"row_{HERE}").isNull(), only(THERE, HERE))
        .otherwise("differs")
    )


_TELLING = {
    "missing-there": "missing in the other source",
    "missing-here": "missing in this source",
    "behind-there": "not yet in the other source",
    "behind-here": "not yet in this source",
    "expired-there": "no longer in the other source",
    "expired-here": "no longer in this source",
    "more-often-there": "more often in the other source",
    "more-often-here": "more often in this source",
    "differs": "not the same in both sources",
}


def _told(kind: Column) -> Column:
    texts = F.create_map(*(F.lit(text) for pair in _TELLING.items() for text in pair))
    return texts[kind]


def _keyed(messages: DataFrame, topics: dict[str, str]) -> DataFrame:
    """Each message with the id it had at first, and a hash of its content."""
    key = F.coalesce(F.col("properties")[SENT_AGAIN], F.col("msg_id"))
    content = _hash(COMPARED_BY_KEY, _own_hashable)
    topic = F.col("topic")
    for name, other in topics.items():
        topic = F.when(F.col("topic") == name, other).otherwise(topic)
    place = F.concat_ws(" ", "broker_name", "queue_id", "queue_offset")
    return messages.select(
        topic.alias("topic"), key.alias("msg_id"), content.alias("content"), place.alias("place"),
        F.pmod(F.xxhash64(key), F.lit(PARTS)).alias("part"),
    )  # fmt: skip


def _parts(keyed: DataFrame, side: str) -> DataFrame:
    return keyed.groupBy("topic", "part").agg(
        F.count("*").alias(f"messages_{side}"), *_sums(F.xxhash64("msg_id", "content"), side)
    )


def _per_key(keyed: DataFrame, side: str) -> DataFrame:
    return keyed.groupBy("topic", "msg_id").agg(
        F.count("*").alias(f"copies_{side}"),
        F.min("content").alias(f"content_{side}"),
        F.min("place").alias(f"place_{side}"),
    )
