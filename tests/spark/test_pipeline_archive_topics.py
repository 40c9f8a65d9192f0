"""Archives of topics from brokers of ours and of RocketMQ: each message once, also if killed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import kit
import pytest
from pyspark.errors import StreamingQueryException
from servers import Cluster, connect, wait_for_route

from cometmq.model.errors import ConfigError
from cometmq.spark.pipelines.archive.manifest import Manifest
from cometmq.spark.pipelines.archive.reading import read_archive
from cometmq.spark.pipelines.archive_topics import ArchiveTopicsSettings, archive_topics
from cometmq.spark.pipelines.running.failures import failure_of
from cometmq.spark.pipelines.running.folders import open_folder
from cometmq.spark.pipelines.running.runs import Runs
from support.spark.spark_topics import fill

pytestmark = pytest.mark.long_elsewhere

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def settings(name_servers: str, topic: str, tmp_path: Path) -> ArchiveTopicsSettings:
    return ArchiveTopicsSettings(
        name_servers=name_servers, topics=(topic,), to=str(tmp_path / "archive"), batch_rows=50
    )


def places(spark: SparkSession, settings: ArchiveTopicsSettings) -> list[tuple[int, int]]:
    rows = read_archive(spark, settings.to, columns=["queue_id", "queue_offset"]).collect()
    return sorted((row["queue_id"], row["queue_offset"]) for row in rows)


def test_a_topic_is_archived_once_however_often_it_is_begun(
    spark: SparkSession, settings: ArchiveTopicsSettings, topic: str
) -> None:
    fill(settings.name_servers, topic, {0: 70, 1: 40})
    first = archive_topics(spark, settings)
    assert first.run.counts["rows"] == 110
    assert first.run.counts["batches"] > 1
    assert archive_topics(spark, settings).run.counts["rows"] == 0
    fill(settings.name_servers, topic, {1: 20})
    assert archive_topics(spark, settings).run.counts["rows"] == 20
    wanted = [*((0, at) for at in range(70)), *((1, at) for at in range(60))]
    assert places(spark, settings) == wanted
    queues = [q for entry in Manifest(open_folder(settings.to)).entries() for q in entry.queues]
    assert sum(queue.rows for queue in queues) == 130
    assert max(queue.max_offset for queue in queues if queue.queue_id == 1) == 59


def test_a_batch_that_is_done_again_replaces_itself(
    spark: SparkSession, settings: ArchiveTopicsSettings, topic: str
) -> None:
    """As after a kill between the manifest's entry and Spark's own note of the batch."""
    fill(settings.name_servers, topic, {0: 70, 2: 30})
    archive_topics(spark, settings)
    commits = Path(settings.to) / "_checkpoint" / settings.name / "commits"
    last = max(
        (path for path in commits.iterdir() if path.name.isdigit()), key=lambda p: int(p.name)
    )
    last.unlink()
    (commits / f".{last.name}.crc").unlink(missing_ok=True)
    archive_topics(spark, settings)
    assert places(spark, settings) == [
        *((0, at) for at in range(70)),
        *((2, at) for at in range(30)),
    ]
    named = {f.name for entry in Manifest(open_folder(settings.to)).entries() for f in entry.files}
    there = {
        path.relative_to(settings.to).as_posix() for path in Path(settings.to).rglob("*.parquet")
    }
    assert there == named


def create(cluster: Cluster, topic: str) -> None:
    connection = connect(cluster.broker)
    kit.ok(kit.create_topic(connection, topic, read=4, write=4))
    connection.close()
    wait_for_route(cluster.namesrv, topic)


@pytest.mark.parametrize("name", ["DefaultCluster", "other"])
def test_another_cluster_with_equal_names_is_not_archived(
    spark: SparkSession,
    settings: ArchiveTopicsSettings,
    topic: str,
    make_cluster: Callable[..., Cluster],
    name: str,
) -> None:
    fill(settings.name_servers, topic, {0: 30})
    archive_topics(spark, settings)
    other = make_cluster({"brokerClusterName": name})
    create(other, topic)
    fill(other.namesrv, topic, {0: 50})
    met = "the queue holds offset 29" if name == "DefaultCluster" else "broker-a of cluster other"
    with pytest.raises(ConfigError, match=met):
        archive_topics(spark, replace(settings, name_servers=other.namesrv))
    fill(settings.name_servers, topic, {0: 5})
    assert archive_topics(spark, settings).run.counts["rows"] == 5
    assert places(spark, settings) == [(0, at) for at in range(35)]


def test_a_failure_of_the_stream_is_one_sentence(
    spark: SparkSession, settings: ArchiveTopicsSettings, topic: str
) -> None:
    """Spark's own text has a hundred lines: the stack of Python, its sentence, the plan."""
    fill(settings.name_servers, topic, {0: 7})
    start = f'startingOffsets={{"{topic}":{{"broker-a":{{"0":99}}}}}}'
    with pytest.raises(StreamingQueryException) as failed:
        archive_topics(spark, replace(settings, options=(start,)))
    reason = str(failure_of(failed.value))
    assert reason.startswith(f"DataLossError: topic {topic}, queue 0 of broker-a: offsets from 99")
    assert len(reason.splitlines()) == 1
    (record,) = Runs(Path(settings.to) / "_runs").all()
    assert (record.status, record.reason) == ("failed", reason)


def test_a_dry_run_counts(spark: SparkSession, settings: ArchiveTopicsSettings, topic: str) -> None:
    fill(settings.name_servers, topic, {0: 7})
    assert archive_topics(spark, settings, dry_run=True).run.counts == {"rows": 7}
    assert not Path(settings.to).exists()


def test_what_is_missing_is_named(settings: ArchiveTopicsSettings) -> None:
    with pytest.raises(ConfigError, match="expected name_servers, topics and to"):
        archive_topics(None, replace(settings, topics=()))
