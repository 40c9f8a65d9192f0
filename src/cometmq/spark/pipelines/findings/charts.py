"""Plots as SVG text: bars, lines over time, and ranges of percentiles.

Drawn 340 units wide, so that on a telephone one unit is about one pixel and letters keep their
size; colours come from the page's style sheet. Each plot names itself and its numbers for those
who cannot see it, and every text is escaped.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from typing import NamedTuple

from cometmq.spark.pipelines.findings.figures import Unit, clipped, ticks

WIDTH = 340
SERIES_MAX = 4
"""Lines one plot can tell apart."""
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 8, 10, 24
_PLOT_HEIGHT = 130
_ROW = 36
_LABEL_CHARS = 44


class Spread(NamedTuple):
    """Percentiles of one row."""

    label: str
    p50: float
    p90: float
    p99: float


def bars(title: str, rows: Sequence[tuple[str, float]], unit: Unit = Unit.COUNT) -> str:
    """Draw one bar per row, its label above it and its number at the end."""
    top = max((value for _, value in rows), default=0.0) or 1.0
    parts = []
    for number, (label, value) in enumerate(rows):
        y = number * _ROW
        width = max(1.0, (WIDTH - 2) * max(value, 0.0) / top)
        parts += [
            _text(0, y + 12, clipped(label, _LABEL_CHARS), "label"),
            _text(WIDTH, y + 12, unit.text(value), "value", "end"),
            f'<rect class="track" x="0" y="{y + 18}" width="{WIDTH}" height="10" rx="3"/>',
            f'<rect class="bar" x="0" y="{y + 18}" width="{width:.1f}" height="10" rx="3"/>',
        ]
    return _svg(title, parts, max(len(rows), 1) * _ROW, _told(rows, unit))


def lines(
    title: str, series: Mapping[str, Sequence[tuple[float, float]]], unit: Unit = Unit.COUNT
) -> str:
    """Draw up to four lines over time; points are milliseconds and numbers, in order of time.

    Raises:
        ValueError: there are more lines than can be told apart.
    """
    if len(series) > SERIES_MAX:
        raise ValueError(
            f"{len(series)} lines in {title!r}: at most {SERIES_MAX} can be told apart"
        )
    points = [point for row in series.values() for point in row]
    frame = _Frame.around(points)
    parts = [*_grid(frame, unit), *_time_axis(frame)]
    for number, row in enumerate(series.values()):
        parts.append(_line(frame, row, number))
    last = [(name, row[-1][1]) for name, row in series.items() if row]
    return _legend(list(series)) + _svg(title, parts, frame.height, _told(last, unit))


def spreads(title: str, rows: Sequence[Spread], unit: Unit = Unit.MS) -> str:
    """Draw the percentiles of each row on one logarithmic scale."""
    top = max((row.p99 for row in rows), default=1.0)
    parts = []
    for number, row in enumerate(rows):
        y = number * _ROW
        at = [_log_place(value, top) for value in row[1:]]
        told = " · ".join(unit.text(value) for value in row[1:])
        parts += [
            _text(0, y + 12, clipped(row.label, _LABEL_CHARS - len(told) // 2), "label"),
            _text(WIDTH, y + 12, told, "value", "end"),
            f'<line class="track" x1="0" x2="{WIDTH}" y1="{y + 23}" y2="{y + 23}"/>',
            f'<line class="span" x1="{at[0]:.1f}" x2="{at[2]:.1f}" y1="{y + 23}" y2="{y + 23}"/>',
            *(
                f'<circle class="dot{rank}" cx="{x:.1f}" cy="{y + 23}" r="4.5"/>'
                for rank, x in enumerate(at)
            ),
        ]
    spoken = ", ".join(f"{row.label}: {' '.join(unit.text(v) for v in row[1:])}" for row in rows)
    drawn = _svg(title, parts, max(len(rows), 1) * _ROW, spoken)
    return _legend(["p50", "p90", "p99"], "dot") + drawn


class _Frame(NamedTuple):
    """Where numbers of a plot over time lie in the drawing."""

    first: float
    last: float
    levels: list[float]

    @classmethod
    def around(cls, points: Sequence[tuple[float, float]]) -> _Frame:
        times = [time for time, _ in points] or [0.0]
        top = max((value for _, value in points), default=0.0)
        return cls(min(times), max(times), ticks(top))

    @property
    def height(self) -> int:
        return _TOP + _PLOT_HEIGHT + _BOTTOM

    def x(self, time_ms: float) -> float:
        span = self.last - self.first
        share = (time_ms - self.first) / span if span else 0.5
        return _LEFT + share * (WIDTH - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        return _TOP + _PLOT_HEIGHT * (1 - value / self.levels[-1])


def _grid(frame: _Frame, unit: Unit) -> list[str]:
    parts = []
    for level in frame.levels:
        y = frame.y(level)
        parts += [
            f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>',
            _text(_LEFT - 5, y + 4, unit.text(level), "axis", "end"),
        ]
    return parts


def _time_axis(frame: _Frame) -> list[str]:
    y = _TOP + _PLOT_HEIGHT + 16
    if frame.first == frame.last:
        return [_text(frame.x(frame.first), y, _moment(frame.first, 0), "axis", "middle")]
    span = frame.last - frame.first
    places = [(frame.first, "start"), (frame.first + span / 2, "middle"), (frame.last, "end")]
    return [_text(frame.x(time), y, _moment(time, span), "axis", side) for time, side in places]


def _moment(time_ms: float, span_ms: float) -> str:
    moment = datetime.fromtimestamp(time_ms / 1000, UTC)
    if span_ms > 3 * 86_400_000:
        return moment.strftime("%d %b")
    return moment.strftime("%H:%M:%S" if span_ms < 600_000 else "%d %b %H:%M")


def _line(frame: _Frame, row: Sequence[tuple[float, float]], number: int) -> str:
    if len(row) == 1:
        x, y = frame.x(row[0][0]), frame.y(row[0][1])
        return f'<circle class="s{number} point" cx="{x:.1f}" cy="{y:.1f}" r="4"/>'
    path = " ".join(f"{frame.x(time):.1f},{frame.y(value):.1f}" for time, value in row)
    return f'<polyline class="s{number}" points="{path}"/>'


def _log_place(value: float, top: float) -> float:
    share = math.log1p(max(value, 0.0)) / math.log1p(top) if top > 0 else 0.0
    return 5 + share * (WIDTH - 10)


def _legend(names: Sequence[str], kind: str = "s") -> str:
    keys = "".join(
        f'<li><i class="key {kind}{number}"></i>{escape(clipped(name, _LABEL_CHARS))}</li>'
        for number, name in enumerate(names)
    )
    return f'<ul class="legend">{keys}</ul>'


def _told(rows: Sequence[tuple[str, float]], unit: Unit) -> str:
    return ", ".join(f"{label}: {unit.text(value)}" for label, value in rows)


def _text(x: float, y: float, text: str, kind: str, anchor: str = "start") -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f'<text class="{kind}" {place}>{escape(text)}</text>'


def _svg(title: str, parts: Sequence[str], height: int, told: str) -> str:
    head = f'<svg role="img" viewBox="0 0 {WIDTH} {height}" aria-label="{escape(title)}">'
    spoken = f"<title>{escape(title)}</title><desc>{escape(told)}</desc>"
    return f"{head}{spoken}{''.join(parts)}</svg>"
