"""Parking: where a message with a delay level waits, and for how long.

A message of level n waits in queue n - 1 of ``SCHEDULE_TOPIC_XXXX``, with its real place in
properties REAL_TOPIC and REAL_QID. Pure.

Source: HookUtils.transformDelayLevelMessage, RocketMQ 5.3.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from cometmq.model import property_names
from cometmq.model.delay import DEFAULT_LEVELS, parse_delay_levels
from cometmq.model.topic import DELAY_TOPIC

_NUMBER = re.compile(r"[+-]?[0-9]{1,10}")


class Parked(NamedTuple):
    """Where a delayed message waits, and with which properties."""

    topic: str
    queue_id: int
    properties: dict[str, str]


class DelayLevels:
    """The levels of a broker; immutable.

    Args:
        delays_ms: the delay of each level, from level 1 on.
    """

    def __init__(self, delays_ms: Mapping[int, int]) -> None:
        self._delays_ms = dict(delays_ms)

    @classmethod
    def parse(cls, text: str = DEFAULT_LEVELS) -> DelayLevels:
        """Read the setting ``messageDelayLevel``.

        Raises:
            ConfigError: a level is not a number with a unit.
        """
        return cls(parse_delay_levels(text))

    @property
    def highest(self) -> int:
        """The greatest level."""
        return len(self._delays_ms)

    def delay_ms(self, level: int) -> int:
        """How long messages of this level wait."""
        return self._delays_ms[level]

    def level_of(self, properties: Mapping[str, str]) -> int:
        """The level a message asks for, at most the highest; 0 for no delay."""
        text = properties.get(property_names.DELAY)
        if text is None or _NUMBER.fullmatch(text) is None:
            return 0
        return min(max(int(text), 0), self.highest)

    def park(self, topic: str, queue_id: int, properties: Mapping[str, str]) -> Parked | None:
        """Where a message waits that asks for a delay, or None when it asks for none.

        Args:
            topic, queue_id: where the message is going.
            properties: its properties; they stay as they are.
        """
        level = self.level_of(properties)
        if level == 0:
            return None
        parked = dict(properties)
        parked[property_names.DELAY] = str(level)
        parked[property_names.REAL_TOPIC] = topic
        parked[property_names.REAL_QID] = str(queue_id)
        return Parked(DELAY_TOPIC, level - 1, parked)
