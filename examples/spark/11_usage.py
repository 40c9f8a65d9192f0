"""Print the messages and bytes of each topic and day (UTC), from the log of a broker.

Bytes are those of whole records. The broker need not run.
Run: ``python examples/spark/11_usage.py [store folder]``.
"""

import sys

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from cometmq.spark.sessions import local_session

COLUMNS = "topic STRING NOT NULL, store_timestamp TIMESTAMP NOT NULL, store_size INT"


def usage_of(messages: DataFrame) -> DataFrame:
    return messages.groupBy("topic", f.to_date("store_timestamp").alias("day")).agg(
        f.count("*").alias("messages"),
        f.sum("store_size").alias("bytes"),
        f.max("store_size").alias("largest"),
    )


def main(store: str = "store") -> None:
    spark = local_session()
    messages = spark.read.format("rocketmq-log").schema(COLUMNS).load(store)
    for row in usage_of(messages).orderBy(f.desc("bytes"), "topic", "day").collect():
        print(f"{row.day} {row.topic}: {row.messages} messages, {row.bytes} bytes")


if __name__ == "__main__":
    main(*sys.argv[1:])
