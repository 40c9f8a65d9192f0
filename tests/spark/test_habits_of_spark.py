"""Spark's side effects: it drops readers, repeats tasks and batches, shifts times."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from cometmq.client.blocking import AdminClient
from support.spark.log_files import FilledStore
from support.spark.spark_logs import log
from support.spark.spark_topics import ENDS_S, Stream, fill, found_in, named, rows
from support.spark.topic_audit import Audit, stored

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

FAR_FROM_UTC = "America/New_York"
ZONE, BATCH_ROWS = "spark.sql.session.timeZone", "spark.sql.execution.arrow.maxRecordsPerBatch"

Topic = Callable[..., "DataFrame"]
Passing = Callable[["Iterator[pa.RecordBatch]"], "Iterator[pa.RecordBatch]"]


@pytest.fixture
def read(spark: SparkSession, name_servers: str, topic: str) -> Topic:
    """Read the topic of the test; options have ``_`` instead of points."""

    def read_it(**options: Any) -> DataFrame:
        given = {"nameServer": name_servers, "subscribe": topic} | options
        return spark.read.format("rocketmq").options(**named(given)).load()

    return read_it


@pytest.fixture
def far_from_utc(spark: SparkSession) -> Iterator[None]:
    spark.conf.set(ZONE, FAR_FROM_UTC)
    yield
    spark.conf.set(ZONE, "UTC")


# --- readers that are given up -------------------------------------------------------------------


def test_a_query_that_wants_a_few_rows_of_a_topic_harms_none_behind_it(
    read: Topic, name_servers: str, topic: str
) -> None:
    """Spark drops the worker, in the middle of what it reads, once it has enough."""
    fill(name_servers, topic, {0: 80, 1: 60})
    frame = read(batch_rows=10)

    for _ in range(2):
        assert len(frame.take(12)) == 12
    assert frame.limit(25).count() == 25
    assert found_in(frame) == rows(topic, {0: 80, 1: 60})


def test_a_query_that_wants_a_few_rows_of_a_log_harms_none_behind_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    store = FilledStore(tmp_path / "store")
    try:
        store.fill(300)
        frame = log(spark, store.root, batch_rows=10)
        for _ in range(2):
            assert len(frame.take(12)) == 12
        assert frame.limit(25).count() == 25
        assert frame.count() == 300
    finally:
        store.close()


# --- sessions in another time zone ---------------------------------------------------------------


def test_times_of_messages_are_the_same_moments_in_any_time_zone_of_the_session(
    read: Topic, name_servers: str, topic: str, far_from_utc: None
) -> None:
    fill(name_servers, topic, {0: 3})

    frame = read().selectExpr("unix_millis(store_timestamp) AS at", "queue_offset")

    met = {row.queue_offset: row.at for row in frame.collect()}
    [found] = [queue for queue in stored(name_servers, topic, count=3).values() if queue]
    assert met == {message.queue_offset: message.store_time_ms for message in found}
    first = found[0].store_time_ms
    young = read(startingTimestamp=first, startingOffsetsByTimestampStrategy="latest")
    assert young.count() == 3
    assert young.where(f"store_timestamp >= timestamp_millis({first})").count() == 3


@pytest.mark.only_on("4.9.7")
def test_a_time_to_deliver_at_is_the_same_moment_in_any_time_zone_of_the_session(
    spark: SparkSession, name_servers: str, topic: str, far_from_utc: None
) -> None:
    """4.9 keeps the time as a property and delivers at once, so that it can be looked at."""
    due = spark.sql("SELECT 'x' AS body, timestamp_millis(1900000000123) AS deliver_timestamp")
    options = {"nameServer": name_servers, "topic": topic}
    due.write.format("rocketmq").options(**options).mode("append").save()

    [[message]] = [queue for queue in stored(name_servers, topic, count=1).values() if queue]
    assert message.properties["TIMER_DELIVER_MS"] == "1900000000123"


# --- what is repeated ----------------------------------------------------------------------------


def test_a_batch_that_was_not_noted_as_done_is_read_again_as_it_was(
    spark: SparkSession, name_servers: str, topic: str, tmp_path: Path
) -> None:
    """The driver died behind the sink's commit: the sink knows the batch, and takes it once."""
    options = {"nameServer": name_servers, "subscribe": topic, "startingOffsets": "earliest"}
    query = Stream(spark, tmp_path, **options)
    fill(name_servers, topic, {0: 4})
    query.once()
    fill(name_servers, topic, {0: 3, 1: 2})
    query.once()
    ends = query.ends()
    last = query.checkpoint / "commits" / str(len(ends) - 1)
    last.unlink()
    last.with_name(f".{last.name}.crc").unlink(missing_ok=True)
    fill(name_servers, topic, {1: 5})

    query.once()

    assert query.ends()[:-1] == ends, "the open batch ends where it did, what is new is another"
    assert query.found() == rows(topic, {0: 7, 1: 7})


