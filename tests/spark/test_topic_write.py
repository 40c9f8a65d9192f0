"""Writing topics from Spark: batches and streams, on real clusters."""

from __future__ import annotations

import json
import shutil
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException

from cometmq.client import StartFrom
from cometmq.client._sending.queue_picker import KeySelector
from cometmq.client.blocking import PullConsumer
from cometmq.model.message import Message, StoredMessage
from cometmq.model.queue import MessageQueue
from cometmq.spark.sink import sink_counts
from support.spark.spark_topics import ENDS_S
from support.spark.topic_audit import Audit, order_by_key, stored, unique_key_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def messages_in(name_servers: str, topic: str, count: int = 0) -> list[StoredMessage]:
    """All messages, once there are so many."""
    queues = stored(name_servers, topic, count=count)
    return [each for messages in queues.values() for each in messages]


@pytest.fixture
def write(name_servers: str) -> Callable[..., None]:
    """Write a DataFrame; options have ``_`` instead of points."""

    def write_it(rows: DataFrame, **options: Any) -> None:
        named = {name.replace("_", "."): value for name, value in options.items()}
        writer = rows.write.format("rocketmq").option("nameServer", name_servers)
        writer.options(**named).mode("append").save()

    return write_it


def numbers(spark: SparkSession, count: int, *, partitions: int = 2) -> DataFrame:
    """Rows whose bodies are the numbers from 0 on."""
    return spark.range(0, count, 1, partitions).selectExpr("cast(id as string) as body")


# --- batches ------------------------------------------------------------------------------------


def test_every_column_arrives(
    spark: SparkSession, name_servers: str, topic: str, write: Callable[..., None]
) -> None:
    rows = spark.sql(
        """SELECT unhex('00FF') AS body, 'paid' AS tags, array('k1', 'k2') AS keys,
        map('colour', 'grün') AS properties, 2 AS queue_id, 'broker-a' AS broker_name,
        'customer' AS sharding_key, 7 AS flag, 'OWN-ID' AS msg_id"""
    )
    write(rows, topic=topic)
    queues = stored(name_servers, topic, count=1)
    ((queue, (message,)),) = ((queue, found) for queue, found in queues.items() if found)
    assert queue == ("broker-a", 2)
    assert (message.body, message.flag) == (b"\x00\xff", 7)
    expected = {
        "TAGS": "paid",
        "KEYS": "k1 k2",
        "colour": "grün",
        "__SHARDINGKEY": "customer",
        "UNIQ_KEY": "OWN-ID",
    }
    assert expected.items() <= message.properties.items()


def test_nothing_is_lost_and_every_row_has_its_own_key(
    spark: SparkSession, name_servers: str, topic: str, write: Callable[..., None]
) -> None:
    write(numbers(spark, 20_000), topic=topic, jobId="job")
    found = messages_in(name_servers, topic, 20_000)
    Audit.of(map(str, range(20_000)), found).check()
    assert len(found) == 20_000
    keys = set(map(unique_key_of, found))
    assert len(keys) == 20_000
    write(numbers(spark, 20_000), topic=topic, jobId="job", delivery="at-least-once")
    assert set(map(unique_key_of, messages_in(name_servers, topic, 40_000))) == keys


def test_a_task_that_is_tried_again_in_another_order_gives_no_row_the_key_of_another(
    spark: SparkSession, name_servers: str, topic: str, write: Callable[..., None]
) -> None:
    """As behind a shuffle that is not sorted; equal rows among them all survive."""
    rows = [f"{number % 300}" for number in range(500)]
    for order in (rows[:200], rows[::-1]):
        frame = spark.createDataFrame([(row,) for row in order], "body STRING").coalesce(1)
        write(frame, topic=topic, jobId="job", delivery="at-least-once")
    found = messages_in(name_servers, topic, 700)
    bodies: dict[str, set[bytes]] = {}
    for message in found:
        bodies.setdefault(unique_key_of(message), set()).add(message.body)
    assert all(len(met) == 1 for met in bodies.values())
    survivors = Counter(body.decode() for (body,) in bodies.values())
    assert survivors == Counter(rows)


