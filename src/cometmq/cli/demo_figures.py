"""Counts the demo's messages, each by its number, from sent to received."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field

LOOK_S_MIN = 0.1
"""Shorter intervals would give random rates."""

RECENT = 4_000
"""Number of latest latencies that the percentiles use."""


@dataclass(slots=True)
class Figures:
    """Counts and latencies of one run."""

    sent: int = 0
    """Messages passed to the producer."""
    retried: int = 0
    """Sends that failed and were retried."""
    acknowledged: int = 0
    received: Counter[int] = field(default_factory=Counter)
    missing: set[int] = field(default_factory=set)
    """Messages acknowledged and not received yet."""
    moved: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a message is acknowledged or received."""
    send_ms: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT))
    arrive_ms: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT))
    samples: deque[str] = field(default_factory=lambda: deque(maxlen=4))
    """Some of the latest received messages."""
    notes: deque[str] = field(default_factory=deque)
    """Events that are not shown yet."""
    phase: str = "starting"
    restart_s: float | None = None
    """From SIGKILL until the server is ready again."""
    outage_s: float | None = None
    """From SIGKILL until the first acknowledged send."""

    def note_acknowledged(self, number: int, took_ms: float) -> None:
        """Count an acknowledged message."""
        self.acknowledged += 1
        self.send_ms.append(took_ms)
        if number not in self.received:
            self.missing.add(number)
        self.moved.set()

    def note_received(self, number: int, took_ms: float) -> None:
        """Count a received message."""
        self.received[number] += 1
        self.arrive_ms.append(took_ms)
        self.missing.discard(number)
        self.moved.set()

    async def wait_until(self, reached: Callable[[], bool]) -> None:
        """Return once ``reached`` is true of these figures."""
        while not reached():
            self.moved.clear()
            await self.moved.wait()

    @property
    def lost(self) -> int:
        """Messages acknowledged and not received, up to now."""
        return len(self.missing)

    @property
    def duplicates(self) -> int:
        """Receptions beyond the first of each message."""
        return self.received.total() - len(self.received)


def percentile(values: deque[float], share: float) -> float:
    """Give the value that a share of the values do not exceed; 0 if there are none."""
    if not values:
        return 0.0
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


class Rates:
    """Messages per second since the last update."""

    def __init__(self) -> None:
        self._at = 0.0
        self._sent = 0
        self._received = 0
        self.sent_per_s = 0.0
        self.received_per_s = 0.0

    def look(self, figures: Figures, now: float) -> None:
        """Compute the rates since the last update."""
        elapsed = now - self._at
        if elapsed < LOOK_S_MIN:
            return
        sent, received = figures.acknowledged, figures.received.total()
        if self._at:
            self.sent_per_s = (sent - self._sent) / elapsed
            self.received_per_s = (received - self._received) / elapsed
        self._at, self._sent, self._received = now, sent, received
