"""A stream continues only with the topics that it has archived, not with another cluster's."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from cometmq.model.errors import ConfigError
from cometmq.spark.errors import PlaceError
from cometmq.spark.offsets import Bounds, QueueKey, QueueRange
from cometmq.spark.options.topics import TopicReadOptions
from cometmq.spark.pipelines.archive.manifest import Entry, Manifest
from cometmq.spark.pipelines.archive.parquet import last_records
from cometmq.spark.pipelines.archive.topic_identity import check_cluster, check_queues
from cometmq.spark.pipelines.running.folders import DiskFolder
from cometmq.spark.schema import CORE, arrow_schema
from cometmq.spark.sources.ranges import RangeReader
from support.spark.memory_brokers import MemoryBrokers

STREAM = "topics"
OPTIONS = TopicReadOptions(name_servers="n:1", subscribe="orders")
ARCHIVED = 50
KEY = QueueKey("orders", "broker-a", 0)


@pytest.fixture
def manifest(tmp_path: Path) -> Manifest:
    return Manifest(DiskFolder(tmp_path))


def filled(*counts: int, time_ms: int = 1_000, tags: str = "") -> MemoryBrokers:
    """A cluster with the topic ``orders`` and so many messages in each of its queues."""
    brokers = MemoryBrokers()
    for key, count in zip(brokers.create("orders", len(counts)), counts, strict=True):
        brokers.send(key, count, time_ms=time_ms, tags=tags)
    return brokers


def archive(manifest: Manifest, brokers: MemoryBrokers, batch: int = 0, start: int = 0) -> None:
    """Record a micro-batch of all queues, from an offset to their ends."""
    reader = RangeReader(OPTIONS, CORE, brokers.connect)
    parts = [
        part
        for key, limits in brokers.bounds(brokers.held).items()
        for part in reader.read(QueueRange(key, start, limits.max))
    ]
    rows = pa.Table.from_batches(parts, arrow_schema(CORE))
    made = Entry(
        STREAM, batch, batch + 1, rows.num_rows, (), (), query="q",
        last_records=tuple(last_records(rows)),
    )  # fmt: skip
    manifest.add_batch(made)


def check(manifest: Manifest, brokers: MemoryBrokers, options: TopicReadOptions = OPTIONS) -> None:
    check_cluster(manifest, options, ["orders"], brokers.connect)
    check_queues(manifest, STREAM, options, brokers.connect)


def test_the_cluster_is_recorded_at_the_first_run_and_met_again(manifest: Manifest) -> None:
    brokers = filled(1)
    check(manifest, brokers)
    assert manifest.clusters() == {"broker-a": "DefaultCluster"}
    check(manifest, brokers)


def test_only_brokers_of_the_topics_are_recorded(manifest: Manifest) -> None:
    brokers = filled(1)
    brokers.clusters["broker-of-others"] = "others"
    check(manifest, brokers)
    assert manifest.clusters() == {"broker-a": "DefaultCluster"}


def test_a_cluster_of_another_name_is_refused(manifest: Manifest) -> None:
    check(manifest, filled(1))
    other = filled(1)
    other.clusters["broker-a"] = "other"
    with pytest.raises(ConfigError) as refused:
        check(manifest, other)
    text = str(refused.value)
    assert "is an archive of broker-a of cluster DefaultCluster; " in text
    assert "met broker-a of cluster other at name servers n:1" in text
    assert "into another folder" in text
    assert "clusters.json" in text
    assert manifest.clusters() == {"broker-a": "DefaultCluster"}


def test_a_broker_of_a_cluster_that_is_not_recorded_is_refused(manifest: Manifest) -> None:
    check(manifest, filled(1))
    wider = filled(1)
    wider.create("orders", broker="broker-b")
    wider.clusters["broker-b"] = "other"
    with pytest.raises(ConfigError, match="met broker-b of cluster other at"):
        check(manifest, wider)


def test_brokers_may_be_added_and_may_leave(manifest: Manifest) -> None:
    brokers = filled(1)
    check(manifest, brokers)
    brokers.create("orders", broker="broker-b")
    check(manifest, brokers)
    both = {"broker-a": "DefaultCluster", "broker-b": "DefaultCluster"}
    assert manifest.clusters() == both
    brokers.held = {key: queue for key, queue in brokers.held.items() if key.broker == "broker-b"}
    check(manifest, brokers)
    assert manifest.clusters() == both


def test_a_cluster_without_any_recorded_broker_is_refused(manifest: Manifest) -> None:
    check(manifest, filled(1))
    other = MemoryBrokers()
    other.create("orders", broker="broker-x")
    with pytest.raises(ConfigError, match="met broker-x of cluster DefaultCluster at"):
        check(manifest, other)


def test_a_topic_that_is_nowhere_records_no_cluster(manifest: Manifest) -> None:
    check(manifest, MemoryBrokers())
    assert manifest.clusters() == {}


def test_a_cluster_that_cannot_be_read_is_named(manifest: Manifest, tmp_path: Path) -> None:
    (tmp_path / "_manifest").mkdir()
    (tmp_path / "_manifest" / "clusters.json").write_text("{}")
    with pytest.raises(PlaceError, match=r"clusters\.json: met None"):
        manifest.clusters()


def test_a_stream_goes_on_with_what_its_queues_have_gained(manifest: Manifest) -> None:
    brokers = filled(ARCHIVED, 7, 0)
    archive(manifest, brokers)
    for batch in (1, 2):
        for key in brokers.held:
            brokers.send(key, 3, time_ms=2_000 + batch)
        check(manifest, brokers)
        archive(manifest, brokers, batch)
    check(manifest, brokers)


@pytest.mark.parametrize("held", [ARCHIVED, ARCHIVED + 30])
def test_a_cluster_of_equal_names_with_other_messages_is_refused(
    manifest: Manifest, held: int
) -> None:
    """The queue reaches as far as the archive, or farther."""
    brokers = filled(ARCHIVED)
    check(manifest, brokers)
    archive(manifest, brokers)
    met = (
        r"topic orders, queue 0 of broker-a: .* offset 49, stored at 1000 ms.*"
        r"; the queue holds offset 49, stored at 9000 ms.* another cluster.* another folder"
    )
    with pytest.raises(ConfigError, match=met):
        check(manifest, filled(held, time_ms=9_000))


def test_a_queue_that_ends_before_the_archive_is_refused(manifest: Manifest) -> None:
    archive(manifest, filled(ARCHIVED))
    with pytest.raises(ConfigError, match=r"offset 49.*the queue holds offsets 0 to 49: these"):
        check(manifest, filled(ARCHIVED - 1))


def test_a_topic_that_was_created_again_is_refused(manifest: Manifest) -> None:
    brokers = filled(ARCHIVED)
    archive(manifest, brokers)
    brokers.make_anew(KEY)
    brokers.send(KEY, 2 * ARCHIVED, time_ms=5_000)
    options = replace(OPTIONS, fail_on_data_loss=False)
    with pytest.raises(ConfigError, match="the topic was created again"):
        check(manifest, brokers, options)


def test_one_queue_of_many_is_enough(manifest: Manifest) -> None:
    archive(manifest, filled(3, 3, 3))
    brokers = filled(3, 3, 3)
    brokers.make_anew(QueueKey("orders", "broker-a", 2))
    brokers.send(QueueKey("orders", "broker-a", 2), 5, body=b"other")
    with pytest.raises(ConfigError, match="queue 2 of broker-a"):
        check(manifest, brokers)


def test_a_filter_hides_no_other_message(manifest: Manifest) -> None:
    archive(manifest, filled(ARCHIVED, tags="paid"))
    options = replace(OPTIONS, filter_tags="paid")
    with pytest.raises(ConfigError, match="stored at 9000 ms"):
        check(manifest, filled(ARCHIVED, tags="sent", time_ms=9_000), options)


def test_a_replica_that_is_behind_its_master_is_no_other_cluster(manifest: Manifest) -> None:
    brokers = filled(ARCHIVED)
    archive(manifest, brokers)
    brokers.replicas[KEY] = Bounds(0, ARCHIVED - 1, master=False)
    check(manifest, brokers)


def test_what_has_expired_is_not_compared(
    manifest: Manifest, caplog: pytest.LogCaptureFixture
) -> None:
    brokers = filled(ARCHIVED)
    archive(manifest, brokers)
    brokers.send(KEY, 5)
    brokers.expire(KEY, ARCHIVED)
    with caplog.at_level(logging.WARNING):
        check(manifest, brokers)
    assert "the topics cannot be compared with the archive stream=topics" in caplog.text


def test_a_queue_that_is_gone_is_not_compared(manifest: Manifest) -> None:
    brokers = filled(ARCHIVED, 3)
    archive(manifest, brokers)
    del brokers.held[QueueKey("orders", "broker-a", 1)]
    check(manifest, brokers)


@pytest.mark.parametrize("fail", [True, False])
def test_a_cluster_without_any_archived_queue_is_refused(manifest: Manifest, fail: bool) -> None:
    """It has a broker of the recorded name in a cluster of the recorded name, and other topics."""
    brokers = filled(ARCHIVED, 3)
    check(manifest, brokers)
    archive(manifest, brokers)
    other = MemoryBrokers()
    other.create("bills")
    met = (
        r"^topic orders, queue 0 of broker-a: stream topics in .* has archived it up to offset 49;"
        r" it does not exist at name servers n:1, nor does any other .* of orders: .*another folder"
    )
    with pytest.raises(ConfigError, match=met):
        check(manifest, other, replace(OPTIONS, fail_on_data_loss=fail))


def test_an_archive_of_an_older_version_goes_on_and_records_the_cluster(
    manifest: Manifest,
) -> None:
    manifest.add_batch(Entry(STREAM, 0, 1, 0, (), (), query="q"))
    check(manifest, filled(1))
    assert manifest.clusters() == {"broker-a": "DefaultCluster"}


def test_entries_of_older_versions_name_no_messages(manifest: Manifest, tmp_path: Path) -> None:
    archive(manifest, filled(2))
    (path,) = (tmp_path / "_manifest" / STREAM).glob("0*.json")
    (entry,) = manifest.entries()
    assert [each.offset for each in entry.last_records] == [1]
    document = json.loads(path.read_text())
    del document["last_records"]
    path.write_text(json.dumps(document))
    (read,) = manifest.entries()
    assert read.last_records == ()
