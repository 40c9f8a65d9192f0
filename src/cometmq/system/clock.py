"""Clocks: wall time for timestamps, monotonic time for timeouts; tests replace them."""

from __future__ import annotations

import time
from typing import Protocol

from cometmq.system.platforms import SERVERS


class Clock(Protocol):
    """Wall time and monotonic time."""

    def now_ms(self) -> int:
        """Return the wall clock in ms since 1970; it may jump either way."""

    def monotonic(self) -> float:
        """Return seconds that only grow; comparable within one process."""

    def since_boot(self) -> float:
        """Return such seconds that also pass while the machine is suspended."""


class SystemClock:
    """The clock of the machine."""

    def now_ms(self) -> int:
        """Return the wall clock in ms since 1970."""
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        """Return the machine's monotonic clock in seconds."""
        return time.monotonic()

    def since_boot(self) -> float:
        """Return the seconds since the boot, suspended ones included where the system has them."""
        return SERVERS.since_boot()
