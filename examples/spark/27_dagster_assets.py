"""Assets of Dagster: an archive of a topic, and a check that fails if the archive has a fault.

Run: ``dagster dev -f examples/spark/27_dagster_assets.py``.
"""

import os

import dagster
from dagster import AssetCheckResult, ConfigurableResource, MaterializeResult

from cometmq.spark.archive import ArchiveTopicsSettings, archive_topics, read_archive
from cometmq.spark.checks import compare, gaps
from cometmq.spark.sessions import local_session


class Source(ConfigurableResource):
    name_servers: str = os.environ.get("COMETMQ_NAME_SERVERS", "127.0.0.1:9876")
    topic: str = os.environ.get("COMETMQ_TOPIC", "orders")
    table: str = os.environ.get("COMETMQ_ARCHIVE", "/data/archive")


@dagster.asset
def archived_orders(source: Source) -> MaterializeResult:
    settings = ArchiveTopicsSettings(
        name_servers=source.name_servers, topics=(source.topic,), to=source.table
    )
    result = archive_topics(local_session(), settings)
    return MaterializeResult(metadata={"rows": result.rows, "files": result.files})


@dagster.asset_check(asset=archived_orders, blocking=True)
def archive_is_whole(source: Source) -> AssetCheckResult:
    spark = local_session()
    archived = read_archive(spark, source.table, topics=[source.topic])
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
