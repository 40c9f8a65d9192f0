"""Topics as streams: starts, limits, AvailableNow, changes and losses, on real clusters.

What a checkpoint holds is what a run left: a test that restarts a query starts a new reader.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import uuid
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException
from servers import SMALL_FILES, Cluster

from cometmq.client import Message
from cometmq.client.blocking import AdminClient
from cometmq.spark.compat import passes_limits
from cometmq.spark.monitoring import Lag, StreamMetrics
from cometmq.spark.offsets import QueueKey, from_json, without_start
from support.checks.waiting import wait_until
from support.spark.spark_topics import ENDS_S, Stream, fill, rows
from support.wire.metrics_page import Scraped, scrape

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MakeStream = Callable[..., Stream]
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def stream(spark: SparkSession, name_servers: str, topic: str, tmp_path: Path) -> MakeStream:
    """Make a stream of the topic of the test; options have ``_`` instead of points."""

    def make(**options: Any) -> Stream:
        given = {"nameServer": name_servers, "subscribe": topic, "startingOffsets": "earliest"}
        return Stream(spark, tmp_path, **given | options)

    return make


@pytest.fixture
def deleting(
    target: str, request: pytest.FixtureRequest, make_cluster: Callable[..., Cluster]
) -> str:
    """The name server of a cluster whose broker deletes topics: 5.x needs its timer for it."""
    if target.startswith("5."):
        return make_cluster({"timerWheelEnable": True}).namesrv
    shared: Cluster = request.getfixturevalue("cluster")
    return shared.namesrv


def made(admin: AdminClient, queues: int) -> str:
    """A new topic that clients can find."""
    topic = f"topic-{uuid.uuid4().hex[:12]}"
    admin.create_topic(topic, queues=queues)
    wait_until(lambda: topic in admin.topics(), f"topic {topic}")
    return topic


def test_every_run_takes_what_is_new(stream: MakeStream, name_servers: str, topic: str) -> None:
    fill(name_servers, topic, {0: 20, 1: 3})
    query = stream()

    query.once()
    assert query.found() == rows(topic, {0: 20, 1: 3})
    fill(name_servers, topic, {1: 2, 3: 4})
    query.once()
    query.once()

    assert query.found() == sorted(rows(topic, {0: 20, 1: 5, 3: 4}))


def test_a_running_query_follows_the_topic_and_shows_where_it_ends(
    stream: MakeStream, name_servers: str, topic: str
) -> None:
    query = stream(startingOffsets="latest", maxOffsetsPerTrigger=4)
    running = query.begin()
    try:
        wait_until(lambda: len(query.ends()) == 1, "the first batch")
        fill(name_servers, topic, {0: 6, 2: 3})
        wait_until(lambda: query.found() == rows(topic, {0: 6, 2: 3}), "all rows")
        running.processAllAvailable()
        if passes_limits():  # PySpark 4.1 has no other than the end of the batch
            (source,) = running.lastProgress["sources"]
            assert json.loads(source["latestOffset"]) == {
                topic: {"broker-a": {"0": 6, "1": 0, "2": 3, "3": 0}}
            }
        batches = len(query.ends())
        assert batches >= 3, "9 rows, at most 4 at a time"
        last = running.lastProgress["batchId"]
        wait_until(
            lambda: running.lastProgress["batchId"] >= last and running.isActive, "idle triggers"
        )
        assert len(query.ends()) == batches, "no news is no batch"
    finally:
        running.stop()


@pytest.mark.parametrize("start", ["latest", "group"])
def test_rows_between_a_failed_first_batch_and_the_next_run_are_read(
    stream: MakeStream, name_servers: str, topic: str, tmp_path: Path, start: str
) -> None:
    fill(name_servers, topic, {0: 5})
    query = stream(startingOffsets=start, rocketmq_group="nobody")
    with pytest.raises(StreamingQueryException, match="the first sink fails"):
        query.once(failing="the first sink fails")
    assert len(query.ends()) == 1, "the end of the first batch was written down"
    fill(name_servers, topic, {0: 3, 1: 1})

    query.once()

    assert query.found() == sorted(rows(topic, {0: 3}, start=5) + rows(topic, {1: 1}))


def test_available_now_splits_what_there_was_when_it_began(
    stream: MakeStream, name_servers: str, topic: str
) -> None:
    fill(name_servers, topic, {0: 9, 1: 1})
    query = stream(maxOffsetsPerTrigger=5, minPartitions=3)

    query.once()

    assert query.found() == rows(topic, {0: 9, 1: 1})
    ends = [from_json(without_start(json.loads(end))) for end in query.ends()]
    read = [sum(offsets.values()) for offsets in ends]
    sizes = [after - before for before, after in pairwise([0, *read])]
    assert sum(sizes) == 10
    assert max(sizes) <= 6, "5, and one for each queue that would get none"


def test_batches_have_limits_in_bytes_and_time(
    stream: MakeStream, name_servers: str, topic: str
) -> None:
    fill(name_servers, topic, {0: 40, 1: 4}, message=lambda _: Message(topic, b"x" * 1_000))
    query = stream(maxBytesPerTrigger=30_000, maxTimePerTrigger="1h")

    ended = query.once()

    assert query.found() == rows(topic, {0: 40, 1: 4})
    sizes = [each["numInputRows"] for each in ended.recentProgress]
    if passes_limits():  # on PySpark 4.1 a run has one batch
        assert 20 < max(sizes) < 30
        assert len(sizes) == 2


def test_a_query_of_one_trigger_takes_all_there_is(
    spark: SparkSession, stream: MakeStream, name_servers: str, topic: str
) -> None:
    fill(name_servers, topic, {0: 9})
    query = stream(maxOffsetsPerTrigger=2)
    sink = query.source().writeStream.format("parquet").trigger(once=True)

    running = sink.option("checkpointLocation", str(query.checkpoint)).start(str(query.out))

    assert running.awaitTermination(ENDS_S)
    count = 9 if passes_limits() else 2  # PySpark 4.1 does not say that the limit is off
    assert query.found() == rows(topic, {0: count})


def test_topics_and_queues_that_appear_under_a_query_are_read_from_their_beginning(
    stream: MakeStream, name_servers: str, topic: str
) -> None:
    pattern = {"subscribe": None, "subscribePattern": f"{topic}|topic-.*-of-{topic}|more-{topic}"}
    query = stream(**pattern, startingOffsets="latest")
    running = query.begin()
    try:
        wait_until(lambda: bool(query.ends()), "the first batch")
        with AdminClient(name_servers) as admin:
            admin.create_topic(topic, queues=6)
            admin.create_topic(f"more-{topic}", queues=2)
            wait_until(lambda: len(admin.queue_bounds(topic)) == 6, "more queues")
            wait_until(lambda: f"more-{topic}" in admin.topics(), "another topic")
        fill(name_servers, topic, {0: 2, 5: 3})
        fill(name_servers, f"more-{topic}", {1: 4})
        expected = sorted(rows(topic, {0: 2, 5: 3}) + rows(f"more-{topic}", {1: 4}))
        wait_until(lambda: query.found() == expected, f"rows {expected}")
    finally:
        running.stop()


@pytest.mark.long_elsewhere
def test_a_deleted_topic_fails_the_query_or_is_dropped(stream: MakeStream, deleting: str) -> None:
    with AdminClient(deleting) as admin:
        topic, other = made(admin, queues=4), made(admin, queues=1)
        fill(deleting, topic, {0: 2})
        query = stream(nameServer=deleting, subscribe=f"{topic},{other}")
        query.once()
        admin.delete_topic(topic)
        wait_until(lambda: topic not in admin.topics(), "the topic is gone")
    fill(deleting, other, {0: 2})

    with pytest.raises(StreamingQueryException, match=rf"DataLossError: topic {topic}, queue 0"):
        query.once()
    query.once(failOnDataLoss="false")

    assert query.found() == sorted(rows(topic, {0: 2}) + rows(other, {0: 2}))
    assert without_start(json.loads(query.ends()[-1])) == {other: {"broker-a": {"0": 2}}}


@pytest.mark.long_elsewhere
def test_a_topic_made_anew_fails_the_query_or_is_read_from_its_beginning(
    stream: MakeStream, deleting: str
) -> None:
    with AdminClient(deleting) as admin:
        topic = made(admin, queues=4)
        fill(deleting, topic, {0: 5})
        query = stream(nameServer=deleting, subscribe=topic)
        query.once()
        admin.delete_topic(topic)
        wait_until(lambda: topic not in admin.topics(), "the topic is gone")
        admin.create_topic(topic, queues=4)
        wait_until(lambda: topic in admin.topics(), "the topic is there again")
        wait_until(
            lambda: all(each.max_offset == 0 for each in admin.queue_bounds(topic).values()),
            "its queues are empty",
        )
    fill(deleting, topic, {0: 2})

    with pytest.raises(StreamingQueryException, match="the topic was created again"):
        query.once()
    query.once(failOnDataLoss="false", maxOffsetsPerTrigger=1)
    query.once()

    assert query.found() == sorted(rows(topic, {0: 5}) + rows(topic, {0: 2}))


@pytest.mark.only_on("comet")
def test_expired_messages_fail_the_query_or_are_passed_over(
    spark: SparkSession, make_cluster: Callable[..., Cluster], tmp_path: Path
) -> None:
    """Only our broker deletes old files at once when it is told to."""
    cluster = make_cluster({**SMALL_FILES, "fileReservedTime": 0})
    topic = "expiring"

    def large(number: int) -> Message:
        return Message(topic=topic, body=os.urandom(500_000))

    with AdminClient(cluster.namesrv) as admin:
        admin.create_topic(topic, queues=1)
        fill(cluster.namesrv, topic, {0: 2}, message=large)
        given = {"nameServer": cluster.namesrv, "subscribe": topic, "startingOffsets": "earliest"}
        query = Stream(spark, tmp_path, **given)
        query.once()
        fill(cluster.namesrv, topic, {0: 30}, message=large)
        admin.clean_up(cluster.broker)
        ((_, bounds),) = admin.queue_bounds(topic).items()
    assert 2 < bounds.min_offset < bounds.max_offset == 32

    text = rf"queue 0 of broker-a: offsets from 2 have expired.*{bounds.min_offset} to 32"
    with pytest.raises(StreamingQueryException, match=text):
        query.once()
    query.once(failOnDataLoss="false")

    left = 32 - bounds.min_offset
    expected = rows(topic, {0: 2}) + rows(topic, {0: left}, start=bounds.min_offset)
    assert query.found() == expected


@pytest.mark.long_elsewhere
def test_a_query_outlives_a_restart_of_its_broker(
    spark: SparkSession, own_cluster: Cluster, tmp_path: Path
) -> None:
    with AdminClient(own_cluster.namesrv) as admin:
        admin.create_topic("lasting", queues=2)
        wait_until(lambda: "lasting" in admin.topics(), "the topic")
    fill(own_cluster.namesrv, "lasting", {0: 3})
    query = Stream(
        spark,
        tmp_path,
        nameServer=own_cluster.namesrv,
        subscribe="lasting",
        startingOffsets="earliest",
    )
    running = query.begin(every="200 milliseconds")
    try:
        wait_until(lambda: query.found() == rows("lasting", {0: 3}), "rows before")
        own_cluster.restart_broker()
        fill(own_cluster.namesrv, "lasting", {0: 2, 1: 4})
        wait_until(lambda: query.found() == rows("lasting", {0: 5, 1: 4}), "rows after")
        assert running.exception() is None
    finally:
        running.stop()


def test_a_listener_is_told_how_far_a_query_is_behind(
    spark: SparkSession, stream: MakeStream, name_servers: str, topic: str
) -> None:
    fill(name_servers, topic, {0: 8, 1: 1})
    told: list[Lag] = []
    listener = StreamMetrics(tell=told.append)
    spark.streams.addListener(listener)
    try:
        stream(maxOffsetsPerTrigger=4).once()
        wait_until(lambda: bool(told) and told[-1].messages == 0, "the end of the topic")
    finally:
        spark.streams.removeListener(listener)

    first = told[0]
    assert first.batch == 0
    if not passes_limits():  # there is no newest offset
        return
    assert first.messages in (4, 5)
    assert first.queues[QueueKey(topic, "broker-a", 0)] == first.messages
    assert [lag.messages for lag in told] == sorted((lag.messages for lag in told), reverse=True)


@pytest.mark.only_on("comet")
def test_the_metrics_of_the_page_have_source_and_sink(
    spark: SparkSession, stream: MakeStream, name_servers: str, topic: str, tmp_path: Path
) -> None:
    page = (ROOT / "docs/howto/read-topics-with-spark.md").read_text()
    (program,) = re.findall(r"<!-- run by tests/spark -->\n```python\n(.*?)```", page, re.S)
    counts = tmp_path / "counts"
    names: dict[str, Any] = {"spark": spark}
    exec(program.replace('"counts"', repr(str(counts))).replace("9404", "0"), names)
    metrics: StreamMetrics = names["metrics"]
    fill(name_servers, topic, {0: 6, 1: 3})
    sink = stream(maxOffsetsPerTrigger=4).source().select("body").writeStream.format("rocketmq")
    options = {"nameServer": name_servers, "topic": f"copy-{topic}", "countsFolder": str(counts)}
    options["checkpointLocation"] = str(tmp_path / "copy")
    with AdminClient(name_servers) as admin:
        admin.create_topic(f"copy-{topic}", queues=1)
        wait_until(lambda: f"copy-{topic}" in admin.topics(), "the topic of the sink")

    def scraped() -> Scraped:
        return asyncio.run(scrape(metrics.port))

    def has(name: str, value: float, **labels: str) -> bool:
        series = scraped().series.get(f"cometmq_spark_{name}", {})
        return value in [each for of, each in series.items() if labels.items() <= dict(of).items()]

    running = sink.options(**options).queryName(topic).start()
    try:
        running.processAllAvailable()
        wait_until(lambda: has("rows_total", 9, query=topic), "all rows")
        assert has("sink_rows_total", 9, job=str(running.id))
        if passes_limits():
            of = {"query": topic, "topic": topic, "broker": "broker-a"}
            assert has("source_lag_messages", 0, **of)
            assert has("source_lag_seconds", 0, **of)
        assert has("source_away_seconds", 0, query=topic)
    finally:
        running.stop()
        wait_until(lambda: not has("rows_total", 9, query=topic), "the query is forgotten")
        spark.streams.removeListener(metrics)
        metrics.close()


@pytest.mark.long_elsewhere
def test_finished_batches_are_shown_by_the_group(
    stream: MakeStream, name_servers: str, topic: str, make_group: Callable[[], str]
) -> None:
    group = make_group()
    fill(name_servers, topic, {0: 3})
    query = stream(rocketmq_group=group, commitToGroup="true")
    query.once()
    fill(name_servers, topic, {0: 2})
    query.once()

    def committed() -> list[int | None]:
        with AdminClient(name_servers) as admin:
            found = admin.committed(group, topic)
            return [found[queue] for queue in sorted(found) if queue.queue_id == 0]

    # The last batch is committed with the one after it.
    wait_until(lambda: committed() == [3], f"offset 3, there is {committed()}")


def test_filters_by_tag_leave_holes_that_are_no_loss(
    stream: MakeStream, name_servers: str, topic: str
) -> None:
    def message(number: int) -> Message:
        return Message(topic=topic, body=b"x", tags="AaBB"[number % 2 * 2 :][:2])

    fill(name_servers, topic, {0: 200}, message=message)
    query = stream(filter_tags="BB", maxOffsetsPerTrigger=70)

    query.once()

    assert query.found() == [(topic, 0, offset) for offset in range(1, 200, 2)]
