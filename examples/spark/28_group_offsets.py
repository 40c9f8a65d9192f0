"""Print the groups whose committed offset is outside of a queue, or whose lag is too large.

The exit code is 1 if there is one.
Run: ``python examples/spark/28_group_offsets.py [name server] [largest lag in a queue]``.
"""

import sys

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from cometmq.spark.sessions import local_session


def outside(queues: DataFrame, *, lag_max: int | None = None) -> DataFrame:
    """Return the groups whose committed offset is outside of a queue, or whose lag is too large.

    ``finding`` is ``expired-unread`` (messages expired before the group consumed them),
    ``committed-beyond`` (the committed offset is larger than the queue's end) or ``lag``. ``first``
    and ``last`` are queue offsets, ``count`` the messages.

    Args:
        queues: rows of the format ``rocketmq-meta``.
        lag_max: the largest lag of a group in a queue; None for any.
    """
    committed, low, high = map(f.col, ("committed_offset", "min_offset", "max_offset"))
    too_far = f.lit(False) if lag_max is None else f.col("lag") > lag_max
    finding = (
        f.when(committed < low, "expired-unread")
        .when(committed > high, "committed-beyond")
        .when(too_far, "lag")
    )
    first = f.when(committed > high, high).otherwise(committed)
    last = f.when(committed < low, low).when(committed > high, committed).otherwise(high) - 1
    return queues.where(finding.isNotNull()).select(
        finding.alias("finding"), "topic", "broker_name", "queue_id", "consumer_group",
        first.alias("first"), last.alias("last"), (last - first + 1).alias("count"),
        "committed_offset", "min_offset", "max_offset", "lag", "observed_timestamp",
    )  # fmt: skip


def main(name_server: str = "127.0.0.1:9876", lag_max: str = "100000") -> None:
    spark = local_session()
    queues = spark.read.format("rocketmq-meta").option("nameServer", name_server).load()
    found = outside(queues, lag_max=int(lag_max)).orderBy("consumer_group", "topic", "queue_id")
    rows = found.collect()
    for row in rows:
        place = f"{row.topic}, queue {row.queue_id} of {row.broker_name}"
        print(f"{row.consumer_group} in {place}: {row.finding}, {row['count']} messages")
    if rows:
        raise SystemExit(1)


if __name__ == "__main__":
    main(*sys.argv[1:])
