"""The parts of a pop consumer.

    assignment -> pop loops -> consume service -> handler -> acknowledgements

Source: DefaultMQPushConsumerImpl with clientRebalance off, RocketMQ 5.3.
"""

from __future__ import annotations

import logging

from cometmq.client._connection.instance import ClientInstance
from cometmq.client._consuming.engine import ConsumerSpec, Engine
from cometmq.client._consuming.subscriptions import Subscriptions
from cometmq.client._failure_log import FailureLog
from cometmq.client._pop.assignment import Assignment
from cometmq.client._pop.pop_loop import PopLoop
from cometmq.client._pop.requests import Acks, PopRequests
from cometmq.client._pop.service import PopQueue, PopService
from cometmq.client._supervision import SupervisedTasks
from cometmq.client.offsets import StartFrom
from cometmq.client.settings import PopSettings
from cometmq.model.queue import MessageQueue

log = logging.getLogger(__name__)


class PopEngine(Engine):
    """The parts of one pop consumer.

    Args:
        instance, spec, settings, subscriptions, tasks: as for `Engine`.
    """

    service: PopService

    def __init__(
        self,
        instance: ClientInstance,
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
        self._acks = Acks(self._requests)
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
            on_divided=self._divided,
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
            wanted=lambda: self._subscriptions.wanted(topic),
            start=self._start_from,
            service=self.service,
            acks=self._acks,
            keep=self._filters.keep,
            settings=self._settings,
            statistics=self.statistics,
            suspended=lambda: self.suspended,
            failures=self._failures,
        )

    async def _divided(self, topic: str, mine: list[MessageQueue]) -> None:
        route = self._instance.routes.known(topic)
        await self._listener.call(topic, route.read_queues if route else (), mine)
