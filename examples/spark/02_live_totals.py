"""Show live totals of a topic: number and amount of the orders of each country.

Run: ``python examples/spark/02_live_totals.py [name server] [topic] [seconds]``; Ctrl-C stops it.
"""

import signal
import sys
import threading
import time
from collections.abc import Iterable

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as f
from pyspark.sql.streaming import StreamingQuery

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


interrupted = threading.Event()
showing = threading.Lock()


def show(totals: DataFrame, batch: int) -> None:
    with showing:
        if not interrupted.is_set() and (rows := totals.orderBy("country").collect()):
            print(f"batch {batch}: {line(rows)}", flush=True)


def wait_for(query: StreamingQuery, seconds: float) -> None:
    """Wait for Ctrl-C or the end of the time, then stop the query between two batches.

    The handler replaces PySpark's own, which cancels the running batch: Spark then prints stacks.
    """
    signal.signal(signal.SIGINT, lambda *_: interrupted.set())
    ends = time.monotonic() + seconds
    while not interrupted.is_set() and time.monotonic() < ends:
        if query.awaitTermination(0.5):
            break
    interrupted.set()
    with showing:
        print("stopped", flush=True)
    query.stop()


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
    wait_for(query, float(seconds or "inf"))


if __name__ == "__main__":
    main(*sys.argv[1:])
