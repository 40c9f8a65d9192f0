"""Delay levels: the fixed delays of scheduled messages.

    levels := level { " " level }        level := digits ("s" | "m" | "h" | "d")

The first level is number 1. Source: MessageStoreConfig.messageDelayLevel and
ScheduleMessageService.parseDelayLevel, RocketMQ 5.3.
"""

from typing import NamedTuple

from cometmq.model.errors import ConfigError

DEFAULT_LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"

_UNITS_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


class LevelTable(NamedTuple):
    """The parsed text of delay levels."""

    delays_ms: dict[int, int]
    """Milliseconds by level."""
    max_level: int
    """The highest level in the text."""
    bad_part: str | None
    """The part that could not be read, where reading ended; None if there is none."""


def read_delay_levels(text: str) -> LevelTable:
    """Read a text of levels as far as it is well-formed, as RocketMQ does."""
    delays_ms: dict[int, int] = {}
    max_level = 0
    for level, part in enumerate(text.split(" "), start=1):
        max_level = level if part else max_level
        unit = _UNITS_MS.get(part[-1:])
        if unit is None or not (part[:-1].isascii() and part[:-1].isdigit()):
            return LevelTable(delays_ms, max_level, part)
        delays_ms[level] = int(part[:-1]) * unit
    return LevelTable(delays_ms, max_level, None)


def parse_delay_levels(text: str) -> dict[int, int]:
    """Return milliseconds by level.

    Raises:
        ConfigError: some part of the text is not a number and a unit.
    """
    table = read_delay_levels(text)
    if table.bad_part is not None:
        raise ConfigError(
            f"delay levels {text!r}: met {table.bad_part!r}, expected a number followed by"
            " s, m, h or d"
        )
    return table.delays_ms
