"""Compare a topic of two clusters by message id: there, messages have other queues and offsets.

Both sides must have the same number of messages per id, with the same tag, keys, flag, body and
properties of the application. The id of a message is its first one: the property ``ORIGIN_MSG_ID``
of a message that was sent again, else ``msg_id``. The exit code is 1 if something differs.
Run: ``python examples/spark/29_compare_clusters.py [name server] [topic] [other name server] [other
topic] [end in ms since 1970]``. Without the end, messages in flight may be on one side only.
"""

import sys

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from cometmq.model import property_names as names
from cometmq.model.dead_letter import RESENT_FROM, RESENT_TIME_MS, SENT_AGAIN
from cometmq.spark.sessions import local_session

NOT_THE_APPLICATIONS = sorted(
    {*names.RESERVED, names.SHARDING_KEY, SENT_AGAIN, "REPLAY_JOB", RESENT_FROM, RESENT_TIME_MS}
)


def per_id(messages: DataFrame, side: str) -> DataFrame:
    """Count the messages of each id, and add up the hashes of their contents."""
    own = f.map_filter("properties", lambda name, _: ~name.isin(*NOT_THE_APPLICATIONS))
    values = [f.col("tags"), f.col("keys"), f.col("flag"), f.col("body")]
    values.append(f.array_sort(f.map_entries(own)))  # Spark cannot hash a map
    # The numbers tell a null in one column from a null in another.
    content = f.xxhash64(*(part for n, each in enumerate(values) for part in (f.lit(n), each)))
    rows = messages.select(
        f.coalesce(f.col("properties")[SENT_AGAIN], "msg_id").alias("msg_id"),
        content.cast("decimal(20, 0)").alias("content"),
        f.struct("broker_name", "queue_id", "queue_offset").alias("position"),
    )
    return rows.groupBy("msg_id").agg(
        f.count("*").alias(f"copies_{side}"),
        f.sum("content").alias(f"content_{side}"),
        f.min("position").alias(f"first_{side}"),
    )


def compare_by_key(here: DataFrame, there: DataFrame) -> DataFrame:
    """Return the ids that are not there equally often, or with another content.

    Args:
        here, there: rows of any two sources with ``includeProperties``.
    """
    rows = per_id(here, "here").join(per_id(there, "there"), "msg_id", "full_outer")
    rows = rows.fillna(0, ["copies_here", "copies_there"])
    finding = (
        f.when(f.col("copies_there") == 0, "missing-there")
        .when(f.col("copies_here") == 0, "missing-here")
        .when(f.col("copies_there") > f.col("copies_here"), "more-often-there")
        .when(f.col("copies_here") > f.col("copies_there"), "more-often-here")
        .when(f.col("content_here") != f.col("content_there"), "differs")
    )
    rows = rows.withColumn("finding", finding).where("finding IS NOT NULL")
    return rows.drop("content_here", "content_there")


def main(
    here: str = "127.0.0.1:9876",
    topic: str = "orders",
    there: str = "127.0.0.1:9876",
    copy: str = "orders-copy",
    end_ms: str = "",
) -> None:
    spark = local_session()
    reader = spark.read.format("rocketmq").option("includeProperties", True)
    if end_ms:
        reader = reader.option("endingTimestamp", end_ms)
    found = compare_by_key(
        reader.option("nameServer", here).option("subscribe", topic).load(),
        reader.option("nameServer", there).option("subscribe", copy).load(),
    ).cache()
    counts = found.groupBy("finding").count().orderBy("finding").collect()
    for row in counts:
        print(f"{row.finding}: {row['count']}")
    if counts:
        found.show(truncate=False)
        raise SystemExit(1)
    print("the same messages")


if __name__ == "__main__":
    main(*sys.argv[1:])
