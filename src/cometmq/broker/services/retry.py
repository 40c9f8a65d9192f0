"""What becomes of a message that a consumer could not handle: one more try, or a dead letter.

Pure. Source: SendMessageProcessor.consumerSendMsgBack, RocketMQ 5.3.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from cometmq.model import property_names as names

FIRST_RETRY_LEVEL = 3
"""The delay level of a first retry for which the consumer asks no other; each further adds one."""


class Retry(NamedTuple):
    """What to store in place of the message."""

    is_dead: bool
    """Whether it goes to the dead letters instead of the retry topic."""
    properties: dict[str, str]
    """The message's own, with its history and the delay."""


def plan_retry(
    properties: Mapping[str, str],
    *,
    topic: str,
    message_id: str,
    reconsume_times: int,
    reconsume_times_max: int,
    delay_level: int,
) -> Retry:
    """Decide what becomes of a message.

    Args:
        properties: its properties; they stay as they are.
        topic: where it was read.
        message_id: its offset message id.
        reconsume_times: how often it was tried again so far.
        reconsume_times_max: how often it may be.
        delay_level: as the consumer asks; 0 leaves it to the broker, below 0 gives up.
    """
    kept = dict(properties)
    kept.setdefault(names.RETRY_TOPIC, topic)
    kept.setdefault(names.ORIGIN_MESSAGE_ID, message_id)
    kept[names.WAIT] = "false"
    is_dead = delay_level < 0 or reconsume_times >= reconsume_times_max
    level = delay_level or FIRST_RETRY_LEVEL + reconsume_times
    kept[names.DELAY] = "0" if is_dead else str(level)
    return Retry(is_dead, kept)
