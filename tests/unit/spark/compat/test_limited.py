"""Streams on PySpark 4.2 and newer, which pass the start and the limit of a batch."""

from __future__ import annotations

from typing import Any

import pytest

from cometmq.spark.compat import ReadAllAvailable, ReadLimit, ReadMaxBytes, ReadMaxRows
from cometmq.spark.options.parsing import parse_options
from cometmq.spark.options.topics import TopicReadOptions
from cometmq.spark.schema import topic_columns
from cometmq.spark.sources.topic_stream import TopicStreamReader
from support.spark.memory_brokers import MemoryBrokers

limits = pytest.importorskip("pyspark.sql.streaming.datasource")


class Noting(TopicStreamReader):
    """A reader that notes the limits it gets."""

    own: ReadLimit = ReadAllAvailable()

    def getDefaultReadLimit(self) -> ReadLimit:
        return self.own

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        self.met = limit
        return super().latestOffset(start, limit)


@pytest.mark.parametrize(
    ("spark", "own"),
    [
        (limits.ReadAllAvailable(), ReadAllAvailable()),
        (limits.ReadMaxRows(7), ReadMaxRows(7)),
        (limits.ReadMaxBytes(9), ReadMaxBytes(9)),
    ],
)
def test_limits_are_translated_in_both_directions(spark: Any, own: ReadLimit) -> None:
    from cometmq.spark.compat.limited import LimitedReader

    brokers = MemoryBrokers()
    brokers.create("t", queues=1)
    given = parse_options(TopicReadOptions, {"nameServer": "n:1", "subscribe": "t"})
    noting = Noting(given, topic_columns(properties=False), brokers.connect)
    noting.own = own
    reader = LimitedReader(noting)

    assert reader.getDefaultReadLimit() == spark
    reader.latestOffset(reader.initialOffset(), spark)
    assert noting.met == own
    assert isinstance(reader, limits.SupportsTriggerAvailableNow)
