"""Find the sessions of each customer: orders with at most ten seconds between them.

A session is written once, when an order of any customer is twenty seconds younger than its last
one. Each run takes what is new and exits.
Run: ``python examples/spark/23_sessions.py [name server] [topic] [folder]``.
"""

import sys

from pyspark.sql import functions as f

from cometmq.spark.sessions import local_session

ORDER = "customer STRING, amount DOUBLE, at TIMESTAMP NOT NULL"


def main(name_server: str = "127.0.0.1:9876", topic: str = "orders", folder: str = "ses") -> None:
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
    sessions = (
        orders.withWatermark("at", "10 seconds")
        .groupBy("customer", f.session_window("at", "10 seconds").alias("session"))
        .agg(f.count("*").alias("orders"), f.max("at").alias("last"))
        .select("customer", f.col("session.start").alias("first"), "last", "orders")
    )
    query = (
        sessions.writeStream.format("parquet")
        .option("checkpointLocation", f"{folder}/checkpoint")
        .trigger(availableNow=True)
        .start(f"{folder}/sessions")
    )
    query.awaitTermination()
    written = spark.read.schema(sessions.schema).parquet(f"{folder}/sessions")
    for row in written.orderBy("first", "customer").collect():
        seconds = (row["last"] - row["first"]).total_seconds()
        print(
            f"{row.customer}: {row.orders} orders in {seconds:.0f} s from {row['first']:%H:%M:%S}"
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
