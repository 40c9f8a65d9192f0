"""The base of stream readers, and the limits of a batch, for each version of PySpark.

Both are those of PySpark 4.2 and newer. PySpark 4.1 lacks the limits, so they are defined here.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql.datasource import DataSourceStreamReader

try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxBytes,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )
except ModuleNotFoundError:

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        """Freezes the offsets at which a run ends."""

    class ReadLimit:  # type: ignore[no-redef]
        """A limit of a batch."""

    @dataclass
    class ReadAllAvailable(ReadLimit):  # type: ignore[no-redef]
        """No limit."""

    @dataclass
    class ReadMaxRows(ReadLimit):  # type: ignore[no-redef]
        """A limit on the rows of a batch."""

        max_rows: int

    @dataclass
    class ReadMaxBytes(ReadLimit):  # type: ignore[no-redef]
        """A limit on the bytes of a batch."""

        max_bytes: int


__all__ = ["ReadAllAvailable", "ReadLimit", "ReadMaxBytes", "ReadMaxRows", "StreamReader"]


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans micro-batches on the driver, and reads their partitions in tasks.

    Its methods have the names of PySpark 4.2 and their meaning there.
    """
