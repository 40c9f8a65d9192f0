"""Archive a broker's log as Parquet by topic and day, and query the archive.

The broker need not run. A second run archives the messages that were stored since the first.
Run: ``python examples/spark/07_archive.py [store folder] [archive folder] [topic]``.
"""

import sys

from pyspark.sql import functions as f

from cometmq.spark.pipelines.archive import ArchiveSettings, archive
from cometmq.spark.sessions import local_session


def main(store: str = "store", folder: str = "archive", topic: str = "orders") -> None:
    spark = local_session()
    result = archive(spark, ArchiveSettings(store=store, broker_name="broker-a", to=folder))
    print(f"{result.run.status}: {result.run.counts['rows']} messages archived")

    orders = spark.read.parquet(f"{folder}/topic={topic}")
    for row in orders.groupBy("tags").agg(f.count("*").alias("messages")).orderBy("tags").collect():
        print(f"{row.tags}: {row.messages} messages")


if __name__ == "__main__":
    main(*sys.argv[1:])
