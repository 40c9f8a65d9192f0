"""Add up the orders of each country and half minute, by the time in the order.

A window is written once, when an order is ten seconds younger than its end: an order that comes
later than that is left out. Each run takes what is new and exits.
Run: ``python examples/spark/21_windows.py [name server] [topic] [folder]``.
"""

import sys

from pyspark.sql import functions as f

from cometmq.spark.sessions import local_session

ORDER = "country STRING, amount DOUBLE, at TIMESTAMP NOT NULL"


def main(name_server: str = "127.0.0.1:9876", topic: str = "orders", folder: str = "win") -> None:
    spark = local_session()
    orders = (
        spark.readStream.format("rocketmq")
        .option("nameServer", name_server)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("payload.format", "json")
        .option("payload.schema", ORDER)
        .load()
        .where("value IS NOT NULL")
        .select("value.*")
    )
    totals = (
        orders.withWatermark("at", "10 seconds")
        .groupBy(f.window("at", "30 seconds"), "country")
        .agg(f.count("*").alias("orders"), f.round(f.sum("amount"), 2).alias("amount"))
        .select("window.start", "country", "orders", "amount")
    )
    query = (
        totals.writeStream.format("parquet")
        .option("checkpointLocation", f"{folder}/checkpoint")
        .trigger(availableNow=True)
        .start(f"{folder}/totals")
    )
    query.awaitTermination()
    written = spark.read.schema(totals.schema).parquet(f"{folder}/totals")
    for row in written.orderBy("start", "country").collect():
        print(f"{row.start:%H:%M:%S} {row.country}: {row.orders} for {row.amount:.2f}")


if __name__ == "__main__":
    main(*sys.argv[1:])
