"""The differences between the versions of PySpark: no other module asks for a version.

The formats implement `StreamReader`, which is the same for each version. `spark_reader` gives Spark
an object with the interface of its version:

    4.2 and newer   `LimitedReader`: Spark passes the start and the limit of a batch
    4.1             `UnlimitedReader`: Spark passes neither, so the object remembers the start
"""

from __future__ import annotations

from pyspark.sql.datasource import DataSourceStreamReader

from cometmq.spark.compat.arrow import arrow_schema
from cometmq.spark.compat.stream_reader import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    StreamReader,
)
from cometmq.spark.compat.versions import check_version, passes_limits, runs_of_available_now

__all__ = [
    "ReadAllAvailable",
    "ReadLimit",
    "ReadMaxBytes",
    "ReadMaxRows",
    "StreamReader",
    "arrow_schema",
    "check_version",
    "passes_limits",
    "runs_of_available_now",
    "spark_reader",
]


def spark_reader(reader: StreamReader) -> DataSourceStreamReader:
    """Return a reader with the interface that this version of PySpark calls."""
    if passes_limits():
        from cometmq.spark.compat.limited import LimitedReader

        return LimitedReader(reader)
    from cometmq.spark.compat.unlimited import UnlimitedReader

    return UnlimitedReader(reader)
