"""Compares two sources by topic, queue and offset: a master and its replica, a log and its copy.

Each queue is summed up on both sides: the number of messages, and two sums over their hashes. Only
the rows of queues that differ are then compared one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import reduce

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - the name that Spark's documentation uses

from cometmq.model.errors import ConfigError

COMPARED = (
    "msg_id", "tags", "keys", "body", "flag", "born_timestamp", "store_timestamp",
    "reconsume_times", "properties",
)  # fmt: skip
"""What must be equal at one offset."""

_HERE, _THERE = "here", "there"
_QUEUE = ["topic", "broker_name", "queue_id"]
_AT = [*_QUEUE, "queue_offset"]


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
    its beginning). If the other side has nothing of a queue, it lags if the message is newer than
    all that it has of other queues. ``columns`` names what differs.

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
    # Their numbers tell a null in one column from a null in another.
    content = [part for n, name in enumerate(compared) for part in (F.lit(n), _hashable(name))]
    broker = F.coalesce("broker_name", F.lit("")) if match_brokers else F.lit("")
    sides = {
        side: messages.where(F.col("topic") != "").select(
            _renamed(renamed), broker.alias("broker_name"), "queue_id", "queue_offset",
            F.struct("msg_id", "store_timestamp").alias("row"),
            *(F.xxhash64(_hashable(name)).alias(f"hash_{name}") for name in compared),
            F.xxhash64(*content).alias("content"),
        )
        for side, messages, renamed in ((_HERE, here, topics or {}), (_THERE, there, {}))
    }  # fmt: skip
    unlike = (
        F.when(F.col(f"hash_{name}_{_HERE}") != F.col(f"hash_{name}_{_THERE}"), name)
        for name in compared
    )
    row = F.coalesce(f"row_{_HERE}", f"row_{_THERE}")
    return (
        _rows_of_differing_queues(sides)
        .where(~_equal("content"))
        .select(
            _finding().alias("finding"),
            "topic",
            F.nullif("broker_name", F.lit("")).alias("broker_name"),
            "queue_id",
            "queue_offset",
            F.array_compact(F.array(*unlike)).alias("columns"),
            row["msg_id"].alias("msg_id"),
            row["store_timestamp"].alias("store_timestamp"),
        )
    )


def _rows_of_differing_queues(sides: Mapping[str, DataFrame]) -> DataFrame:
    """Join the rows of both sides that are in queues whose sums differ.

    The columns of each side have its name at their ends. ``least`` and ``most`` are the bounds of
    the queue, ``newest`` is the last store time of the whole side. A sum of 32 bits of a hash
    overflows only above two thousand million rows.
    """
    hashed = F.xxhash64("queue_offset", "content")
    sums = (
        F.count("*").alias("messages"),
        F.sum(hashed.bitwiseAND(0xFFFFFFFF)).alias("low"),
        F.sum(F.shiftrightunsigned(hashed, 32)).alias("high"),
        F.min("queue_offset").alias("least"),
        F.max("queue_offset").alias("most"),
        F.max(F.col("row")["store_timestamp"]).alias("newest"),
    )
    summed = _joined(sides, _QUEUE, lambda rows: rows.groupBy(*_QUEUE).agg(*sums))
    every_queue = Window.partitionBy(F.lit(1))
    newest = (f"newest_{side}" for side in sides)
    summed = summed.withColumns({name: F.max(name).over(every_queue) for name in newest})
    equal = reduce(Column.__and__, map(_equal, ("messages", "low", "high")))
    differing = F.broadcast(summed.where(~equal))
    rows = _joined(sides, _AT, lambda rows: rows.join(differing, _QUEUE, "left_semi"))
    return rows.join(differing, _QUEUE)


def _joined(
    sides: Mapping[str, DataFrame], keys: list[str], change: Callable[[DataFrame], DataFrame]
) -> DataFrame:
    left, right = (
        found.withColumnsRenamed({name: f"{name}_{side}" for name in found.columns[len(keys) :]})
        for side, found in ((side, change(rows)) for side, rows in sides.items())
    )
    return left.join(right, keys, "full_outer")


def _equal(name: str) -> Column:
    return F.col(f"{name}_{_HERE}").eqNullSafe(F.col(f"{name}_{_THERE}"))


def _renamed(topics: Mapping[str, str]) -> Column:
    topic = F.col("topic")
    for name, other in topics.items():
        topic = F.when(F.col("topic") == name, other).otherwise(topic)
    return topic.alias("topic")


def _hashable(name: str) -> Column:
    """Return a column as a value that Spark can hash: it refuses maps."""
    return F.array_sort(F.map_entries(name)) if name == "properties" else F.col(name)


def _finding() -> Column:
    """Whether a row on one side only was lost, is not yet there, or is no longer there."""
    offset = F.col("queue_offset")

    def only(side: str, other: str) -> Column:
        is_newer = F.col(f"row_{side}")["store_timestamp"] > F.col(f"newest_{other}")
        return (
            F.when(offset > F.col(f"most_{other}"), f"behind-{other}")
            .when(offset < F.col(f"least_{other}"), f"expired-{other}")
            .when(F.col(f"most_{other}").isNull() & is_newer, f"behind-{other}")
            .otherwise(f"missing-{other}")
        )

    return (
        F.when(F.col(f"content_{_THERE}").isNull(), only(_HERE, _THERE))
        .when(F.col(f"content_{_HERE}").isNull(), only(_THERE, _HERE))
        .otherwise("differs")
    )
