"""The format ``rocketmq``: topics of RocketMQ, read and written through brokers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceStreamReader

from cometmq.spark.brokers import connect
from cometmq.spark.compat import spark_reader
from cometmq.spark.options.parsing import parse_options
from cometmq.spark.options.topics import TopicReadOptions
from cometmq.spark.payloads.plan import PayloadPlan
from cometmq.spark.schema import Column, topic_columns
from cometmq.spark.sink.spark_writers import TopicBatchWriter, TopicStreamWriter
from cometmq.spark.sources.columns import all_columns, query_columns
from cometmq.spark.sources.topic_batch import TopicBatchReader
from cometmq.spark.sources.topic_stream import TopicStreamReader

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class TopicSource(DataSource):
    """Reads messages of topics as rows, in batches and streams, and writes rows as messages.

    Reading has the options of `cometmq.spark.options.topics.TopicReadOptions`, writing has the
    options of `cometmq.spark.options.writing.TopicWriteOptions`. A schema of your own selects
    columns.

    Example:
        ``spark.read.format("rocketmq").option("nameServer", "localhost:9876")``
        ``.option("subscribe", "orders").load().groupBy("tags").count().show()``
    """

    _plan: PayloadPlan | None = None

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "rocketmq"

    def schema(self) -> str:
        """Return all columns."""
        options = parse_options(TopicReadOptions, self.options)
        columns = topic_columns(properties=options.include_properties)
        return all_columns(columns, self._payload_plan(options))

    def reader(self, schema: StructType) -> TopicBatchReader:
        """Return what reads a batch."""
        options = parse_options(TopicReadOptions, self.options)
        plan = self._payload_plan(options)
        return TopicBatchReader(options, _columns(schema, plan), connect, plan)

    def streamReader(  # noqa: N802 - Spark's name
        self, schema: StructType
    ) -> DataSourceStreamReader:
        """Return what reads a stream."""
        options = parse_options(TopicReadOptions, self.options)
        plan = self._payload_plan(options)
        return spark_reader(
            TopicStreamReader(options, _columns(schema, plan), connect, payload=plan)
        )

    def _payload_plan(self, options: TopicReadOptions) -> PayloadPlan | None:
        """Return the plan; Spark copies this object for each query, so they share a schema."""
        if self._plan is None:
            self._plan = PayloadPlan.of(options, options.topics())
        return self._plan

    def writer(self, schema: StructType, overwrite: bool) -> TopicBatchWriter:
        """Return what writes a DataFrame."""
        return TopicBatchWriter(self.options, schema, overwrite)

    def streamWriter(  # noqa: N802 - Spark's name
        self, schema: StructType, overwrite: bool
    ) -> TopicStreamWriter:
        """Return what writes a stream."""
        return TopicStreamWriter(self.options, schema, overwrite)


def _columns(schema: StructType, plan: PayloadPlan | None) -> tuple[Column, ...]:
    """Return the columns of the query's schema; to name ``properties`` there is to ask for it."""
    return query_columns(schema, topic_columns(properties=True), plan)
