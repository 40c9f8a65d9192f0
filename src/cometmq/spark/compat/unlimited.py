"""The stream reader of PySpark 4.1, which passes neither the start nor the limit of a batch.

    first start     latestOffset(), partitions(initial, end)
    restart         partitions(newest, newest) with the newest end in the checkpoint, whether or not
                    its batch is done; partitions(start, newest) if it is not; then latestOffset()
    a trigger       latestOffset(); if the end is another text than before: partitions(start, end)

So the start of the next batch is always known: it is the last end that Spark or the reader has
named, and before the first one the initial offset. The limit is the reader's own one. AvailableNow
makes a single batch, within that limit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from cometmq.spark.compat.streams import StreamReader


class UnlimitedReader(DataSourceStreamReader):
    """Passes Spark's calls on to a reader, with the start and the limit that Spark leaves out.

    Args:
        reader: plans and reads.
    """

    def __init__(self, reader: StreamReader) -> None:
        self._reader = reader
        self._end: dict[str, Any] | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return the offset at which the first batch starts."""
        return self._reader.initialOffset()

    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override, unused-ignore]  # noqa: N802
        """Return the offset at which the next batch ends."""
        start = self._reader.initialOffset() if self._end is None else self._end
        self._end = self._reader.latestOffset(start, self._reader.getDefaultReadLimit())
        return self._end

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the partitions of a batch; none if Spark only names the newest end."""
        self._end = end
        return [] if start == end else self._reader.partitions(start, end)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a partition."""
        return self._reader.read(partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Take note that all batches up to this offset are done."""
        self._reader.commit(end)

    def stop(self) -> None:
        """Release what the reader holds."""
        self._reader.stop()
