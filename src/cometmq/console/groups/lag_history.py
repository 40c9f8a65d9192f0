"""The lag of groups over the last half hour, sampled while a browser shows the group."""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

import msgspec

from cometmq.console.charts import SPAN_MS, Chart, chart_of
from cometmq.console.live import Live, Viewers
from cometmq.console.pages import Name, Query
from cometmq.console.reads import Reads
from cometmq.model.quantities import duration

EVENTS = "/groups/group/events"
INTERVAL_S = 5.0
POINTS_MAX = round(SPAN_MS / 1000 / INTERVAL_S)
GROUPS_MAX = 64
"""Groups whose history is kept: the ones that were shown last."""
VIEWERS_MAX = 32


class LagPoint(msgspec.Struct):
    """The lag of a group at one time."""

    time_ms: int
    lag: int
    oldest_age_ms: int | None
    """The age of the oldest message that was not consumed; None if it is not known."""


class LagHistory(msgspec.Struct):
    """The lag of a group over time, the oldest point first."""

    group: str
    points: list[LagPoint]


class LagQuery(Query):
    """Which group."""

    group: Name


Sample = Callable[[Reads, str], Awaitable[LagPoint]]


class LagHistories:
    """The histories of the groups that were looked at last.

    Args:
        sample: reads the lag of a group.
        interval_s: seconds between two samples for a viewer.
    """

    def __init__(self, sample: Sample, interval_s: float = INTERVAL_S) -> None:
        self._sample = sample
        self._interval_s = interval_s
        self._points: OrderedDict[tuple[Reads, str], deque[LagPoint]] = OrderedDict()
        """By account and group: an account may see groups that others may not."""
        self._viewers = Viewers(VIEWERS_MAX)

    def add(self, reads: Reads, group: str, point: LagPoint) -> LagHistory:
        """Add a sample that was taken, and return the history with it."""
        key = reads, group
        points = self._points.setdefault(key, deque(maxlen=POINTS_MAX))
        self._points.move_to_end(key)
        while len(self._points) > GROUPS_MAX:
            self._points.popitem(last=False)
        if points and point.time_ms - points[-1].time_ms < 500 * self._interval_s:
            points.pop()  # several viewers look at the group
        points.append(point)
        while points[0].time_ms < point.time_ms - SPAN_MS:
            points.popleft()
        return LagHistory(group, list(points))

    def live(self) -> tuple[Live, ...]:
        """Return the live part of the page of a group."""
        return (Live(EVENTS, "groups/lag.html", LagQuery, self._events),)

    @contextlib.asynccontextmanager
    async def _events(
        self, reads: Reads, query: LagQuery
    ) -> AsyncIterator[AsyncIterator[LagHistory]]:
        with self._viewers.one():
            yield self._samples(reads, query.group)

    async def _samples(self, reads: Reads, group: str) -> AsyncIterator[LagHistory]:
        while True:
            yield self.add(reads, group, await self._sample(reads, group))
            await asyncio.sleep(self._interval_s)


def charts_of(points: Sequence[LagPoint]) -> list[Chart]:
    """Return the charts of a group."""
    gap_ms = round(3 * 1000 * INTERVAL_S)
    lags = [(each.time_ms, each.lag) for each in points]
    ages = [(each.time_ms, each.oldest_age_ms if each.lag else 0) for each in points]
    return [
        chart_of("Lag in messages", lags, "{:,.0f}".format, gap_ms),
        chart_of("Age of the oldest message", ages, lambda age: duration(round(age)), gap_ms),
    ]
