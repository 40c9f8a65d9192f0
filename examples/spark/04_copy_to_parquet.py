"""Copy the new messages of a topic to Parquet, exactly once, and exit. A scheduler may run it.

The checkpoint stores where the last run stopped.
Run: ``python examples/spark/04_copy_to_parquet.py [name server] [topic] [folder]``.
"""

import sys

from cometmq.spark.sessions import local_session


def main(name_server: str = "127.0.0.1:9876", topic: str = "orders", folder: str = "copy") -> None:
    spark = local_session()
    messages = (
        spark.readStream.format("rocketmq")
        .option("nameServer", name_server)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 100_000)
        .load()
    )
    query = (
        messages.writeStream.format("parquet")
        .option("checkpointLocation", f"{folder}/checkpoint")
        .trigger(availableNow=True)
        .start(f"{folder}/messages")
    )
    query.awaitTermination()
    copied = spark.read.parquet(f"{folder}/messages")
    print(f"{copied.count()} messages copied")


if __name__ == "__main__":
    main(*sys.argv[1:])
