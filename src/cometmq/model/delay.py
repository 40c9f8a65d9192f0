"""Delay levels: the fixed delays of scheduled messages, and which one a message has.

    levels := level { " " level }        level := digits ("s" | "m" | "h" | "d")

The first level is number 1. Source: MessageStoreConfig.messageDelayLevel and
ScheduleMessageService.parseDelayLevel, RocketMQ 5.3.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from cometmq.model.errors import ConfigError

DEFAULT_LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"

_UNITS_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


_NUMBER = re.compile(r"[+-]?[0-9]{1,10}")
_UNKNOWN_MS = 1_000
"""The delay of a level that the text names but that cannot be read, as in RocketMQ."""


class DelayLevels:
    """The levels of a broker; immutable.

    Args:
        delays_ms: the delay of each level that could be read.
        highest: the greatest level.
    """

    def __init__(self, delays_ms: Mapping[int, int], highest: int) -> None:
        self._delays_ms = dict(delays_ms)
        self.highest = highest

    @classmethod
    def parse(cls, text: str = DEFAULT_LEVELS) -> DelayLevels:
        """Read the setting ``messageDelayLevel``.

        Raises:
            ConfigError: a level is not a number with a unit.
        """
        levels, bad_part = _read(text)
        if bad_part is not None:
            raise ConfigError(
                f"delay levels {text!r}: met {bad_part!r}, expected a number followed by"
                " s, m, h or d"
            )
        return levels

    @classmethod
    def read(cls, text: str) -> DelayLevels:
        """Read a text of levels as far as it is well-formed, as RocketMQ does."""
        return _read(text)[0]

    def level_of(self, text: str | None) -> int:
        """Return the level that the property DELAY names, at most the highest; 0 for no delay."""
        if text is None or _NUMBER.fullmatch(text) is None:
            return 0
        return min(max(int(text), 0), self.highest)

    def level_for(self, delay_ms: float) -> int:
        """Return the level with the shortest delay of at least ``delay_ms``, else the longest."""
        longer = [item for item in self._delays_ms.items() if item[1] >= delay_ms]
        if longer:
            return min(longer, key=lambda item: item[1])[0]
        return max(self._delays_ms, key=self._delays_ms.__getitem__, default=0)

    def delay_ms(self, level: int) -> int:
        """Return the delay of a level."""
        return self._delays_ms.get(level, _UNKNOWN_MS)


def _read(text: str) -> tuple[DelayLevels, str | None]:
    """Return the levels, and the part that could not be read, where reading ended."""
    delays_ms: dict[int, int] = {}
    highest = 0
    for level, part in enumerate(text.split(" "), start=1):
        highest = level if part else highest
        unit = _UNITS_MS.get(part[-1:])
        if unit is None or not (part[:-1].isascii() and part[:-1].isdigit()):
            return DelayLevels(delays_ms, highest), part
        delays_ms[level] = int(part[:-1]) * unit
    return DelayLevels(delays_ms, highest), None
