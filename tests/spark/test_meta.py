"""Bounds, committed offsets and lag as rows, on clusters of ours and of RocketMQ."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.datasource import InputPartition

from cometmq.client import Message, MessageQueue
from cometmq.client.blocking import Producer
from cometmq.spark.brokers import BrokerSession, connect, disconnect_all
from cometmq.spark.options.connection import ConnectionOptions
from cometmq.spark.options.meta import MetaOptions
from cometmq.spark.options.parsing import parse_options
from cometmq.spark.schema import chosen
from cometmq.spark.sources.meta import META, MetaReader

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def session(name_servers: str) -> Iterator[BrokerSession]:
    yield connect(parse_options(ConnectionOptions, {"nameserver": name_servers}))
    disconnect_all()


def rows_of(name_servers: str, **given: str) -> list[dict[str, Any]]:
    """Read without Spark, as Spark would."""
    options = parse_options(MetaOptions, {"nameserver": name_servers} | given)
    reader = MetaReader(options, META, connect)
    batches = [batch for part in reader.partitions() for batch in reader.read(part)]
    return [row for batch in batches for row in batch.to_pylist()]


def send(name_servers: str, session: BrokerSession, topic: str, counts: dict[int, int]) -> None:
    broker = session.queues([topic])[0].broker
    with Producer(name_servers, group="g-meta") as producer:
        for queue_id, count in counts.items():
            queue = MessageQueue(topic, broker, queue_id)
            producer.send_batch([Message(topic, b"x")] * count, queue=queue)
    _await_visible(session, topic, counts)


def _await_visible(session: BrokerSession, topic: str, counts: dict[int, int]) -> None:
    """Brokers put what they have stored into its queue a moment later."""
    deadline = time.monotonic() + 120
    keys = [key for key in session.queues([topic]) if key.queue_id in counts]
    while any(each.max < counts[key.queue_id] for key, each in session.bounds(keys).items()):
        assert time.monotonic() < deadline, f"{counts} messages are not all in {topic}"
        time.sleep(0.02)


def test_every_group_of_a_queue_has_a_row(
    session: BrokerSession, name_servers: str, topic: str
) -> None:
    send(name_servers, session, topic, {0: 10, 2: 4})
    keys = session.queues([topic])
    one, other = f"g1-{topic}", f"g2-{topic}"
    session.commit(one, {keys[0]: 7, keys[2]: 0})
    session.commit(other, {keys[0]: 10})

    rows = rows_of(name_servers, subscribe=topic)
    found = {
        (row["queue_id"], row["consumer_group"]): (
            row["min_offset"],
            row["max_offset"],
            row["committed_offset"],
            row["lag"],
        )
        for row in rows
    }
    assert found == {
        (0, one): (0, 10, 7, 3),
        (0, other): (0, 10, 10, 0),
        (1, None): (0, 0, None, None),
        (2, one): (0, 4, 0, 4),
        (3, None): (0, 0, None, None),
    }
    assert {(row["topic"], row["broker_name"]) for row in rows} == {(topic, keys[0].broker)}


def test_times_are_told_of_queues_that_hold_something(
    session: BrokerSession, name_servers: str, topic: str
) -> None:
    send(name_servers, session, topic, {1: 1})
    now = datetime.now(UTC)
    rows = {row["queue_id"]: row for row in rows_of(name_servers, subscribe=topic)}
    assert abs((rows[1]["last_store_timestamp"] - now).total_seconds()) < 60
    assert abs((rows[1]["observed_timestamp"] - now).total_seconds()) < 60
    assert rows[0]["last_store_timestamp"] is None


def test_a_named_group_has_a_row_in_every_queue(
    session: BrokerSession, name_servers: str, topic: str
) -> None:
    """Its lag is all there is while it has committed nothing: nobody reads, and nobody notices."""
    send(name_servers, session, topic, {0: 10, 1: 5})
    keys = session.queues([topic])
    one, other = f"g1-{topic}", f"g2-{topic}"
    session.commit(one, {keys[0]: 7})
    session.commit(other, {keys[0]: 7})
    rows = rows_of(name_servers, subscribe=topic, groups=one)
    found = {row["queue_id"]: (row["consumer_group"], row["lag"]) for row in rows}
    assert found == {0: (one, 3), 1: (one, 5), 2: (one, 0), 3: (one, 0)}


def test_topics_are_chosen_by_pattern_or_are_all_but_the_systems_own(
    name_servers: str, topic: str
) -> None:
    assert {row["topic"] for row in rows_of(name_servers, subscribePattern=topic[:-2] + "..")} == {
        topic
    }
    every = {row["topic"] for row in rows_of(name_servers)}
    assert topic in every
    assert not {"TBW102", "SELF_TEST_TOPIC", "broker-a", "DefaultCluster"} & every
    assert "TBW102" in {row["topic"] for row in rows_of(name_servers, includeSystem="true")}


def test_a_reader_without_parts_reads_nothing(name_servers: str) -> None:
    """Spark makes one up where there is none."""
    options = {"nameserver": name_servers, "subscribePattern": "no such topic"}
    reader = MetaReader(parse_options(MetaOptions, options), META, connect)
    assert reader.partitions() == []
    assert list(reader.read(None)) == []
    disconnect_all()


def test_a_topic_that_is_deleted_meanwhile_has_no_rows(
    session: BrokerSession, name_servers: str, topic: str
) -> None:
    options = parse_options(MetaOptions, {"nameserver": name_servers})
    reader = MetaReader(options, chosen(META, ["topic"]), connect)
    brokers = [part.value[0] for part in reader.partitions()]
    parts = [InputPartition((broker, (topic, "deleted-meanwhile"))) for broker in brokers]
    found = [row["topic"] for part in parts for b in reader.read(part) for row in b.to_pylist()]
    assert found == [topic] * 4


# --- through Spark ---------------------------------------------------------------------------


def test_spark_reads_the_lag_of_a_group(
    spark: SparkSession, session: BrokerSession, name_servers: str, topic: str
) -> None:
    send(name_servers, session, topic, {0: 10, 1: 5})
    keys = session.queues([topic])
    session.commit(f"g-{topic}", {keys[0]: 4, keys[1]: 5})
    reader = spark.read.format("rocketmq-meta").option("nameServer", name_servers)
    frame = reader.option("subscribe", topic).load()
    assert frame.schema["max_offset"].nullable is False
    assert frame.count() == 4
    lag = frame.where("consumer_group is not null").groupBy("consumer_group").sum("lag").collect()
    assert [tuple(row) for row in lag] == [(f"g-{topic}", 6)]


def test_every_read_asks_anew(
    spark: SparkSession, session: BrokerSession, name_servers: str, topic: str
) -> None:
    """So that the same frame shows how things went on; Spark keeps what it has shuffled, though."""
    reader = spark.read.format("rocketmq-meta").option("nameServer", name_servers)
    frame = reader.option("subscribe", topic).load().select("max_offset")
    assert sum(row[0] for row in frame.collect()) == 0
    send(name_servers, session, topic, {3: 7})
    assert sum(row[0] for row in frame.collect()) == 7


def test_a_users_schema_chooses_columns(spark: SparkSession, name_servers: str, topic: str) -> None:
    reader = spark.read.format("rocketmq-meta").schema("queue_id int, topic string")
    reader = reader.option("nameServer", name_servers).option("subscribe", topic)
    rows = reader.load().orderBy("queue_id").collect()
    assert [tuple(row) for row in rows] == [(number, topic) for number in range(4)]


def test_errors_say_what_is_wrong(spark: SparkSession, name_servers: str) -> None:
    reader = spark.read.format("rocketmq-meta").option("nameServer", name_servers)
    with pytest.raises(Exception, match="no-such-topic"):
        reader.option("subscribe", "no-such-topic").load().collect()
    with pytest.raises(Exception, match="group is unknown; did you mean groups"):
        spark.read.format("rocketmq-meta").option("group", "x").load()
    with pytest.raises(Exception, match="nameServer is required"):
        spark.read.format("rocketmq-meta").load()
