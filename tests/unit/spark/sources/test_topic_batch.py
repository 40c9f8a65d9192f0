"""Batches of topics: which queues, from where to where, and which rows."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import InputPartition

from cometmq.spark.errors import DataLossError, GoneError, OptionError, RangeError
from cometmq.spark.offsets import QueueKey
from cometmq.spark.options.parsing import parse_options
from cometmq.spark.options.topics import TopicReadOptions
from cometmq.spark.schema import chosen, topic_columns
from cometmq.spark.sources.topic_batch import TopicBatchReader
from support.spark.memory_brokers import MemoryBrokers
from support.spark.stream_protocol import Row, rows_of

# Two tags that Java gives one hash, which is all that a broker compares.
TAG, TWIN = "Aa", "BB"


def options_of(**given: Any) -> TopicReadOptions:
    texts = {"nameServer": "n:1", "subscribe": "t"}
    texts |= {name.replace("_", "."): str(value) for name, value in given.items()}
    return parse_options(
        TopicReadOptions, {name: text for name, text in texts.items() if text != "None"}
    )


def reader_of(brokers: MemoryBrokers, **given: Any) -> TopicBatchReader:
    options = options_of(**given)
    columns = topic_columns(properties=options.include_properties)
    return TopicBatchReader(options, columns, brokers.connect)


def batches(reader: TopicBatchReader) -> list[pa.RecordBatch]:
    parts = reader.partitions()
    assert isinstance(parts, list), "Spark wants a list"
    return [batch for part in parts for batch in reader.read(part)]


def read(brokers: MemoryBrokers, **given: Any) -> list[Row]:
    found = batches(reader_of(brokers, **given))
    return sorted(row for batch in found for row in rows_of(batch))


def rows(key: QueueKey, *offsets: int) -> list[Row]:
    return [(key.topic, key.queue_id, offset) for offset in offsets]


@pytest.fixture
def brokers() -> MemoryBrokers:
    return MemoryBrokers()


@pytest.fixture
def key(brokers: MemoryBrokers) -> QueueKey:
    """A queue with offsets 10 to 30, stored at 1010 to 1029 ms."""
    (made,) = brokers.create("t", queues=1)
    for offset in range(30):
        brokers.send(made, time_ms=1_000 + offset, tags=TAG if offset % 2 else TWIN)
    brokers.expire(made, 10)
    return made


# --- which queues ---------------------------------------------------------------------------------


def test_topics_with_commas_between_are_read(brokers: MemoryBrokers) -> None:
    for topic in ("t", "u", "v"):
        brokers.send(brokers.create(topic, queues=1)[0])

    assert read(brokers, subscribe="t, v") == [("t", 0, 0), ("v", 0, 0)]


def test_a_pattern_matches_whole_names(brokers: MemoryBrokers) -> None:
    for topic in ("t-1", "t-22", "xt-1"):
        brokers.send(brokers.create(topic, queues=1)[0])

    assert read(brokers, subscribe=None, subscribePattern="t-.") == [("t-1", 0, 0)]


@pytest.mark.parametrize(
    ("pattern", "topics"), [(".*", ["t"]), ("%.*", ["%DLQ%g", "%RETRY%g"]), ("%DLQ%.*", ["%DLQ%g"])]
)
def test_a_pattern_means_no_topics_of_the_system(
    brokers: MemoryBrokers, pattern: str, topics: list[str]
) -> None:
    for topic in ("t", "TBW102", "SCHEDULE_TOPIC_XXXX", "rmq_sys_x", "%RETRY%g", "%DLQ%g"):
        brokers.send(brokers.create(topic, queues=1)[0])

    found = read(brokers, subscribe=None, subscribePattern=pattern)

    assert [topic for topic, _, _ in found] == topics


def test_a_pattern_that_matches_nothing_has_no_rows(brokers: MemoryBrokers) -> None:
    assert read(brokers, subscribe=None, subscribePattern="t-.") == []


def test_assigned_queues_alone_are_read(brokers: MemoryBrokers) -> None:
    for each in brokers.create("t", queues=3):
        brokers.send(each)

    found = read(brokers, subscribe=None, assign='{"t":{"broker-a":[2,0,2]}}')

    assert found == [("t", 0, 0), ("t", 2, 0)]


@pytest.mark.parametrize(
    "given",
    [
        {"subscribe": " , "},
        {"subscribe": None, "subscribePattern": "a["},
        {"subscribe": None, "assign": "t"},
        {"subscribe": None, "assign": '{"t":{"broker-a":{"0":1}}}'},
        {"subscribe": None, "assign": '{"t":{"broker-a":[-1]}}'},
        {"subscribe": None, "assign": '{"t":{"broker-a":[true]}}'},
        {"subscribe": None, "assign": '{"t":["broker-a"]}'},
        {"subscribe": None, "assign": "{}"},
        {"startingOffsets": "first"},
        {"startingOffsets": '{"t":{"broker-a":{"0":-3}}}'},
        {"startingOffsets": '{"t":{"broker-a":[0]}}'},
        {"startingOffsets": "{}"},
        {"startingOffsetsByTimestamp": '{"t":{"broker-a":{"0":-1}}}'},
        {"startingOffsetsByTimestamp": "1000"},
        {"endingOffsets": "earliest"},
        {"endingOffsets": '{"t":{"broker-a":{"0":-2}}}'},
        {"endingOffsetsByTimestamp": "x"},
        {"filter_tags": "||"},
        {"filter_keys": " , "},
    ],
)
def test_what_cannot_be_understood_is_refused_when_planning(
    brokers: MemoryBrokers, key: QueueKey, given: dict[str, Any]
) -> None:
    name = next(name for name, text in given.items() if text is not None)

    with pytest.raises(OptionError, match=f"option {name}".replace("_", ".")):
        reader_of(brokers, **given)


def test_a_topic_that_does_not_exist_is_named(brokers: MemoryBrokers) -> None:
    with pytest.raises(GoneError, match="topic t"):
        read(brokers)


# --- from where to where --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "offsets"),
    [
        ({}, range(10, 30)),
        ({"startingOffsets": "earliest", "endingOffsets": "latest"}, range(10, 30)),
        ({"startingOffsets": "latest"}, range(0)),
        ({"startingOffsets": '{"t":{"broker-a":{"0":15}}}'}, range(15, 30)),
        ({"startingOffsets": '{"t":{"broker-a":{"0":-2}}}'}, range(10, 30)),
        ({"startingOffsets": '{"t":{"broker-a":{"0":-1}}}'}, range(0)),
        ({"endingOffsets": '{"t":{"broker-a":{"0":12}}}'}, range(10, 12)),
        ({"endingOffsets": '{"t":{"broker-a":{"0":-1}}}'}, range(10, 30)),
        ({"startingTimestamp": 1_020}, range(20, 30)),
        ({"startingTimestamp": 5}, range(10, 30)),
        ({"startingTimestamp": 1_020, "endingTimestamp": 1_025}, range(20, 25)),
        ({"endingTimestamp": 9_999}, range(10, 30)),
        ({"startingTimestamp": 1_025, "endingTimestamp": 1_020}, range(0)),
        ({"startingOffsetsByTimestamp": '{"t":{"broker-a":{"0":1028}}}'}, range(28, 30)),
        ({"endingOffsetsByTimestamp": '{"t":{"broker-a":{"0":1012}}}'}, range(10, 12)),
        ({"startingTimestamp": 1_028, "startingOffsets": "latest"}, range(28, 30)),
        (
            {
                "startingTimestamp": 1_029,
                "startingOffsetsByTimestamp": '{"t":{"broker-a":{"0":5}}}',
            },
            range(29, 30),
        ),
    ],
)
def test_a_batch_reads_between_its_edges(
    brokers: MemoryBrokers, key: QueueKey, given: dict[str, Any], offsets: range
) -> None:
    assert read(brokers, **given) == rows(key, *offsets)


def test_a_group_s_place_is_a_start(brokers: MemoryBrokers, key: QueueKey) -> None:
    brokers.groups["g", key] = 25

    assert read(brokers, startingOffsets="group", rocketmq_group="g") == rows(key, *range(25, 30))
    found = read(brokers, startingOffsets="group", rocketmq_group="other")
    assert found == rows(key, *range(10, 30)), "without a place, a batch begins at the earliest"


def test_a_time_younger_than_all_fails_or_means_the_end(
    brokers: MemoryBrokers, key: QueueKey
) -> None:
    with pytest.raises(DataLossError, match=r"queue 0 of broker-a: no message .* 2000 ms"):
        read(brokers, startingTimestamp=2_000)

    strategy = {"startingOffsetsByTimestampStrategy": "latest"}
    assert read(brokers, startingTimestamp=2_000, **strategy) == []


@pytest.mark.parametrize(
    ("given", "text", "offsets"),
    [
        ({"startingOffsets": '{"t":{"broker-a":{"0":3}}}'}, "offsets from 3 have", range(10, 30)),
        (
            {"startingOffsets": '{"t":{"broker-a":{"0":31}}}'},
            "offsets from 31, as in option startingOffsets, do not exist; the queue has 10 to 30;",
            range(10, 30),
        ),
        ({"endingOffsets": '{"t":{"broker-a":{"0":40}}}'}, "10 to 40: the queue", range(10, 30)),
    ],
)
def test_offsets_that_are_not_there_fail_or_are_left_out(
    brokers: MemoryBrokers, key: QueueKey, given: dict[str, Any], text: str, offsets: range
) -> None:
    with pytest.raises(DataLossError, match=text):
        read(brokers, **given)

    assert read(brokers, **given, failOnDataLoss="false") == rows(key, *offsets)


def test_a_group_that_is_ahead_of_the_queue_is_named(brokers: MemoryBrokers, key: QueueKey) -> None:
    brokers.groups["g", key] = 31
    text = "offsets from 31, as in the committed offsets of group g, do not exist; the queue has"

    with pytest.raises(DataLossError, match=text):
        read(brokers, startingOffsets="group", rocketmq_group="g")


@pytest.mark.parametrize(
    ("named", "text"),
    [
        ('{"u":{"broker-a":{"0":3}}}', "topic u, queue 0 of broker-a, .*: it reads the topics t$"),
        (
            '{"t":{"vm":{"0":3}}}',
            "topic t, queue 0 of vm, .*: of this topic it reads queues 0, 1, 2 of broker-a,"
            " queue 0 of broker-b$",
        ),
        ('{"t":{"broker-b":{"2":3}}}', "topic t, queue 2 of broker-b, .* queue 0 of broker-b$"),
    ],
)
def test_a_queue_that_is_not_read_cannot_be_named(
    brokers: MemoryBrokers, named: str, text: str
) -> None:
    brokers.create("t", queues=3)
    brokers.create("t", queues=1, broker="broker-b")
    with pytest.raises(OptionError, match=f"^option endingOffsets names {text}"):
        read(brokers, endingOffsets=named)


def test_an_error_about_a_queue_lists_few_names(brokers: MemoryBrokers) -> None:
    for number in range(10):
        brokers.create(f"t-{number}", queues=1)
    with pytest.raises(OptionError, match=r"reads the topics t-0, .*, t-7 and 2 more$"):
        read(
            brokers,
            subscribe=None,
            subscribePattern="t-.*",
            startingOffsets='{"u":{"broker-a":{"0":3}}}',
        )


# --- parts and rows -------------------------------------------------------------------------------


def test_a_part_reads_its_own_offsets_again_and_again(
    brokers: MemoryBrokers, key: QueueKey
) -> None:
    """A task that is tried again has the same rows in the same order."""
    reader = reader_of(brokers, maxRecordsPerPartition=7)
    parts = reader.partitions()

    first, second = ([rows_of(b) for part in parts for b in reader.read(part)] for _ in range(2))

    assert first == second
    assert [len(each) for each in first] == [7, 7, 6]
    assert sorted(row for each in first for row in each) == rows(key, *range(10, 30))


def test_batches_are_bounded_by_rows_and_bytes(brokers: MemoryBrokers, key: QueueKey) -> None:
    assert max(b.num_rows for b in batches(reader_of(brokers, batch_rows=4))) == 4
    (large,) = brokers.create("u", queues=1)
    brokers.send(large, 20, body=bytes(1_000))

    found = batches(reader_of(brokers, subscribe="u", batch_bytes=4_096))

    assert max(b.num_rows for b in found) <= 4
    assert sum(b.num_rows for b in found) == 20


def test_the_part_that_spark_makes_up_has_no_rows(brokers: MemoryBrokers, key: QueueKey) -> None:
    reader = reader_of(brokers)

    assert list(reader.read(None)) == []
    assert list(reader.read(InputPartition(None))) == []


def test_a_range_that_comes_out_short_is_named(brokers: MemoryBrokers, key: QueueKey) -> None:
    reader = reader_of(brokers)
    (part,) = reader.partitions()
    del brokers.held[key].records[15:]

    with pytest.raises(RangeError, match="topic t, queue 0 of broker-a, offsets 10 to 30"):
        list(reader.read(part))


def test_only_the_asked_columns_are_made(brokers: MemoryBrokers, key: QueueKey) -> None:
    columns = chosen(topic_columns(properties=True), ["queue_offset", "broker_name"])
    options = options_of(filter_tags=TAG, endingOffsets='{"t":{"broker-a":{"0":13}}}')
    reader = TopicBatchReader(options, columns, brokers.connect)

    (batch,) = batches(reader)

    assert batch.to_pydict() == {"queue_offset": [11], "broker_name": ["broker-a"]}


def test_tags_of_one_hash_are_told_apart(brokers: MemoryBrokers, key: QueueKey) -> None:
    assert read(brokers, filter_tags=TAG) == rows(key, *range(11, 30, 2))
    assert read(brokers, filter_tags=f"{TAG} || {TWIN}") == rows(key, *range(10, 30))
    wanted = brokers.pulled[-1]
    assert wanted is not None
    assert wanted.wanted_tags == {TAG, TWIN}


def test_keys_are_whole_words(brokers: MemoryBrokers, key: QueueKey) -> None:
    for keys in ("a", "b a", "ab", "b a.c", "", "a-"):
        brokers.send(key, keys=keys)

    assert read(brokers, filter_keys="a") == rows(key, 30, 31)
    assert read(brokers, filter_keys="a.c, ab") == rows(key, 32, 33)


def test_an_sql_expression_is_the_broker_s(brokers: MemoryBrokers, key: QueueKey) -> None:
    read(brokers, filter_sql="a > 1")

    wanted = brokers.pulled[-1]
    assert wanted is not None
    assert (wanted.kind, wanted.expression) == ("SQL92", "a > 1")


def test_pulls_are_on_behalf_of_the_group_that_was_named(
    brokers: MemoryBrokers, key: QueueKey
) -> None:
    read(brokers, rocketmq_group="g")
    read(brokers, groupIdPrefix="etl")

    assert brokers.pulled_by == ["g", "etl-reader"]
