"""Assets of Dagster: an archive of a topic, and a check that fails if the archive has a fault.

Run: ``dagster dev -f examples/spark/27_dagster_assets.py``.
"""

import os

import dagster
from dagster import AssetCheckResult, ConfigurableResource, MaterializeResult
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from cometmq.spark.checks import compare, gaps
from cometmq.spark.sessions import local_session


class Source(ConfigurableResource):
    name_servers: str = os.environ.get("COMETMQ_NAME_SERVERS", "127.0.0.1:9876")
    topic: str = os.environ.get("COMETMQ_TOPIC", "orders")
    table: str = os.environ.get("COMETMQ_ARCHIVE", "/data/archive")


@dagster.asset
def archived_orders(source: Source) -> MaterializeResult:
    spark = local_session()
    added = [0]

    def add(rows, batch: int) -> None:
        query = str(spark.sparkContext.getLocalProperty("sql.streaming.queryId"))
        known = None
        if DeltaTable.is_deltatable(source.table):
            known = DeltaTable(source.table).transaction_version(query)
        if known is None or known < batch:
            done = CommitProperties(app_transactions=[Transaction(query, batch)])
            found = rows.toArrow()
            write_deltalake(source.table, found, mode="append", commit_properties=done)
            added.append(found.num_rows)

    messages = spark.readStream.format("rocketmq").option("nameServer", source.name_servers)
    messages = messages.option("subscribe", source.topic).option("startingOffsets", "earliest")
    query = messages.option("maxOffsetsPerTrigger", 100_000).load().writeStream.foreachBatch(add)
    query = query.option("checkpointLocation", f"{source.table}/_checkpoint")
    query.trigger(availableNow=True).start().awaitTermination()
    return MaterializeResult(metadata={"rows": sum(added)})


@dagster.asset_check(asset=archived_orders, blocking=True)
def archive_is_whole(source: Source) -> AssetCheckResult:
    spark = local_session()
    archived = spark.read.parquet(*DeltaTable(source.table).file_uris())
    reader = spark.read.format("rocketmq").option("nameServer", source.name_servers)
    stored = reader.option("subscribe", source.topic).load()
    # What was sent since then is not archived yet, and what expired is in the archive only.
    usual = ["behind-there", "expired-here"]
    differing = compare(stored, archived)
    differing = differing.where(~differing.finding.isin(usual))
    faults = [*gaps(archived).collect(), *differing.collect()]
    return AssetCheckResult(passed=not faults, metadata={"faults": [str(row) for row in faults]})


# In one process the asset and its check share a session of Spark.
job = dagster.define_asset_job("archive_orders", executor_def=dagster.in_process_executor)
hourly = dagster.ScheduleDefinition(job=job, cron_schedule="0 * * * *")
definitions = dagster.Definitions(
    assets=[archived_orders],
    asset_checks=[archive_is_whole],
    schedules=[hourly],
    resources={"source": Source()},
)
