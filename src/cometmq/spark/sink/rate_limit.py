"""Limits the rows and bytes per second that a task sends.

The time of a batch is its rows or bytes divided by the limit. The next batch leaves when that time
is over, so the rate holds from the first second on: unused time is not saved up. Batches hold at
most a tenth of a second's worth, so that the broker gets an even load.
"""

from __future__ import annotations

import math

BATCH_S = 0.1
"""The time of the largest batch."""


class RateLimit:
    """Delays the batches of one task.

    Args:
        rows_per_s: limit on rows per second; 0 for no limit.
        bytes_per_s: limit on bytes of bodies and properties per second; 0 for no limit.
    """

    def __init__(self, rows_per_s: float, bytes_per_s: float) -> None:
        self._row_s = 1 / rows_per_s if rows_per_s else 0.0
        self._byte_s = 1 / bytes_per_s if bytes_per_s else 0.0
        self._free_at = -math.inf
        self.rows_max = max(1, int(rows_per_s * BATCH_S)) if rows_per_s else 1 << 31
        """Size limit of a batch in rows."""
        self.bytes_max = max(1, int(bytes_per_s * BATCH_S)) if bytes_per_s else 1 << 31
        """Size limit of a batch in bytes; a larger row is a batch of its own."""

    def start_of(self, rows: int, size: int, now: float) -> float:
        """Return when a batch may leave, and take the time after that for the batch.

        Args:
            rows: the rows of the batch.
            size: its bytes.
            now: the current time in seconds.
        """
        start = max(now, self._free_at)
        self._free_at = start + max(rows * self._row_s, size * self._byte_s)
        return start
