"""The format ``rocketmq-meta``: one row per queue and group, with offsets, bounds and lag.

A queue has one row for each group that has committed an offset of it or is named by the option, and
one row without a group if there is none.
"""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from cometmq.model.namespace import is_system_group
from cometmq.model.topic import is_system_topic
from cometmq.spark.brokers import BrokerSession, connect
from cometmq.spark.offsets import Bounds, QueueKey
from cometmq.spark.options.connection import ConnectionOptions
from cometmq.spark.options.meta import MetaOptions
from cometmq.spark.options.parsing import parse_options
from cometmq.spark.schema import TIMESTAMP, Column, arrow_schema, ddl, declared

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

Connect = Callable[[ConnectionOptions], BrokerSession]
META: tuple[Column, ...] = (
    Column("topic", pa.string(), False, "STRING", "the topic"),
    Column("broker_name", pa.string(), False, "STRING", "the broker that has the queue"),
    Column("queue_id", pa.int32(), False, "INT", "the queue within topic and broker"),
    Column("consumer_group", pa.string(), True, "STRING", "the group; null if there is none"),
    Column("min_offset", pa.int64(), False, "BIGINT", "the offset of the oldest message"),
    Column("max_offset", pa.int64(), False, "BIGINT", "the offset of the next message"),
    Column("committed_offset", pa.int64(), True, "BIGINT", "the committed offset; null if none"),
    Column("lag", pa.int64(), True, "BIGINT", "messages not consumed yet"),
    Column(
        "last_store_timestamp", TIMESTAMP, True, "TIMESTAMP", "store time of the newest message"
    ),
    Column("observed_timestamp", TIMESTAMP, False, "TIMESTAMP", "time of the request"),
)
"""The columns of the format."""
REPLY_SUFFIX = "_REPLY_TOPIC"
ROWS_MAX = 10_000
"""Limit on rows of one Arrow batch."""


class MetaSource(DataSource):
    """Reads queue bounds, committed offsets and lag as rows; each read queries the brokers.

    It has the options of `cometmq.spark.options.meta.MetaOptions`. A schema of your own selects
    columns.

    Example:
        ``spark.read.format("rocketmq-meta").option("nameServer", "localhost:9876").load()``
        ``.groupBy("consumer_group", "topic").sum("lag").show()``
    """

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "rocketmq-meta"

    def schema(self) -> str:
        """Return all columns."""
        parse_options(MetaOptions, self.options)
        return ddl(META)

    def reader(self, schema: StructType) -> MetaReader:
        """Return what reads the rows."""
        fields = [(each.name, each.dataType.simpleString(), each.nullable) for each in schema]
        return MetaReader(parse_options(MetaOptions, self.options), declared(META, fields), connect)


class MetaReader(DataSourceReader):
    """Finds out which brokers have the topics, and queries each of them in a task of its own.

    Args:
        options: of the query.
        columns: of the rows, in their order.
        connect: gives the session with the brokers.
    """

    def __init__(self, options: MetaOptions, columns: Sequence[Column], connect: Connect) -> None:
        self._options = options
        self._columns = tuple(columns)
        self._connect = connect

    def partitions(self) -> Sequence[InputPartition]:
        """Return one part per broker: its name and its topics.

        Raises:
            GoneError: a topic that was named does not exist.
            UnreachableError: no name server answers.
        """
        session = self._connect(self._options)
        topics = _topics(self._options, session)
        gone = None if self._options.topics else set[str]()
        by_broker: dict[str, dict[str, None]] = {}
        for key in session.queues(topics, gone=gone):
            by_broker.setdefault(key.broker, {})[key.topic] = None
        return [InputPartition((broker, tuple(names))) for broker, names in by_broker.items()]

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one broker; none for the part that Spark makes up if there are none.

        Raises:
            UnreachableError: the broker does not answer.
        """
        if partition is None or partition.value is None:
            return iter(())
        rows = _broker_rows(self._options, self._connect(self._options), *partition.value)
        return batches(rows, self._columns)


def _topics(options: MetaOptions, session: BrokerSession) -> list[str]:
    """Return the topics that there are rows for.

    Brokers create topics with their own name and with the name of their cluster.
    """
    if options.topics:
        return list(options.topics)
    if options.subscribe_pattern:
        return session.topics_matching(options.subscribe_pattern)
    topics = session.topics()
    if options.include_system:
        return topics
    brokers = session.brokers()
    clusters = set(brokers.values())
    own = {*brokers, *clusters, *(cluster + REPLY_SUFFIX for cluster in clusters)}
    return [topic for topic in topics if topic not in own and not is_system_topic(topic)]


def takes(options: MetaOptions, group: str) -> bool:
    """Return whether there are rows for a group that has committed something."""
    if options.group_names:
        return group in options.group_names
    if options.group_pattern:
        return re.fullmatch(options.group_pattern, group) is not None
    return options.include_system or not is_system_group(group)


def _broker_rows(
    options: MetaOptions, session: BrokerSession, broker: str, topics: Sequence[str]
) -> Iterator[dict[str, Any]]:
    """Yield the rows of one broker; a topic that is deleted meanwhile has none."""
    keys = [key for key in session.queues(topics, gone=set()) if key.broker == broker]
    bounds = session.bounds(keys, gone=set())
    observed_us = time.time_ns() // 1_000
    committed = session.group_offsets(broker)
    for key in sorted(bounds):
        groups: dict[str | None, int | None] = dict.fromkeys(options.group_names)
        for (topic, group), offsets in committed.items():
            if topic == key.topic and key.queue_id in offsets and takes(options, group):
                groups[group] = offsets[key.queue_id]
        for group_name, offset in sorted(groups.items()) or [(None, None)]:
            yield _row(key, bounds[key], group_name, offset, observed_us)


def _row(
    key: QueueKey, bounds: Bounds, group: str | None, committed: int | None, observed_us: int
) -> dict[str, Any]:
    return {
        "topic": key.topic,
        "broker_name": key.broker,
        "queue_id": key.queue_id,
        "consumer_group": group,
        "min_offset": bounds.min,
        "max_offset": bounds.max,
        "committed_offset": committed,
        "lag": None if group is None else lag(bounds, committed),
        "last_store_timestamp": bounds.newest_ms * 1_000 if bounds.newest_ms > 0 else None,
        "observed_timestamp": observed_us,
    }


def lag(bounds: Bounds, committed: int | None) -> int:
    """Return how many messages a group has not consumed; all if it has committed nothing."""
    next_offset = bounds.min if committed is None else max(committed, bounds.min)
    return max(bounds.max - next_offset, 0)


def batches(
    rows: Iterable[Mapping[str, Any]], columns: Sequence[Column]
) -> Iterator[pa.RecordBatch]:
    """Yield the asked columns of rows in batches of bounded size."""
    schema = arrow_schema(columns)
    waiting = iter(rows)
    while some := list(itertools.islice(waiting, ROWS_MAX)):
        yield pa.RecordBatch.from_pylist(some, schema=schema)
