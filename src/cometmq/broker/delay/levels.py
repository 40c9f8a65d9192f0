"""Delay levels: the queue of the schedule topic for a message, and its delay.

A message of level n waits in queue n - 1 of ``SCHEDULE_TOPIC_XXXX``, with its target queue in the
properties REAL_TOPIC and REAL_QID.

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


class Scheduled(NamedTuple):
    """The queue and the properties of a scheduled message."""

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
        """Return the delay of a level."""
        return self._delays_ms[level]

    def level_of(self, properties: Mapping[str, str]) -> int:
        """Return the delay level of a message, at most the highest; 0 for no delay."""
        text = properties.get(property_names.DELAY)
        if text is None or _NUMBER.fullmatch(text) is None:
            return 0
        return min(max(int(text), 0), self.highest)

    def schedule(
        self, topic: str, queue_id: int, properties: Mapping[str, str]
    ) -> Scheduled | None:
        """Return the queue of a delayed message, or None for a message without a delay.

        Args:
            topic, queue_id: the target queue of the message.
            properties: its properties; not changed.
        """
        level = self.level_of(properties)
        if level == 0:
            return None
        changed = dict(properties)
        changed[property_names.DELAY] = str(level)
        changed[property_names.REAL_TOPIC] = topic
        changed[property_names.REAL_QID] = str(queue_id)
        return Scheduled(DELAY_TOPIC, level - 1, changed)
