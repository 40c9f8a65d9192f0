"""What works between a pop consumer's subscriptions and its handler, put together.

    assignment -> pop loops -> consume service -> handler -> acknowledgements

Source: DefaultMQPushConsumerImpl with clientRebalance off, RocketMQ 5.3.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from cometmq.client._callbacks import Caller
from cometmq.client._connection.instance import ClientInstance
from cometmq.client._consuming.handler_calls import HandlerCalls
from cometmq.client._consuming.retries import DeadLetterRule, Retries
from cometmq.client._consuming.statistics import Statistics
from cometmq.client._consuming.subscriptions import Subscriptions
from cometmq.client._consuming.supervision import SupervisedTasks
from cometmq.client._pop.assignment import Assignment
from cometmq.client._pop.pop_loop import PopLoop
from cometmq.client._pop.requests import Acks, PopRequests
from cometmq.client._pop.service import PopQueue, PopService
from cometmq.client.handlers import QueueListener
from cometmq.client.hooks import ConsumeHook, FilterHook
from cometmq.client.offsets import StartFrom
from cometmq.client.settings import PopSettings
from cometmq.model.message import StoredMessage
from cometmq.model.queue import MessageQueue
from cometmq.remoting.tasks import Supervisor, is_call_failure

log = logging.getLogger(__name__)

STOP_S = 1.0
"""Time for each step of a stop that has nothing to wait for."""


@dataclass(frozen=True, slots=True)
class PopConsumerSpec:
    """What an application wants of a pop consumer."""

    group: str
    handler: Callable[..., Any] | None
    batch_handler: Callable[..., Any] | None
    start_from: StartFrom
    on_queues: QueueListener | None
    consume_hooks: Sequence[ConsumeHook] = ()
    filter_hooks: Sequence[FilterHook] = ()


class PopEngine:
    """The parts of one pop consumer.

    Args:
        instance: whose connections are used.
        wish: what the application wants.
        settings: of the consumer.
        subscriptions: what it subscribes to; may change while it runs.
    """

    def __init__(
        self,
        instance: ClientInstance,
        wish: PopConsumerSpec,
        settings: PopSettings,
        subscriptions: Subscriptions,
    ) -> None:
        self.group = instance.namespace.wrap_group(wish.group)
        """The group as brokers know it."""
        self.suspended = False
        """Whether nothing is popped for now."""
        self.concurrency = settings.concurrency
        self.started_ms = 0
        self.wish = wish
        self.settings = settings
        self.tasks = SupervisedTasks(f"pop consumer {self.group}")
        self.statistics = Statistics()
        self._loops = Supervisor(f"pop consumer {self.group}")
        self._instance = instance
        self._subscriptions = subscriptions
        self._listening = Caller(1, f"queues-{self.group}")
        self._requests = PopRequests(instance, self.group, timeout=settings.ack_ms / 1000)
        self._acks = Acks(self._requests)
        self.handling = HandlerCalls(
            wish.handler,
            wish.batch_handler,
            group=wish.group,
            client_id=instance.client_id,
            hooks=wish.consume_hooks,
            threads=settings.concurrency,
            namespace=instance.namespace,
        )
        dead_letters = DeadLetterRule.of(settings.deliveries_max)
        self._back = Retries(
            instance,
            self.group,
            rule=dead_letters,
            wrap_topic=instance.namespace.wrap_topic,
        )
        self.service = PopService(
            self.handling,
            acks=self._acks,
            give_up=self._back.give_up,
            show=self._show,
            concurrency=settings.concurrency,
            batch_max=settings.batch_max,
            dead_letters=dead_letters,
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
        )

    async def start(self) -> None:
        """Ask for queues, and begin to pop.

        Raises:
            ResponseError: a broker cannot divide queues.
        """
        self.started_ms = time.time_ns() // 1_000_000
        self._instance.on_broker.append(self._broker_came)
        await self.assignment.start(self.tasks)

    async def stop(self, *, grace_s: float) -> None:
        """Pop no more, and let running handlers end for so many seconds."""
        if self._broker_came in self._instance.on_broker:
            self._instance.on_broker.remove(self._broker_came)
        await self.assignment.stop()
        await self.service.stop(grace_s=grace_s)
        self._listening.close()
        await self._loops.cancel(STOP_S)
        await self.tasks.cancel(STOP_S)

    def set_concurrency(self, count: int) -> None:
        """Run this many handler calls at a time from now on."""
        self.concurrency = count
        self.service.set_concurrency(count)

    def _broker_came(self, address: str) -> None:
        self.assignment.call()

    def _make_loop(self, source: PopQueue) -> PopLoop:
        topic = source.queue.topic
        return PopLoop(
            source,
            requests=self._requests,
            group=self.group,
            wanted=lambda: self._subscriptions.wanted(topic),
            start=self.wish.start_from,
            service=self.service,
            acks=self._acks,
            keep=self._keep,
            settings=self.settings,
            statistics=self.statistics,
            suspended=lambda: self.suspended,
        )

    async def _divided(self, topic: str, mine: list[MessageQueue]) -> None:
        listener = self.wish.on_queues
        if listener is None:
            return
        route = self._instance.routes.known(topic)
        shown = self.handling.shown
        everything = [shown(queue) for queue in (route.read_queues if route else ())]
        own = [shown(queue) for queue in mine]
        name = self._instance.namespace.unwrap(topic)
        try:
            await self._listening.call(listener, name, everything, own)
        except BaseException as error:
            if not is_call_failure(error):
                raise
            log.exception("on_queues callback failed topic=%s group=%s", topic, self.group)

    def _keep(self, queue: MessageQueue, messages: list[StoredMessage]) -> list[StoredMessage]:
        for hook in self.wish.filter_hooks:
            try:
                messages = hook.keep(self.wish.group, self.handling.shown(queue), messages)
            except Exception:
                log.exception("filter hook failed group=%s queue=%s", self.group, queue)
        return messages

    def _show(self, messages: Sequence[StoredMessage]) -> None:
        if self._instance.namespace:
            for message in messages:
                message.topic = self._instance.namespace.unwrap(message.topic)
