"""The sink of archives of topics, and what a stream of them is held to, without a session."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark import TaskContext

from cometmq.model.errors import ConfigError
from cometmq.spark.pipelines.archive.manifest import Manifest
from cometmq.spark.pipelines.archive.reading import COLUMNS
from cometmq.spark.pipelines.archive.sink import ArchiveWriter
from cometmq.spark.pipelines.archive_topics import ArchiveTopicsSettings, archive_topics
from cometmq.spark.pipelines.running.folders import open_folder
from cometmq.spark.pipelines.running.runs import RunError, Runs
from cometmq.spark.schema import arrow_schema
from support.spark.memory_brokers import MemoryBrokers


class Query:
    """A streaming query that writes batches; its id is what its checkpoint keeps."""

    def __init__(self, to: Path, query: str, broker: str | None = None) -> None:
        self.writer = ArchiveWriter({"to": str(to), "name": "topics", "codec": "zstd"})
        self.query = query
        self.broker = broker

    def write(self, batch: int, *bodies: bytes) -> Any:
        """Write a batch of one task; return what the task tells the driver."""
        rows = [
            {"topic": "t", "queue_id": 0, "queue_offset": number, "store_timestamp": 0}
            | {"msg_id": "m", "body": body, "body_crc": 1, "flag": 0, "sys_flag": 0}
            | {"properties": [], "broker_name": self.broker}
            for number, body in enumerate(bodies)
        ]
        made = pa.RecordBatch.from_pylist(rows, schema=arrow_schema(COLUMNS))
        known = {"streaming.sql.batchId": str(batch), "sql.streaming.queryId": self.query}
        TaskContext(partitionId=0, localProperties=known)
        return self.writer.write(iter([made]))

    def batch(self, batch: int, *bodies: bytes) -> None:
        """Write a batch and commit it."""
        self.writer.commit([self.write(batch, *bodies)], batch)


@pytest.fixture(autouse=True)
def _task() -> Iterator[None]:
    """Leave no task behind."""
    yield
    TaskContext._setTaskContext(None)


def bodies_in(to: Path) -> list[bytes]:
    files = [file for entry in Manifest(open_folder(to)).entries() for file in entry.files]
    return [
        body for file in files for body in pq.ParquetFile(to / file.name).read()["body"].to_pylist()
    ]


def test_a_batch_that_is_done_again_replaces_itself(tmp_path: Path) -> None:
    query = Query(tmp_path, "q")
    for _ in range(2):
        query.batch(0, b"1", b"2")
    query.batch(1, b"3")
    assert bodies_in(tmp_path) == [b"1", b"2", b"3"]
    assert len(list(tmp_path.rglob("*.parquet"))) == 2


def test_a_query_without_its_checkpoint_replaces_no_archived_file(tmp_path: Path) -> None:
    """It counts batches from 0 again, and may begin elsewhere."""
    Query(tmp_path, "old").batch(0, b"1", b"2")
    again = Query(tmp_path, "new")
    with pytest.raises(RunError, match=r"batch 0 of stream topics.*query new.*query old has"):
        again.batch(0, b"3")
    assert bodies_in(tmp_path) == [b"1", b"2"]


def test_a_batch_without_tasks_is_no_entry(tmp_path: Path) -> None:
    Query(tmp_path, "q").writer.commit([None], 0)
    assert not Manifest(open_folder(tmp_path)).entries()


@pytest.fixture
def settings(tmp_path: Path) -> ArchiveTopicsSettings:
    """Of a stream that has archived a batch, and has its checkpoint."""
    made = ArchiveTopicsSettings(
        name_servers="n:2;n:1", topics=("t", "u"), to=str(tmp_path), runs=str(tmp_path / "_runs")
    )
    checkpoint = tmp_path / "_checkpoint" / "topics"
    checkpoint.mkdir(parents=True)
    (checkpoint / "metadata").write_text(json.dumps({"id": "q"}) + "\n")
    begin(made)
    Query(tmp_path, "q").batch(0, b"1")
    return made


def cluster() -> MemoryBrokers:
    """The cluster of the stream's topics."""
    brokers = MemoryBrokers()
    for topic in ("t", "u"):
        brokers.create(topic)
    return brokers


def begin(settings: ArchiveTopicsSettings) -> None:
    """Begin a run, which ends for there is no session."""
    with pytest.raises(AttributeError, match="dataSource"):
        run(settings)


def run(settings: ArchiveTopicsSettings, brokers: MemoryBrokers | None = None) -> None:
    archive_topics(None, settings, connect=(brokers or cluster()).connect)


def test_a_stream_whose_checkpoint_is_lost_is_not_begun_again(
    settings: ArchiveTopicsSettings, tmp_path: Path
) -> None:
    begin(settings)
    metadata = tmp_path / "_checkpoint" / "topics" / "metadata"
    metadata.write_text(json.dumps({"id": "other"}))
    with pytest.raises(ConfigError, match=r"by query q, .* it is of query other"):
        run(settings)
    metadata.unlink()
    with pytest.raises(ConfigError, match=r"by query q, .* there is none"):
        run(settings)
    assert len(Runs(tmp_path / "_runs").all()) == 2
    begin(replace(settings, name="again"))


def test_a_stream_stays_with_its_topics(settings: ArchiveTopicsSettings) -> None:
    changed = replace(settings, topics=("t",))
    met = r"topics=\['t', 'u'\], met \['t'\]: archive other topics under .* archived twice"
    with pytest.raises(ConfigError, match=met):
        run(changed)
    begin(replace(settings, topics=("u", "t")))
    begin(replace(changed, name="others"))


def test_a_stream_goes_on_with_other_addresses_of_name_servers(
    settings: ArchiveTopicsSettings,
) -> None:
    """A second name server, or a new address, leads to the same cluster."""
    begin(replace(settings, name_servers="n:1;n:3"))


def test_a_stream_that_an_older_version_archived_goes_on(
    settings: ArchiveTopicsSettings, tmp_path: Path
) -> None:
    """Entries named no query then; a lost checkpoint is an error all the same."""
    manifest = Manifest(open_folder(tmp_path))
    for entry in manifest.entries("topics"):
        manifest.replace(replace(entry, query=""))
    begin(settings)
    (tmp_path / "_checkpoint" / "topics" / "metadata").unlink()
    with pytest.raises(ConfigError, match=r"by a query, .* there is none"):
        run(settings)


def test_a_stream_does_not_go_on_with_another_cluster(
    settings: ArchiveTopicsSettings, tmp_path: Path
) -> None:
    begin(settings)
    other = cluster()
    other.clusters["broker-a"] = "other"
    with pytest.raises(ConfigError, match=r"of cluster DefaultCluster; met broker-a of .*other"):
        run(settings, other)
    assert len(Runs(tmp_path / "_runs").all()) == 2


def test_a_stream_does_not_go_on_with_other_messages(
    settings: ArchiveTopicsSettings, tmp_path: Path
) -> None:
    """As of a cluster of the same name, whose queues are longer than the archive."""
    Query(tmp_path, "q", "broker-a").batch(1, b"1", b"2")
    (entry,) = Manifest(open_folder(tmp_path)).entries("topics")[1:]
    (record,) = entry.last_records
    assert (record.topic, record.broker, record.queue_id, record.offset) == ("t", "broker-a", 0, 1)
    other = cluster()
    other.send(other.create("t")[0], 5, time_ms=7)
    with pytest.raises(ConfigError, match=r"archived is offset 1, stored at 0 ms.*stored at 7 ms"):
        run(settings, other)
