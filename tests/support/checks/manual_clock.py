"""The clock of tests and simulations."""

from __future__ import annotations

from cometmq.system.clock import Clock


class ManualClock(Clock):
    """A clock that only moves when it is advanced.

    Args:
        now_ms: the wall clock to begin with.
    """

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = now_ms
        self._monotonic_ms = 0

    def now_ms(self) -> int:
        """Return the wall clock in ms since 1970."""
        return self._now_ms

    def monotonic(self) -> float:
        """Return the seconds that `advance` has moved this clock by."""
        return self._monotonic_ms / 1000

    def since_boot(self) -> float:
        """Return the seconds that `advance` has moved this clock by."""
        return self.monotonic()

    def advance(self, ms: int) -> None:
        """Let ``ms`` pass on both clocks.

        Raises:
            ValueError: ``ms`` is negative; only the wall clock can be set back, by `set_wall`.
        """
        if ms < 0:
            raise ValueError(f"time cannot pass by {ms} ms")
        self._now_ms += ms
        self._monotonic_ms += ms

    def set_wall(self, now_ms: int) -> None:
        """Set only the wall clock, as an operator or a time server does."""
        self._now_ms = now_ms
