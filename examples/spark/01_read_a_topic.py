"""Read all messages that are in a topic now, as a table.

Run: ``python examples/spark/01_read_a_topic.py [name server] [topic]``.
"""

import sys

from pyspark.sql import functions as f

from cometmq.spark.sessions import local_session


def main(name_server: str = "127.0.0.1:9876", topic: str = "orders") -> None:
    spark = local_session()
    orders = (
        spark.read.format("rocketmq")
        .option("nameServer", name_server)
        .option("subscribe", topic)
        .load()
    )
    counted = orders.groupBy("tags").agg(
        f.count("*").alias("messages"), f.sum(f.length("body")).alias("bytes")
    )
    for row in counted.orderBy("tags").collect():
        print(f"{row.tags}: {row.messages} messages, {row.bytes} bytes")


if __name__ == "__main__":
    main(*sys.argv[1:])
