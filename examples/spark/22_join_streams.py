"""Join two topics: the orders, and the payment of each that comes within ten seconds.

An order that is not paid in time is written without a payment, once the watermarks of both topics
have passed that time. Each run takes what is new and exits.
Run: ``python examples/spark/22_join_streams.py [name server] [topic] [folder]``.
"""

import sys

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from cometmq.spark.sessions import local_session

ORDER = "`order` STRING NOT NULL, country STRING, at TIMESTAMP NOT NULL"
PAYMENT = "`order` STRING NOT NULL, amount DOUBLE, at TIMESTAMP NOT NULL"
IN_TIME = "o.order = p.order AND p.at BETWEEN o.at AND o.at + INTERVAL 10 SECONDS"


def stream(spark: SparkSession, name_server: str, topic: str, columns: str) -> DataFrame:
    messages = (
        spark.readStream.format("rocketmq")
        .option("nameServer", name_server)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("payload.format", "json")
        .option("payload.schema", columns)
        .load()
    )
    values = messages.where("value IS NOT NULL").select("value.*")
    return values.withWatermark("at", "10 seconds")


def main(name_server: str = "127.0.0.1:9876", topic: str = "orders", folder: str = "join") -> None:
    spark = local_session()
    orders = stream(spark, name_server, topic, ORDER).alias("o")
    payments = stream(spark, name_server, f"{topic}-payments", PAYMENT).alias("p")
    joined = orders.join(payments, on=f.expr(IN_TIME), how="leftOuter")
    found = joined.select("o.order", "o.country", "o.at", f.col("p.at").alias("paid_at"))
    query = (
        found.writeStream.format("parquet")
        .option("checkpointLocation", f"{folder}/checkpoint")
        .trigger(availableNow=True)
        .start(f"{folder}/orders")
    )
    query.awaitTermination()
    written = spark.read.schema(found.schema).parquet(f"{folder}/orders")
    by_country = written.groupBy("country").agg(
        f.count("paid_at").alias("paid"), f.count_if(f.isnull("paid_at")).alias("unpaid")
    )
    for row in by_country.orderBy("country").collect():
        print(f"{row.country}: {row.paid} paid, {row.unpaid} not paid in time")


if __name__ == "__main__":
    main(*sys.argv[1:])
