"""Tells an application of its queues: how they were divided, or that a topic has others now.

Source: TopicMessageQueueChangeListener and MessageQueueListener, RocketMQ 5.3; routes that change
are noticed as they come, instead of being compared from time to time.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection

from cometmq.client._callbacks import Caller
from cometmq.client._connection.instance import ClientInstance
from cometmq.client._connection.routes import Route
from cometmq.client.handlers import QueueListener
from cometmq.model.queue import MessageQueue
from cometmq.remoting import Supervisor
from cometmq.remoting.tasks import is_call_failure

log = logging.getLogger(__name__)


class KnownQueues:
    """Notices when a topic gets other queues than it had when it was looked at last."""

    def __init__(self) -> None:
        self._queues: dict[str, frozenset[MessageQueue]] = {}

    def look(self, topic: str, queues: Collection[MessageQueue]) -> None:
        """Remember the queues of a topic, and watch it from now on."""
        self._queues[topic] = frozenset(queues)

    def differs(self, route: Route) -> bool:
        """Whether the queues of a topic that is watched are others now; remembers these."""
        known, now = self._queues.get(route.topic), frozenset(route.read_queues)
        if known is None or known == now:
            return False
        self._queues[route.topic] = now
        return True


class Listening:
    """Calls one consumer's listener.

    Args:
        listener: told a topic, its queues, and those that are the consumer's; or nobody.
        instance: whose routes are watched.
        group: the consumer's.
        plain: gives a queue as the application knows it.
        mine: gives the consumer's queues, as brokers know them.
        tasks: where calls that changed routes make run.
    """

    def __init__(
        self,
        listener: QueueListener | None,
        *,
        instance: ClientInstance,
        group: str,
        plain: Callable[[MessageQueue], MessageQueue],
        mine: Callable[[], Collection[MessageQueue]],
        tasks: Supervisor,
    ) -> None:
        self._listener = listener
        self._instance = instance
        self._group = group
        self._plain = plain
        self._mine = mine
        self._tasks = tasks
        self._caller = Caller(1, f"queue listener of {group}")
        self._watched = KnownQueues()
        self.look = self._watched.look

    def begin(self) -> None:
        """Tell of changed routes from now on."""
        if self._route_changed not in self._instance.routes.on_change:
            self._instance.routes.on_change.append(self._route_changed)

    def end(self) -> None:
        """Tell of changed routes no longer."""
        if self._route_changed in self._instance.routes.on_change:
            self._instance.routes.on_change.remove(self._route_changed)

    def close(self) -> None:
        """Tell nothing any more."""
        self.end()
        self._caller.close()

    async def tell(
        self, topic: str, queues: Collection[MessageQueue], mine: Collection[MessageQueue]
    ) -> None:
        """Call the listener; what it raises is logged."""
        if self._listener is None:
            return
        name = self._instance.namespace.unwrap(topic)
        every, own = map(self._plain, queues), map(self._plain, mine)
        try:
            await self._caller.tell(self._listener, name, list(every), list(own))
        except BaseException as error:
            if not is_call_failure(error):
                raise
            log.exception("a listener failed group=%s topic=%s", self._group, topic)

    def _route_changed(self, route: Route) -> None:
        mine = [queue for queue in self._mine() if queue.topic == route.topic]
        if self._watched.differs(route):
            self._tasks.spawn(self.tell(route.topic, route.read_queues, mine), "tell-of-queues")
        elif mine:
            self.look(route.topic, route.read_queues)