def test_rows_of_a_key_keep_their_order_in_the_queue_that_java_would_choose(
    spark: SparkSession, name_servers: str, topic: str, write: Callable[..., None]
) -> None:
    rows = spark.range(0, 5000, 1, 2).selectExpr(
        "format_string('%05d', id) as body", "concat('k', id % 40) as sharding_key"
    )
    write(rows.repartition(2, "sharding_key").sortWithinPartitions("body"), topic=topic)
    queues = stored(name_servers, topic, count=5000)
    order = order_by_key(queues, lambda message: message.properties["__SHARDINGKEY"])
    assert sum(map(len, order.values())) == 5000
    known = [MessageQueue(topic, broker, queue) for broker, queue in sorted(queues)]
    for key, bodies in order.items():
        assert bodies == sorted(bodies)
        chosen = KeySelector(key)(known, Message(topic=topic, body=b""))
        (place,) = {
            queue
            for queue, found in queues.items()
            if any(message.properties["__SHARDINGKEY"] == key for message in found)
        }
        assert place == (chosen.broker_name, chosen.queue_id)


def test_rows_may_name_topics_of_their_own(
    spark: SparkSession,
    name_servers: str,
    make_topic: Callable[..., str],
    write: Callable[..., None],
) -> None:
    one, other = make_topic(), make_topic()
    rows = numbers(spark, 100).selectExpr("body", f"if(body < '5', '{one}', '{other}') as topic")
    write(rows)
    found = [messages_in(name_servers, one, 45), messages_in(name_servers, other, 55)]
    bodies = [{message.body.decode() for message in messages} for messages in found]
    assert bodies[0] == {str(n) for n in range(100) if str(n) < "5"}
    assert bodies[1] == {str(n) for n in range(100) if str(n) >= "5"}


def test_a_second_write_of_the_same_job_is_recognized_by_its_keys(
    spark: SparkSession, name_servers: str, topic: str, write: Callable[..., None]
) -> None:
    for _ in range(2):
        write(numbers(spark, 50), topic=topic, jobId="nightly", delivery="at-least-once")
    audit = Audit.of(map(str, range(50)), messages_in(name_servers, topic, 100))
    audit.check()
    assert audit.repeated == 50


@pytest.mark.only_on("comet")
def test_a_job_that_is_started_again_stores_nothing_twice(
    spark: SparkSession, name_servers: str, topic: str, write: Callable[..., None]
) -> None:
    for _ in range(2):
        write(numbers(spark, 50), topic=topic, jobId="nightly")
    stored = spark.read.format("rocketmq").options(nameServer=name_servers, subscribe=topic)
    assert sorted(int(row.body) for row in stored.load().select("body").collect()) == [*range(50)]


def test_a_reader_can_drop_repetitions_by_their_keys(
    spark: SparkSession,
    name_servers: str,
    topic: str,
    write: Callable[..., None],
    tmp_path: Path,
) -> None:
    for _ in range(2):
        write(numbers(spark, 40), topic=topic, jobId="nightly", delivery="at-least-once")
    assert len(messages_in(name_servers, topic, 80)) == 80
    options = {"nameServer": name_servers, "subscribe": topic, "startingOffsets": "earliest"}
    batch = spark.read.format("rocketmq").options(**options).load()
    assert (batch.count(), batch.dropDuplicates(["msg_id"]).count()) == (80, 40)

    stream = spark.readStream.format("rocketmq").options(**options).load()
    once = stream.withWatermark("store_timestamp", "1 hour").dropDuplicatesWithinWatermark(
        ["msg_id"]
    )
    writer = once.select("body").writeStream.format("parquet").trigger(availableNow=True)
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    assert writer.start(str(tmp_path / "out")).awaitTermination(ENDS_S)
    found = spark.read.parquet(str(tmp_path / "out")).toArrow().column("body").to_pylist()
    assert sorted(map(int, found)) == list(range(40))


