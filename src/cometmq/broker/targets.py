"""The target queue of a message that waits in the schedule topic or the half topic.

    REAL_TOPIC := its topic        REAL_QID := the number of its queue, in decimal digits

Source: MessageConst.PROPERTY_REAL_TOPIC and PROPERTY_REAL_QUEUE_ID, RocketMQ 5.3.
"""

from __future__ import annotations

import re

from cometmq.model import property_names as names
from cometmq.model.errors import InvalidMessageError
from cometmq.model.topic import SEND_FORBIDDEN_TOPICS

_QUEUE_ID = re.compile(r"[0-9]{1,9}")


def target_properties(topic: str, queue_id: int) -> dict[str, str]:
    """Return the properties that name a target queue."""
    return {names.REAL_TOPIC: topic, names.REAL_QID: str(queue_id)}


def queue_id_of(text: str) -> int:
    """Return the number in REAL_QID; -1 for another text."""
    return int(text) if _QUEUE_ID.fullmatch(text) else -1


def check_target(topic: str, queue_text: str) -> int:
    """Return the number of a target queue.

    Args:
        topic: REAL_TOPIC; one that no client may send to is no target.
        queue_text: REAL_QID.

    Raises:
        InvalidMessageError: they name no target queue.
    """
    queue_id = queue_id_of(queue_text)
    if queue_id < 0 or not topic or topic in SEND_FORBIDDEN_TOPICS:
        raise InvalidMessageError(
            f"expected a target topic and queue, met topic {topic[:300]!r}, queue"
            f" {queue_text[:80]!r}"
        )
    return queue_id
