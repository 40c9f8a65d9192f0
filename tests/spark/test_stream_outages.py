"""Streams of topics while one of their brokers is away, on clusters of two brokers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.listener import StreamingQueryListener
from servers import Cluster, CometBroker, RealBroker, Settings

from cometmq.client.blocking import AdminClient
from cometmq.spark.monitoring import Lag, lag_of_progress
from cometmq.spark.offsets import QueueKey
from support.checks.waiting import wait_until
from support.spark.spark_topics import Stream, fill, rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.long_elsewhere

AnyBroker = CometBroker | RealBroker


@pytest.fixture
def second_broker(target: str, own_cluster: Cluster, tmp_path: Path) -> Iterator[AnyBroker]:
    """Another broker, broker-b, for a cluster with broker-a; it is not started."""
    settings: Settings = {"brokerName": "broker-b"}
    place: Any = {"store": tmp_path / "store-b", "settings": settings}
    servers = own_cluster.namesrv
    broker: AnyBroker = (
        CometBroker(tmp_path / "b", servers, **place)
        if target == "comet"
        else RealBroker(target, tmp_path / "b", servers, **place)
    )
    yield broker
    broker.kill()


def make_on_both(name_servers: str, second_broker: AnyBroker, topic: str) -> None:
    """Start the second broker, and make a topic with a queue at each broker."""
    second_broker.start()
    with AdminClient(name_servers) as admin:
        admin.create_topic(topic, queues=1)
        wait_until(lambda: len(admin.queue_bounds(topic)) == 2, "queues of both brokers")


def test_a_broker_that_joins_is_read_and_one_that_is_away_is_no_loss(
    spark: SparkSession, own_cluster: Cluster, second_broker: AnyBroker, tmp_path: Path
) -> None:
    """The name server forgets a broker that ends; its messages are not lost for that."""
    servers = own_cluster.namesrv
    query = Stream(
        spark, tmp_path, nameServer=servers, subscribe="growing", startingOffsets="earliest"
    )
    with AdminClient(servers) as admin:
        admin.create_topic("growing", queues=1)
        wait_until(lambda: "growing" in admin.topics(), "the topic")
        fill(servers, "growing", {0: 2})
        query.once()
        second_broker.start()
        admin.create_topic("growing", queues=2)
        wait_until(lambda: len(admin.queue_bounds("growing")) == 4, "queues of both brokers")
    fill(servers, "growing", {1: 3}, broker="broker-b")
    query.once()
    assert query.found() == rows("growing", {0: 2, 1: 3})
    second_broker.stop()
    fill(servers, "growing", {0: 1})
    query.once()
    assert query.found() == rows("growing", {0: 3, 1: 3}), "the others go on"
    with pytest.raises(StreamingQueryException, match=r"UnreachableError.*broker-b"):
        query.once(brokerAway_failAfterMs=0)
    second_broker.start()
    fill(servers, "growing", {0: 1}, broker="broker-b")
    query.once()
    assert query.found() == sorted([*rows("growing", {0: 3, 1: 3}), ("growing", 0, 0)])


def test_a_running_query_reads_on_while_a_broker_is_away(
    spark: SparkSession, own_cluster: Cluster, second_broker: AnyBroker, tmp_path: Path
) -> None:
    """Its progress shows the broker and the lag, and it ends for neither."""
    servers = own_cluster.namesrv
    make_on_both(servers, second_broker, "shared")
    fill(servers, "shared", {0: 2})
    query = Stream(
        spark, tmp_path, nameServer=servers, subscribe="shared", startingOffsets="earliest"
    )
    told: list[Lag] = []

    class Progress(StreamingQueryListener):
        def onQueryStarted(self, event: Any) -> None: ...
        def onQueryIdle(self, event: Any) -> None: ...
        def onQueryTerminated(self, event: Any) -> None: ...

        def onQueryProgress(self, event: Any) -> None:
            told.extend(filter(None, [lag_of_progress(event.progress)]))

    spark.streams.addListener(listener := Progress())
    running = query.begin(every="200 milliseconds")
    try:
        wait_until(lambda: query.found() == rows("shared", {0: 2}), "rows before")
        second_broker.kill()
        wait_until(lambda: bool(told) and len(told[-1].away) == 1, "a progress that says so")
        assert list(told[-1].away) == [QueueKey("shared", "broker-b", 0)]
        fill(servers, "shared", {0: 3})
        wait_until(lambda: query.found() == rows("shared", {0: 5}), "rows of broker-a")
        second_broker.start()
        fill(servers, "shared", {0: 1}, broker="broker-b")
        wait_until(lambda: len(query.found()) == 6, "the row of broker-b")
        wait_until(lambda: not told[-1].away, "a progress without it")
        assert running.exception() is None
    finally:
        running.stop()
        spark.streams.removeListener(listener)


def test_a_planned_batch_waits_for_its_broker_and_can_be_stopped_meanwhile(
    spark: SparkSession, own_cluster: Cluster, second_broker: AnyBroker, tmp_path: Path
) -> None:
    """Its range is in the checkpoint, so the task waits for longer than for messages."""
    servers = own_cluster.namesrv
    make_on_both(servers, second_broker, "planned")
    fill(servers, "planned", {0: 2})
    fill(servers, "planned", {0: 1}, broker="broker-b")
    query = Stream(
        spark,
        tmp_path,
        nameServer=servers,
        subscribe="planned",
        startingOffsets="earliest",
        pull_timeoutMs=1,
    )
    with pytest.raises(StreamingQueryException, match="the sink fails"):
        query.once(failing="the sink fails")
    second_broker.kill()

    tracker = spark.sparkContext.statusTracker()
    for _ in range(2):
        running = query.begin()
        wait_until(lambda: bool(tracker.getActiveJobsIds()), "a task that waits")
        running.stop()
        assert running.exception() is None
    with pytest.raises(StreamingQueryException, match=r"UnreachableError.*queue 0 of broker-b"):
        query.once(brokerAway_failAfterMs=2)
    running = query.begin()
    try:
        wait_until(lambda: bool(tracker.getActiveJobsIds()), "a task that waits")
        second_broker.start()
        wait_until(lambda: len(query.found()) == 3, "the rows of both brokers")
        assert running.exception() is None
    finally:
        running.stop()
