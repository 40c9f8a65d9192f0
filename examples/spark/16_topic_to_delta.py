"""Stream a topic into a Delta table, exactly once: without an end, or once what is new.

Run: ``spark-submit --packages io.delta:delta-spark_4.2_2.13:4.4.0
examples/spark/16_topic_to_delta.py [name server] [topic] [table] [always or once] [batch]``.
"""

import sys

from cometmq.spark.sessions import local_session


def main(
    name_server: str = "127.0.0.1:9876",
    topic: str = "orders",
    table: str = "orders_delta",
    how: str = "once",
    batch: str = "100000",
) -> None:
    spark = local_session(
        **{
            "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
            "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        }
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
    writer = messages.writeStream.format("delta")
    writer = writer.option("checkpointLocation", f"{table}/_checkpoint")
    if how == "once":
        writer = writer.trigger(availableNow=True)
    writer.start(table).awaitTermination()
    print(f"{spark.read.format('delta').load(table).count()} rows in {table}")


if __name__ == "__main__":
    main(*sys.argv[1:])
