"""The history of groups: bounded, with a point for each interval."""

from __future__ import annotations

from cometmq.client import AdminClient
from cometmq.console.charts import SPAN_MS
from cometmq.console.groups.lag_history import (
    GROUPS_MAX,
    POINTS_MAX,
    LagHistories,
    LagPoint,
    charts_of,
)
from cometmq.console.reads import Reads

STEP_MS = 5_000
READS = Reads(AdminClient("127.0.0.1:1"))


async def _sample(reads: Reads, group: str) -> LagPoint:
    raise AssertionError("not asked for")


def test_samples_of_several_viewers_are_one_point() -> None:
    histories = LagHistories(_sample)
    for time_ms, lag in ((0, 1), (100, 2), (STEP_MS, 3), (STEP_MS + 2_000, 4)):
        history = histories.add(READS, "shop", LagPoint(time_ms, lag, None))
    assert [each.lag for each in history.points] == [2, 4]


def test_a_history_ends_after_half_an_hour_and_others_begin_anew() -> None:
    histories = LagHistories(_sample)
    for number in range(POINTS_MAX + 10):
        history = histories.add(READS, "shop", LagPoint(number * STEP_MS, number, None))
    assert len(history.points) == POINTS_MAX
    later = history.points[-1].time_ms + SPAN_MS + 1
    assert len(histories.add(READS, "shop", LagPoint(later, 0, None)).points) == 1
    for number in range(GROUPS_MAX):
        histories.add(READS, f"group-{number}", LagPoint(later, 0, None))
    assert len(histories.add(READS, "shop", LagPoint(later + STEP_MS, 0, None)).points) == 1
    assert len(histories.add(READS, "group-9", LagPoint(later + STEP_MS, 0, None)).points) == 2


def test_the_charts_have_messages_and_time() -> None:
    lag, age = charts_of([LagPoint(0, 5, 90_000), LagPoint(STEP_MS, 7, None)])
    assert (lag.newest, lag.highest) == ("7", "7")
    assert (age.newest, len(age.lines)) == ("-", 1)
    assert charts_of([LagPoint(0, 0, None)])[1].newest == "0 ms"
