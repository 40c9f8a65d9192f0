"""Archive a broker's log into a Delta table, and query the table.

The broker need not run. A second run archives the messages that were stored since the first.
Run: ``python examples/spark/07_archive.py [store folder] [archive folder] [topic]``.
"""

import sys

from pyspark.sql import functions as f

from cometmq.spark.archive import ArchiveLogSettings, archive_log, read_archive
from cometmq.spark.sessions import local_session


def main(store: str = "store", folder: str = "archive", topic: str = "orders") -> None:
    spark = local_session()
    settings = ArchiveLogSettings(store=store, broker_name="broker-a", to=folder)
    print(f"{archive_log(spark, settings).rows} messages archived")

    orders = read_archive(spark, folder, topics=[topic])
    for row in orders.groupBy("tags").agg(f.count("*").alias("messages")).orderBy("tags").collect():
        print(f"{row.tags}: {row.messages} messages")


if __name__ == "__main__":
    main(*sys.argv[1:])
