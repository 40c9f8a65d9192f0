"""The format ``rocketmq``: topics of RocketMQ, read and written through brokers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceStreamReader

from cometmq.spark.brokers import connect
from cometmq.spark.compat import spark_reader
from cometmq.spark.options.topics import TopicReadOptions
from cometmq.spark.schema import Column, topic_columns
from cometmq.spark.sink.spark_writers import TopicBatchWriter, TopicStreamWriter
from cometmq.spark.sources.columns import MessageSource
from cometmq.spark.sources.topic_batch import TopicBatchReader
from cometmq.spark.sources.topic_stream import TopicStreamReader

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class TopicSource(MessageSource):
    """Reads messages of topics as rows, in batches and streams, and writes rows as messages.

    Reading has the options of `cometmq.spark.options.topics.TopicReadOptions`, writing has the
    options of `cometmq.spark.options.writing.TopicWriteOptions`. A schema of your own selects
    columns.

    Example:
        ``spark.read.format("rocketmq").option("nameServer", "localhost:9876")``
        ``.option("subscribe", "orders").load().groupBy("tags").count().show()``
    """

    OPTIONS = TopicReadOptions

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "rocketmq"

    def known_columns(self, options: TopicReadOptions, *, properties: bool) -> tuple[Column, ...]:
        """Return the columns of the format."""
        return topic_columns(properties=properties)

    def reader(self, schema: StructType) -> TopicBatchReader:
        """Return what reads a batch."""
        options, columns, plan = self.query(schema)
        return TopicBatchReader(options, columns, connect, plan)

    def streamReader(  # noqa: N802 - Spark's name
        self, schema: StructType
    ) -> DataSourceStreamReader:
        """Return what reads a stream."""
        options, columns, plan = self.query(schema)
        return spark_reader(TopicStreamReader(options, columns, connect, payload=plan))

    def writer(self, schema: StructType, overwrite: bool) -> TopicBatchWriter:
        """Return what writes a DataFrame."""
        return TopicBatchWriter(self.options, schema, overwrite)

    def streamWriter(  # noqa: N802 - Spark's name
        self, schema: StructType, overwrite: bool
    ) -> TopicStreamWriter:
        """Return what writes a stream."""
        return TopicStreamWriter(self.options, schema, overwrite)
