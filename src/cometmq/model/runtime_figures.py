"""Numbers in the runtime information of brokers, whose values are texts."""

from __future__ import annotations

import math
from collections.abc import Mapping

YESTERDAY, TODAY = ("TodayMorning", "YesterdayMorning"), ("TodayNow", "TodayMorning")
"""The counts at the end and at the beginning of a day."""


def number(figures: Mapping[str, str], name: str) -> int | None:
    """Return a figure of a broker as a whole number; None if it has none, or one that no
    broker can have."""
    text = figures.get(name, "")
    return int(text) if text.removeprefix("-").isdecimal() and len(text) < 20 else None


def rate(figures: Mapping[str, str], *names: str) -> float | None:
    """Return the rate of the last ten seconds, which a figure begins with; None if it has none."""
    words = next((figures[name].split() for name in names if name in figures), [])
    return _float(words[0]) if words else None


def ratio(figures: Mapping[str, str], name: str) -> float | None:
    """Return a figure that is a part of 1; None if the broker has none."""
    return _float(figures.get(name, ""))


def _float(text: str) -> float | None:
    """Return a number that is finite; None for another text, which a broker may send."""
    try:
        found = float(text)
    except ValueError:
        return None
    return found if math.isfinite(found) else None


def totals(figures: Mapping[str, str]) -> list[int]:
    """Return the messages stored and sent yesterday, then the messages of today; see `messages`."""
    return [messages(figures, way, day) for day in (YESTERDAY, TODAY) for way in ("Put", "Get")]


def messages(figures: Mapping[str, str], way: str, day: tuple[str, str]) -> int:
    """Return how many messages a broker has stored (``Put``) or sent to consumers (``Get``)."""
    end, begin = (number(figures, f"msg{way}Total{time}") or 0 for time in day)
    return end - begin
