"""Append the lag of all groups to a table, and print the groups whose lag has grown.

Run it from a scheduler: ``python examples/spark/09_lag_history.py [name server] [folder]``.
"""

import sys

from pyspark.sql import Window
from pyspark.sql import functions as f

from cometmq.spark.sessions import local_session


def main(name_server: str = "127.0.0.1:9876", folder: str = "lag-history") -> None:
    spark = local_session()
    queues = spark.read.format("rocketmq-meta").option("nameServer", name_server).load()
    looked = (
        queues.where("consumer_group IS NOT NULL")
        .groupBy("topic", "consumer_group")
        .agg(f.sum("lag").alias("lag"), f.max("observed_timestamp").alias("at"))
    )
    looked.write.mode("append").parquet(folder)

    of_one_group = Window.partitionBy("topic", "consumer_group").orderBy(f.desc("at"))
    history = spark.read.parquet(folder).select(
        "*",
        f.lead("lag").over(of_one_group).alias("before"),
        f.row_number().over(of_one_group).alias("age"),
    )
    for row in history.where("age = 1 AND lag > before").orderBy(f.desc("lag")).collect():
        print(f"lag of {row.consumer_group} in {row.topic}: {row.before}, now {row.lag}")


if __name__ == "__main__":
    main(*sys.argv[1:])
