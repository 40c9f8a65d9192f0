"""The differences between the versions of PySpark, and what its workers need.

No other module asks for a version.

The formats implement `StreamReader`, whose methods are those of PySpark 4.2 and newer: Spark passes
the start and the limit of a batch. PySpark 4.1 passes neither, so `spark_reader` wraps the reader
in an `UnlimitedReader`, which remembers the start.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from inspect import signature
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema

from cometmq.spark.errors import SourceError

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = [
    "ReadAllAvailable", "ReadLimit", "ReadMaxBytes", "ReadMaxRows", "StreamReader",
    "arrow_schema", "check_version", "exempt_loaded_modules", "passes_limits", "spark_reader",
]  # fmt: skip

PYSPARK_OLDEST = (4, 1)
"""The first one with Arrow writers of streams."""

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


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans micro-batches on the driver, and reads their partitions in tasks.

    Its methods have the names of PySpark 4.2 and their meaning there.
    """


class UnlimitedReader(DataSourceStreamReader):
    """Passes the calls of PySpark 4.1 on to a reader, with the start and the limit it leaves out.

    first start   latestOffset(), partitions(initial, end)
    restart       partitions(newest, newest) with the newest end in the checkpoint, whether its
                  batch is done or not; partitions(start, newest) if it is not; latestOffset()
    a trigger     latestOffset(); if the end is another text than before: partitions(start, end)

    So the start of the next batch is always known: it is the last end that Spark or the reader has
    named, and before the first one the initial offset. The limit is the reader's own one.
    AvailableNow makes a single batch, within that limit.
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


def spark_reader(reader: StreamReader) -> DataSourceStreamReader:
    """Return a reader with the interface that this version of PySpark calls."""
    return reader if passes_limits() else UnlimitedReader(reader)


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema, with times in UTC, which PySpark 4.1 takes without being asked."""
    named: dict[str, Any] = {"timezone": "UTC"}
    if "timezone" not in signature(to_arrow_schema).parameters:
        named = {}
    return to_arrow_schema(schema, **named)


def check_version(version: str) -> None:
    """Refuse a PySpark that is too old for the formats.

    Raises:
        SourceError: it is too old; the text says which one is needed.
    """
    found = tuple(int(part) for part in version.split(".")[:2])
    if found < PYSPARK_OLDEST:
        oldest = ".".join(map(str, PYSPARK_OLDEST))
        raise SourceError(f"PySpark {version} is too old: cometmq's formats need {oldest} or newer")


def passes_limits() -> bool:
    """Whether Spark passes starts and limits to stream readers, and asks for their newest offset.

    PySpark 4.2 and newer do.
    """
    return find_spec("pyspark.sql.streaming.datasource") is not None


@cache
def exempt_loaded_modules() -> None:
    """Exempt what is loaded from garbage collections; once in a worker, never in another process.

    A worker collects the garbage of its whole heap after each task (``pyspark/daemon.py``). The
    modules of PySpark, Arrow and pandas make that 40 ms of processor time, more than a small task
    takes; without them it is 1 ms.
    """
    spec = sys.modules["__main__"].__spec__
    if spec is not None and spec.name == "pyspark.daemon":
        gc.freeze()
