"""A line chart as the points of SVG polylines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

WIDTH, HEIGHT = 600, 120
"""The units of the drawing; the page scales it."""
SPAN_MS = 1_800_000
"""Half an hour."""


class Chart(NamedTuple):
    """A line over the last half hour, with the newest value at the right."""

    title: str
    lines: list[str]
    """Several if values are missing between them."""
    lowest: str
    highest: str
    newest: str


def chart_of(
    title: str,
    points: Sequence[tuple[int, float | None]],
    show: Callable[[float], str],
    gap_ms: int = SPAN_MS,
) -> Chart:
    """Return a chart.

    Args:
        title: what it shows.
        points: times in ms since 1970 and values, the oldest first; a value that is not known is
            None, and breaks the line.
        show: returns a value as a text.
        gap_ms: the line is broken between two points that are farther apart.
    """
    end = points[-1][0] if points else 0
    shown = [each for each in points if end - SPAN_MS < each[0] <= end]  # a clock may go back
    values = [value for _, value in shown if value is not None]
    top = max(values, default=0.0) or 1.0
    lines: list[list[str]] = []
    before: int | None = None
    for time_ms, value in shown:
        if value is None:
            before = None
            continue
        x = WIDTH - (end - time_ms) * WIDTH / SPAN_MS
        y = HEIGHT - value * HEIGHT / top
        if before is None or time_ms - before > gap_ms:
            lines.append([f"{x - 1:.1f},{y:.1f}"])  # so that a single point is seen
        lines[-1].append(f"{x:.1f},{y:.1f}")
        before = time_ms
    newest = shown[-1][1] if shown else None
    ends = min(values, default=None), max(values, default=None), newest
    texts = ("-" if each is None else show(each) for each in ends)
    return Chart(title, [" ".join(each) for each in lines], *texts)
