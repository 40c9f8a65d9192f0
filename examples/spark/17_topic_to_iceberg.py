"""Stream a topic into an Iceberg table, exactly once: without an end, or once what is new.

Iceberg has a jar for Spark 4.1, on which a run with ``availableNow`` has one batch: the program
runs the query again until it finds no row. Run: ``spark-submit
--packages org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0
examples/spark/17_topic_to_iceberg.py [name server] [topic] [warehouse] [always or once] [batch]``.
"""

import sys

from cometmq.spark.sessions import local_session

TABLE = "lake.shop.orders"


def main(
    name_server: str = "127.0.0.1:9876",
    topic: str = "orders",
    warehouse: str = "warehouse",
    how: str = "once",
    batch: str = "100000",
) -> None:
    extensions = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
    spark = local_session(
        **{
            "spark.sql.extensions": extensions,
            "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
            "spark.sql.catalog.lake.type": "hadoop",
            "spark.sql.catalog.lake.warehouse": warehouse,
        }
    )
    spark.sql(
        f"CREATE TABLE IF NOT EXISTS {TABLE} (queue_id INT, queue_offset BIGINT,"
        " store_timestamp TIMESTAMP, body STRING) USING iceberg"
    )
    messages = (
        spark.readStream.format("rocketmq")
        .option("nameServer", name_server)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", batch)
        .load()
        .selectExpr("queue_id", "queue_offset", "store_timestamp", "CAST(body AS STRING) AS body")
    )
    writer = messages.writeStream.format("iceberg").outputMode("append")
    writer = writer.option("checkpointLocation", f"{warehouse}/checkpoints/orders")
    if how == "always":
        writer.toTable(TABLE).awaitTermination()
    rows = 1
    while rows:
        query = writer.trigger(availableNow=True).toTable(TABLE)
        query.awaitTermination()
        rows = query.lastProgress["numInputRows"] if query.lastProgress else 0
    print(f"{spark.table(TABLE).count()} rows in {TABLE}")


if __name__ == "__main__":
    main(*sys.argv[1:])
