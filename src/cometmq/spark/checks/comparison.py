"""Compares two sources: whether they have the same messages.

Each queue, or each part of a topic's keys, is summed up on both sides: the number of messages, and
two sums over their hashes. Only the rows of what differs are then compared one by one.

    compare         the same topic, queue and offset must hold the same message: a master and its
                    replica, a log and its archive
    compare_by_key  the same message id must be there equally often with the same content: two
                    clusters, where messages have other queues and offsets
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name that Spark's documentation uses

from cometmq.model import property_names as names
from cometmq.model.dead_letter import RESENT_FROM, RESENT_TIME_MS, SENT_AGAIN
from cometmq.model.errors import ConfigError

COMPARED = (
    "msg_id", "tags", "keys", "body", "flag", "born_timestamp", "store_timestamp",
    "reconsume_times", "properties",
)  # fmt: skip
"""What must be equal at one offset."""
COMPARED_BY_KEY = ("tags", "keys", "body", "flag", "properties")
"""What must be equal under one message id; of the properties only the application's."""
REPLAY_JOB = "REPLAY_JOB"
"""Property of a replayed message: the job that sent it."""

_HERE, _THERE = "here", "there"
_PARTS = 256
_NOT_THE_APPLICATIONS = sorted(
    {*names.RESERVED, names.SHARDING_KEY, SENT_AGAIN, REPLAY_JOB, RESENT_FROM, RESENT_TIME_MS}
)


def compare(
    here: DataFrame,
    there: DataFrame,
    *,
    topics: Mapping[str, str] | None = None,
    ignored: Collection[str] = (),
    match_brokers: bool = False,
) -> DataFrame:
    """Return the messages that are not the same at the same topic, queue and offset.

    ``finding`` is ``differs``, or for ``here`` and ``there``: ``missing-there`` (within the range
    that the other side has), ``behind-there`` (after its end: it lags) or ``expired-there`` (before
    its beginning). ``columns`` names what differs.

    Args:
        here, there: rows of any two sources. Columns that one of them lacks are not compared.
        topics: the names in ``there`` of topics with another name in ``here``.
        ignored: columns that may differ.
        match_brokers: whether queues of brokers with different names are different queues.

    Raises:
        ConfigError: a column of ``ignored`` is not compared anyway.
    """
    if unknown := sorted(set(ignored) - set(COMPARED)):
        raise ConfigError(f"ignored: met {unknown[0]}, expected some of {', '.join(COMPARED)}")
    both = set(here.columns) & set(there.columns) - set(ignored)
    compared = [name for name in COMPARED if name in both]
    broker = F.coalesce("broker_name", F.lit("")) if match_brokers else F.lit("")
    left, right = (
        messages.where(F.col("topic") != "").select(
            _renamed(renamed), broker.alias("broker_name"), "queue_id", "queue_offset",
            F.struct("msg_id", "store_timestamp").alias("row"),
            *(F.xxhash64(hashable(name)).alias(f"hash_{name}") for name in compared),
            row_hash(compared, hashable).alias("content"),
        )
        for messages, renamed in ((here, topics or {}), (there, {}))
    )  # fmt: skip
    rows = _differing(left, right, ["topic", "broker_name", "queue_id"], "queue_offset")
    unlike = (
        F.when(F.col(f"hash_{name}_{_HERE}") != F.col(f"hash_{name}_{_THERE}"), name)
        for name in compared
    )
    row = F.coalesce(f"row_{_HERE}", f"row_{_THERE}")
    return rows.where(~_equal("content")).select(
        _finding().alias("finding"),
        "topic",
        F.nullif("broker_name", F.lit("")).alias("broker_name"),
        "queue_id",
        "queue_offset",
        F.array_compact(F.array(*unlike)).alias("columns"),
        row["msg_id"].alias("msg_id"),
        row["store_timestamp"].alias("store_timestamp"),
    )


