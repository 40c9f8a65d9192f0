"""What a rebalancer needs of others: a rule to divide queues, and somebody to own them.

Source: AllocateMessageQueueStrategy and RebalanceImpl, RocketMQ 5.3.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from cometmq.model.errors import CometError
from cometmq.model.queue import MessageQueue


class AllocationError(CometError):
    """A strategy cannot allocate these queues; the assignment does not change."""


class AllocationStrategy(Protocol):
    """Allocates a topic's queues to the members of a group. All members must use the same strategy.

    It receives the same lists in the same order at every member, and must depend on nothing else.
    """

    @property
    def name(self) -> str:
        """RocketMQ's name of the strategy, such as ``AVG``."""

    def allocate(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], clients: Sequence[str]
    ) -> list[MessageQueue]:
        """Return the queues of one member.

        Args:
            group: the group.
            client_id: the member; one that is not in ``clients`` gets no queue.
            queues: all queues of the topic, sorted; not empty.
            clients: the ids of all members, sorted; not empty.

        Raises:
            AllocationError: the queues cannot be allocated.
        """


class QueueOwner(Protocol):
    """Owns the queues that a rebalancer hands out, one `take` or `give_up` of a queue at a time."""

    def owned(self, topic: str) -> Collection[MessageQueue]:
        """Give the queues of a topic that are owned now, those whose pulls expired left out."""

    async def take(self, queue: MessageQueue) -> bool:
        """Begin with a queue: lock it where needed, find its first offset, start pulling.

        Returns:
            False when that was not possible now; the queue is tried again in the next round.
        """

    async def give_up(self, queue: MessageQueue) -> bool:
        """End with a queue: stop pulling, keep its offset, unlock it.

        Returns:
            False while a handler is still at it; the queue is given up in a later round.
        """

    async def divided(
        self, topic: str, queues: Collection[MessageQueue], mine: Collection[MessageQueue]
    ) -> None:
        """The division of a topic has changed and was carried out, as far as that was possible."""
