"""Topics as tables: columns, choices, edges, parts, filters and refusals, on real clusters."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import UTC
from typing import TYPE_CHECKING, Any
from zlib import crc32

import pytest
from pyspark.errors import AnalysisException, PythonException
from servers import Cluster

from cometmq.client import Message, MessageQueue
from cometmq.client.blocking import AdminClient, Producer, PullConsumer
from cometmq.spark.schema import CORE
from support.checks.waiting import wait_until
from support.spark.spark_topics import fill, found_in, named, rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Read = Callable[..., "DataFrame"]
PUSH = "spark.sql.python.filterPushdown.enabled"


@pytest.fixture
def read(spark: SparkSession, name_servers: str, topic: str) -> Read:
    """Read the topic of the test; options have ``_`` instead of points."""

    def read_it(schema: str | None = None, **options: Any) -> DataFrame:
        given = {"nameServer": name_servers, "subscribe": topic} | options
        reader = spark.read.format("rocketmq").options(**named(given))
        return (reader.schema(schema) if schema else reader).load()

    return read_it


def test_every_column_has_what_was_sent(read: Read, name_servers: str, topic: str) -> None:
    before = time.time()
    with Producer(name_servers, group="p") as producer:
        message = Message(
            topic=topic,
            body=b"\x00\xff",
            tags="paid",
            keys=["k1", "k2"],
            flag=7,
            properties={"colour": "grün"},
        )
        receipt = producer.send(message, queue=MessageQueue(topic, "broker-a", 2))

    (row,) = read(includeProperties="true").collect()

    assert [*row.asDict()] == [column.name for column in CORE] + ["properties"]
    assert (row.topic, row.broker_name, row.queue_id, row.queue_offset) == (
        topic, "broker-a", 2, receipt.queue_offset,
    )  # fmt: skip
    assert (row.tags, row.keys, bytes(row.body), row.flag) == ("paid", "k1 k2", b"\x00\xff", 7)
    assert row.msg_id == receipt.message_id
    assert row.offset_msg_id == receipt.offset_message_id
    for moment in (row.born_timestamp, row.store_timestamp):
        assert before - 2 < moment.replace(tzinfo=UTC).timestamp() < time.time() + 2
    assert row.properties["colour"] == "grün"
    assert row.properties["UNIQ_KEY"] == row.msg_id
    assert (row.reconsume_times, row.prepared_offset) == (0, 0)
    assert row.body_crc == crc32(row.body) & 0x7FFFFFFF
    assert row.store_size > len(row.body) + len(topic)
    assert row.phy_offset >= 0


def test_a_compressed_body_is_given_as_it_was_sent(
    read: Read, name_servers: str, topic: str
) -> None:
    body = b"again and again " * 1_000
    with Producer(name_servers, group="p", compress_from_bytes=1_000) as producer:
        producer.send(Message(topic=topic, body=body))

    (row,) = read().collect()
    assert bytes(row.body) == body
    assert row.store_size < len(body)
    (raw,) = read(decompress="false").collect()
    assert len(raw.body) < len(body)


def test_a_schema_of_the_user_s_own_chooses_columns(
    read: Read, name_servers: str, topic: str
) -> None:
    fill(name_servers, topic, {0: 3})

    frame = read("queue_offset BIGINT, tags STRING, topic STRING NOT NULL")

    assert [tuple(row) for row in frame.collect()] == [(n, None, topic) for n in range(3)]
    with pytest.raises(AnalysisException, match=r"OptionError.*'colour'.*topic, broker_name"):
        read("colour STRING").collect()
    with pytest.raises(AnalysisException, match=r"OptionError.*int of column queue_offset"):
        read("queue_offset INT").collect()


def test_topics_patterns_and_queues_are_chosen(
    read: Read, name_servers: str, topic: str, make_topic: Callable[..., str]
) -> None:
    other = make_topic(queues=2)
    fill(name_servers, topic, {0: 2, 3: 1})
    fill(name_servers, other, {1: 2})
    both = sorted(rows(topic, {0: 2, 3: 1}) + rows(other, {1: 2}))

    assert found_in(read(subscribe=f"{topic}, {other}")) == both
    pattern = read(subscribe=None, subscribePattern=f"{topic[:-3]}.*|{other}")
    assert found_in(pattern) == both
    assign = json.dumps({topic: {"broker-a": [3]}, other: {"broker-a": [0, 1]}})
    assert found_in(read(subscribe=None, assign=assign)) == sorted(
        rows(topic, {3: 1}) + rows(other, {1: 2})
    )


def test_edges_by_offsets_by_time_and_by_group(
    read: Read, name_servers: str, topic: str, group: str
) -> None:
    fill(name_servers, topic, {0: 5, 1: 5})
    time.sleep(0.01)  # the clock has to go on, which nothing else tells
    middle = time.time_ns() // 1_000_000
    fill(name_servers, topic, {0: 4, 1: 1})
    offsets = json.dumps({topic: {"broker-a": {"0": 2, "1": -1}}})

    assert found_in(read(startingOffsets=offsets)) == sorted(
        rows(topic, {0: 7}, start=2) + rows(topic, {2: 0, 3: 0})
    )
    assert found_in(read(endingOffsets=offsets)) == rows(topic, {0: 2, 1: 6})
    late = {"startingOffsetsByTimestampStrategy": "latest"}
    assert found_in(read(startingTimestamp=middle, **late)) == rows(topic, {0: 4, 1: 1}, start=5)
    assert found_in(read(endingTimestamp=middle)) == rows(topic, {0: 5, 1: 5})
    by_queue = json.dumps({topic: {"broker-a": {"0": middle}}})
    assert found_in(read(startingOffsetsByTimestamp=by_queue)) == sorted(
        rows(topic, {0: 4}, start=5) + rows(topic, {1: 6})
    )
    with PullConsumer(name_servers, group=group) as consumer:
        consumer.assign([MessageQueue(topic, "broker-a", 0)])
        consumer.seek(MessageQueue(topic, "broker-a", 0), 7)
        consumer.commit()
    at_group = {"startingOffsets": "group", "rocketmq_group": group}
    assert found_in(read(**at_group)) == sorted(rows(topic, {0: 2}, start=7) + rows(topic, {1: 6}))


def test_parts_are_as_many_as_asked(read: Read, name_servers: str, topic: str) -> None:
    fill(name_servers, topic, {0: 50, 1: 3})

    whole = read()
    assert whole.rdd.getNumPartitions() == 2
    cut = read(minPartitions=5)
    assert cut.rdd.getNumPartitions() >= 5
    assert found_in(cut) == found_in(whole) == rows(topic, {0: 50, 1: 3})
    small = read(maxRecordsPerPartition=10)
    assert small.rdd.getNumPartitions() == 6
    assert small.count() == 53


def test_an_empty_topic_has_no_rows(read: Read) -> None:
    assert read().collect() == []


def test_filters_of_tags_and_keys(read: Read, name_servers: str, topic: str) -> None:
    """Tags of one hash are told apart."""
    tags = ("Aa", "BB", "other")

    def message(number: int) -> Message:
        return Message(
            topic=topic,
            body=b"x",
            tags=tags[number % 3],
            keys=[f"k{number}", "all"],
            properties={"n": str(number)},
        )

    fill(name_servers, topic, {0: 9}, message=message)

    def offsets(**options: Any) -> list[int]:
        return [offset for _, _, offset in found_in(read(**options))]

    assert offsets(filter_tags="Aa") == [0, 3, 6]
    assert offsets(filter_tags="Aa || other") == [0, 2, 3, 5, 6, 8]
    assert offsets(filter_keys="k1,k7") == [1, 7]
    assert offsets(filter_keys="k") == []
    assert offsets(filter_tags="other", filter_keys="all") == [2, 5, 8]
    assert read("queue_id INT", filter_tags="BB").count() == 3


def test_a_broker_that_knows_no_sql_says_so(read: Read, name_servers: str, topic: str) -> None:
    fill(name_servers, topic, {0: 1})

    with pytest.raises(PythonException, match=r"topic .*, queue 0 of broker-a.*(SQL|sql)"):
        read(filter_sql="n > 3").collect()


@pytest.mark.only_on("4.9.7", "5.3.3")
def test_a_broker_decides_on_sql(
    spark: SparkSession, make_cluster: Callable[..., Cluster], read: Read
) -> None:
    cluster = make_cluster({"enablePropertyFilter": True})
    with AdminClient(cluster.namesrv) as admin:
        admin.create_topic("numbers", queues=1)
        wait_until(lambda: "numbers" in admin.topics(), "the topic")

    def message(number: int) -> Message:
        return Message(topic="numbers", body=b"x", properties={"n": str(number)})

    fill(cluster.namesrv, "numbers", {0: 9}, message=message)

    found = read(nameServer=cluster.namesrv, subscribe="numbers", filter_sql="n > 3 AND n <> 6")

    assert [offset for _, _, offset in found_in(found)] == [4, 5, 7, 8]


def test_conditions_give_the_right_rows_where_the_session_pushes_them(
    spark: SparkSession, read: Read, name_servers: str, topic: str
) -> None:
    """A session may push conditions into other sources; Spark shares them between queries."""
    fill(name_servers, topic, {0: 1, 1: 3})
    spark.conf.set(PUSH, "true")
    try:
        frame = read()
        assert frame.where("queue_id = 0").count() == 1
        assert frame.count() == 4
        both = frame.where("queue_id = 0").union(frame.where("queue_id = 1"))
        assert found_in(both) == rows(topic, {0: 1, 1: 3})
    finally:
        spark.conf.unset(PUSH)


def test_conditions_of_a_query_cannot_be_pushed(read: Read, topic: str) -> None:
    with pytest.raises(AnalysisException, match=r"pushDownFilters was removed.*filter\.tags"):
        read(pushDownFilters="true")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"subscribe": "no-such-topic"}, "GoneError: topic no-such-topic"),
        ({"startingOffset": "latest"}, "did you mean startingOffsets?"),
        ({"assign": "{}"}, "exactly one of subscribe, subscribePattern, assign"),
        ({"startingOffsets": "first"}, "option startingOffsets=first: expected earliest, latest"),
        ({"startingTimestamp": "4102444800000"}, "no message was stored at or after"),
    ],
)
def test_what_is_wrong_is_said_when_planning(
    read: Read, options: dict[str, str], text: str
) -> None:
    with pytest.raises(Exception, match=r"PYTHON_DATA_SOURCE_ERROR") as refused:
        read(**options).collect()

    assert text in str(refused.value)


def test_name_servers_that_do_not_answer_are_named(read: Read) -> None:
    with pytest.raises(Exception, match=r"UnreachableError.*no response after 2 tries"):
        read(
            nameServer="127.0.0.1:1", fetchOffset_numRetries=1, fetchOffset_retryIntervalMs=1
        ).collect()
