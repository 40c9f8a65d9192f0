"""Read a broker's store files without the broker: the disk space that each topic uses.

The schema names the columns that are needed, so the other columns are not decoded.
Run: ``python examples/spark/05_read_a_log.py [store folder]``.
"""

import sys
from pathlib import Path

from pyspark.sql import functions as f

from cometmq.spark.sessions import local_session


def main(store: str = "store") -> None:
    spark = local_session()
    log = (
        spark.read.format("rocketmq-log")
        .schema("topic STRING NOT NULL, store_size INT")
        .load(str(Path(store) / "commitlog"))
    )
    sizes = log.groupBy("topic").agg(
        f.count("*").alias("messages"), f.sum("store_size").alias("bytes")
    )
    for row in sizes.orderBy(f.desc("bytes")).collect():
        print(f"{row.topic}: {row.messages} messages, {row.bytes} bytes")


if __name__ == "__main__":
    main(*sys.argv[1:])