def test_a_write_that_is_repeated_with_other_partitions_needs_a_key_in_its_rows(
    spark: SparkSession, name_servers: str, topic: str, write: Callable[..., None]
) -> None:
    """The sink tells equal rows of two partitions apart, and so knows rows by their partition."""
    rows = [numbers(spark, 100, partitions=count) for count in (1, 2)]
    for each in rows:
        write(each, topic=topic, jobId="prices-2026-11-28", delivery="at-least-once")
    made = messages_in(name_servers, topic, 200)
    assert 100 < len(set(map(unique_key_of, made))) <= 200
    for each in rows:
        write(each.selectExpr("*", "upper(md5(body)) AS msg_id"), topic=topic)
    keys = Counter(map(unique_key_of, messages_in(name_servers, topic, 400)))
    assert len(keys - Counter(map(unique_key_of, made))) == 100


def test_writes_without_a_job_are_different_ones(
    spark: SparkSession, name_servers: str, topic: str, write: Callable[..., None]
) -> None:
    for _ in range(2):
        write(numbers(spark, 3), topic=topic)
    assert len(set(map(unique_key_of, messages_in(name_servers, topic, 6)))) == 6


def test_no_rows_are_no_messages(
    spark: SparkSession, name_servers: str, topic: str, write: Callable[..., None]
) -> None:
    write(numbers(spark, 0), topic=topic)
    assert messages_in(name_servers, topic) == []


def test_a_delayed_row_comes_when_it_is_due(
    spark: SparkSession, name_servers: str, topic: str, write: Callable[..., None]
) -> None:
    write(spark.sql("SELECT 'late' AS body, 1 AS delay_level"), topic=topic)
    group = f"g-{uuid.uuid4().hex}"
    with PullConsumer(name_servers, group=group, start_from=StartFrom.FIRST) as consumer:
        consumer.assign([MessageQueue(topic, "broker-a", number) for number in range(4)])
        (message,) = next(found for found in _polls(consumer) if found)
    assert message.body == b"late"
    assert message.store_time_ms - message.born_time_ms >= 900


def _polls(consumer: PullConsumer) -> Iterator[list[StoredMessage]]:
    for _ in range(15):
        yield consumer.poll(1.0)


# --- refusals -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "select", "text"),
    [
        (
            {"topic": "t", "delivery": "transactional"},
            "body",
            "expected one of auto, at-least-once",
        ),
        ({"topik": "t"}, "body", "did you mean topic"),
        ({}, "body", "expected the option topic or a column topic"),
        ({"topic": "t"}, "body as value", "column value cannot be written"),
        ({"topic": "t"}, "body, 1L as queue_id", "queue_id is int64: INT is expected"),
        ({"topic": "a b"}, "body", "option topic is 'a b'"),
    ],
)
def test_what_cannot_be_written_is_refused_before_any_task_runs(
    spark: SparkSession,
    write: Callable[..., None],
    options: dict[str, str],
    select: str,
    text: str,
) -> None:
    rows = numbers(spark, 1).selectExpr(*select.split(", "))
    with pytest.raises(PySparkException, match="PYTHON_DATA_SOURCE_ERROR") as error:
        write(rows, **options)
    assert text in str(error.value)


def test_a_topic_is_not_overwritten(spark: SparkSession, name_servers: str, topic: str) -> None:
    writer = numbers(spark, 1).write.format("rocketmq").option("nameServer", name_servers)
    with pytest.raises(PySparkException, match="a topic cannot be overwritten"):
        writer.option("topic", topic).mode("overwrite").save()


def test_a_mode_must_be_named(spark: SparkSession, name_servers: str, topic: str) -> None:
    """Spark's default mode would have to know whether the topic exists."""
    writer = numbers(spark, 1).write.format("rocketmq").option("nameServer", name_servers)
    with pytest.raises(PySparkException, match=r"SAVE_MODE|ErrorIfExists"):
        writer.option("topic", topic).save()


def test_a_row_that_cannot_be_a_message_is_named_and_none_of_its_batch_is_sent(
    spark: SparkSession, name_servers: str, topic: str, write: Callable[..., None]
) -> None:
    rows = numbers(spark, 10, partitions=1).selectExpr("if(body = '7', null, body) as body")
    with pytest.raises(PySparkException, match="row 7 of partition 0, batch 0 of job j: body is"):
        write(rows, topic=topic, jobId="j")
    assert messages_in(name_servers, topic) == []


# --- streams ------------------------------------------------------------------------------------


