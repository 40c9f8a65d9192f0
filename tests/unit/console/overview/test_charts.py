"""Charts as polylines."""

from __future__ import annotations

from cometmq.console.overview.charts import Chart, chart_of


def test_the_newest_value_is_at_the_right_and_the_highest_at_the_top() -> None:
    chart = chart_of("sends", [0.0, 5.0, 10.0], kept=4)
    assert chart == Chart("sends", "200.0,120.0 400.0,60.0 600.0,0.0", 10.0, 10.0, 0.0)


def test_a_chart_without_values_or_with_zeros_only_is_flat() -> None:
    assert chart_of("sends", [], kept=4) == Chart("sends", "", 0.0, 0.0, 0.0)
    assert chart_of("sends", [0.0], kept=1).points == "0.0,120.0"
