"""Decode orders while they are read, and keep the bad ones in a quarantine table.

Each run continues after the last one. Both tables have the position of every message.
Run: ``python examples/spark/10_payloads.py [name server] [topic] [folder]``.
"""

import sys

from pyspark.sql import DataFrame

from cometmq.spark.sessions import local_session

COLUMNS = "`order` STRING NOT NULL, country STRING, amount DOUBLE NOT NULL"
POSITION = ["topic", "broker_name", "queue_id", "queue_offset"]


def main(name_server: str = "127.0.0.1:9876", topic: str = "orders", folder: str = "bills") -> None:
    spark = local_session()
    messages = (
        spark.readStream.format("rocketmq")
        .option("nameServer", name_server)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("payload.format", "json")
        .option("payload.schema", COLUMNS)
        .load()
    )

    def divide(batch: DataFrame, number: int) -> None:
        batch.persist()
        good, bad = batch.where("value_error IS NULL"), batch.where("value_error IS NOT NULL")
        # A batch that is repeated after a failure replaces its own files.
        good.select(*POSITION, "value.*").write.mode("overwrite").parquet(
            f"{folder}/orders/batch={number}"
        )
        bad.select(*POSITION, "value_error", "body").write.mode("overwrite").parquet(
            f"{folder}/quarantine/batch={number}"
        )
        batch.unpersist()

    query = (
        messages.writeStream.foreachBatch(divide)
        .option("checkpointLocation", f"{folder}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    print(f"{spark.read.parquet(f'{folder}/orders').count()} orders")
    for row in spark.read.parquet(f"{folder}/quarantine").collect():
        print(f"queue {row.queue_id}, offset {row.queue_offset}: {row.value_error}")


if __name__ == "__main__":
    main(*sys.argv[1:])
