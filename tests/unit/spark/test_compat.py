"""Streams on PySpark 4.1, which passes no start and no limit; the schema of each version."""

from __future__ import annotations

import gc
import json
import pickle
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StructField, StructType, TimestampType

from cometmq.spark import compat
from cometmq.spark.compat import UnlimitedReader, check_version, exempt_loaded_modules
from cometmq.spark.errors import SourceError
from cometmq.spark.options.parsing import parse_options
from cometmq.spark.options.topics import TopicReadOptions
from cometmq.spark.schema import topic_columns
from cometmq.spark.sources.topic_stream import TopicStreamReader
from support.checks.manual_clock import ManualClock
from support.spark.memory_brokers import MemoryBrokers
from support.spark.stream_protocol import Checkpoint, OldStreamProtocol, Row, SinkError

MOST = 4
SCHEMA = StructType([StructField("at", TimestampType())])
WANTED = pa.schema([pa.field("at", pa.timestamp("us", tz="UTC"))])


class Query:
    """A query over topic t, its checkpoint, and the brokers."""

    def __init__(self, start: str = "earliest", **options: Any) -> None:
        self.brokers = MemoryBrokers()
        (self.key,) = self.brokers.create("t", queues=1)
        given = {"nameServer": "n:1", "subscribe": "t", "startingOffsets": start}
        given |= {"maxOffsetsPerTrigger": str(MOST)} | options
        self.options = parse_options(TopicReadOptions, given)
        self.checkpoint = Checkpoint()

    def reader(self) -> TopicStreamReader:
        columns = topic_columns(properties=False)
        return TopicStreamReader(self.options, columns, self.brokers.connect, ManualClock())

    def start(self) -> OldStreamProtocol:
        return OldStreamProtocol(self.reader, self.checkpoint)

    def rows(self, start: int, end: int) -> list[Row]:
        return [("t", 0, offset) for offset in range(start, end)]


def test_each_batch_has_the_limit_and_begins_where_the_one_before_ended() -> None:
    query = Query()
    query.brokers.send(query.key, 10)
    run = query.start()

    assert [run.trigger() for _ in range(4)] == [
        query.rows(0, 4),
        query.rows(4, 8),
        query.rows(8, 10),
        None,
    ]


@pytest.mark.parametrize("is_open", [False, True])
def test_a_restart_goes_on_behind_the_newest_batch_whether_or_not_it_is_done(is_open: bool) -> None:
    query = Query()
    query.brokers.send(query.key, 10)
    run = query.start()
    run.trigger()
    if is_open:
        with pytest.raises(SinkError):
            run.trigger(fails=True)
    again = query.start()

    assert again.trigger() == query.rows(4, 8)
    assert again.drain() == query.rows(8, 10)


@pytest.mark.parametrize("start", ["latest", "earliest"])
def test_a_first_batch_that_failed_is_read_again_from_its_own_start(start: str) -> None:
    query = Query(start)
    query.brokers.send(query.key, 3)
    with pytest.raises(SinkError):
        query.start().trigger(fails=True)
    query.brokers.send(query.key, 2)

    assert query.start().drain() == query.rows(3 if start == "latest" else 0, 5)


def test_the_newest_end_after_a_restart_is_not_a_batch_even_if_it_names_a_start() -> None:
    """The end of a batch may name where its queues begin: these rows are read already."""
    query = Query()
    query.brokers.send(query.key, 3)
    query.start().drain()
    assert "$from" in json.loads(query.checkpoint.ends[-1])

    assert query.start().drain() == []


def test_no_news_is_the_same_text() -> None:
    query = Query()
    query.brokers.send(query.key, 3)
    reader = UnlimitedReader(query.reader())
    first = json.dumps(reader.latestOffset())

    assert json.dumps(reader.latestOffset()) == first


def test_the_reader_travels_to_tasks() -> None:
    query = Query()
    query.options = parse_options(TopicReadOptions, {"nameServer": "n:1", "subscribe": "t"})
    reader = TopicStreamReader(query.options, topic_columns(properties=False), len)  # type: ignore[arg-type]

    copy = pickle.loads(pickle.dumps(UnlimitedReader(reader)))
    assert copy.initialOffset() == {"$start": "latest"}


def test_times_are_in_utc_with_the_installed_version() -> None:
    assert compat.arrow_schema(SCHEMA) == WANTED


def test_the_function_of_4_1_is_called_without_a_time_zone(monkeypatch: pytest.MonkeyPatch) -> None:
    def of_4_1(schema: StructType, timestamp_utc: bool = True) -> Any:
        return WANTED if schema is SCHEMA and timestamp_utc else None

    monkeypatch.setattr(compat, "to_arrow_schema", of_4_1)
    assert compat.arrow_schema(SCHEMA) == WANTED


def test_another_process_exempts_nothing() -> None:
    before = gc.get_freeze_count()
    exempt_loaded_modules.__wrapped__()
    assert gc.get_freeze_count() == before


@pytest.mark.parametrize("version", ["3.5.8", "4.0.1"])
def test_an_old_pyspark_is_refused_with_what_is_needed(version: str) -> None:
    with pytest.raises(SourceError, match=rf"PySpark {version} is too old.* 4\.1 or newer"):
        check_version(version)


@pytest.mark.parametrize("version", ["4.1.0", "4.2.0", "4.3.0", "4.10.1.dev0", "5.0.0"])
def test_a_new_enough_pyspark_is_taken(version: str) -> None:
    check_version(version)
