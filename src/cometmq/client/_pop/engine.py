"""The parts of a pop consumer.

    rebalancer -> assigned queues -> pop loops -> consume service -> handler -> acknowledgements

Source: DefaultMQPushConsumerImpl with clientRebalance off, RocketMQ 5.3.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection

from cometmq.client._connection.instance import ClientCore
from cometmq.client._consuming.consumer import Subscriptions
from cometmq.client._consuming.engine import ConsumerSpec, Engine
from cometmq.client._consuming.group_calls import GroupCalls
from cometmq.client._consuming.rebalancer import (
    Intervals,
    QueueListenerCalls,
    QueueTable,
    Rebalancer,
)
from cometmq.client._consuming.retries import DeadLetters
from cometmq.client._pop.calls import Acks, PopRequests, not_served
from cometmq.client._pop.service import PopLoop, PopQueue, PopService
from cometmq.client._supervision import SupervisedFailureLog, SupervisedTasks
from cometmq.client.errors import TopicNotFoundError
from cometmq.client.offsets import StartFrom
from cometmq.client.settings import PopSettings
from cometmq.model.errors import ResponseError
from cometmq.model.queue import MessageQueue
from cometmq.protocol.bodies.heartbeat import MessageModel
from cometmq.protocol.codes import ResponseCode
from cometmq.remoting.tasks import Supervisor

log = logging.getLogger(__name__)

STRATEGY = "AVG"


class AssignedPopQueues:
    """Keeps one pop loop for each queue that brokers assign to this member.

    Args:
        make_loop: makes the loop of a queue.
        listener: called when the assignment of a topic has changed.
        tasks: where loops run.
    """

    def __init__(
        self,
        make_loop: Callable[[PopQueue], PopLoop],
        listener: QueueListenerCalls,
        tasks: Supervisor,
    ) -> None:
        self._make_loop = make_loop
        self._listener = listener
        self._tasks = tasks
        self._loops: QueueTable[PopLoop] = QueueTable()
        self._retired: list[PopLoop] = []

    def queues(self) -> list[MessageQueue]:
        """Return the assigned queues, sorted."""
        return sorted(self._loops)

    def sources(self) -> list[PopQueue]:
        """Return the state of each queue."""
        return [loop.source for loop in self._loops.values()]

    def wake(self) -> None:
        """Let all loops check again whether they may pop."""
        for loop in self._loops.values():
            loop.wake()

    async def until_begun(self) -> None:
        """Wait until brokers have responded to a pop of each queue."""
        for loop in list(self._loops.values()):
            await loop.begun.wait()

    async def stop(self) -> None:
        """Stop popping."""
        await asyncio.gather(*(loop.stop() for loop in [*self._loops.values(), *self._retired]))
        self._loops.remove_all()
        self._retired.clear()

    def assigned(self, topic: str) -> Collection[MessageQueue]:
        """Return the assigned queues of a topic."""
        return self._loops.of_topic(topic)

    async def assign(self, queue: MessageQueue) -> bool:
        """Start popping a queue."""
        loop = self._loops[queue] = self._make_loop(PopQueue(queue))
        loop.start(self._tasks)
        return True

    async def revoke(self, queue: MessageQueue) -> bool:
        """Stop popping a queue; popped messages are still consumed."""
        loop = self._loops.remove(queue)
        if loop is None:
            return False
        loop.retire()
        self._retired = [each for each in [*self._retired, loop] if not each.ended]
        return True

    async def rebalanced(
        self, topic: str, queues: Collection[MessageQueue], mine: Collection[MessageQueue]
    ) -> None:
        """Call the listener."""
        await self._listener.call(topic, queues, mine)


class PopEngine(Engine):
    """The parts of one pop consumer.

    Args:
        instance, spec, settings, subscriptions, tasks: as for `Engine`.
    """

    service: PopService

    def __init__(
        self,
        instance: ClientCore,
        spec: ConsumerSpec,
        settings: PopSettings,
        subscriptions: Subscriptions,
        tasks: SupervisedTasks,
    ) -> None:
        super().__init__(instance, spec, settings, subscriptions, tasks)
        assert isinstance(spec.start_from, StartFrom)
        self._settings = settings
        self._requests = PopRequests(
            instance, self.group, start=spec.start_from, timeout=settings.ack_ms / 1000
        )
        self._calls = GroupCalls(instance)
        self.service = PopService(
            self.handling,
            acks=Acks(self._requests, on_permanent=tasks.end),
            dead_letters=DeadLetters(self._dead_letters, self._make_retries().give_up),
            show=instance.namespace.unwrap_topics,
            statistics=self.statistics,
        )
        self.queues = AssignedPopQueues(self._make_loop, self._listener, self._loops)
        self.rebalancer = Rebalancer(
            instance=instance,
            group=self.group,
            allocate=self._allocate,
            topics=subscriptions.topics,
            owner=self.queues,
            intervals=Intervals(settings.assignment_ms / 1000),
            on_permanent=tasks.end,
        )
        self._failures = SupervisedFailureLog(
            log,
            fails="pop failed, retrying",
            works="pop succeeds again",
            name="queue",
            more=f"group={self.group}",
            on_permanent=tasks.end,
        )

    async def _start_fetching(self) -> None:
        for topic in self._subscriptions.topics():
            try:
                await self.rebalancer.balance(topic)  # raises if a broker cannot assign queues
            except TopicNotFoundError as error:
                log.info("a topic has no queues yet topic=%s error=%s", topic, error)
        self.rebalancer.start(self.tasks)

    async def _stop_fetching(self) -> None:
        await self.rebalancer.stop()
        await self.queues.stop()

    def failures(self) -> list[str]:
        """Return what requests for queues and messages fail with now, each with its subject."""
        return [*self.rebalancer.failures(), *self._failures.reasons()]

    async def until_assigned(self) -> None:
        """Wait until the brokers have handled the first pop of each assigned queue."""
        await self.rebalancer.until_assigned(self._subscriptions.topics)
        await self.queues.until_begun()

    def rebalance(self) -> None:
        """Request the assignment soon, and pop with a changed subscription."""
        self.rebalancer.wake()
        self.queues.wake()

    def resume(self) -> None:
        """Pop again."""
        super().resume()
        self.queues.wake()

    async def _allocate(
        self, topic: str, queues: list[MessageQueue]
    ) -> Collection[MessageQueue] | None:
        try:
            entries = await self._calls.assignment(
                self.group, self._instance.client_id, topic, STRATEGY, MessageModel.CLUSTERING
            )
        except ResponseError as error:
            if error.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                raise
            refusal = f"a broker refused to assign queues of {topic}"
            raise not_served(error, refusal, "PopConsumer") from error
        return None if entries is None else {entry.message_queue for entry in entries}

    def _make_loop(self, source: PopQueue) -> PopLoop:
        topic = source.queue.topic
        return PopLoop(
            source,
            requests=self._requests,
            wanted=lambda: None if self.suspended else self._subscriptions.filter_of(topic),
            service=self.service,
            keep=self._filters.keep,
            settings=self._settings,
            statistics=self.statistics,
            failures=self._failures,
        )
