"""Print the dead letters of all groups by their errors, and write them for a repair.

The folder gets rows that the format ``rocketmq`` writes to the topics where they were sent first.
Run: ``python examples/spark/13_dead_letters.py [name server] [folder]``.
"""

import sys

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from cometmq.model.dead_letter import (
    CONSUME_ERROR,
    CONSUME_RETRIES,
    OF_DEATH,
    ORIGINAL_ID,
    ORIGINAL_TOPIC,
)
from cometmq.model.topic import DLQ_PREFIX
from cometmq.spark.sessions import local_session


def dead_letters(messages: DataFrame) -> DataFrame:
    """Return the dead letters among messages.

    ``origin_topic`` and ``origin_id`` are the topic and the broker's id of the first send, null if
    the letter has none. ``born`` is when the producer created the message, ``died`` when it was
    stored as a dead letter. ``error`` is the last exception of the handler, which CometMQ's client
    notes. ``properties`` are the application's and others that a message sent again may have.

    Args:
        messages: rows of any source with ``includeProperties``; rows of other topics are left out.
    """
    letters = messages.where(f.col("topic").startswith(DLQ_PREFIX))
    return letters.select(
        f.substring("topic", len(DLQ_PREFIX) + 1, 1000).alias("group"),
        _first_of(ORIGINAL_TOPIC).alias("origin_topic"),
        _first_of(ORIGINAL_ID).alias("origin_id"),
        "msg_id", "tags", "keys", "broker_name", "queue_id", "queue_offset",
        f.col("born_timestamp").alias("born"),
        f.col("store_timestamp").alias("died"),
        f.coalesce(_first_of((CONSUME_RETRIES,)).try_cast("int"), "reconsume_times").alias(
            "retries"
        ),
        _first_of((CONSUME_ERROR,)).alias("error"),
        "body",
        f.map_filter("properties", lambda name, _: ~name.isin(*sorted(OF_DEATH))).alias(
            "properties"
        ),
    )  # fmt: skip


def _first_of(properties: tuple[str, ...]) -> Column:
    return f.coalesce(*(f.col("properties")[name] for name in properties))


def report_of(letters: DataFrame) -> DataFrame:
    """Count the letters by group, topic and error; numbers in errors are left out."""
    error = f.regexp_replace(f.coalesce("error", f.lit("(unknown)")), "[0-9]+", "<n>")
    return letters.groupBy("group", "origin_topic", error.alias("error")).agg(
        f.count("*").alias("letters"), f.min("died").alias("first"), f.max("died").alias("last")
    )


def repairable(letters: DataFrame) -> DataFrame:
    """Give rows to send again, without the properties of retries; the old id is one of them."""
    origin = f.create_map(f.lit("ORIGIN_MSG_ID"), "msg_id")
    others = f.map_filter("properties", lambda name, _: name != "ORIGIN_MSG_ID")
    properties = f.map_concat(others, origin).alias("properties")
    topic = f.col("origin_topic").alias("topic")
    return letters.where("origin_topic IS NOT NULL").select(
        topic, "body", "tags", "keys", properties
    )


def main(name_server: str = "127.0.0.1:9876", folder: str = "dead-letters") -> None:
    spark = local_session()
    reader = spark.read.format("rocketmq").option("nameServer", name_server)
    topics = reader.option("subscribePattern", "%DLQ%.*").option("includeProperties", True)
    letters = dead_letters(topics.load()).cache()
    for row in report_of(letters).orderBy(f.desc("letters"), "group", "error").collect():
        print(f"{row.letters} of {row.group} from {row.origin_topic}: {row.error}")
    repairable(letters).write.mode("overwrite").parquet(folder)


if __name__ == "__main__":
    main(*sys.argv[1:])
