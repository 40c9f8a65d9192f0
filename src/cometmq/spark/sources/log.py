"""The format ``rocketmq-log``: the commit log of a broker, read from its files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from cometmq.spark.options.logs import LogOptions
from cometmq.spark.options.parsing import parse_options
from cometmq.spark.schema import Column, ddl, declared, log_columns
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

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "rocketmq-log"

    def schema(self) -> str:
        """Return all columns."""
        return ddl(_all_columns(parse_options(LogOptions, self.options)))

    def reader(self, schema: StructType) -> LogBatchReader:
        """Return what reads a batch."""
        options = parse_options(LogOptions, self.options)
        return LogBatchReader(options, _columns(schema, options))

    def streamReader(self, schema: StructType) -> LogStreamReader:  # noqa: N802 - Spark's name
        """Return what reads a stream."""
        options = parse_options(LogOptions, self.options)
        return LogStreamReader(options, _columns(schema, options))


def _all_columns(options: LogOptions) -> tuple[Column, ...]:
    return log_columns(properties=options.include_properties, validate=options.validate)


def _columns(schema: StructType, options: LogOptions) -> tuple[Column, ...]:
    """Return the columns of the query's schema; to name ``properties`` there is to ask for it."""
    fields = [(each.name, each.dataType.simpleString(), each.nullable) for each in schema.fields]
    return declared(log_columns(properties=True, validate=options.validate), fields)
