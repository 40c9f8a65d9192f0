"""Charts as polylines."""

from __future__ import annotations

from cometmq.console.charts import SPAN_MS, Chart, chart_of

MINUTE = 60_000


def test_the_newest_value_is_at_the_right_and_the_highest_at_the_top() -> None:
    late = 3 * SPAN_MS, 99.0
    points = [(0, 9.0), (SPAN_MS, 0.0), late, (SPAN_MS + 15 * MINUTE, 5.0), (2 * SPAN_MS, 10.0)]
    chart = chart_of("sends", points, str)  # the first two are too old, one is of a clock before
    assert chart == Chart("sends", ["299.0,60.0 300.0,60.0 600.0,0.0"], "5.0", "10.0", "10.0")


def test_a_line_is_broken_where_values_are_missing() -> None:
    points = [(0, 1.0), (MINUTE, 1.0), (4 * MINUTE, 1.0)]
    chart = chart_of("lag", points, str, gap_ms=2 * MINUTE)
    assert chart.lines == ["519.0,0.0 520.0,0.0 540.0,0.0", "599.0,0.0 600.0,0.0"]


def test_a_chart_without_values_or_with_zeros_only_is_flat() -> None:
    assert chart_of("sends", [], str) == Chart("sends", [], "-", "-", "-")
    assert chart_of("sends", [(5, 0.0)], str).lines == ["599.0,120.0 600.0,120.0"]


def test_a_value_that_is_not_known_breaks_the_line_and_is_not_zero() -> None:
    points = [(0, 1.0), (MINUTE, None), (2 * MINUTE, 1.0), (3 * MINUTE, None)]
    chart = chart_of("age", points, str)
    assert len(chart.lines) == 2
    assert (chart.lowest, chart.highest, chart.newest) == ("1.0", "1.0", "-")
    assert chart_of("age", [(0, None)], str) == Chart("age", [], "-", "-", "-")
