"""Stream a topic into a Delta table, exactly once: without an end, or once what is new.

The table has a partition for each day. A stream without an end compacts it every hour. Each further
column that the query has becomes a column of the table. Run: ``spark-submit
--packages io.delta:delta-spark_4.2_2.13:4.4.0 examples/spark/16_topic_to_delta.py
[name server] [topic] [table] [always, once or compact] [batch] [seconds] [further column ...]``.
"""

import sys

from cometmq.spark.sessions import local_session

COLUMNS = (
    "queue_id",
    "queue_offset",
    "store_timestamp",
    "CAST(body AS STRING) AS body",
    "CAST(store_timestamp AS DATE) AS day",
)


def main(
    name_server: str = "127.0.0.1:9876",
    topic: str = "orders",
    table: str = "orders_delta",
    how: str = "once",
    batch: str = "100000",
    compact_s: str = "3600",
    *further: str,
) -> None:
    spark = local_session(
        **{
            "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
            "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        }
    )
    spark.sql(
        f"CREATE TABLE IF NOT EXISTS delta.`{table}` (queue_id INT, queue_offset BIGINT,"
        " store_timestamp TIMESTAMP, body STRING, day DATE) USING delta PARTITIONED BY (day)"
    )

    def compact() -> None:
        # Appends go on meanwhile. Replaced files stay for a week, for queries that read them.
        spark.sql(f"OPTIMIZE delta.`{table}`")
        spark.sql(f"VACUUM delta.`{table}`")

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
    writer = messages.writeStream.format("delta").option("mergeSchema", True)
    writer = writer.option("checkpointLocation", f"{table}/_checkpoint")
    if how == "once":
        writer = writer.trigger(availableNow=True)
    query = writer.start(table)
    while not query.awaitTermination(float(compact_s)):
        compact()
    print(f"{spark.read.format('delta').load(table).count()} rows in {table}")


if __name__ == "__main__":
    main(*sys.argv[1:])
