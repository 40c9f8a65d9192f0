"""The parts of a pop consumer.

    assignment -> pop loops -> consume service -> handler -> acknowledgements

Source: DefaultMQPushConsumerImpl with clientRebalance off, RocketMQ 5.3.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection

from cometmq.client._connection.instance import ClientCore
from cometmq.client._consuming.consumer import Subscriptions
from cometmq.client._consuming.engine import ConsumerSpec, Engine
from cometmq.client._consuming.group_requests import GroupCalls
from cometmq.client._pop.requests import Acks, PopRequests
from cometmq.client._pop.service import PopLoop, PopQueue, PopService
from cometmq.client._supervision import FailureLog, PeriodicLoop, SupervisedTasks
from cometmq.client.errors import TopicNotFoundError
from cometmq.client.offsets import StartFrom
from cometmq.client.settings import PopSettings
from cometmq.model.queue import MessageQueue
from cometmq.protocol.bodies import MessageModel
from cometmq.remoting.tasks import Supervisor, is_call_failure

log = logging.getLogger(__name__)

STRATEGY = "AVG"


class Assignment:
    """Keeps one pop loop for each queue that brokers assign to this member.

    Args:
        instance: whose connections are used.
        group: as brokers know it.
        topics: returns the topics of the subscription.
        make_loop: makes the loop of a queue.
        on_rebalanced: called with a topic, and the queues that are assigned now.
        interval_s: seconds between two regular rounds.
        tasks: where loops run.
        on_permanent: called when retrying cannot cure a failure.
    """

    def __init__(
        self,
        instance: ClientCore,
        group: str,
        *,
        topics: Callable[[], Collection[str]],
        make_loop: Callable[[PopQueue], PopLoop],
        on_rebalanced: Callable[[str, list[MessageQueue]], Awaitable[None]],
        interval_s: float,
        tasks: Supervisor,
        on_permanent: Callable[[BaseException], None],
    ) -> None:
        self._instance = instance
        self._group = group
        self._calls = GroupCalls(instance)
        self._topics = topics
        self._make_loop = make_loop
        self._on_rebalanced = on_rebalanced
        self._tasks = tasks
        self._failures = FailureLog(
            log,
            fails="rebalance failed, retrying",
            works="rebalance succeeds again",
            name="topic",
            more=f"group={group}",
            on_permanent=on_permanent,
        )
        self._rounds = PeriodicLoop(
            "assignment",
            "*",
            self._failures,
            self.refresh,
            interval_s=interval_s,
            first_s=interval_s,
        )
        self._loops: dict[MessageQueue, PopLoop] = {}
        self._retired: list[PopLoop] = []
        self._assigned: set[str] = set()
        """Topics whose queues a broker has assigned."""
        self._changed = asyncio.Event()

    def queues(self) -> list[MessageQueue]:
        """Give the queues that are this member's now, sorted."""
        return sorted(self._loops)

    def sources(self) -> list[PopQueue]:
        """Give what is known of each queue."""
        return [loop.source for loop in self._loops.values()]

    def call(self) -> None:
        """Request the assignment soon."""
        self._rounds.wake()

    def wake(self) -> None:
        """Let all loops check again whether they may pop."""
        for loop in self._loops.values():
            loop.wake()

    async def start(self, tasks: Supervisor) -> None:
        """Request the assignment once, then go on in the background.

        Raises:
            ResponseError: a broker cannot assign queues; nothing goes on.
        """
        for topic in self._topics():
            try:
                await self._rebalance(topic)
            except TopicNotFoundError as error:
                log.info("a topic has no queues yet topic=%s error=%s", topic, error)
        self._rounds.start(tasks)

    async def until_assigned(self) -> None:
        """Wait until brokers have answered a pop of each assigned queue of all topics."""
        while not self._assigned.issuperset(self._topics()):
            self._changed.clear()
            await self._changed.wait()
        for loop in list(self._loops.values()):
            await loop.begun.wait()

    async def stop(self) -> None:
        """Request no assignment, and pop no more."""
        await self._rounds.stop()
        await asyncio.gather(*(loop.stop() for loop in [*self._loops.values(), *self._retired]))
        self._loops.clear()
        self._retired.clear()

    async def refresh(self) -> None:
        """Request the assignment of every topic now; a broker that fails changes nothing."""
        topics = set(self._topics())
        self._assigned &= topics
        for topic in sorted(topics):
            self._rounds.move()
            try:
                await self._rebalance(topic)
            except BaseException as error:
                if not is_call_failure(error):
                    raise
                self._failures.failed(topic, error)
            else:
                self._failures.worked(topic)
        for queue in self.queues():
            if queue.topic not in topics:
                self._revoke(queue)

    def _begin(self, queue: MessageQueue) -> None:
        loop = self._loops[queue] = self._make_loop(PopQueue(queue))
        loop.start(self._tasks)

    def _revoke(self, queue: MessageQueue) -> None:
        loop = self._loops.pop(queue)
        loop.retire()
        self._retired = [each for each in [*self._retired, loop] if not each.ended]

    async def _rebalance(self, topic: str) -> None:
        entries = await self._calls.assignment(
            self._group, self._instance.client_id, topic, STRATEGY, MessageModel.CLUSTERING
        )
        if entries is None:
            return
        mine = {entry.message_queue for entry in entries}
        before = {queue for queue in self._loops if queue.topic == topic}
        for queue in before - mine:
            self._revoke(queue)
        for queue in sorted(mine - before):
            self._begin(queue)
        self._assigned.add(topic)
        self._changed.set()
        if mine != before:
            log.info("queues assigned topic=%s group=%s assigned=%d", topic, self._group, len(mine))
            await self._on_rebalanced(topic, sorted(mine))


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
        self._start_from = spec.start_from
        self._settings = settings
        self._requests = PopRequests(instance, self.group, timeout=settings.ack_ms / 1000)
        self._acks = Acks(self._requests, on_permanent=tasks.end)
        self.service = PopService(
            self.handling,
            acks=self._acks,
            give_up=self._make_retries().give_up,
            show=self._show,
            concurrency=settings.concurrency,
            batch_max=settings.batch_max,
            dead_letters=self._dead_letters,
            statistics=self.statistics,
        )
        self.assignment = Assignment(
            instance,
            self.group,
            topics=subscriptions.topics,
            make_loop=self._make_loop,
            on_rebalanced=self._rebalanced,
            interval_s=settings.assignment_ms / 1000,
            tasks=self._loops,
            on_permanent=tasks.end,
        )
        self._failures = FailureLog(
            log,
            fails="pop failed, retrying",
            works="pop succeeds again",
            name="queue",
            more=f"group={self.group}",
            on_permanent=tasks.end,
        )

    async def _start_fetching(self) -> None:
        self._instance.on_broker.append(self._broker_came)
        await self.assignment.start(self.tasks)

    async def _stop_fetching(self) -> None:
        if self._broker_came in self._instance.on_broker:
            self._instance.on_broker.remove(self._broker_came)
        await self.assignment.stop()

    async def until_assigned(self) -> None:
        """Wait until the brokers have handled the first pop of each assigned queue."""
        await self.assignment.until_assigned()

    def rebalance(self) -> None:
        """Request the assignment soon."""
        self.assignment.call()

    def resume(self) -> None:
        """Pop again."""
        super().resume()
        self.assignment.wake()

    def _broker_came(self, address: str) -> None:
        self.assignment.call()

    def _make_loop(self, source: PopQueue) -> PopLoop:
        topic = source.queue.topic
        return PopLoop(
            source,
            requests=self._requests,
            wanted=lambda: self._subscriptions.filter_of(topic),
            start=self._start_from,
            service=self.service,
            acks=self._acks,
            keep=self._filters.keep,
            settings=self._settings,
            statistics=self.statistics,
            suspended=lambda: self.suspended,
            failures=self._failures,
        )

    async def _rebalanced(self, topic: str, mine: list[MessageQueue]) -> None:
        route = self._instance.routes.known(topic)
        await self._listener.call(topic, route.read_queues if route else (), mine)
