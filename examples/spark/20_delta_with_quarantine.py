"""Keep a Delta table of the orders of a topic, and a second one of the bodies that are none.

Each message is in exactly one of the tables, once. Each run takes what is new and exits. Run:
``spark-submit --packages io.delta:delta-spark_4.2_2.13:4.4.0
examples/spark/20_delta_with_quarantine.py [name server] [topic] [folder]``.
"""

import sys

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from cometmq.spark.sessions import local_session

ORDER = "`order` STRING NOT NULL, country STRING, amount DOUBLE NOT NULL, at TIMESTAMP"
POSITION = ["topic", "broker_name", "queue_id", "queue_offset", "msg_id", "store_timestamp"]
DELTA = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}


def main(name_server: str = "127.0.0.1:9876", topic: str = "orders", folder: str = "shop") -> None:
    spark = local_session(**DELTA)
    messages = (
        spark.readStream.format("rocketmq")
        .option("nameServer", name_server)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 100_000)
        .option("payload.format", "json")
        .option("payload.schema", ORDER)
        .load()
    )

    def divide(batch: DataFrame, number: int) -> None:
        query_id = batch.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
        batch.persist()
        good, bad = batch.where("value_error IS NULL"), batch.where("value_error IS NOT NULL")
        for rows, table in (
            (good.select(*POSITION, "value.*"), "orders"),
            (bad.select(*POSITION, "value_error", "body"), "quarantine"),
        ):
            # A table skips a batch that it has: Spark repeats a batch after a failure.
            once = {"txnAppId": query_id, "txnVersion": number}
            rows.write.format("delta").mode("append").options(**once).save(f"{folder}/{table}")
        batch.unpersist()

    counts = f.count("*").alias("messages"), f.count("value_error").alias("bad")
    query = (
        messages.observe("orders", *counts)
        .writeStream.foreachBatch(divide)
        .option("checkpointLocation", f"{folder}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    for progress in query.recentProgress:
        if "orders" in progress.observedMetrics:
            seen = progress.observedMetrics["orders"]
            print(f"batch {progress.batchId}: {seen.messages} messages, {seen.bad} bad")
    for table in ("orders", "quarantine"):
        print(f"{spark.read.format('delta').load(f'{folder}/{table}').count()} rows in {table}")


if __name__ == "__main__":
    main(*sys.argv[1:])
