"""Routes delayed messages: the queue of the schedule topic in which a message waits.

A message of level n waits in queue n - 1 of ``SCHEDULE_TOPIC_XXXX``, with its target queue in the
properties REAL_TOPIC and REAL_QID.

Source: HookUtils.transformDelayLevelMessage, RocketMQ 5.3.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from cometmq.broker.targets import target_properties
from cometmq.model import property_names
from cometmq.model.delay import DelayLevels, delay_queue
from cometmq.model.topic import DELAY_TOPIC


class Scheduled(NamedTuple):
    """The queue and the properties of a scheduled message."""

    topic: str
    queue_id: int
    properties: dict[str, str]


def schedule(
    levels: DelayLevels, topic: str, queue_id: int, properties: Mapping[str, str]
) -> Scheduled | None:
    """Return the queue of a delayed message, or None for a message without a delay.

    Args:
        levels: the levels of the broker.
        topic, queue_id: the target queue of the message.
        properties: its properties; not changed.
    """
    level = levels.level_of(properties.get(property_names.DELAY))
    if level == 0:
        return None
    changed = {**properties, property_names.DELAY: str(level), **target_properties(topic, queue_id)}
    return Scheduled(DELAY_TOPIC, delay_queue(level), changed)
