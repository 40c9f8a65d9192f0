"""Rates at which a consumer fetches and consumes, by topic, for administrators.

Rates are means over the last minute, failures are counted over the last hour. Counting costs no
background task: old values are dropped when new ones are added, or when a rate is read.

Source: ConsumerStatsManager, RocketMQ 5.3.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from cometmq.protocol.bodies import ConsumeStatus

MINUTE_S = 60.0
HOUR_S = 3_600.0


class Window:
    """Sums over the last so many seconds, in slots.

    Args:
        length_s: how far it reaches back.
        slot_s: figures that came within one slot are forgotten together.
        now: a steady clock, in seconds.
    """

    def __init__(self, length_s: float, slot_s: float, now: Callable[[], float]) -> None:
        self._length_s = length_s
        self._slot_s = slot_s
        self._now = now
        self._slots: deque[tuple[int, float, int]] = deque()

    def add(self, amount: float, times: int = 1) -> None:
        """Add an amount that came in ``times`` parts."""
        slot = int(self._now() / self._slot_s)
        if self._slots and self._slots[-1][0] == slot:
            _, total, count = self._slots.pop()
            self._slots.append((slot, total + amount, count + times))
        else:
            self._forget_old()
            self._slots.append((slot, amount, times))

    def sums(self) -> tuple[float, int]:
        """Return the amounts and the number of parts of all slots."""
        self._forget_old()
        return sum(slot[1] for slot in self._slots), sum(slot[2] for slot in self._slots)

    def per_second(self) -> float:
        """Return the amount per second of the window."""
        return self.sums()[0] / self._length_s

    def mean(self) -> float:
        """Return the amount of one part on average; 0 if there was none."""
        total, count = self.sums()
        return total / count if count else 0.0

    def _forget_old(self) -> None:
        oldest = int((self._now() - self._length_s) / self._slot_s)
        while self._slots and self._slots[0][0] <= oldest:
            self._slots.popleft()


class _Topic:
    def __init__(self, now: Callable[[], float]) -> None:
        self.pull_ms = Window(MINUTE_S, 10.0, now)
        self.pulled = Window(MINUTE_S, 10.0, now)
        self.consume_ms = Window(MINUTE_S, 10.0, now)
        self.consumed = Window(MINUTE_S, 10.0, now)
        self.failed = Window(MINUTE_S, 10.0, now)
        self.failed_hour = Window(HOUR_S, 60.0, now)


class Statistics:
    """Counts what a consumer does, by topic.

    Args:
        now: a steady clock, in seconds.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._topics: dict[str, _Topic] = {}

    def pulled(self, topic: str, messages: int, ms: float) -> None:
        """Count one pull that brought messages, and the milliseconds it took."""
        entry = self._of(topic)
        entry.pull_ms.add(ms)
        entry.pulled.add(messages)

    def consumed(self, topic: str, done: int, failed: int, ms: float, calls: int = 1) -> None:
        """Count calls of a handler: messages done with, messages failed, milliseconds."""
        entry = self._of(topic)
        entry.consume_ms.add(ms, calls)
        if done:
            entry.consumed.add(done)
        if failed:
            entry.failed.add(failed)
            entry.failed_hour.add(failed)

    def status(self, topic: str) -> ConsumeStatus:
        """Return the rates of a topic; zeros if it had no messages."""
        entry = self._of(topic)
        return ConsumeStatus(
            pull_rt=entry.pull_ms.mean(),
            pull_tps=entry.pulled.per_second(),
            consume_rt=entry.consume_ms.mean(),
            consume_ok_tps=entry.consumed.per_second(),
            consume_failed_tps=entry.failed.per_second(),
            consume_failed_msgs=int(entry.failed_hour.sums()[0]),
        )

    def _of(self, topic: str) -> _Topic:
        found = self._topics.get(topic)
        if found is None:
            found = self._topics[topic] = _Topic(self._now)
        return found
