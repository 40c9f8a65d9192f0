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
_LOW = 0xFFFFFFFF
_QUEUE = ("topic", "broker_name", "queue_id")
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

    def hashed(messages: DataFrame, renamed: Mapping[str, str]) -> DataFrame:
        broker = F.coalesce("broker_name", F.lit("")) if match_brokers else F.lit("")
        return messages.where(F.col("topic") != "").select(
            _renamed(renamed).alias("topic"), broker.alias("broker_name"), "queue_id",
            "queue_offset", "msg_id", "store_timestamp",
            *(F.xxhash64(hashable(name)).alias(f"hash_{name}") for name in compared),
            row_hash(compared, hashable).alias("row"),
        )  # fmt: skip

    left, right = hashed(here, topics or {}), hashed(there, {})
    bounds = [F.min("queue_offset").alias("first"), F.max("queue_offset").alias("last")]
    differing = _differing(left, right, _QUEUE, F.xxhash64("queue_offset", "row"), bounds)
    rows = _rows(left, right, differing, [*_QUEUE, "queue_offset"])
    is_same = F.col(f"row_{_HERE}").eqNullSafe(F.col(f"row_{_THERE}"))
    found = rows.where(~is_same).join(F.broadcast(differing), list(_QUEUE))
    unlike = F.array_compact(
        F.array(
            *(
                F.when(F.col(f"hash_{name}_{_HERE}") != F.col(f"hash_{name}_{_THERE}"), name)
                for name in compared
            )
        )
    )
    return found.select(
        _finding().alias("finding"),
        "topic",
        F.when(F.lit(match_brokers), F.col("broker_name")).alias("broker_name"),
        "queue_id", "queue_offset", unlike.alias("columns"), _either("msg_id"),
        _either("store_timestamp"),
    )  # fmt: skip


def compare_by_key(
    here: DataFrame, there: DataFrame, *, topics: Mapping[str, str] | None = None
) -> DataFrame:
    """Return the message ids that are not there equally often, or with another content.

    The id of a message is its first one: the property ``ORIGIN_MSG_ID`` of a message that was sent
    again, else ``msg_id``. ``finding`` is ``missing-there``, ``missing-here``,
    ``more-often-there``, ``more-often-here`` or ``differs``.

    Args:
        here, there: rows of any two sources with ``includeProperties``.
        topics: the names in ``there`` of topics with another name in ``here``.
    """

    def keyed(messages: DataFrame, renamed: Mapping[str, str]) -> DataFrame:
        key = F.coalesce(F.col("properties")[SENT_AGAIN], F.col("msg_id"))
        return messages.where(F.col("topic") != "").select(
            _renamed(renamed).alias("topic"), key.alias("msg_id"),
            row_hash(COMPARED_BY_KEY, _own_hashable).alias("content"),
            F.pmod(F.xxhash64(key), F.lit(_PARTS)).alias("part"),
            F.struct("broker_name", "queue_id", "queue_offset").alias("place"),
        )  # fmt: skip

    def per_key(rows: DataFrame) -> DataFrame:
        return rows.groupBy("topic", "part", "msg_id").agg(
            F.count("*").alias("copies"),
            F.sum(F.col("content").cast("decimal(20, 0)")).alias("content"),
            F.min("place").alias("place"),
        )

    left, right = keyed(here, topics or {}), keyed(there, {})
    part = ("topic", "part")
    differing = _differing(left, right, part, F.xxhash64("msg_id", "content"), [])
    rows = _rows(left, right, differing, [*part, "msg_id"], per_key)
    copies = [F.coalesce(f"copies_{side}", F.lit(0)) for side in (_HERE, _THERE)]
    finding = (
        F.when(copies[1] == 0, "missing-there")
        .when(copies[0] == 0, "missing-here")
        .when(copies[1] > copies[0], "more-often-there")
        .when(copies[0] > copies[1], "more-often-here")
        .when(F.col(f"content_{_HERE}") != F.col(f"content_{_THERE}"), "differs")
    )
    return rows.where(finding.isNotNull()).select(
        finding.alias("finding"), "topic", "msg_id", copies[0].alias("copies_here"),
        copies[1].alias("copies_there"), f"place_{_HERE}", f"place_{_THERE}",
    )  # fmt: skip


def _differing(
    here: DataFrame,
    there: DataFrame,
    bucket: Sequence[str],
    hashed: Column,
    more: Sequence[Column],
) -> DataFrame:
    """Return the buckets whose sums differ, with the further aggregates of each side.

    The sums of both halves of a hash do not overflow below two thousand million rows.
    """
    sums = [
        F.count("*").alias("messages"),
        F.sum(hashed.bitwiseAND(_LOW)).alias("low"),
        F.sum(F.shiftrightunsigned(hashed, 32)).alias("high"),
        *more,
    ]
    left, right = (
        _sided(rows.groupBy(*bucket).agg(*sums), bucket, side)
        for rows, side in ((here, _HERE), (there, _THERE))
    )
    same = (
        F.col(f"{name}_{_HERE}").eqNullSafe(F.col(f"{name}_{_THERE}"))
        for name in ("messages", "low", "high")
    )
    return left.join(right, list(bucket), "full_outer").where(~reduce(Column.__and__, same))


def _rows(
    here: DataFrame,
    there: DataFrame,
    differing: DataFrame,
    keys: list[str],
    prepared: Callable[[DataFrame], DataFrame] = lambda rows: rows,
) -> DataFrame:
    """Join the rows of both sides that are in differing buckets."""
    bucket = [name for name in keys if name in differing.columns]
    wanted = F.broadcast(differing.select(*bucket))
    left, right = (
        _sided(prepared(rows.join(wanted, bucket, "left_semi")), keys, side)
        for rows, side in ((here, _HERE), (there, _THERE))
    )
    return left.join(right, keys, "full_outer")


def _sided(rows: DataFrame, keys: Collection[str], side: str) -> DataFrame:
    return rows.withColumnsRenamed(
        {name: f"{name}_{side}" for name in rows.columns if name not in keys}
    )


def _either(name: str) -> Column:
    return F.coalesce(f"{name}_{_HERE}", f"{name}_{_THERE}").alias(name)


def _renamed(topics: Mapping[str, str]) -> Column:
    topic = F.col("topic")
    for name, other in topics.items():
        topic = F.when(F.col("topic") == name, other).otherwise(topic)
    return topic


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
            F.when(offset > F.col(f"last_{other}"), f"behind-{other}")
            .when(offset < F.col(f"first_{other}"), f"expired-{other}")
            .otherwise(f"missing-{other}")
        )

    return (
        F.when(F.col(f"row_{_THERE}").isNull(), only(_THERE))
        .when(F.col(f"row_{_HERE}").isNull(), only(_HERE))
        .otherwise("differs")
    )
