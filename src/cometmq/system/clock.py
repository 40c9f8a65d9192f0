"""Clocks: wall time for timestamps, monotonic time for timeouts; tests replace them."""

from __future__ import annotations

import time

from cometmq.system.platforms import SERVERS


class Clock:
    """The clock of the machine: wall time and monotonic time."""

    def now_ms(self) -> int:
        """Return the wall clock in ms since 1970; it may jump either way."""
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        """Return seconds that only grow; comparable within one process."""
        return time.monotonic()

    def since_boot(self) -> float:
        """Return seconds since the boot of the machine.

        They also pass while it is suspended, if the system counts that time.
        """
        return SERVERS.since_boot()
