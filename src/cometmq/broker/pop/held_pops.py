# cython: annotation_typing=False
"""Held pops: requests of a group that wait for a message of a topic, in one queue or in any.

A message notifies one held pop of each group: the one that has waited longest for its queue, and
the one for any queue. What that leaves notifies the next one, so a burst is not taken one message
at a time, and ten thousand pops that wait cost a message nothing. If very many groups wait for a
topic, they are notified in steps. A pop that finds nothing, because its filter does not match, is
held again for the rest of its time.

A message in a retry topic of the group notifies the pops of the topic. In RocketMQ one in a retry
topic of the first form notifies none (PopLongPollingService, RocketMQ 5.3).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, MutableMapping
from itertools import islice
from typing import TYPE_CHECKING, Final

from cometmq.broker.pop.receipts import retry_topic_of
from cometmq.broker.pulling.arrivals import ANY_QUEUE
from cometmq.broker.pulling.long_polling import HeldPull, HeldPulls
from cometmq.model.errors import ResponseError
from cometmq.model.topic import RETRY_PREFIX
from cometmq.protocol.codes import ResponseCode
from cometmq.remoting.slices import Slices

if TYPE_CHECKING:
    from cometmq.broker.pop.config import PopSettings
    from cometmq.broker.pulling.arrivals import Arrivals

POLL_MS_MAX: Final = 300_000
STEP_MAX: Final = 64
"""Keys that a message notifies, and queues that are looked at, at once; more are in steps."""


class PollingFullError(ResponseError):
    """Too many pops are held."""

    def __init__(self) -> None:
        super().__init__(ResponseCode.POLLING_FULL, "NO_MESSAGE_IN_QUEUE")


class HeldPop(HeldPull):
    """A request that waits for a message to pop; a subclass defines how it runs again.

    Args:
        group, name: the group, and the topic it pops.
        number: the queue, or `ANY_QUEUE`.
        owner: its connection.
        ends_ms: when its polling time is over.
        kind: tells pops and notifications apart.
    """

    def __init__(
        self, group: str, name: str, number: int, owner: object, ends_ms: int, kind: str
    ) -> None:
        super().__init__(f"{kind}{name}@{group}", number, 0, None, owner)
        self.group = group
        self.name = name
        self.ends_ms = ends_ms
        self.was_held = False


class HeldPops:
    """The held pops of a broker.

    Args:
        arrivals: notifies of messages.
        settings: returns the current limits.
    """

    def __init__(self, arrivals: Arrivals, settings: Callable[[], PopSettings]) -> None:
        self._settings = settings
        self._held = HeldPulls(held_max=10**9)  # the limit is a setting that may change
        self._arrivals = arrivals
        self._awaited: MutableMapping[str, int] = arrivals.awaited
        self._keys: dict[str, dict[str, HeldPop]] = {}
        """A pop of each key that waits for a topic, by the topic and by its retry topics."""
        self._queues: dict[str, dict[int, None]] = {}
        """The queues that pops of a key wait for, and perhaps some of which none is held any more;
        without `ANY_QUEUE`."""
        self._notified: set[tuple[str, int]] = set()
        """The keys and queues of which a pop is notified, and has not run yet."""
        self._arriving: dict[tuple[str, int], bool] = {}
        """Queues whose keys are notified in steps, and whether a message has arrived since."""
        arrivals.listeners.append(self.arrived)

    def __len__(self) -> int:
        return len(self._held)

    def count(self, group: str, topic: str, queue_id: int, kind: str = "") -> int:
        """Return how many pops of a group are held for a queue, or for any queue."""
        return self._held.count(f"{kind}{topic}@{group}", queue_id)

    def hold(self, pop: HeldPop, now_ms: int) -> bool:
        """Hold a pop until something may be there for it, or its time is over.

        Returns:
            False if the time is over, or the broker stops.

        Raises:
            PollingFullError: too many are held.
        """
        hold_ms = pop.ends_ms - now_ms
        if hold_ms <= 0 or not self._held.is_open:
            return False
        settings = self._settings()
        if (
            self._held.count(pop.topic, pop.queue_id) > settings.pop_polling_size
            or len(self._held) >= settings.max_pop_polling_size
        ):
            raise PollingFullError
        self._note_interest(pop)
        pop.was_held = True
        return self._held.hold(pop, hold_ms)

    def _note_interest(self, pop: HeldPop) -> None:
        for topic in _sources(pop.group, pop.name):
            keys = self._keys.get(topic)
            if keys is None:
                keys = self._keys[topic] = {}
                self._awaited[topic] = self._awaited.get(topic, 0) + 1
                self._arrivals.notify_when_readable(topic)
            keys[pop.topic] = pop
        if pop.queue_id != ANY_QUEUE:
            self._queues.setdefault(pop.topic, {})[pop.queue_id] = None

    def arrived(self, topic: str, queue_id: int) -> None:
        """Notify a pop of each group that waits for a message of a queue."""
        keys = self._keys.get(topic)
        if keys is None:
            return
        if len(keys) <= STEP_MAX:
            self._notify_keys(topic, queue_id, iter(list(keys.values())))
        elif (topic, queue_id) in self._arriving:
            self._arriving[topic, queue_id] = True
        else:
            self._arriving[topic, queue_id] = False
            self._notify_in_steps(topic, queue_id, iter(list(keys.values())))

    def _notify_in_steps(self, topic: str, queue_id: int, pops: Iterator[HeldPop]) -> None:
        """Notify a pop of some keys, and of the others in later iterations of the event loop."""
        if not self._notify_keys(topic, queue_id, pops):
            if not self._arriving.pop((topic, queue_id)):
                return
            self._arriving[topic, queue_id] = False
            pops = iter(list(self._keys.get(topic, {}).values()))
        loop = asyncio.get_running_loop()
        loop.call_soon(self._notify_in_steps, topic, queue_id, pops)

    def _notify_keys(self, topic: str, queue_id: int, pops: Iterator[HeldPop]) -> bool:
        """Notify a pop of each of the next keys; return whether there may be more."""
        is_retry = topic.startswith(RETRY_PREFIX)
        step = list(islice(pops, STEP_MAX))
        for pop in step:
            key = pop.topic
            found = self._notify(key, ANY_QUEUE)
            if not is_retry or pop.name == topic:
                found = self._notify(key, queue_id) or found
            elif not found:  # a message of a retry topic is for a pop of any queue
                found = self._notify_any(key)
            if not found and key not in self._held.awaited:
                self._forget(pop)
        return len(step) == STEP_MAX

    def notify(self, group: str, topic: str, queue_id: int) -> None:
        """Notify pops of a group: a queue may be free again, or has a message left.

        Args:
            group, topic: the group, and the topic it pops.
            queue_id: the queue; `ANY_QUEUE` if it is not known which one.
        """
        for kind in ("", NOTIFICATION):
            key = f"{kind}{topic}@{group}"
            if key not in self._held.awaited:
                continue
            if queue_id == ANY_QUEUE:
                self._notify_any(key)
            else:
                self._notify(key, ANY_QUEUE)
                self._notify(key, queue_id)

    def _notify_any(self, key: str) -> bool:
        """Notify the pop of a key that waits for any queue, or else one that waits for a queue.

        Returns:
            Whether there is one, or may be one.
        """
        if self._notify(key, ANY_QUEUE):
            return True
        queues = self._queues.get(key, {})
        for queue_id in list(islice(queues, STEP_MAX)):
            del queues[queue_id]
            if self._notify(key, queue_id):
                queues[queue_id] = None  # it is the last one to be notified again
                return True
        if queues:  # no pop is held any more for those of this step
            asyncio.get_running_loop().call_soon(self._notify_any, key)
        return bool(queues)

    def _notify(self, key: str, queue_id: int) -> bool:
        if (key, queue_id) in self._notified:
            return True
        if self._held.notify_first(key, queue_id):
            self._notified.add((key, queue_id))
            return True
        return False

    def runs(self, pop: HeldPop) -> None:
        """Note that a held pop runs again: the next message notifies another one."""
        self._notified.discard((pop.topic, pop.queue_id))

    async def rerun_deleted(self, *, topic: str = "", group: str = "") -> None:
        """Run the pops of a topic or of a group again that was deleted.

        The first pop of each queue is notified. It gets an error, and notifies the next one.
        """
        slices = Slices()
        async for name in slices.each([topic] if topic else list(self._keys)):
            async for key, pop in slices.each(list(self._keys.get(name, {}).items())):
                if pop.name == name and group in ("", pop.group):
                    async for queue_id in slices.each([ANY_QUEUE, *self._queues.get(key, ())]):
                        self._notify(key, queue_id)

    async def forget_unused(self) -> None:
        """Forget the topics and groups for which no pop is held any more."""
        slices = Slices()
        async for topic in slices.each(list(self._keys)):
            async for pop in slices.each(list(self._keys.get(topic, {}).values())):
                if pop.topic not in self._held.awaited:
                    self._forget(pop)

    def _forget(self, pop: HeldPop) -> None:
        self._queues.pop(pop.topic, None)
        for topic in _sources(pop.group, pop.name):
            keys = self._keys.get(topic)
            if keys is not None:
                keys.pop(pop.topic, None)
                if not keys:
                    del self._keys[topic]
                    others = self._awaited[topic] - 1
                    if others:
                        self._awaited[topic] = others
                    else:
                        del self._awaited[topic]

    def connection_closed(self, owner: object) -> None:
        """Remove the pops of a closed connection."""
        self._held.connection_closed(owner)

    def close(self) -> None:
        """Respond to all held pops, and hold no more."""
        self._held.close()


NOTIFICATION: Final = "notification of "
"""The kind of requests that wait for a message and take none."""


def _sources(group: str, topic: str) -> tuple[str, ...]:
    """Return the topics whose messages are for pops of a topic."""
    return (
        topic,
        retry_topic_of(group, topic, is_second_form=False),
        retry_topic_of(group, topic, is_second_form=True),
    )
