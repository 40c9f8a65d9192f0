"""The differences between the versions of PySpark, and what its workers need.

No other module asks for a version.

The formats implement `StreamReader`, whose methods are those of PySpark 4.2 and newer: Spark passes
the start and the limit of a batch. PySpark 4.1 passes neither, so `spark_reader` wraps the reader
in an `UnlimitedReader`, which remembers the start.
"""

from __future__ import annotations

from pyspark.sql.datasource import DataSourceStreamReader

from cometmq.spark.compat.arrow import arrow_schema
from cometmq.spark.compat.streams import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    StreamReader,
)
from cometmq.spark.compat.unlimited import UnlimitedReader
from cometmq.spark.compat.versions import check_version, passes_limits, runs_of_available_now
from cometmq.spark.compat.workers import exempt_loaded_modules

__all__ = [
    "ReadAllAvailable",
    "ReadLimit",
    "ReadMaxBytes",
    "ReadMaxRows",
    "StreamReader",
    "arrow_schema",
    "check_version",
    "exempt_loaded_modules",
    "passes_limits",
    "runs_of_available_now",
    "spark_reader",
]


def spark_reader(reader: StreamReader) -> DataSourceStreamReader:
    """Return a reader with the interface that this version of PySpark calls."""
    return reader if passes_limits() else UnlimitedReader(reader)
