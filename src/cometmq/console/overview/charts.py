"""A line chart as the points of an SVG polyline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

WIDTH, HEIGHT = 600, 120
"""The units of the drawing; the page scales it."""


class Chart(NamedTuple):
    """A line over time, from the newest value at the right to the oldest at the left."""

    title: str
    points: str
    highest: float
    newest: float
    lowest: float


def chart_of(title: str, values: Sequence[float], kept: int) -> Chart:
    """Return the chart of values that were taken at equal distances, with room for ``kept``."""
    highest = max(values, default=0.0)
    top = highest or 1.0
    first = kept - len(values)
    points = " ".join(
        f"{(first + number) * WIDTH / max(kept - 1, 1):.1f},{HEIGHT - value * HEIGHT / top:.1f}"
        for number, value in enumerate(values)
    )
    newest = values[-1] if values else 0.0
    return Chart(title, points, highest, newest, min(values, default=0.0))
