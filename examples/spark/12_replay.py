"""Send the messages of a Delta table again, to their topics or to others.

The messages of a queue keep their order. Their unique ids are made of the job and of their place in
the archive. After a run that was killed, run the same job again: to brokers of CometMQ it sends the
rest. To others it sends all, and the messages that are in the topic twice have equal ids. Without
topics all are replayed but those of the system, of retries and of dead letters. Run:
``python examples/spark/12_replay.py [archive] [name server] [job] [topic or topic=new topic] ...``.
"""

import sys

from deltalake import DeltaTable
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from cometmq.model.topic import DLQ_PREFIX, RETRY_PREFIX, is_system_topic
from cometmq.spark.sessions import local_session

HALF_OR_ROLLED_BACK = "sys_flag & 12 IN (4, 12)"
QUEUE = ("topic", "broker_name", "queue_id")
PARTITIONS = 16
"""The same in each run, so that a repeated job finds what it has sent."""


def is_replayed(topic: str) -> bool:
    return not (is_system_topic(topic) or topic.startswith((RETRY_PREFIX, DLQ_PREFIX)))


def unique_id(digest: Column) -> Column:
    """Give an id as clients make it, with 0 where theirs have a time: tools search from there."""
    parts = (f.substring(digest, 1, 20), f.lit("00000000"), f.substring(digest, 21, 4))
    return f.upper(f.concat(*parts))


def replayed(messages: DataFrame, job: str, targets: dict[str, str]) -> DataFrame:
    """Give the rows to write: those of a queue in one partition, in their order."""
    origin = f.concat_ws("-", "broker_name", "queue_id")
    place = f.concat_ws("/", f.lit(job), "topic", origin, "queue_offset")
    topics = f.create_map(*(f.lit(name) for pair in targets.items() for name in pair))
    more = f.create_map(f.lit("ORIGIN_MSG_ID"), "msg_id", f.lit("REPLAY_JOB"), f.lit(job))
    others = f.map_filter("properties", lambda name, _: ~f.map_contains_key(more, name))
    return (
        messages.where(f.col("topic").isin(*targets))
        .where(f"NOT {HALF_OR_ROLLED_BACK} AND length(body) > 0")
        .repartition(PARTITIONS, *QUEUE)
        .sortWithinPartitions(*QUEUE, "queue_offset")
        .select(
            topics[f.col("topic")].alias("topic"),
            unique_id(f.sha2(place, 256)).alias("msg_id"),
            origin.alias("sharding_key"),
            "body", "tags", "keys", "flag",
            f.map_concat(others, more).alias("properties"),
        )
    )  # fmt: skip


def main(
    archive: str = "archive", name_server: str = "127.0.0.1:9876", job: str = "replay", *topics: str
) -> None:
    spark = local_session()
    messages = spark.read.parquet(*DeltaTable(archive).file_uris())
    there = {row.topic for row in messages.select("topic").distinct().collect()}
    targets = {name: to or name for name, _, to in (each.partition("=") for each in topics)}
    targets = targets or {name: name for name in there if is_replayed(name)}
    missing = sorted(targets.keys() - there)
    if missing or not targets:
        raise SystemExit(f"{archive} has no topic {', '.join(missing) or 'of an application'}")
    rows = replayed(messages, job, targets)
    writer = rows.write.format("rocketmq").option("nameServer", name_server).mode("append")
    writer.option("reservedProperties", "drop").option("jobId", job).save()
    print(f"replayed {', '.join(sorted(targets))}")


if __name__ == "__main__":
    main(*sys.argv[1:])
