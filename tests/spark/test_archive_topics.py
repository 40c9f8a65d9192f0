"""Archives of topics from brokers of ours and of RocketMQ: each message once, also if killed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import kit
import pytest
from pyspark.errors import StreamingQueryException
from servers import Cluster, connect, wait_for_route

from cometmq.client.blocking import AdminClient
from cometmq.model.errors import ConfigError
from cometmq.spark.archive import (
    ArchiveTopicsSettings,
    archive_topics,
    read_archive,
    tables,
)
from cometmq.spark.archive import topics as topics_module
from support.spark.archives import all_files, files_of, maintain
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
    rows = read_archive(spark, settings, columns=["queue_id", "queue_offset"]).collect()
    return sorted((row["queue_id"], row["queue_offset"]) for row in rows)


def test_a_topic_is_archived_once_however_often_it_is_begun(
    spark: SparkSession, settings: ArchiveTopicsSettings, topic: str
) -> None:
    fill(settings.name_servers, topic, {0: 70, 1: 40})
    first = archive_topics(spark, settings)
    assert (first.rows, first.files, first.lost) == (110, len(files_of(settings)), ())
    assert first.end[topic]["broker-a"]["0"] == 70
    again = archive_topics(spark, settings)
    assert (again.rows, again.start, again.end) == (0, first.end, first.end)
    maintain(settings)
    fill(settings.name_servers, topic, {1: 20})
    assert archive_topics(spark, settings).rows == 20
    wanted = [*((0, at) for at in range(70)), *((1, at) for at in range(60))]
    assert places(spark, settings) == wanted


@pytest.mark.parametrize("table", ["delta", "iceberg"])
def test_a_repeated_batch_is_not_read_again(
    spark: SparkSession, settings: ArchiveTopicsSettings, topic: str, table: str
) -> None:
    """The driver was killed between the table's commit and Spark's; messages expired since."""
    settings = replace(settings, table=table, fail_on_data_loss=False)
    fill(settings.name_servers, topic, {0: 70, 2: 30})
    archive_topics(spark, settings)
    commits = Path(settings.to) / "_checkpoint" / settings.name / "commits"
    last = max(
        (path for path in commits.iterdir() if path.name.isdigit()), key=lambda p: int(p.name)
    )
    last.unlink()
    (commits / f".{last.name}.crc").unlink(missing_ok=True)
    with AdminClient(settings.name_servers) as admin:
        admin.delete_topic(topic)
        admin.create_topic(topic, queues=4)
    wanted = [*((0, at) for at in range(70)), *((2, at) for at in range(30))]
    before = all_files(settings)
    with pytest.raises(ConfigError, match="the topic was created again"):
        archive_topics(spark, settings)
    topics_module._stream(spark, settings, topics_module.Checkpoint(str(commits.parent)), [])
    assert all_files(settings) == before
    assert places(spark, settings) == wanted
    assert last.exists()


@pytest.mark.parametrize("table", ["delta", "iceberg"])
def test_a_killed_driver_is_continued(
    spark: SparkSession,
    settings: ArchiveTopicsSettings,
    topic: str,
    table: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It dies between files and commit, or after the commit; another codec continues."""
    settings = replace(settings, table=table)
    fill(settings.name_servers, topic, {0: 70, 2: 30})
    owner: Any = tables.DeltaTable if table == "delta" else tables.IcebergTable
    original = owner.commit
    for after in (False, True):

        def dies(*args: Any, after: bool = after) -> None:
            if after:
                original(*args)
            raise OSError("killed")

        with monkeypatch.context() as patched:
            patched.setattr(owner, "commit", dies)
            with pytest.raises(StreamingQueryException, match="killed"):
                archive_topics(spark, replace(settings, codec="snappy"))
    archive_topics(spark, settings)
    wanted = [*((0, at) for at in range(70)), *((2, at) for at in range(30))]
    assert places(spark, settings) == wanted


def create(cluster: Cluster, topic: str) -> None:
    connection = connect(cluster.broker)
    kit.ok(kit.create_topic(connection, topic, read=4, write=4))
    connection.close()
    wait_for_route(cluster.namesrv, topic)


def test_another_cluster_with_equal_names_is_not_archived(
    spark: SparkSession,
    settings: ArchiveTopicsSettings,
    topic: str,
    make_cluster: Callable[..., Cluster],
) -> None:
    fill(settings.name_servers, topic, {0: 30})
    archive_topics(spark, settings)
    other = make_cluster({})
    create(other, topic)
    fill(other.namesrv, topic, {0: 50})
    with pytest.raises(ConfigError, match="the queue holds offset 29"):
        archive_topics(spark, replace(settings, name_servers=other.namesrv))
    fill(settings.name_servers, topic, {0: 5})
    assert archive_topics(spark, settings).rows == 5
    assert places(spark, settings) == [(0, at) for at in range(35)]


def test_a_dry_run_counts(spark: SparkSession, settings: ArchiveTopicsSettings, topic: str) -> None:
    fill(settings.name_servers, topic, {0: 7})
    assert archive_topics(spark, settings, dry_run=True).rows == 7
    assert not Path(settings.to).exists()
