"""What a pull loop needs of the consumer that owns it.

Source: ConsumeMessageService and PullAPIWrapper, RocketMQ 5.3.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from cometmq.model.message import StoredMessage
from cometmq.model.queue import MessageQueue

P = TypeVar("P", contravariant=True)

MessageFilter = Callable[[MessageQueue, list[StoredMessage]], list[StoredMessage]]
"""Gives the messages of a pull that are to be consumed; the others count as consumed."""


class ConsumeService(Protocol[P]):
    """Consumes what was put into the queues it is told of; ``P`` is the kind of process queue."""

    def submit(self, queue: P, messages: list[StoredMessage], *, begins: bool) -> None:
        """Consume these messages, which are in the queue already; never blocks.

        Args:
            queue: the process queue.
            messages: what was just put into it.
            begins: whether nothing of the queue was being consumed before.
        """

    async def stop(self, *, grace_s: float) -> None:
        """Take no further messages, wait for running handlers, then cancel what still runs."""


class PullStats(Protocol):
    """Counts pulls."""

    def pulled(self, topic: str, messages: int, cost_ms: float) -> None:
        """A pull of a topic has brought so many messages, and took so long from call to answer."""
