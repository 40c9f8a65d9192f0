"""Where a pull consumer's queues come from: told by the application, or divided among the group.

A consumer does either, never both. Source: SubscriptionType, RebalanceLitePullImpl and
TopicMessageQueueChangeListener, RocketMQ 5.3.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from enum import Enum

from cometmq.client._consuming.fetcher import Fetcher
from cometmq.client.errors import WrongModeError
from cometmq.model.queue import MessageQueue

Tell = Callable[[str, Collection[MessageQueue], Collection[MessageQueue]], Awaitable[None]]


class Mode(Enum):
    """How a consumer comes by its queues."""

    ASSIGNED = "is assigned queues"
    SUBSCRIBED = "subscribes to topics"


class AssignmentMode:
    """Remembers which of the two a consumer does, from the first time on."""

    def __init__(self) -> None:
        self.mode: Mode | None = None

    def choose(self, mode: Mode) -> None:
        """Do it this way.

        Raises:
            WrongModeError: the consumer does it the other way already.
        """
        self.check(mode)
        self.mode = mode

    def check(self, mode: Mode) -> None:
        """Refuse what belongs to the other way.

        Raises:
            WrongModeError: the consumer does it the other way.
        """
        if self.mode is not None and self.mode is not mode:
            raise WrongModeError(
                f"this consumer {self.mode.value}: use another consumer that {mode.value}"
            )


class Ownership:
    """Begins and ends with queues as the rebalancer says.

    Args:
        fetcher: fetches the queues that are owned.
        wanted: whether a topic is subscribed still.
        leave: keeps how far a queue was consumed, and fetches it no longer.
        tell: told of each new division.
    """

    def __init__(
        self,
        fetcher: Fetcher,
        wanted: Callable[[str], bool],
        leave: Callable[[MessageQueue], Awaitable[None]],
        tell: Tell,
    ) -> None:
        self._fetcher = fetcher
        self._wanted = wanted
        self._leave = leave
        self._tell = tell

    def owned(self, topic: str) -> Collection[MessageQueue]:
        """Give the queues of a topic that are owned now."""
        return [queue for queue in self._fetcher.queues if queue.topic == topic]

    async def take(self, queue: MessageQueue) -> bool:
        """Begin to fetch a queue; where it starts is found out on the way."""
        if self._wanted(queue.topic):
            self._fetcher.begin(queue)
        return True

    async def give_up(self, queue: MessageQueue) -> bool:
        """End with a queue."""
        await self._leave(queue)
        return True

    async def divided(
        self, topic: str, queues: Collection[MessageQueue], mine: Collection[MessageQueue]
    ) -> None:
        """Pass the new division on."""
        await self._tell(topic, queues, mine)
