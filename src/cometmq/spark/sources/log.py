"""The format ``rocketmq-log``: the commit log of a broker, read from its files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceStreamReader

from cometmq.spark.compat import spark_reader
from cometmq.spark.options.logs import LogOptions
from cometmq.spark.options.parsing import parse_options
from cometmq.spark.payloads.plan import PayloadPlan
from cometmq.spark.schema import Column, log_columns
from cometmq.spark.sources.columns import all_columns, query_columns
from cometmq.spark.sources.log_batch import LogBatchReader
from cometmq.spark.sources.log_stream import LogStreamReader

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class LogSource(DataSource):
    """Reads records of commit logs as rows, in batches and streams, from disk or object storage.

    It has the options of `cometmq.spark.options.logs.LogOptions`. A schema of your own selects
    columns.

    Example:
        ``spark.read.format("rocketmq-log").load("/data/store").groupBy("topic").count().show()``
    """

    _plan: PayloadPlan | None = None

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "rocketmq-log"

    def schema(self) -> str:
        """Return all columns."""
        options = parse_options(LogOptions, self.options)
        columns = log_columns(properties=options.include_properties, validate=options.validate)
        return all_columns(columns, self._payload_plan(options))

    def reader(self, schema: StructType) -> LogBatchReader:
        """Return what reads a batch."""
        options = parse_options(LogOptions, self.options)
        plan = self._payload_plan(options)
        return LogBatchReader(options, _columns(schema, options, plan), plan)

    def streamReader(  # noqa: N802 - Spark's name
        self, schema: StructType
    ) -> DataSourceStreamReader:
        """Return what reads a stream."""
        options = parse_options(LogOptions, self.options)
        plan = self._payload_plan(options)
        return spark_reader(LogStreamReader(options, _columns(schema, options, plan), plan))

    def _payload_plan(self, options: LogOptions) -> PayloadPlan | None:
        """Return the plan; Spark copies this object for each query, so they share a schema."""
        if self._plan is None:
            self._plan = PayloadPlan.of(options, sorted(options.topics()))
        return self._plan


def _columns(
    schema: StructType, options: LogOptions, plan: PayloadPlan | None
) -> tuple[Column, ...]:
    """Return the columns of the query's schema; to name ``properties`` there is to ask for it."""
    return query_columns(schema, log_columns(properties=True, validate=options.validate), plan)
