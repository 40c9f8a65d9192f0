"""Calls the application's listener when the queues of a consumer, or of a topic, change.

Source: MessageQueueListener and TopicMessageQueueChangeListener, RocketMQ 5.3; changed routes are
noticed as they come, instead of being compared from time to time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection

from cometmq.client._callbacks import Caller
from cometmq.client._connection.instance import ClientInstance
from cometmq.client._connection.routes import Route
from cometmq.client._failure_log import FailureLog
from cometmq.client._supervision import PeriodicLoop
from cometmq.client.handlers import QueueListener
from cometmq.model.queue import MessageQueue
from cometmq.remoting import Supervisor
from cometmq.remoting.tasks import is_call_failure

log = logging.getLogger(__name__)

RETRY_S = 10.0
"""Seconds until the listener is called again with an assignment that it failed to handle."""

_Arguments = tuple[list[MessageQueue], list[MessageQueue]]


class QueueListenerCalls:
    """Calls the listener of one consumer, for a limited time.

    A call that fails is logged and repeated, unless the topic is assigned anew meanwhile.

    Args:
        listener: called with a topic, its queues, and the assigned ones; None calls nothing.
        instance: the instance of the consumer.
        group: the consumer group, without a namespace.
        tasks: runs what happens in the background.
    """

    def __init__(
        self,
        listener: QueueListener | None,
        instance: ClientInstance,
        group: str,
        tasks: Supervisor,
    ) -> None:
        self._listener = listener
        self._instance = instance
        self._tasks = tasks
        self._caller = Caller(1, f"queues-{group}")
        self._calling = asyncio.Lock()
        self._failed: dict[str, _Arguments] = {}
        """What the listener failed to handle, by topic."""
        self._failures = FailureLog(
            log,
            fails="on_queues callback failed, retrying",
            works="on_queues callback succeeds again",
            name="topic",
            more=f"group={group}",
        )
        self._retries: PeriodicLoop | None = None

    async def call(
        self, topic: str, queues: Collection[MessageQueue], assigned: Collection[MessageQueue]
    ) -> None:
        """Call the listener. Names are those that brokers know."""
        if self._listener is None:
            return
        unwrap = self._instance.namespace.unwrap_queue
        async with self._calling:
            await self._call(topic, (list(map(unwrap, queues)), list(map(unwrap, assigned))))

    async def _call(self, topic: str, arguments: _Arguments) -> None:
        assert self._listener is not None
        self._failed.pop(topic, None)
        name = self._instance.namespace.unwrap(topic)
        try:
            await self._caller.tell(self._listener, name, *map(list, arguments))
        except BaseException as error:
            if not is_call_failure(error):
                raise
            self._failures.failed(topic, error)
            self._failed[topic] = arguments
            if self._retries is None:
                self._retries = PeriodicLoop(
                    "on-queues", "*", self._failures, self._retry,
                    interval_s=RETRY_S, first_s=RETRY_S,
                )  # fmt: skip
                self._retries.start(self._tasks)
        else:
            self._failures.worked(topic)

    async def _retry(self) -> None:
        for topic, arguments in list(self._failed.items()):
            async with self._calling:
                if self._failed.get(topic) is arguments:
                    await self._call(topic, arguments)

    def close(self) -> None:
        """Start no further call."""
        if self._retries is not None:
            self._retries.cancel()
        self._caller.close()


class KnownQueues:
    """The queues that topics had when they were looked at last."""

    def __init__(self) -> None:
        self._queues: dict[str, frozenset[MessageQueue]] = {}

    def look(self, topic: str, queues: Collection[MessageQueue]) -> None:
        """Note the queues of a topic, whose changes are noticed from now on."""
        self._queues[topic] = frozenset(queues)

    def differs(self, route: Route) -> bool:
        """Whether a noted topic has other queues in this route, which are noted then."""
        known, now = self._queues.get(route.topic), frozenset(route.read_queues)
        if known is None or known == now:
            return False
        self._queues[route.topic] = now
        return True


class RouteListenerCalls(QueueListenerCalls):
    """Calls the listener also when the queues of a topic change.

    Args:
        listener, instance, group, tasks: as for `QueueListenerCalls`.
        assigned: returns the consumer's queues.
    """

    def __init__(
        self,
        listener: QueueListener | None,
        instance: ClientInstance,
        group: str,
        *,
        assigned: Callable[[], Collection[MessageQueue]],
        tasks: Supervisor,
    ) -> None:
        super().__init__(listener, instance, group, tasks)
        self._assigned = assigned
        self._known = KnownQueues()
        self.look = self._known.look

    def start(self) -> None:
        """Call the listener for changed routes."""
        if self._route_changed not in self._instance.routes.on_change:
            self._instance.routes.on_change.append(self._route_changed)

    def stop(self) -> None:
        """Call the listener for changed routes no longer."""
        if self._route_changed in self._instance.routes.on_change:
            self._instance.routes.on_change.remove(self._route_changed)

    def close(self) -> None:
        """Start no further call."""
        self.stop()
        super().close()

    def _route_changed(self, route: Route) -> None:
        assigned = [queue for queue in self._assigned() if queue.topic == route.topic]
        if self._known.differs(route):
            self._tasks.spawn(self.call(route.topic, route.read_queues, assigned), "on-queues")
        elif assigned:
            self.look(route.topic, route.read_queues)
