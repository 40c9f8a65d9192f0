"""The format as Spark meets it: its name, its schema, and the readers it gives."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql.datasource import CaseInsensitiveDict, DataSourceReader
from pyspark.sql.types import IntegerType, LongType, MapType, StringType, StructField, StructType

from cometmq.spark.errors import OptionError
from cometmq.spark.schema import CORE
from cometmq.spark.sources import topics
from cometmq.spark.sources.log.batch import LogBatchReader
from cometmq.spark.sources.meta import MetaReader
from cometmq.spark.sources.topic_batch import TopicBatchReader
from cometmq.spark.sources.topic_stream import TopicStreamReader
from support.spark.memory_brokers import MemoryBrokers

FEW = StructType([StructField("queue_offset", LongType()), StructField("topic", StringType())])


def source(**given: Any) -> topics.TopicSource:
    options = {"nameserver": "127.0.0.1:1", "subscribe": "t"} | given
    return topics.TopicSource(CaseInsensitiveDict({n: str(text) for n, text in options.items()}))


@pytest.fixture
def brokers(monkeypatch: pytest.MonkeyPatch) -> MemoryBrokers:
    """Brokers in memory, reached by sources that connect."""
    made = MemoryBrokers()
    monkeypatch.setattr(topics, "connect", made.connect)
    return made


def test_the_schema_has_all_columns_and_properties_if_asked() -> None:
    core = source().schema()

    assert core.startswith("topic STRING NOT NULL, broker_name STRING, queue_id INT NOT NULL")
    assert len(core.split(", ")) == len(CORE)
    with_properties = source(includeProperties="true").schema()
    assert with_properties == f"{core}, properties MAP<STRING, STRING>"


def test_no_server_is_asked_for_a_schema(brokers: MemoryBrokers) -> None:
    source().schema()

    assert not brokers.asked


def test_readers_are_made_for_the_schema_that_was_asked() -> None:
    reader = source().reader(FEW)

    assert type(reader) is TopicBatchReader
    stream = source().streamReader(FEW)
    assert isinstance(getattr(stream, "_reader", stream), TopicStreamReader)


def test_no_reader_takes_conditions_of_spark() -> None:
    """Spark shares what was pushed between scans, so a reader that heeds it returns wrong rows."""
    for reader in (TopicBatchReader, LogBatchReader, MetaReader):
        assert reader.pushFilters is DataSourceReader.pushFilters


def test_a_column_of_another_name_or_type_is_refused() -> None:
    with pytest.raises(OptionError, match="'colour'"):
        source().reader(StructType([StructField("colour", StringType())]))
    with pytest.raises(OptionError, match="int of column queue_offset"):
        source().reader(StructType([StructField("queue_offset", IntegerType())]))


def test_properties_may_be_named_by_a_schema_of_the_user_s_own() -> None:
    properties = StructType([StructField("properties", MapType(StringType(), StringType()))])

    assert isinstance(source().reader(properties), TopicBatchReader)


def test_batches_are_as_nullable_as_the_asked_schema(brokers: MemoryBrokers) -> None:
    """Spark compares the two, and does not know of columns that are never null by nature."""
    (key,) = brokers.create("t", queues=1)
    brokers.send(key)
    reader = source().reader(FEW)

    (part,) = reader.partitions()
    (batch,) = reader.read(part)

    assert [(f.name, f.nullable) for f in batch.schema] == [("queue_offset", True), ("topic", True)]
