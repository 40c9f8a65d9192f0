"""The delay levels that a broker shows in its runtime information."""

from __future__ import annotations

from cometmq.console.timers.page import levels_of


def test_levels_are_read_and_what_is_none_is_passed_over() -> None:
    figures = {
        "scheduleMessageOffset_1": "5,7",
        "scheduleMessageOffset_18": "0,0",
        "scheduleMessageOffset_2": "9,3",  # the offset was stored before a crash
        "scheduleMessageOffset_x": "1,2",
        "scheduleMessageOffset_3": "1,-2",
        "scheduleMessageOffset_4": "1",
        "scheduleMessageOffset_5": "1," + "9" * 19,
        "brokerVersion": "1,2",
    }
    assert levels_of(figures) == {1: (5, 7), 18: (0, 0), 2: (9, 9)}
