"""Rates of stored and delivered messages, and the latency of appends.

Rates come from totals that are sampled once a second and kept for ten minutes; a rate over 10, 60
or 600 seconds is known as soon as there are that many samples. Latencies are counted in steps of a
millisecond and belong to a minute: the finished minute is shown.

Source: StoreStatsService and BrokerStats, RocketMQ 5.3 (windows, buckets and their texts); the
fine histogram is an addition.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from datetime import date, datetime
from typing import Final, NamedTuple

from cometmq.broker.stats.counters import BrokerStats
from cometmq.system.clock import Clock

LATENCY_MS_MAX: Final = 10_000
"""Longer latencies count as this."""

_SPANS_S: Final = (10, 60, 600)
_MINUTE_MS: Final = 60_000
_BUCKETS: Final = (
    ("[<=0ms]", 0, 1),
    ("[0~10ms]", 1, 10),
    ("[10~50ms]", 10, 50),
    ("[50~100ms]", 50, 100),
    ("[100~200ms]", 100, 200),
    ("[200~500ms]", 200, 500),
    ("[500ms~1s]", 500, 1000),
    ("[1~2s]", 1000, 2000),
    ("[2~3s]", 2000, 3000),
    ("[3~4s]", 3000, 4000),
    ("[4~5s]", 4000, 5000),
    ("[5~10s]", 5000, LATENCY_MS_MAX),
    ("[10s~]", LATENCY_MS_MAX, LATENCY_MS_MAX + 1),
)


class Totals(NamedTuple):
    """The totals at one second."""

    time_ms: int
    put: int
    found: int
    missed: int
    transferred: int


class Day(NamedTuple):
    """Totals of one kind at three moments, from which two days follow."""

    yesterday_morning: int
    today_morning: int
    today_now: int


class Throughput:
    """Rates, latencies and the totals of two days.

    Args:
        stats: where the messages are counted.
        clock: wall time of the samples.
        day_of: the local calendar day of a wall time in ms.
    """

    def __init__(
        self, stats: BrokerStats, *, clock: Clock, day_of: Callable[[int], date] | None = None
    ) -> None:
        self._stats = stats
        self._clock = clock
        self._day_of = day_of or _local_day
        self._samples: deque[Totals] = deque(maxlen=_SPANS_S[-1] + 1)
        self._latencies = [0] * (LATENCY_MS_MAX + 1)
        self._last_minute: list[int] | None = None
        self._minute_began_ms = clock.now_ms()
        self._minute_began_at = stats.put_messages
        self._day = self._day_of(self._minute_began_ms)
        self._puts_at_mornings = (0, 0)
        self._gets_at_mornings = (0, 0)
        self.put_ms_max = 0
        """The longest put since the start."""

    def put_took(self, took_ms: int, puts: int = 1) -> None:
        """Count how long puts took; those below 1 ms may be left out."""
        index = took_ms if took_ms < LATENCY_MS_MAX else LATENCY_MS_MAX
        self._latencies[index if index > 0 else 0] += puts
        if took_ms > self.put_ms_max:
            self.put_ms_max = took_ms

    def sample(self) -> None:
        """Sample the totals, and begin a new minute or day if it is time; once a second."""
        now_ms, stats = self._clock.now_ms(), self._stats
        self._samples.append(
            Totals(
                now_ms, stats.put_messages, stats.get_found, stats.get_missed, stats.get_messages
            )
        )
        if not 0 <= now_ms - self._minute_began_ms < _MINUTE_MS:
            self._last_minute = self._with_quick_ones()
            self._latencies = [0] * (LATENCY_MS_MAX + 1)
            self._minute_began_ms = now_ms
            self._minute_began_at = stats.put_messages
        self._begin_day(now_ms)

    def puts_of_days(self) -> Day:
        """Messages that users' topics had got by two mornings and have got by now."""
        return Day(*self._puts_at_mornings, self._stats.users_put_messages)

    def gets_of_days(self) -> Day:
        """Messages that users' topics had given by two mornings and have given by now."""
        return Day(*self._gets_at_mornings, self._stats.users_get_messages)

    def put_distribution(self) -> str:
        """How many puts of the last minute took how long, as a text."""
        latencies = self._shown_latencies()
        parts = (f"{name}:{sum(latencies[low:high])} " for name, low, high in _BUCKETS)
        return "".join(parts)

    def put_percentile(self, share: float) -> float:
        """The milliseconds within which this share (0..1) of the last minute's puts ended."""
        latencies = self._shown_latencies()
        left = sum(latencies) * share
        if left <= 0:
            return 0.0
        for took_ms, count in enumerate(latencies):
            left -= count
            if left <= 0:
                return float(took_ms)
        return float(LATENCY_MS_MAX)

    def _shown_latencies(self) -> list[int]:
        return self._with_quick_ones() if self._last_minute is None else self._last_minute

    def _with_quick_ones(self) -> list[int]:
        """The latencies of this minute; a message without one took less than 1 ms."""
        counted = sum(self._latencies)
        messages = self._stats.put_messages - self._minute_began_at
        return [self._latencies[0] + max(0, messages - counted), *self._latencies[1:]]

    def rates(self, of: Callable[[Totals], int]) -> str:
        """How much a total of the samples grows in a second, as a text of up to three numbers."""
        # As RocketMQ writes it: blank separated, one blank at the end, unknown spans left out.
        return "".join(
            f"{rate} " for span in _SPANS_S if (rate := self._rate(span, of)) is not None
        )

    def _rate(self, span_s: int, of: Callable[[Totals], int]) -> float | None:
        known_s = len(self._samples) - 1
        if known_s < span_s and span_s != _SPANS_S[0]:
            return None
        if known_s < 1:
            return 0.0
        # The first rate is always shown, from fewer seconds if there are no more yet.
        first, last = self._samples[-1 - min(span_s, known_s)], self._samples[-1]
        elapsed_ms = last.time_ms - first.time_ms
        return (of(last) - of(first)) * 1000 / elapsed_ms if elapsed_ms > 0 else 0.0

    def _begin_day(self, now_ms: int) -> None:
        today = self._day_of(now_ms)
        if today != self._day:
            self._day = today
            self._puts_at_mornings = (self._puts_at_mornings[1], self._stats.users_put_messages)
            self._gets_at_mornings = (self._gets_at_mornings[1], self._stats.users_get_messages)


def _local_day(time_ms: int) -> date:
    return datetime.fromtimestamp(time_ms / 1000).astimezone().date()
