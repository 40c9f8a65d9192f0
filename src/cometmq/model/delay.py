"""Delay levels: the fixed delays of scheduled messages, and which one a message has.

    levels := level { " " level }        level := digits ("s" | "m" | "h" | "d")

The first level is number 1. Source: MessageStoreConfig.messageDelayLevel and
ScheduleMessageService.parseDelayLevel, RocketMQ 5.3, which also does not start with others.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from cometmq.model.errors import ConfigError

DEFAULT_LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
LEVELS_MAX = 1000
"""Each level has a queue with files of its own."""
DELAY_DAYS_MAX = 3650

UNITS_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
"""The units of time in texts, of delay levels and of options for Spark."""
_LEVEL = re.compile(r"([0-9]{1,9})([smhd])")
_NUMBER = re.compile(r"[+-]?[0-9]{1,10}")


def delay_queue(level: int) -> int:
    """Return the queue of the schedule topic in which messages of a level wait."""
    return level - 1


def level_of_queue(queue_id: int) -> int:
    """Return the level whose messages wait in a queue of the schedule topic."""
    return queue_id + 1


class DelayLevels:
    """The levels of a broker; immutable.

    Args:
        delays_ms: the delay of each level, from level 1 on.
    """

    def __init__(self, delays_ms: Sequence[int]) -> None:
        self._delays_ms = tuple(delays_ms)
        self.highest = len(self._delays_ms)
        """The greatest level."""

    @classmethod
    def parse(cls, text: str = DEFAULT_LEVELS) -> DelayLevels:
        """Read the setting ``messageDelayLevel``.

        Raises:
            ConfigError: a level is not a number with a unit, or there are none or too many.
        """
        parts = text.rstrip(" ").split(" ")
        if len(parts) > LEVELS_MAX:
            raise ConfigError(
                f"messageDelayLevel: met {len(parts)} levels, expected at most {LEVELS_MAX}"
            )
        return cls([_delay_ms(level, part, text) for level, part in enumerate(parts, start=1)])

    def level_of(self, text: str | None) -> int:
        """Return the level that the property DELAY names, at most the highest; 0 for no delay."""
        if text is None or _NUMBER.fullmatch(text) is None:
            return 0
        return min(max(int(text), 0), self.highest)

    def level_for(self, delay_ms: float) -> int:
        """Return the level with the shortest delay of at least ``delay_ms``, else the longest."""
        delays_ms = list(enumerate(self._delays_ms, start=1))
        longer = [item for item in delays_ms if item[1] >= delay_ms]
        if longer:
            return min(longer, key=lambda item: item[1])[0]
        return max(delays_ms, key=lambda item: item[1])[0]

    @property
    def longest_ms(self) -> int:
        """The longest delay."""
        return max(self._delays_ms)

    def delay_ms(self, level: int) -> int:
        """Return the delay of a level, from 1 to the highest."""
        return self._delays_ms[level - 1]


def _delay_ms(level: int, part: str, text: str) -> int:
    found = _LEVEL.fullmatch(part)
    delay_ms = int(found[1]) * UNITS_MS[found[2]] if found is not None else -1
    if not 0 <= delay_ms <= DELAY_DAYS_MAX * UNITS_MS["d"]:
        raise ConfigError(
            f"messageDelayLevel: met {part[:40]!r} as level {level} of {text[:200]!r}, expected a"
            f" number followed by s, m, h or d, at most {DELAY_DAYS_MAX}d, with one blank between"
            " levels"
        )
    return delay_ms
