"""Stream a topic into an Iceberg table, exactly once: without an end, or once what is new.

The table has a partition for each day. A stream without an end compacts it every hour. Each further
column that the query has becomes a column of the table. Iceberg has a jar for Spark 4.1, on which a
run with ``availableNow`` has one batch: the program runs the query again until it finds no row.
Run: ``spark-submit --packages org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0
examples/spark/17_topic_to_iceberg.py [name server] [topic] [warehouse] [always, once or compact]
[batch] [seconds] [further column ...]``.
"""

import sys

from cometmq.spark.sessions import local_session

TABLE = "lake.shop.orders"
COLUMNS = ("queue_id", "queue_offset", "store_timestamp", "CAST(body AS STRING) AS body")


def main(
    name_server: str = "127.0.0.1:9876",
    topic: str = "orders",
    warehouse: str = "warehouse",
    how: str = "once",
    batch: str = "100000",
    compact_s: str = "3600",
    *further: str,
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
        " PARTITIONED BY (days(store_timestamp))"
        " TBLPROPERTIES ('write.spark.accept-any-schema' = 'true')"
    )

    def compact() -> None:
        # Appends go on meanwhile. Snapshots stay for five days: the newest of the stream says
        # which micro-batch the table has.
        spark.sql(f"CALL lake.system.rewrite_data_files('{TABLE}')")
        spark.sql(f"CALL lake.system.expire_snapshots('{TABLE}')")
        spark.sql(f"CALL lake.system.remove_orphan_files('{TABLE}')")

    if how == "compact":
        compact()
        return
    messages = (
        spark.readStream.format("rocketmq")
        .option("nameServer", name_server)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", batch)
        .load()
        .selectExpr(*COLUMNS, *further)
    )
    writer = messages.writeStream.format("iceberg").outputMode("append")
    # Rows of a micro-batch need not be sorted by day, and further columns are added.
    writer = writer.option("fanout-enabled", True).option("mergeSchema", True)
    writer = writer.option("checkpointLocation", f"{warehouse}/checkpoints/orders")
    if how == "always":
        query = writer.toTable(TABLE)
        while not query.awaitTermination(float(compact_s)):
            compact()
    rows = 1
    while rows:
        query = writer.trigger(availableNow=True).toTable(TABLE)
        query.awaitTermination()
        rows = query.lastProgress["numInputRows"] if query.lastProgress else 0
    print(f"{spark.table(TABLE).count()} rows in {TABLE}")


if __name__ == "__main__":
    main(*sys.argv[1:])
