"""Check the log of a master, and compare it with the log of its replica.

It prints totals of all findings and the first rows of each check; the exit code is 1 if there are
any. Run: ``python examples/spark/15_audit_a_replica.py [store of the master] [store of the replica]
[rows to show]``.
"""

import sys

from pyspark.sql import DataFrame, SparkSession

from cometmq.spark import checks
from cometmq.spark.sessions import local_session


def messages_of(spark: SparkSession, store: str) -> DataFrame:
    """Read a log with the rows of damaged records."""
    reader = spark.read.format("rocketmq-log").option("includeProperties", True)
    return reader.option("validate", True).option("badRecords", "permissive").load(store)


def main(master: str = "store", replica: str = "replica", rows: str = "20") -> None:
    spark = local_session()
    here, there = messages_of(spark, master), messages_of(spark, replica)
    found = {
        "gaps": checks.gaps(here),
        "duplicates": checks.duplicates(here),
        "transactions": checks.transactions(here),
        "differences": checks.compare(here, there),
    }
    total = 0
    for name, rows_found in found.items():
        count = rows_found.cache().count()
        total += count
        print(f"{name}: {count}")
        if count:
            rows_found.show(int(rows), truncate=False)
    if total:
        raise SystemExit(1)


if __name__ == "__main__":
    main(*sys.argv[1:])
