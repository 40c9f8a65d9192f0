"""Formats numbers, bytes, times and texts for people."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import UTC, datetime
from enum import Enum

_BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_DECIMAL = ("", " k", " M", " G", " T")
_TEXT_MAX = 300
_SPANS = (
    (1_000, 1, "ms"),
    (60_000, 1_000, "s"),
    (3_600_000, 60_000, "min"),
    (172_800_000, 3_600_000, "h"),
)

NOTHING = "\u2013"
"""What stands where there is no value."""


def count(value: float) -> str:
    """A number: all digits up to a million, three of them beyond."""
    if value != value:
        return NOTHING
    if abs(value) < 1_000_000:
        return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.3g}"
    return short(value)


def short(value: float) -> str:
    """A number in at most three digits, such as ``1.25 M``."""
    return _scaled(value, 1000.0, _DECIMAL)


def size(value: float) -> str:
    """Bytes, such as ``1.5 MiB``."""
    return _scaled(value, 1024.0, tuple(" " + unit for unit in _BINARY))


def duration(value_ms: float) -> str:
    """A span given in milliseconds, such as ``12 ms`` or ``3.5 min``."""
    for limit, divisor, unit in _SPANS:
        if abs(value_ms) < limit:
            return f"{_digits(value_ms / divisor)} {unit}"
    return f"{_digits(value_ms / 86_400_000)} d"


def share(value: float) -> str:
    """A part of one, such as ``12 %``."""
    return f"{_digits(100 * value)} %"


def instant(value: datetime | float) -> str:
    """A time, given as such or in milliseconds, in UTC and to the second."""
    moment = value if isinstance(value, datetime) else datetime.fromtimestamp(value / 1000, UTC)
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")


def clipped(text: str, chars_max: int = _TEXT_MAX) -> str:
    """A text that is not longer than that; what is cut off becomes ``…``."""
    return text if len(text) <= chars_max else text[: chars_max - 1] + "…"


class Unit(Enum):
    """What the numbers of a column or an axis are."""

    COUNT = "count"
    BYTES = "bytes"
    MS = "ms"
    SHARE = "share"
    TIME = "time"

    def text(self, value: float) -> str:
        """Write such a number."""
        return _WRITERS[self](value)


_WRITERS: dict[Unit, Callable[[float], str]] = {
    Unit.COUNT: count,
    Unit.BYTES: size,
    Unit.MS: duration,
    Unit.SHARE: share,
    Unit.TIME: instant,
}


def ticks(top: float, wanted: int = 4) -> list[float]:
    """Round numbers from 0 to the first one not below ``top``."""
    if not top > 0:
        return [0.0, 1.0]
    rough = top / wanted
    magnitude = 10.0 ** math.floor(math.log10(rough))
    step = magnitude * next(factor for factor in (1, 2, 2.5, 5, 10) if factor * magnitude >= rough)
    return [step * number for number in range(math.ceil(top / step - 1e-9) + 1)]


def _scaled(value: float, base: float, units: tuple[str, ...]) -> str:
    rank = 0
    while abs(value) >= base and rank < len(units) - 1:
        value /= base
        rank += 1
    return _digits(value) + units[rank]


def _digits(value: float) -> str:
    if float(value).is_integer() and abs(value) < 10_000:
        return f"{value:.0f}"
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"
