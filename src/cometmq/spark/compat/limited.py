"""The stream reader of PySpark 4.2 and newer, which pass the start and the limit of a batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming import datasource as limits

from cometmq.spark.compat.stream_reader import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    StreamReader,
)


class LimitedReader(  # type: ignore[misc, unused-ignore]
    DataSourceStreamReader, limits.SupportsTriggerAvailableNow
):
    """Passes Spark's calls on to a reader, and translates limits.

    Args:
        reader: plans and reads.
    """

    def __init__(self, reader: StreamReader) -> None:
        self._reader = reader

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Freeze the offsets at which this run ends."""
        self._reader.prepareForTriggerAvailableNow()

    def getDefaultReadLimit(self) -> limits.ReadLimit:  # noqa: N802 - Spark's name
        """Return the limit of a batch."""
        limit = self._reader.getDefaultReadLimit()
        if isinstance(limit, ReadMaxRows):
            return limits.ReadMaxRows(limit.max_rows)
        if isinstance(limit, ReadMaxBytes):
            return limits.ReadMaxBytes(limit.max_bytes)
        return limits.ReadAllAvailable()

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return the offset at which the first batch starts."""
        return self._reader.initialOffset()

    def latestOffset(  # type: ignore[override, unused-ignore]  # noqa: N802 - Spark's name
        self, start: dict[str, Any], limit: limits.ReadLimit
    ) -> dict[str, Any]:
        """Return the offset at which the next batch ends."""
        return self._reader.latestOffset(start, _ours(limit))

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name
        """Return the newest offset of the source, for the progress of the query."""
        return self._reader.reportLatestOffset()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the partitions of a batch."""
        return self._reader.partitions(start, end)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a partition."""
        return self._reader.read(partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Take note that all batches up to this offset are done."""
        self._reader.commit(end)

    def stop(self) -> None:
        """Release what the reader holds."""
        self._reader.stop()


def _ours(limit: limits.ReadLimit) -> ReadLimit:
    if isinstance(limit, limits.ReadMaxRows):
        return ReadMaxRows(limit.max_rows)
    if isinstance(limit, limits.ReadMaxBytes):
        return ReadMaxBytes(limit.max_bytes)
    return ReadAllAvailable()
