"""Write a table to a topic: each row becomes a message, and rows of one key stay in order.

The ``jobId`` names these rows: brokers of CometMQ get each of them once, however often this runs.
Others get them again with the same unique ids. Rows of another day need another ``jobId``.
Run: ``python examples/spark/03_write_a_topic.py [name server] [topic]``.
"""

import sys

from pyspark.sql import functions as f

from cometmq.spark.sessions import local_session


def main(name_server: str = "127.0.0.1:9876", topic: str = "prices") -> None:
    spark = local_session()
    prices = spark.range(100).select(
        f.concat(f.lit("price "), "id").alias("body"),
        f.lit("new").alias("tags"),
        f.concat(f.lit("hat-"), f.col("id") % 10).alias("sharding_key"),
    )
    (
        prices.write.format("rocketmq")
        .mode("append")
        .option("nameServer", name_server)
        .option("topic", topic)
        .option("jobId", "prices-2026-11-28")
        .save()
    )
    reader = spark.read.format("rocketmq").option("nameServer", name_server)
    written = reader.option("subscribe", topic).schema("msg_id STRING").load().distinct()
    print(f"{written.count()} messages in {topic}")


if __name__ == "__main__":
    main(*sys.argv[1:])
