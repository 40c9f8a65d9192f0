"""Print the dead letters of all groups by their errors, and write them for a repair.

The folder gets rows that the format ``rocketmq`` writes to the topics where they were sent first.
Run: ``python examples/spark/13_dead_letters.py [name server] [folder]``.
"""

import sys

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from cometmq.spark.checks import dead_letters
from cometmq.spark.sessions import local_session


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
