"""Logs, consume queues and indexes in Spark: stores of ours and of RocketMQ, in use or not."""

from __future__ import annotations

import json
import pickle
import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import AnalysisException, PythonException, StreamingQueryException
from pyspark.sql import functions as f
from pyspark.sql.streaming import StreamingQuery
from servers import Cluster

from cometmq.spark.offsets import without_start
from support.checks.waiting import wait_until
from support.spark.log_files import FilledStore, log_reader, rows_at
from support.spark.object_storage import KEYS, object_storage
from support.spark.spark_logs import RECORDED, LogStream, log, recorded_store
from support.spark.spark_topics import fill, found_in, rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HOWTO = Path(__file__).resolve().parents[2] / "docs" / "howto" / "read-a-log-with-spark.md"
PUSH = "spark.sql.python.filterPushdown.enabled"
SHORT = "queue_offset BIGINT NOT NULL, topic STRING"


@pytest.fixture(scope="module", params=RECORDED)
def recorded(request: pytest.FixtureRequest, tmp_path_factory: Any) -> tuple[Path, dict[str, Any]]:
    """A store that RocketMQ wrote, and what is in it."""
    return recorded_store(request.param, tmp_path_factory.mktemp("recorded"))


@pytest.fixture
def store(tmp_path: Path) -> FilledStore:
    """A store of this project, open as a broker has it open."""
    filled = FilledStore(tmp_path / "store")
    filled.fill(120)
    yield filled
    filled.close()


# --- stores at rest ------------------------------------------------------------------------------


def test_a_recorded_log_has_its_messages(
    spark: SparkSession, recorded: tuple[Path, dict[str, Any]]
) -> None:
    root, facts = recorded
    frame = log(spark, root, brokerName="broker-a", validate=True, maxPartitionBytes=200_000)
    met = {row["topic"]: row["count"] for row in frame.groupBy("topic").count().collect()}
    assert met == Counter(message["topic"] for message in facts["messages"])
    row = frame.agg(
        f.sum("store_size"), f.every("record_valid"), f.min("broker_name"), f.max("queue_offset")
    ).first()
    assert row is not None
    assert row[0] == sum(message["size"] for message in facts["messages"])
    assert row[1:3] == (True, "broker-a")


def test_properties_are_a_map(spark: SparkSession, recorded: tuple[Path, dict[str, Any]]) -> None:
    root, facts = recorded
    frame = log(spark, root, includeProperties=True).where("properties['color'] = 'red'")
    expected = sum(m["properties"].get("color") == "red" for m in facts["messages"])
    assert expected > 0
    assert frame.count() == expected


# --- batches -------------------------------------------------------------------------------------


def test_a_schema_of_ones_own_chooses_columns(spark: SparkSession, store: FilledStore) -> None:
    frame = spark.read.format("rocketmq-log").schema(SHORT).load(str(store.root))
    assert frame.columns == ["queue_offset", "topic"]
    assert frame.where("queue_offset = 7").collect() == [(7, "orders")] * 2
    with pytest.raises(AnalysisException, match="met the type int of column queue_offset"):
        spark.read.format("rocketmq-log").schema("queue_offset INT").load(str(store.root)).count()
    with pytest.raises(AnalysisException, match="met the column 'value', expected some of topic"):
        spark.read.format("rocketmq-log").schema("value STRING").load(str(store.root)).count()


def test_lists_patterns_urls_and_tables_name_a_log(spark: SparkSession, store: FilledStore) -> None:
    folder = f"{store.root}/commitlog"
    paths = sorted(str(path) for path in (store.root / "commitlog").iterdir())
    whole = found_in(log(spark, store.root))
    assert len(whole) == 120
    assert found_in(log(spark, paths)) == whole
    assert found_in(log(spark, f"{folder}/0000*")) == whole
    assert found_in(log(spark, f"file://{folder}")) == whole
    brokers = json.dumps({"b-1": str(store.root)})
    assert found_in(spark.read.format("rocketmq-log").option("brokers", brokers).load()) == whole
    view = f"CREATE OR REPLACE TEMPORARY VIEW l USING `rocketmq-log` OPTIONS (path '{store.root}')"
    spark.sql(view)
    assert spark.sql("SELECT count(*) AS n FROM l").collect() == [(120,)]


def test_mistakes_are_told_when_planning(spark: SparkSession, store: FilledStore) -> None:
    with pytest.raises(AnalysisException, match="did you mean maxPartitionBytes"):
        log(spark, store.root, maxPartitionByte=1).count()
    with pytest.raises(AnalysisException, match=r"met nothing at .*/none"):
        log(spark, store.root / "none").count()
    assert log(spark, store.root, startingOffsets="latest").count() == 0


def test_damage_is_told_with_file_and_place(spark: SparkSession, store: FilledStore) -> None:
    bad = store.records[60]
    store.write(bad.log_offset, b"\xff" * 8)
    with pytest.raises(PythonException, match=f"log offset {bad.log_offset}"):
        log(spark, store.root).count()
    permissive = {"badRecords": "permissive", "validate": True}
    frame = log(spark, store.root, **permissive)
    met = frame.where("NOT record_valid").select("phy_offset", "store_size").collect()
    assert met == [(bad.log_offset, bad.size_bytes)]
    assert frame.where("record_valid").count() == 119


