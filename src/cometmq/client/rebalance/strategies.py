"""The plain rules that divide a topic's queues: in runs, in turn, or as it is written down.

All lists are sorted, and the same for every member. Source: AllocateMessageQueueAveragely,
AllocateMessageQueueAveragelyByCircle and AllocateMessageQueueByConfig, RocketMQ 5.3.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from cometmq.client.rebalance.contracts import AllocationError
from cometmq.model.queue import MessageQueue


def position(client_id: str, queues: Sequence[MessageQueue], clients: Sequence[str]) -> int | None:
    """Give the place of a member among all members, or None if it is not among them.

    Raises:
        AllocationError: there is nothing to divide, or nobody to divide it among.
    """
    if not client_id:
        raise AllocationError("queues are divided for a client without an id")
    if not queues:
        raise AllocationError(f"there are no queues to divide for client {client_id}")
    if not clients:
        raise AllocationError(f"the group of client {client_id} has no members")
    return clients.index(client_id) if client_id in clients else None


@dataclass(frozen=True, slots=True)
class Averagely:
    """Each member gets a run of neighbouring queues; the first members get one more. The default.

    Example: ``PushConsumer(..., strategy=Averagely())``
    """

    name: str = "AVG"

    def allocate(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], clients: Sequence[str]
    ) -> list[MessageQueue]:
        """Give the queues of one member."""
        index = position(client_id, queues, clients)
        if index is None:
            return []
        each, more = divmod(len(queues), len(clients))
        start = index * each + min(index, more)
        return list(queues[start : start + each + (index < more)])


@dataclass(frozen=True, slots=True)
class AveragelyByCircle:
    """The members take one queue each in turn, until none is left."""

    name: str = "AVG_BY_CIRCLE"

    def allocate(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], clients: Sequence[str]
    ) -> list[MessageQueue]:
        """Give the queues of one member."""
        index = position(client_id, queues, clients)
        return [] if index is None else list(queues[index :: len(clients)])


class ByConfiguration:
    """This member gets the queues it is told, whatever the others get.

    Args:
        queues: its queues, of any topics.
    """

    name = "CONFIG"

    def __init__(self, queues: Iterable[MessageQueue]) -> None:
        self._queues = tuple(queues)

    def allocate(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], clients: Sequence[str]
    ) -> list[MessageQueue]:
        """Give the queues that were told; those of other topics are left out."""
        known = set(queues)
        return [queue for queue in self._queues if queue in known]
