"""Sends to logical queues: the physical queue that a message goes to, and what is refused.

Scheduled, timer and half messages are refused: they wait with a physical queue as their target, and
the logical queue may have moved to another broker when they are due. RocketMQ takes them, and
readers behind the seam never get them.

Source: SendMessageProcessor.buildMsgContext and TopicQueueMappingManager, RocketMQ 5.3.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from cometmq.broker.static_topics.offsets import led_queue
from cometmq.broker.static_topics.refusals import not_leader
from cometmq.model import property_names as names
from cometmq.model.errors import ResponseError
from cometmq.model.flags import SysFlag
from cometmq.protocol.bodies.route import LogicQueueMappingItem, TopicQueueMappingDetail
from cometmq.protocol.codes import RequestCode, ResponseCode

_WAITING: Final = (
    names.TIMER_DELAY_SEC,
    names.TIMER_DELAY_MS,
    names.TIMER_DELIVER_MS,
)


class Target(NamedTuple):
    """Where a message to a logical queue is stored."""

    queue_id: int
    """The logical queue."""
    item: LogicQueueMappingItem


def target_of(detail: TopicQueueMappingDetail, queue_id: int) -> Target:
    """Return where a message to a logical queue is stored.

    Args:
        detail: the part of this broker.
        queue_id: the logical queue; below 0 for any that this broker leads.

    Raises:
        ResponseError: 501, this broker does not lead the queue.
    """
    if queue_id < 0:
        hosted = detail.hosted_queues or {}
        led = (number for number, items in hosted.items() if items[-1].bname == detail.bname)
        found = next(led, None)
        if found is None:
            raise not_leader(detail.topic, queue_id, detail.bname, RequestCode.SEND_MESSAGE)
        queue_id = found
    items = led_queue(detail, queue_id, RequestCode.SEND_MESSAGE)
    return Target(queue_id, items[-1])


def check_not_waiting(
    topic: str, properties: Mapping[str, str], sys_flag: int, delay_level: int
) -> None:
    """Refuse messages that would wait for their delivery.

    Raises:
        ResponseError: 13.
    """
    is_half = properties.get(names.TRAN_MSG, "").lower() == "true"
    if is_half or sys_flag & SysFlag.TRANSACTION_PREPARED:
        kind = "a half message of a transaction"
    elif delay_level > 0 or any(name in properties for name in _WAITING):
        kind = "a message with a delay or a delivery time"
    else:
        return
    raise ResponseError(
        ResponseCode.MESSAGE_ILLEGAL,
        f"topic {topic[:300]} is a static topic: met {kind}, expected a message that is delivered"
        " at once: its queue may be on another broker when it is due. Send it to an ordinary topic",
    )