class Stream:
    """Text files, one batch each, that are written to a topic."""

    def __init__(self, spark: SparkSession, name_servers: str, topic: str, folder: Path) -> None:
        self._spark = spark
        self.source, self.checkpoint = folder / "source", folder / "checkpoint"
        self.source.mkdir()
        self._options = {"nameServer": name_servers, "topic": topic}

    def add(self, name: str, lines: list[str]) -> None:
        ready = self.source / f".{name}"
        ready.write_text("".join(f"{line}\n" for line in lines))
        ready.rename(self.source / name)

    def rows(self) -> DataFrame:
        return self._spark.readStream.option("maxFilesPerTrigger", 1).text(str(self.source))

    def run(self, **options: str) -> str:
        """Write what is new and end; returns the query's id."""
        writer = self.rows().withColumnRenamed("value", "body").writeStream.format("rocketmq")
        writer = writer.options(**self._options, **options).trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(self.checkpoint)).start()
        assert query.awaitTermination(ENDS_S), "the stream does not end"
        return str(query.id)

    def forget_commit(self, batch: int) -> None:
        """Leave the checkpoint as a driver does that dies between the sink and its own note."""
        (self.checkpoint / "commits" / str(batch)).unlink()
        (self.checkpoint / "commits" / f".{batch}.crc").unlink(missing_ok=True)


@pytest.fixture
def stream(spark: SparkSession, name_servers: str, topic: str, tmp_path: Path) -> Stream:
    return Stream(spark, name_servers, topic, tmp_path)


@pytest.mark.only_on("comet")
def test_a_batch_that_is_repeated_after_a_restart_stores_each_row_once(
    stream: Stream, name_servers: str, topic: str
) -> None:
    stream.add("0", ["a", "b"])
    stream.add("1", ["c", "d"])
    stream.run()
    stream.forget_commit(1)
    stream.add("2", ["a", "e"])
    stream.run()
    bodies = [message.body.decode() for message in messages_in(name_servers, topic, 6)]
    assert sorted(bodies) == list("aabcde")


def test_a_batch_that_is_repeated_after_a_restart_has_the_keys_it_had_and_counts_again(
    stream: Stream, name_servers: str, topic: str, tmp_path: Path
) -> None:
    stream.add("0", ["a", "b"])
    stream.add("1", ["c", "d"])
    options = {"countsFolder": str(tmp_path / "counts"), "delivery": "at-least-once"}
    query = stream.run(**options)
    stream.forget_commit(1)
    assert stream.run(**options) == query
    (counts,) = sink_counts(tmp_path / "counts")
    assert (counts.job, counts.sent.rows, counts.commits) == (query, 6, 3)
    found = messages_in(name_servers, topic, 6)
    audit = Audit.of("abcd", found)
    audit.check()
    assert audit.repeated == 2
    keys = {message.body.decode(): unique_key_of(message) for message in found}
    assert len(set(keys.values())) == 4


def test_a_stream_may_be_given_a_name_of_its_own(
    stream: Stream, name_servers: str, topic: str
) -> None:
    stream.add("0", ["a"])
    stream.run(jobId="orders-v1")
    (message,) = messages_in(name_servers, topic, 1)
    shutil.rmtree(stream.checkpoint)
    stream.run(jobId="orders-v1", delivery="at-least-once")
    again = messages_in(name_servers, topic, 2)
    assert {unique_key_of(each) for each in again} == {unique_key_of(message)}


def test_rows_of_a_failed_batch_come_again_under_equal_keys(
    stream: Stream, name_servers: str, topic: str
) -> None:
    """The second row of the second batch is too large at first; the first one is perhaps sent."""
    stream.add("0", ["a"])
    stream.add("1", ["b", "c" * 50])
    with pytest.raises(PySparkException, match="body is too large"):
        stream.run(**{"send.bodyBytesMax": "10"})
    stream.run()
    audit = Audit.of(["a", "b", "c" * 50], messages_in(name_servers, topic, 3))
    audit.check()
    offsets = sorted(int(path.name) for path in (stream.checkpoint / "offsets").glob("[0-9]*"))
    assert offsets == [0, 1], "the failed batch was repeated, not followed by another"


