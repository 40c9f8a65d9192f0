"""The queues of a pull consumer: assigned by the application, or allocated to members of the group.

A consumer does one of the two. Source: SubscriptionType, RebalanceLitePullImpl and
TopicMessageQueueChangeListener, RocketMQ 5.3.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from enum import Enum

from cometmq.client._consuming.fetcher import Fetcher
from cometmq.client.errors import WrongModeError
from cometmq.model.queue import MessageQueue

OnAssigned = Callable[[str, Collection[MessageQueue], Collection[MessageQueue]], Awaitable[None]]


class Mode(Enum):
    """How a consumer gets its queues."""

    ASSIGNED = "is assigned queues"
    SUBSCRIBED = "subscribes to topics"


class AssignmentMode:
    """The way in which a consumer gets its queues, which does not change."""

    def __init__(self) -> None:
        self.mode: Mode | None = None

    def choose(self, mode: Mode) -> None:
        """Choose this way.

        Raises:
            WrongModeError: the consumer uses the other way.
        """
        self.check(mode)
        self.mode = mode

    def check(self, mode: Mode) -> None:
        """Reject a call that belongs to the other way.

        Raises:
            WrongModeError: the consumer uses the other way.
        """
        if self.mode is not None and self.mode is not mode:
            raise WrongModeError(
                f"this consumer {self.mode.value}: use another consumer that {mode.value}"
            )


class Ownership:
    """Starts and stops to fetch queues for the rebalancer.

    Args:
        fetcher: fetches the assigned queues.
        is_subscribed: whether a topic is still subscribed.
        revoke: commits what is finished of a queue, and fetches it no longer.
        on_assigned: called after each rebalance.
    """

    def __init__(
        self,
        fetcher: Fetcher,
        is_subscribed: Callable[[str], bool],
        revoke: Callable[[MessageQueue], Awaitable[None]],
        on_assigned: OnAssigned,
    ) -> None:
        self._fetcher = fetcher
        self._is_subscribed = is_subscribed
        self._revoke = revoke
        self._on_assigned = on_assigned

    def owned(self, topic: str) -> Collection[MessageQueue]:
        """Return the queues of a topic that are assigned now."""
        return [queue for queue in self._fetcher.queues if queue.topic == topic]

    async def take(self, queue: MessageQueue) -> bool:
        """Start to fetch a queue. The fetcher finds where it starts."""
        if self._is_subscribed(queue.topic):
            self._fetcher.begin(queue)
        return True

    async def give_up(self, queue: MessageQueue) -> bool:
        """Stop to fetch a queue."""
        await self._revoke(queue)
        return True

    async def divided(
        self, topic: str, queues: Collection[MessageQueue], mine: Collection[MessageQueue]
    ) -> None:
        """Call the listener."""
        await self._on_assigned(topic, queues, mine)
