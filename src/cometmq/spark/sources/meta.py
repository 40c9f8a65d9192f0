"""The format ``rocketmq-meta``: one row per queue and group, with offsets, bounds and lag."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from cometmq.spark.brokers import BrokerSession, connect
from cometmq.spark.options.connection import ConnectionOptions
from cometmq.spark.options.meta import MetaOptions
from cometmq.spark.options.parsing import parse_options
from cometmq.spark.schema import Column, ddl, declared
from cometmq.spark.sources.meta_rows import META, batches, broker_rows, chosen_topics

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

Connect = Callable[[ConnectionOptions], BrokerSession]


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


class BrokerPartition(InputPartition):
    """The rows of one broker."""

    def __init__(self, broker: str, topics: Sequence[str]) -> None:
        super().__init__(broker)
        self.broker = broker
        self.topics = tuple(topics)


class MetaReader(DataSourceReader):
    """Finds out which brokers have the topics, and asks each of them in a task of its own.

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
        """Return one part per broker.

        Raises:
            GoneError: a topic that was named does not exist.
            UnreachableError: no name server answers.
        """
        session = self._connect(self._options)
        topics = chosen_topics(self._options, session)
        gone = None if self._options.topics else set[str]()
        by_broker: dict[str, dict[str, None]] = {}
        for key in session.queues(topics, gone=gone):
            by_broker.setdefault(key.broker, {})[key.topic] = None
        return [BrokerPartition(broker, list(names)) for broker, names in by_broker.items()]

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one broker; none for the part Spark makes up if there are none.

        Raises:
            UnreachableError: the broker does not answer.
        """
        if not isinstance(partition, BrokerPartition):
            return iter(())
        session = self._connect(self._options)
        rows = broker_rows(self._options, session, partition.broker, partition.topics)
        return batches(rows, self._columns)
