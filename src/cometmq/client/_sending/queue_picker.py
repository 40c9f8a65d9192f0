# cython: annotation_typing=False
"""Chooses the queue of a message.

Source: TopicPublishInfo, MQFaultStrategy and SelectMessageQueueByHash, RocketMQ 5.3.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Sequence

from cometmq.client._sending.broker_latency import LatencyTable
from cometmq.client.errors import QueueNotFoundError
from cometmq.client.handlers import QueueSelector
from cometmq.model.message import Message
from cometmq.model.queue import MessageQueue
from cometmq.protocol.hashing import java_hash


class RoundRobin:
    """Picks the queues in turn, from a random one on."""

    def __init__(self) -> None:
        self._next = random.randrange(1 << 16)

    def pick(self, queues: Sequence[MessageQueue], *, avoid: Collection[str] = ()) -> MessageQueue:
        """Pick the next queue, on no broker of ``avoid`` if there is another one."""
        if avoid:
            found = self.pick_if(queues, lambda queue: queue.broker_name not in avoid)
            if found is not None:
                return found
        return queues[self.step(len(queues))]

    def pick_if(
        self, queues: Sequence[MessageQueue], accepts: Callable[[MessageQueue], bool]
    ) -> MessageQueue | None:
        """Pick the next queue that is acceptable; None if none is."""
        for _ in queues:
            queue = queues[self.step(len(queues))]
            if accepts(queue):
                return queue
        return None

    def step(self, count: int) -> int:
        """Return the number of the next queue, of ``count`` queues."""
        self._next += 1
        return self._next % count

    def peek(self, count: int) -> int:
        """Return the number that `step` will return."""
        return (self._next + 1) % count

    def restart(self) -> None:
        """Continue at a random queue."""
        self._next = random.randrange(1 << 16)


class QueuePicker:
    """Picks the queues of one topic in turn, and avoids slow brokers.

    Args:
        latency: the latency of the brokers; None if slow ones are not avoided.
    """

    def __init__(self, latency: LatencyTable | None = None) -> None:
        self._latency = latency
        self.round = RoundRobin()
        """The queues in turn, without regard to their brokers."""

    def pick(
        self, queues: Sequence[MessageQueue], *, avoid: Collection[str], now_s: float
    ) -> MessageQueue:
        """Pick the next queue, on no broker of ``avoid`` if there is another one."""
        if self._latency is None:
            return self.round.pick(queues, avoid=avoid)
        if self._latency.line == 4:
            return self._pick_as_4(queues, self._latency, now_s)
        return self._pick_as_5(queues, self._latency, avoid, now_s)

    def _pick_as_4(
        self, queues: Sequence[MessageQueue], latency: LatencyTable, now_s: float
    ) -> MessageQueue:
        found = self.round.pick_if(
            queues, lambda queue: latency.available(queue.broker_name, now_s)
        )
        if found is not None:
            return found
        best = latency.pick_least(now_s)
        of_best = [queue for queue in queues if queue.broker_name == best]
        if best is not None and not of_best:
            latency.forget(best)
        return self.round.pick(of_best or queues)

    def _pick_as_5(
        self,
        queues: Sequence[MessageQueue],
        latency: LatencyTable,
        avoid: Collection[str],
        now_s: float,
    ) -> MessageQueue:
        if avoid:
            self.round.restart()

        def is_available(queue: MessageQueue) -> bool:
            broker = queue.broker_name
            return broker not in avoid and latency.available(broker, now_s)

        def is_reachable(queue: MessageQueue) -> bool:
            return queue.broker_name not in avoid and latency.reachable(queue.broker_name)

        found = self.round.pick_if(queues, is_available)
        found = found or self.round.pick_if(queues, is_reachable)
        return found or self.round.pick(queues)


class KeySelector:
    """Selects the same queue for every message of one key.

    The key's Java hash decides, so that Java producers choose the same queue.

    Args:
        key: the key.
    """

    __slots__ = ("_key",)

    def __init__(self, key: str) -> None:
        self._key = key

    def index(self, count: int) -> int:
        """Return the number of the key's queue, of ``count`` queues."""
        return abs(java_hash(self._key)) % count

    def __call__(self, queues: Sequence[MessageQueue], message: Message) -> MessageQueue:
        """Return the queue."""
        return queues[self.index(len(queues))]


def chosen(
    selector: QueueSelector, queues: Sequence[MessageQueue], message: Message
) -> MessageQueue:
    """Call a selector, and check that it returns one of the queues.

    Raises:
        QueueNotFoundError: it picked something else; nothing was sent.
    """
    queue = selector(queues, message)
    if queue not in queues:
        raise QueueNotFoundError(f"the selector picked {queue}, not a queue of {message.topic}")
    return queue
