"""Print the lag of every group, from the offsets at the brokers.

Run: ``python examples/spark/06_lag.py [name server] [topic]``.
"""

import sys

from pyspark.sql import functions as f

from cometmq.spark.sessions import local_session


def main(name_server: str = "127.0.0.1:9876", topic: str = "orders") -> None:
    spark = local_session()
    queues = (
        spark.read.format("rocketmq-meta")
        .option("nameServer", name_server)
        .option("subscribe", topic)
        .load()
    )
    behind = (
        queues.where("consumer_group IS NOT NULL")
        .groupBy("topic", "consumer_group")
        .agg(f.sum("lag").alias("lag"))
    )
    for row in behind.orderBy(f.desc("lag"), "consumer_group").collect():
        print(f"{row.consumer_group} has a lag of {row.lag} messages in {row.topic}")


if __name__ == "__main__":
    main(*sys.argv[1:])