def test_complete_output_is_refused(
    spark: SparkSession, stream: Stream, name_servers: str, topic: str
) -> None:
    stream.add("0", ["a"])
    rows = spark.readStream.text(str(stream.source)).groupBy("value").count()
    writer = rows.selectExpr("value as body").writeStream.format("rocketmq")
    writer = writer.options(nameServer=name_servers, topic=topic).outputMode("complete")
    query = writer.option("checkpointLocation", str(stream.checkpoint)).start()
    with pytest.raises(PySparkException, match="cannot be overwritten"):
        query.awaitTermination(ENDS_S)


def test_an_aggregation_writes_the_rows_that_changed_through_foreach_batch(
    spark: SparkSession, stream: Stream, write: Callable[..., None], name_servers: str, topic: str
) -> None:
    """Spark offers the output mode ``update`` to no sink that is written in Python."""
    stream.add("0", ["a", "b", "a"])
    rows = spark.readStream.text(str(stream.source)).groupBy("value").count()
    rows = rows.selectExpr("concat(value, '=', count) as body", "value as sharding_key")
    writer = rows.writeStream.outputMode("update").trigger(availableNow=True)
    writer = writer.option("checkpointLocation", str(stream.checkpoint))

    def write_batch(batch: DataFrame, number: int) -> None:
        write(batch, topic=topic, jobId=f"counts-{number}")

    for line in ("", "b"):
        if line:
            stream.add("1", [line])
        assert writer.foreachBatch(write_batch).start().awaitTermination(ENDS_S)
    bodies = [message.body for message in messages_in(name_servers, topic, 3)]
    assert sorted(bodies) == [b"a=2", b"b=1", b"b=2"]


@pytest.mark.parametrize("job", [None, "copies"])
def test_writes_of_a_repeated_foreach_batch_have_the_keys_they_had_and_share_none(
    stream: Stream,
    make_topic: Callable[[], str],
    name_servers: str,
    write: Callable[..., None],
    job: str | None,
) -> None:
    """The same rows go to one topic twice, and to another topic once."""
    topics = [make_topic() for _ in range(2)]

    def write_batch(batch: DataFrame, number: int) -> None:
        rows = batch.withColumnRenamed("value", "body")
        names = [job, job and f"{job}-again", job]
        for name, topic in zip(names, [topics[0], *topics], strict=True):
            named = {"jobId": name} if name else {}
            write(rows, topic=topic, delivery="at-least-once", **named)

    writer = stream.rows().writeStream.trigger(availableNow=True).foreachBatch(write_batch)
    writer = writer.option("checkpointLocation", str(stream.checkpoint))
    stream.add("0", ["a", "b"])
    stream.add("1", ["a", "b"])
    assert writer.start().awaitTermination(ENDS_S)
    first = [
        list(map(unique_key_of, messages_in(name_servers, *each)))
        for each in zip(topics, (8, 4), strict=True)
    ]
    assert len({*first[0], *first[1]}) == 12, "batches, writes and topics share no key"
    stream.forget_commit(1)
    assert writer.start().awaitTermination(ENDS_S)
    again = [
        list(map(unique_key_of, messages_in(name_servers, *each)))
        for each in zip(topics, (12, 6), strict=True)
    ]
    assert list(map(len, again)) == [12, 6], "the second batch was repeated"
    assert list(map(set, again)) == list(map(set, first))


def test_update_output_is_refused(stream: Stream, name_servers: str, topic: str) -> None:
    stream.add("0", ["a"])
    rows = stream.rows().groupBy("value").count().selectExpr("value as body")
    writer = rows.writeStream.format("rocketmq").outputMode("update").trigger(availableNow=True)
    writer = writer.options(nameServer=name_servers, topic=topic)
    writer = writer.option("checkpointLocation", str(stream.checkpoint))
    with pytest.raises(PySparkException, match="does not support Update mode"):
        writer.start().awaitTermination(ENDS_S)


def test_the_checkpoint_holds_nothing_of_the_sink(stream: Stream) -> None:
    """Options, and so secrets by reference, stay out of it."""
    stream.add("0", ["a"])
    stream.run()
    document = json.loads((stream.checkpoint / "offsets" / "0").read_text().splitlines()[1])
    assert "nameServer" not in json.dumps(document)