def test_conditions_give_the_right_rows_where_the_session_pushes_them(
    spark: SparkSession, store: FilledStore
) -> None:
    """A session may push conditions into other sources; Spark shares them between queries."""
    store.fill(3, topic="rare")
    spark.conf.set(PUSH, "true")
    try:
        frame = log(spark, store.root)
        assert frame.where("topic = 'rare'").count() == 3
        assert frame.count() == 123
        assert frame.where("topic = 'rare'").union(frame.where("topic = 'orders'")).count() == 123
    finally:
        spark.conf.unset(PUSH)


def test_object_storage_is_read_like_a_disk(
    store: FilledStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the client that workers use, in one request per range; parts travel without keys."""
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    with object_storage(store.root) as storage:
        reader = log_reader(storage.url("commitlog"))
        assert rows_at(reader) == store.offsets
        parts = reader.partitions()
        assert KEYS["AWS_SECRET_ACCESS_KEY"].encode() not in pickle.dumps(parts)
        before = storage.met["GET"]
        read = [batch for part in pickle.loads(pickle.dumps(parts)) for batch in reader.read(part)]
        assert sum(batch.num_rows for batch in read) == 120
        assert storage.met["GET"] - before <= 2 * len(parts)
        assert rows_at(log_reader(storage.url(""), subscribe="orders")) == store.offsets


# --- streams -------------------------------------------------------------------------------------


def messages(start: int, stop: int) -> list[tuple[str, int, int]]:
    return sorted(("orders", number % 2, number // 2) for number in range(start, stop))


def test_every_run_takes_what_is_new(
    spark: SparkSession, store: FilledStore, tmp_path: Path
) -> None:
    query = LogStream(
        spark, tmp_path, path=store.root, startingOffsets="earliest", maxBytesPerTrigger=5000
    )
    query.once()
    assert query.found() == messages(0, 120)
    batches = len(query.ends())
    assert batches > 4
    store.fill(10)
    query.once()
    query.once()
    assert query.found() == messages(0, 130)
    assert without_start(json.loads(query.ends()[-1])) == {"log": {"phy": store.end}}
    assert len(query.ends()) == batches + 1


def latest_offset(running: StreamingQuery) -> Any:
    """The end of the log by the newest progress, which comes after the rows of its batch."""
    progress = running.lastProgress
    return json.loads(progress["sources"][0]["latestOffset"]) if progress else None


def test_a_running_query_follows_a_log(
    spark: SparkSession, store: FilledStore, tmp_path: Path
) -> None:
    query = LogStream(spark, tmp_path, path=store.root)
    running = query.begin()
    try:
        wait_until(lambda: len(query.ends()) == 1, "the first batch")
        store.fill(150)
        wait_until(lambda: query.found() == messages(120, 270), "all rows")
        wait_until(lambda: latest_offset(running) == {"log": {"phy": store.end}}, "its progress")
    finally:
        running.stop()


def test_rows_between_a_failed_first_batch_and_the_next_run_are_read(
    spark: SparkSession, store: FilledStore, tmp_path: Path
) -> None:
    query = LogStream(spark, tmp_path, path=store.root, startingOffsets="latest")
    with pytest.raises(StreamingQueryException, match="the first sink fails"):
        query.once(failing="the first sink fails")
    store.fill(6)
    query.once()
    assert query.found() == messages(120, 126)


def test_segments_deleted_under_a_query_fail_it_unless_told(
    spark: SparkSession, store: FilledStore, tmp_path: Path
) -> None:
    given = {"path": store.root, "startingOffsets": json.dumps({"log": store.offsets[10]})}
    store.segment(0).unlink()
    failing = LogStream(spark, tmp_path / "a", **given)
    with pytest.raises(StreamingQueryException, match=r"log of log, bytes .* are in no file"):
        failing.once()
    kept = [number for number, at in enumerate(store.offsets) if at >= 16 * 1024]
    tolerant = LogStream(spark, tmp_path / "b", failOnDataLoss=False, **given)
    tolerant.once()
    assert tolerant.found() == messages(kept[0], 120)


# --- brokers that run ----------------------------------------------------------------------------


def test_the_log_of_a_running_broker_is_read(
    spark: SparkSession, cluster: Cluster, name_servers: str, topic: str, tmp_path: Path
) -> None:
    fill(name_servers, topic, {0: 30, 2: 5})
    given = {"subscribe": topic, "brokerName": "broker-a", "validate": True}
    frame = log(spark, cluster.store, **given)
    assert found_in(frame) == rows(topic, {0: 30, 2: 5})
    assert frame.where("record_valid AND broker_name = 'broker-a'").count() == 35

    query = LogStream(spark, tmp_path, path=cluster.store, startingOffsets="earliest", **given)
    query.once()
    assert query.found() == rows(topic, {0: 30, 2: 5})
    fill(name_servers, topic, {1: 7})
    query.once()
    assert query.found() == rows(topic, {0: 30, 1: 7, 2: 5})


# --- the page about it ---------------------------------------------------------------------------


def test_the_programs_of_the_page_run(spark: SparkSession, store: FilledStore) -> None:
    bad = store.records[60]
    store.write(bad.log_offset, b"\xff" * 8)
    made: dict[str, Any] = {"spark": spark}
    blocks = re.findall(
        r"<!-- run by tests/spark -->\n```python\n(.*?)```", HOWTO.read_text(), re.S
    )
    for block in blocks:
        exec(block.replace("/data/store", str(store.root)), made)
    assert made["stream"].isStreaming
    assert made["bad"].collect() == [(bad.log_offset, bad.size_bytes)]
