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
        raise AllocationError("cannot allocate queues: the client id is empty")
    if not queues:
        raise AllocationError(f"cannot allocate queues for client {client_id}: there are no queues")
    if not clients:
        raise AllocationError(
            f"cannot allocate queues for client {client_id}: the group has no members"
        )
    return clients.index(client_id) if client_id in clients else None


@dataclass(frozen=True, slots=True)
class Averagely:
    """Each member gets consecutive queues; the first members get one more. The default.

    Example: ``PushConsumer(..., strategy=Averagely())``
    """

    name: str = "AVG"
    """RocketMQ's name of the strategy."""

    def allocate(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], clients: Sequence[str]
    ) -> list[MessageQueue]:
        """Return the queues of one member."""
        index = position(client_id, queues, clients)
        if index is None:
            return []
        each, more = divmod(len(queues), len(clients))
        start = index * each + min(index, more)
        return list(queues[start : start + each + (index < more)])


@dataclass(frozen=True, slots=True)
class AveragelyByCircle:
    """Assigns the queues to the members in rotation."""

    name: str = "AVG_BY_CIRCLE"
    """RocketMQ's name of the strategy."""

    def allocate(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], clients: Sequence[str]
    ) -> list[MessageQueue]:
        """Return the queues of one member."""
        index = position(client_id, queues, clients)
        return [] if index is None else list(queues[index :: len(clients)])


class ByConfiguration:
    """This member gets the given queues, independent of the other members.

    Args:
        queues: its queues, of any topics.
    """

    name = "CONFIG"

    def __init__(self, queues: Iterable[MessageQueue]) -> None:
        self._queues = tuple(queues)

    def allocate(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], clients: Sequence[str]
    ) -> list[MessageQueue]:
        """Return the given queues that belong to the topic."""
        known = set(queues)
        return [queue for queue in self._queues if queue in known]