def compare_by_key(
    here: DataFrame, there: DataFrame, *, topics: Mapping[str, str] | None = None
) -> DataFrame:
    """Return the message ids that are not there equally often, or with another content.

    The id of a message is its first one: the property ``ORIGIN_MSG_ID`` of a message that was sent
    again, else ``msg_id``. ``finding`` is ``missing-there``, ``missing-here``,
    ``more-often-there``, ``more-often-here`` or ``differs``. ``first_here`` and ``first_there`` are
    the broker, queue and offset of one of the messages.

    Args:
        here, there: rows of any two sources with ``includeProperties``.
        topics: the names in ``there`` of topics with another name in ``here``.
    """
    key = F.coalesce(F.col("properties")[SENT_AGAIN], F.col("msg_id"))
    left, right = (
        messages.where(F.col("topic") != "").select(
            _renamed(renamed), F.pmod(F.xxhash64(key), F.lit(_PARTS)).alias("part"),
            key.alias("msg_id"), row_hash(COMPARED_BY_KEY, _own_hashable).alias("content"),
            F.struct("broker_name", "queue_id", "queue_offset").alias("position"),
        )
        for messages, renamed in ((here, topics or {}), (there, {}))
    )  # fmt: skip

    def per_key(rows: DataFrame) -> DataFrame:
        return rows.groupBy("topic", "part", "msg_id").agg(
            F.count("*").alias("copies"),
            F.sum(F.col("content").cast("decimal(20, 0)")).alias("content"),
            F.min("position").alias("first"),
        )

    rows = _differing(left, right, ["topic", "part"], "msg_id", per_key)
    copies = [F.coalesce(f"copies_{side}", F.lit(0)) for side in (_HERE, _THERE)]
    finding = (
        F.when(copies[1] == 0, "missing-there")
        .when(copies[0] == 0, "missing-here")
        .when(copies[1] > copies[0], "more-often-there")
        .when(copies[0] > copies[1], "more-often-here")
        .when(~_equal("content"), "differs")
    )
    return rows.where(finding.isNotNull()).select(
        finding.alias("finding"), "topic", "msg_id", copies[0].alias("copies_here"),
        copies[1].alias("copies_there"), f"first_{_HERE}", f"first_{_THERE}",
    )  # fmt: skip


def _differing(
    here: DataFrame,
    there: DataFrame,
    bucket: list[str],
    key: str,
    prepared: Callable[[DataFrame], DataFrame] = lambda rows: rows,
) -> DataFrame:
    """Join the rows of both sides that are in buckets whose sums differ.

    The columns of each side have its name at their ends. ``least`` and ``most`` are the bounds of
    the key in the bucket. A sum of 32 bits of a hash overflows only above two thousand million
    rows.
    """
    hashed = F.xxhash64(key, "content")
    sums = {
        "messages": F.count("*"),
        "low": F.sum(hashed.bitwiseAND(0xFFFFFFFF)),
        "high": F.sum(F.shiftrightunsigned(hashed, 32)),
        "least": F.min(key),
        "most": F.max(key),
    }

    def joined(keys: list[str], of_side: Callable[[DataFrame], DataFrame]) -> DataFrame:
        left, right = (
            found.withColumnsRenamed({n: f"{n}_{side}" for n in found.columns if n not in keys})
            for side, found in ((_HERE, of_side(here)), (_THERE, of_side(there)))
        )
        return left.join(right, keys, "full_outer")

    summed = joined(
        bucket,
        lambda rows: rows.groupBy(*bucket).agg(*(each.alias(n) for n, each in sums.items())),
    )
    differing = F.broadcast(
        summed.where(~reduce(Column.__and__, map(_equal, ("messages", "low", "high"))))
    )
    rows = joined([*bucket, key], lambda rows: prepared(rows.join(differing, bucket, "left_semi")))
    return rows.join(differing, bucket)


def _equal(name: str) -> Column:
    return F.col(f"{name}_{_HERE}").eqNullSafe(F.col(f"{name}_{_THERE}"))


def _renamed(topics: Mapping[str, str]) -> Column:
    topic = F.col("topic")
    for name, other in topics.items():
        topic = F.when(F.col("topic") == name, other).otherwise(topic)
    return topic.alias("topic")


def row_hash(compared: Sequence[str], value: Callable[[str], Column]) -> Column:
    """Return a hash of several columns; their numbers tell a null in one from a null in another."""
    return F.xxhash64(
        *(part for n, each in enumerate(compared) for part in (F.lit(n), value(each)))
    )


def hashable(name: str) -> Column:
    """Return a column as a value that Spark can hash: it refuses maps."""
    return F.array_sort(F.map_entries(name)) if name == "properties" else F.col(name)


def _own_hashable(name: str) -> Column:
    if name != "properties":
        return F.col(name)
    own = F.map_filter(name, lambda key, _: ~key.isin(*_NOT_THE_APPLICATIONS))
    return F.array_sort(F.map_entries(own))


def _finding() -> Column:
    """Whether a row on one side only was lost, is not yet there, or is no longer there."""
    offset = F.col("queue_offset")

    def only(other: str) -> Column:
        return (
            F.when(offset > F.col(f"most_{other}"), f"behind-{other}")
            .when(offset < F.col(f"least_{other}"), f"expired-{other}")
            .otherwise(f"missing-{other}")
        )

    return (
        F.when(F.col(f"content_{_THERE}").isNull(), only(_THERE))
        .when(F.col(f"content_{_HERE}").isNull(), only(_HERE))
        .otherwise("differs")
    )
