"""Add the new messages of a topic to a Delta table, exactly once, without a jar, and exit.

The driver writes each micro-batch with deltalake. The commit that adds the rows also stores the
query and the number of the batch. So a batch that Spark repeats after a crash is not added again.
A scheduler may run it.
Run: ``python examples/spark/19_topic_to_delta_without_a_jar.py [name server] [topic] [folder]``.
"""

import sys

from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from pyspark.sql import DataFrame, SparkSession

from cometmq.spark.sessions import local_session

BATCH_ROWS = 100_000
"""Most rows of a batch: the driver has them in memory."""


def add(spark: SparkSession, name_server: str, topic: str, folder: str) -> None:
    """Add all messages that are in the topic now."""
    table = f"{folder}/messages"

    def add_batch(rows: DataFrame, batch: int) -> None:
        query = str(spark.sparkContext.getLocalProperty("sql.streaming.queryId"))
        known = None
        if DeltaTable.is_deltatable(table):
            known = DeltaTable(table).transaction_version(query)
        if known is None or known < batch:
            done = CommitProperties(app_transactions=[Transaction(query, batch)])
            write_deltalake(table, rows.toArrow(), mode="append", commit_properties=done)

    messages = (
        spark.readStream.format("rocketmq")
        .option("nameServer", name_server)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("includeProperties", True)
        .option("maxOffsetsPerTrigger", BATCH_ROWS)
        .option("brokerAway.failAfterMs", 0)  # a run that ends well has read all queues
        .load()
    )
    query = (
        messages.writeStream.foreachBatch(add_batch)
        .option("checkpointLocation", f"{folder}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def main(name_server: str = "127.0.0.1:9876", topic: str = "orders", folder: str = "copy") -> None:
    spark = local_session()
    add(spark, name_server, topic, folder)
    rows = spark.read.parquet(*DeltaTable(f"{folder}/messages").file_uris())
    print(f"{rows.count()} messages in the table")


if __name__ == "__main__":
    main(*sys.argv[1:])
