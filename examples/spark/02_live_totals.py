"""Show live totals of a topic: number and amount of the orders of each country.

Run: ``python examples/spark/02_live_totals.py [name server] [topic] [seconds]``; Ctrl-C stops it.
"""

import sys
from collections.abc import Iterable

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as f

from cometmq.spark.sessions import local_session

ORDER = "order STRING, customer STRING, country STRING, amount DOUBLE, state STRING"


def totals_of(messages: DataFrame) -> DataFrame:
    order = f.from_json(f.col("body").cast("string"), ORDER).alias("order")
    orders = messages.select(order).select("order.*")
    return orders.groupBy("country").agg(
        f.count("*").alias("orders"), f.round(f.sum("amount"), 2).alias("amount")
    )


def line(rows: Iterable[Row]) -> str:
    return "  ".join(f"{row.country} {row.orders} for {row.amount:.2f}" for row in rows)


def show(totals: DataFrame, batch: int) -> None:
    if rows := totals.orderBy("country").collect():
        print(f"batch {batch}: {line(rows)}", flush=True)


def main(name_server: str = "127.0.0.1:9876", topic: str = "orders", seconds: str = "") -> None:
    spark = local_session()
    messages = (
        spark.readStream.format("rocketmq")
        .option("nameServer", name_server)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .load()
    )
    updates = totals_of(messages).writeStream.outputMode("complete").foreachBatch(show)
    query = updates.trigger(processingTime="1 second").start()
    query.awaitTermination(float(seconds) if seconds else None)
    query.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
