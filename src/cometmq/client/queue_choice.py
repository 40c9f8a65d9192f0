"""Which queue a message goes to.

Source: TopicPublishInfo.selectOneMessageQueue and SelectMessageQueueByHash, RocketMQ 5.3.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from cometmq.client.errors import QueueNotFoundError
from cometmq.model.message import Message
from cometmq.model.queue import MessageQueue
from cometmq.protocol.hashing import java_hash

QueueSelector = Callable[[Sequence[MessageQueue], Message], MessageQueue]
"""Picks one of a topic's queues for a message."""


class RoundRobin:
    """Takes the queues in turn, beginning anywhere."""

    def __init__(self) -> None:
        self._next = random.randrange(1 << 16)

    def pick(
        self, queues: Sequence[MessageQueue], *, avoid_broker: str | None = None
    ) -> MessageQueue:
        """Take the next queue, on another broker than ``avoid_broker`` if there is one."""
        for _ in queues:
            self._next += 1
            queue = queues[self._next % len(queues)]
            if queue.broker_name != avoid_broker:
                return queue
        self._next += 1
        return queues[self._next % len(queues)]


def by_key(key: str) -> QueueSelector:
    """Make a selector that sends every message of one key to the same queue.

    The key's Java hash decides, so that Java producers choose the same queue.
    """

    def select(queues: Sequence[MessageQueue], message: Message) -> MessageQueue:
        return queues[abs(java_hash(key)) % len(queues)]

    return select


def chosen(
    selector: QueueSelector, queues: Sequence[MessageQueue], message: Message
) -> MessageQueue:
    """Ask a selector, and check that it picked one of the queues it was offered.

    Raises:
        QueueNotFoundError: it picked something else; nothing was sent.
    """
    queue = selector(queues, message)
    if queue not in queues:
        raise QueueNotFoundError(f"the selector picked {queue}, not a queue of {message.topic}")
    return queue
