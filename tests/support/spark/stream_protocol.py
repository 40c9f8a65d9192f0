"""Calls a stream reader as Spark does, in Spark's order, with a checkpoint in memory.

start       prepareForTriggerAvailableNow (AvailableNow), getDefaultReadLimit, initialOffset
a trigger   latestOffset, reportLatestOffset, and if the end is another text than the start:
            the end is written down, commit of the batch before, partitions, read, done
restart     the batch that is written down and not done is planned again, then as ever

`OldStreamProtocol` has the calls of PySpark 4.1, which `UnlimitedReader` lists.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from cometmq.spark.compat import ReadLimit, StreamReader, UnlimitedReader

Row = tuple[str, int, int]


class SinkError(Exception):
    """The sink of a batch failed."""


@dataclass
class Checkpoint:
    """What outlives a query's process: ends of batches as texts, and how many are done."""

    ends: list[str] = field(default_factory=list)
    done: int = 0

    def end(self, batch: int) -> Any:
        return json.loads(self.ends[batch])


class StreamProtocol:
    """One run of a query over a reader.

    Args:
        make: makes the reader, as a new process would.
        checkpoint: what runs before left.
        available_now: whether to stop at what there is now.
        limit: what Spark passes instead of the reader's own limit; `Trigger.Once` does so.
    """

    def __init__(
        self,
        make: Callable[[], StreamReader],
        checkpoint: Checkpoint,
        *,
        available_now: bool = False,
        limit: ReadLimit | None = None,
    ) -> None:
        self.reader = make()
        self.checkpoint = checkpoint
        if available_now:
            self.reader.prepareForTriggerAvailableNow()
        self._limit = limit or self.reader.getDefaultReadLimit()
        self._first = json.dumps(self.reader.initialOffset())
        self.partitions = 0

    def trigger(self, *, fails: bool = False) -> list[Row] | None:
        """Run one trigger; the rows of its batch, or None if there was no news."""
        checkpoint = self.checkpoint
        if len(checkpoint.ends) == checkpoint.done:
            start = checkpoint.ends[-1] if checkpoint.ends else self._first
            end = json.dumps(self._latest_offset(json.loads(start)))
            if end == start:
                return None
            checkpoint.ends.append(end)
            if checkpoint.done:
                self._commit(checkpoint.end(checkpoint.done - 1))
        return self._batch(fails=fails)

    def drain(self, most: int = 50) -> list[Row]:
        """Run triggers until there is no news."""
        rows: list[Row] = []
        for _ in range(most):
            found = self.trigger()
            if found is None:
                return rows
            rows += found
        raise AssertionError(f"there was news at each of {most} triggers")

    def _latest_offset(self, start: Any) -> Any:
        end = self.reader.latestOffset(start, self._limit)
        self.reader.reportLatestOffset()
        return end

    def _partitions(self, start: Any, end: Any) -> Any:
        return self.reader.partitions(start, end)

    def _commit(self, end: Any) -> None:
        self.reader.commit(end)

    def _batch(self, *, fails: bool) -> list[Row]:
        batch = self.checkpoint.done
        # Batch 0 begins where a reader that was started just now says.
        start = self.checkpoint.end(batch - 1) if batch else self.reader.initialOffset()
        parts = self._partitions(start, self.checkpoint.end(batch))
        assert isinstance(parts, list)
        self.partitions = len(parts)
        rows = [row for part in parts for each in self.reader.read(part) for row in rows_of(each)]
        if fails:
            raise SinkError
        self.checkpoint.done += 1
        return rows


class OldStreamProtocol(StreamProtocol):
    """One run of a query on PySpark 4.1.

    Args:
        make: makes the reader, as a new process would.
        checkpoint: what runs before left.
    """

    def __init__(self, make: Callable[[], StreamReader], checkpoint: Checkpoint) -> None:
        super().__init__(make, checkpoint)
        self._spark = UnlimitedReader(self.reader)
        if checkpoint.ends:
            newest = checkpoint.end(-1)
            assert self._spark.partitions(newest, newest) == []

    def _latest_offset(self, start: Any) -> Any:
        return self._spark.latestOffset()

    def _partitions(self, start: Any, end: Any) -> Any:
        return self._spark.partitions(start, end)

    def _commit(self, end: Any) -> None:
        self._spark.commit(end)


def rows_of(batch: pa.RecordBatch) -> list[Row]:
    """Topic, queue and offset of each row."""
    found = (batch.column(name).to_pylist() for name in ("topic", "queue_id", "queue_offset"))
    return list(zip(*found, strict=True))
