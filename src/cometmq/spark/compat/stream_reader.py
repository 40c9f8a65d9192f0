"""The interface of a stream reader that is the same for each version of PySpark.

Its methods have the names of PySpark 4.2 and their meaning there. The limits are the ones of
``pyspark.sql.streaming.datasource`` that the formats use: PySpark 4.1 lacks that module.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import InputPartition


@dataclass(frozen=True)
class ReadAllAvailable:
    """No limit."""


@dataclass(frozen=True)
class ReadMaxRows:
    """A limit on the rows of a batch."""

    max_rows: int


@dataclass(frozen=True)
class ReadMaxBytes:
    """A limit on the bytes of a batch."""

    max_bytes: int


ReadLimit = ReadAllAvailable | ReadMaxRows | ReadMaxBytes


class StreamReader(ABC):
    """Plans micro-batches on the driver, and reads their partitions in tasks."""

    @abstractmethod
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Freeze the offsets at which this run ends."""

    @abstractmethod
    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Return the limit of a batch."""

    @abstractmethod
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return the offset at which the first batch starts."""

    @abstractmethod
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return the offset at which the next batch ends; ``start`` if there is no new data."""

    @abstractmethod
    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name
        """Return the newest offset of the source, for the progress of the query."""

    @abstractmethod
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the partitions of a batch."""

    @abstractmethod
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a partition."""

    @abstractmethod
    def commit(self, end: dict[str, Any]) -> None:
        """Take note that all batches up to this offset are done."""

    @abstractmethod
    def stop(self) -> None:
        """Release what the reader holds."""
