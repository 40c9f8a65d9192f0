"""Read a topic through Spark Connect: this program has no JVM, and the server reads the topic.

The server needs the package ``cometmq`` too; its Python reads the topic.
Run: ``python examples/spark/25_spark_connect.py [server] [name server] [topic]``.
"""

import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from cometmq.spark import register


def main(
    server: str = "sc://127.0.0.1:15002",
    name_server: str = "127.0.0.1:9876",
    topic: str = "orders",
) -> None:
    spark = SparkSession.builder.remote(server).getOrCreate()
    register(spark)
    orders = (
        spark.read.format("rocketmq")
        .option("nameServer", name_server)
        .option("subscribe", topic)
        .schema("tags STRING, body BINARY")
        .load()
    )
    counted = orders.groupBy("tags").agg(
        f.count("*").alias("messages"), f.sum(f.length("body")).alias("bytes")
    )
    for row in counted.orderBy("tags").collect():
        print(f"{row.tags}: {row.messages} messages, {row.bytes} bytes")
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
