"""A DAG of Airflow: each hour archive what is new in a topic, then check the archive.

The tasks run with the Python of another environment, which has CometMQ and Spark: Airflow pins
versions of packages that Spark needs too. Copy this file to Airflow's folder of DAGs.
"""

import os
from datetime import datetime

from airflow.sdk import dag, task

PYTHON = os.environ.get("COMETMQ_PYTHON", "/opt/cometmq/bin/python")
SOURCE = {
    "name_servers": os.environ.get("COMETMQ_NAME_SERVERS", "127.0.0.1:9876"),
    "topic": os.environ.get("COMETMQ_TOPIC", "orders"),
    "table": os.environ.get("COMETMQ_ARCHIVE", "/data/archive"),
}


@task.external_python(python=PYTHON, expect_airflow=False, retries=2)
def archive(name_servers: str, topic: str, table: str) -> None:
    from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

    from cometmq.spark.sessions import local_session

    spark = local_session()

    def add(rows, batch: int) -> None:
        query = str(spark.sparkContext.getLocalProperty("sql.streaming.queryId"))
        known = None
        if DeltaTable.is_deltatable(table):
            known = DeltaTable(table).transaction_version(query)
        if known is None or known < batch:
            done = CommitProperties(app_transactions=[Transaction(query, batch)])
            write_deltalake(table, rows.toArrow(), mode="append", commit_properties=done)

    source = spark.readStream.format("rocketmq").option("nameServer", name_servers)
    source = source.option("subscribe", topic).option("startingOffsets", "earliest")
    query = source.option("maxOffsetsPerTrigger", 100_000).load().writeStream.foreachBatch(add)
    query = query.option("checkpointLocation", f"{table}/_checkpoint")
    query.trigger(availableNow=True).start().awaitTermination()


@task.external_python(python=PYTHON, expect_airflow=False)
def check(name_servers: str, topic: str, table: str) -> None:
    from deltalake import DeltaTable

    from cometmq.spark.checks import compare, gaps
    from cometmq.spark.sessions import local_session

    spark = local_session()
    archived = spark.read.parquet(*DeltaTable(table).file_uris())
    reader = spark.read.format("rocketmq").option("nameServer", name_servers)
    stored = reader.option("subscribe", topic).load()
    # What was sent since then is not archived yet, and what expired is in the archive only.
    usual = ["behind-there", "expired-here"]
    differing = compare(stored, archived)
    differing = differing.where(~differing.finding.isin(usual))
    if faults := [*gaps(archived).collect(), *differing.collect()]:
        raise ValueError(f"{len(faults)} faults in {table}, the first is {faults[0]}")


@dag(schedule="@hourly", start_date=datetime(2026, 1, 1), catchup=False, max_active_runs=1)
def archive_orders() -> None:
    archive(**SOURCE) >> check(**SOURCE)


archive_orders()
