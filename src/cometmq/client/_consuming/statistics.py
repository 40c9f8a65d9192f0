"""Rates at which a consumer fetches and consumes, by topic, for administrators.

Rates are means over the last minute, failures are counted over the last hour. Counting costs no
background task: old values are dropped when new ones are added, or when a rate is read.

Source: ConsumerStatsManager, RocketMQ 5.3.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any

from cometmq.protocol.bodies.client import ConsumeStatus

MINUTE_S = 60.0
HOUR_S = 3_600.0


class Window:
    """Sums over the last seconds, in slots.

    Args:
        length_s: how far it reaches back.
        slot_s: figures that came within one slot are forgotten together.
        now: a steady clock, in seconds.
    """

    def __init__(self, length_s: float, slot_s: float, now: Callable[[], float]) -> None:
        self._length_s = length_s
        self._slot_s = slot_s
        self._now = now
        self._slots: deque[list[Any]] = deque()
        """For each slot its number, then the three sums; the oldest slot first."""

    def add(self, amount: float, times: int = 1, messages: int = 0) -> None:
        """Add an amount that came in ``times`` parts, and the messages that it was for."""
        number = int(self._now() / self._slot_s)
        newest = self._slots[-1] if self._slots else None
        if newest is None or newest[0] != number:
            self._forget_old()
            self._slots.append([number, amount, times, messages])
        else:
            newest[1] += amount
            newest[2] += times
            newest[3] += messages

    def sums(self) -> tuple[float, int, int]:
        """Return the amounts, the parts and the messages of all slots."""
        self._forget_old()
        return (
            sum(slot[1] for slot in self._slots),
            sum(slot[2] for slot in self._slots),
            sum(slot[3] for slot in self._slots),
        )

    def messages_per_second(self) -> float:
        """Return the messages per second of the window."""
        return self.sums()[2] / self._length_s

    def mean(self) -> float:
        """Return the amount of one part on average; 0 if there was none."""
        total, count, _ = self.sums()
        return total / count if count else 0.0

    def _forget_old(self) -> None:
        oldest = int((self._now() - self._length_s) / self._slot_s)
        while self._slots and self._slots[0][0] <= oldest:
            self._slots.popleft()


class _Topic:
    def __init__(self, now: Callable[[], float]) -> None:
        self.pulls = Window(MINUTE_S, 10.0, now)
        """Milliseconds of pulls, and the messages that they brought."""
        self.calls = Window(MINUTE_S, 10.0, now)
        """Milliseconds of handler calls, and the messages that are done with."""
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
        self._of(topic).pulls.add(ms, messages=messages)

    def consumed(self, topic: str, done: int, failed: int, ms: float, calls: int = 1) -> None:
        """Count calls of a handler: messages done with, messages failed, milliseconds."""
        entry = self._of(topic)
        entry.calls.add(ms, calls, done)
        if failed:
            entry.failed.add(0.0, messages=failed)
            entry.failed_hour.add(0.0, messages=failed)

    def status(self, topic: str) -> ConsumeStatus:
        """Return the rates of a topic; zeros if it had no messages."""
        entry = self._of(topic)
        return ConsumeStatus(
            pull_rt=entry.pulls.mean(),
            pull_tps=entry.pulls.messages_per_second(),
            consume_rt=entry.calls.mean(),
            consume_ok_tps=entry.calls.messages_per_second(),
            consume_failed_tps=entry.failed.messages_per_second(),
            consume_failed_msgs=entry.failed_hour.sums()[2],
        )

    def _of(self, topic: str) -> _Topic:
        found = self._topics.get(topic)
        if found is None:
            found = self._topics[topic] = _Topic(self._now)
        return found
