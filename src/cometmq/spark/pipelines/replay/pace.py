"""Limits the rate of rows."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator

import pyarrow as pa

from cometmq.system.clock import Clock

SLICES_PER_SECOND = 10


class Pace:
    """Hands batches on at no more than so many rows per second.

    Args:
        rate: rows per second; 0 for as fast as they are taken.
        clock: to go by.
        wait: waits so many seconds.
    """

    def __init__(
        self,
        rate: float,
        clock: Clock | None = None,
        wait: Callable[[float], object] | None = None,
    ) -> None:
        self._rate = rate
        self._clock = clock or Clock()
        self._wait = wait or threading.Event().wait

    @property
    def slice_rows(self) -> int:
        """How many rows are handed on at once; 0 for all there are."""
        return max(1, int(self._rate / SLICES_PER_SECOND)) if self._rate else 0

    def paced(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the batches, in order, in slices, each when it is due."""
        if not self._rate:
            yield from batches
            return
        begun = self._clock.monotonic()
        rows = 0
        for batch in batches:
            for at in range(0, batch.num_rows, self.slice_rows):
                part = batch.slice(at, self.slice_rows)
                self._await(begun + rows / self._rate)
                yield part
                rows += part.num_rows
        self._await(begun + rows / self._rate)

    def _await(self, due: float) -> None:
        left = due - self._clock.monotonic()
        if left > 0:
            self._wait(left)