def test_what_is_sent_while_available_now_runs_is_left_to_the_next_run(
    spark: SparkSession, name_servers: str, topic: str, tmp_path: Path
) -> None:
    fill(name_servers, topic, {0: 6, 1: 1})
    options = {"nameServer": name_servers, "subscribe": topic, "startingOffsets": "earliest"}
    query = Stream(spark, tmp_path, **options, maxOffsetsPerTrigger=3)
    met: list[list[tuple[str, int, int]]] = []

    def sink(frame: DataFrame, batch: int) -> None:
        met.append(found_in(frame))
        if len(met) == 1:
            fill(name_servers, topic, {0: 2, 2: 2})

    def run() -> list[tuple[str, int, int]]:
        met.clear()
        writer = query.source().writeStream.foreachBatch(sink).trigger(availableNow=True)
        running = writer.option("checkpointLocation", str(query.checkpoint)).start()
        assert running.awaitTermination(ENDS_S)
        return sorted(row for batch in met for row in batch)

    assert run() == rows(topic, {0: 6, 1: 1})
    later = run()
    assert set(later) >= set(rows(topic, {0: 2}, start=6) + rows(topic, {2: 2}))
    assert not set(later) & set(rows(topic, {0: 6, 1: 1}))


def dying_once(folder: Path, wait: Callable[[], object] = int) -> Passing:
    """Give a function for ``mapInArrow`` whose process dies in the middle, the first time.

    Args:
        folder: remembers whether it has died.
        wait: called before it dies.
    """

    def passed_on(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(batches):
            if number == 3 and not (folder / "died").exists():
                (folder / "died").mkdir()
                wait()
                os._exit(1)
            yield batch

    return passed_on


def until_filled(name_servers: str, topic: str) -> Callable[[], None]:
    """Give a function that waits for a first message; executors have none of the tests' own."""

    def wait() -> None:
        deadline = time.monotonic() + 20
        with AdminClient(name_servers) as admin:
            while not any(each.max_offset for each in admin.queue_bounds(topic).values()):
                assert time.monotonic() < deadline, f"nothing in {topic}"
                time.sleep(0.02)

    return wait


@pytest.mark.standalone_only
def test_a_task_that_died_is_repeated_and_its_rows_have_the_keys_they_had(
    spark: SparkSession, name_servers: str, topic: str, tmp_path: Path
) -> None:
    """Only a cluster tries a task again."""
    numbers = spark.range(0, 2000, 1, 2).selectExpr(
        "rpad(id, 2000, ' .') AS body", "concat('k', id % 10) AS sharding_key"
    )
    spark.conf.set(BATCH_ROWS, "200")
    try:
        dying = dying_once(tmp_path, until_filled(name_servers, topic))
        given = numbers.mapInArrow(dying, "body STRING, sharding_key STRING")
        options = {"nameServer": name_servers, "topic": topic, "send.batchBytes": "8192"}
        options["delivery"] = "at-least-once"
        given.write.format("rocketmq").options(**options).mode("append").save()
    finally:
        spark.conf.unset(BATCH_ROWS)

    assert (tmp_path / "died").exists()
    wanted = [row.body for row in numbers.select("body").collect()]
    queues = stored(name_servers, topic, rows=wanted)
    audit = Audit.of(wanted, [message for found in queues.values() for message in found])
    audit.check()
    assert audit.repeated > 0, "nothing was sent before the task died"


@pytest.mark.standalone_only
def test_a_task_that_died_is_repeated_and_reads_the_same_rows(
    spark: SparkSession, name_servers: str, topic: str, tmp_path: Path
) -> None:
    fill(name_servers, topic, {0: 200})
    options = {"nameServer": name_servers, "subscribe": topic, "startingOffsets": "earliest"}
    query = Stream(spark, tmp_path, **options, batch_rows=10)
    spark.conf.set(BATCH_ROWS, "20")
    try:
        few = query.source().select("topic", "queue_id", "queue_offset")
        passed = few.mapInArrow(dying_once(tmp_path), few.schema)
        writer = passed.writeStream.format("parquet").trigger(availableNow=True)
        writer = writer.option("checkpointLocation", str(query.checkpoint))
        assert writer.start(str(query.out)).awaitTermination(ENDS_S)
    finally:
        spark.conf.unset(BATCH_ROWS)

    assert (tmp_path / "died").exists()
    assert query.found() == rows(topic, {0: 200})


# --- workers ------------------------------------------------------------------------------------


def test_a_worker_exempts_its_modules_from_the_garbage_collection_after_each_task(
    spark: SparkSession,
) -> None:
    def exempted(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import gc

        import pyarrow as pa

        from cometmq.spark.compat import exempt_loaded_modules

        exempt_loaded_modules()
        for _ in batches:
            yield pa.RecordBatch.from_pydict({"objects": [gc.get_freeze_count()]})

    found = spark.range(0, 1, 1, 1).mapInArrow(exempted, "objects BIGINT").collect()
    assert found[0]["objects"] > 10_000
