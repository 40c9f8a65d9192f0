"""Histograms of what happens rarely: topics and groups created, transactions decided.

Source: BrokerMetricsManager, RocketMQ 5.3 (buckets, and what is measured).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Final

from cometmq.remoting.latencies import Histogram

CREATED_BOUNDS_MS: Final = (10, 100, 1000, 3000, 5000)
FINISHED_BOUNDS_S: Final = (5, 60, 600, 3600, 43_200, 86_400)
TOPICS_MAX: Final = 10_000
"""How many topics have counts of their own."""
OTHER: Final = "_other"
"""The topic of what is beyond."""


class Creations:
    """How long creations took, by whether they succeeded and whether something was a system's."""

    def __init__(self) -> None:
        self.histograms: dict[tuple[bool, bool], Histogram] = {}

    @contextmanager
    def measured(self, *, is_system: bool = False) -> Iterator[None]:
        """Measure what happens within; an exception is a failure."""
        began_s = perf_counter()
        is_success = False
        try:
            yield
            is_success = True
        finally:
            key = is_success, is_system
            histogram = self.histograms.get(key)
            if histogram is None:
                histogram = self.histograms[key] = Histogram(CREATED_BOUNDS_MS)
            histogram.add((perf_counter() - began_s) * 1000)


class Timings:
    """The histograms of one broker."""

    def __init__(self) -> None:
        self.topics = Creations()
        self.groups = Creations()
        self.commits: dict[str, Histogram] = {}
        """By topic: the seconds between the birth of a half message and its commit."""
        self.rollbacks: Counter[str] = Counter()
        """By topic: half messages that were rolled back."""

    def committed(self, topic: str, age_ms: int) -> None:
        """Count the commit of a half message of this age."""
        if topic not in self.commits and len(self.commits) >= TOPICS_MAX:
            topic = OTHER
        histogram = self.commits.get(topic)
        if histogram is None:
            histogram = self.commits[topic] = Histogram(FINISHED_BOUNDS_S)
        histogram.add(max(age_ms, 0) / 1000)

    def rolled_back(self, topic: str) -> None:
        """Count a half message that was rolled back."""
        if topic not in self.rollbacks and len(self.rollbacks) >= TOPICS_MAX:
            topic = OTHER
        self.rollbacks[topic] += 1
