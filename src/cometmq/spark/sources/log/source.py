"""The class of the format ``rocketmq-log``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceStreamReader

from cometmq.spark.compat import spark_reader
from cometmq.spark.options.logs import LogOptions
from cometmq.spark.schema import Column, log_columns
from cometmq.spark.sources.columns import MessageSource
from cometmq.spark.sources.log.batch import LogBatchReader
from cometmq.spark.sources.log.stream import LogStreamReader

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class LogSource(MessageSource):
    """Reads records of commit logs as rows, in batches and streams, from disk or object storage.

    It has the options of `cometmq.spark.options.logs.LogOptions`. A schema of your own selects
    columns.

    Example:
        ``spark.read.format("rocketmq-log").load("/data/store").groupBy("topic").count().show()``
    """

    OPTIONS = LogOptions

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "rocketmq-log"

    def known_columns(self, options: LogOptions, *, properties: bool) -> tuple[Column, ...]:
        """Return the columns of the format."""
        return log_columns(properties=properties, validate=options.validate)

    def reader(self, schema: StructType) -> LogBatchReader:
        """Return what reads a batch."""
        return LogBatchReader(*self.query(schema))

    def streamReader(  # noqa: N802 - Spark's name
        self, schema: StructType
    ) -> DataSourceStreamReader:
        """Return what reads a stream."""
        return spark_reader(LogStreamReader(*self.query(schema)))
