"""What works between a consumer's subscriptions and its handler, put together.

    rebalancer -> assigned queues -> pull loops -> process queues -> consume service -> handler
                       |                                                   |
                     locks (in order)             offset store, sending back, statistics

Source: DefaultMQPushConsumerImpl, RocketMQ 5.3.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from cometmq.client._callbacks import Caller
from cometmq.client._connection.instance import ClientInstance
from cometmq.client._connection.queue_offsets import QueueOffsets
from cometmq.client._consuming.group_requests import GroupCalls
from cometmq.client._consuming.handler_calls import HandlerCalls
from cometmq.client._consuming.process_queue import Limits, ProcessQueue
from cometmq.client._consuming.pull_loop import PullLoop
from cometmq.client._consuming.pulls import ReplicaChoice
from cometmq.client._consuming.rebalancer import Rebalancer
from cometmq.client._consuming.retries import DeadLetterRule, Retries
from cometmq.client._consuming.statistics import Statistics
from cometmq.client._consuming.subscriptions import Subscriptions
from cometmq.client._consuming.supervision import SupervisedTasks
from cometmq.client._push.assigned_queues import AssignedQueues
from cometmq.client._push.concurrent import ConcurrentService
from cometmq.client._push.ordered import OrderedService
from cometmq.client._push.queue_locks import Locks
from cometmq.client.allocation import AllocationStrategy
from cometmq.client.handlers import QueueListener
from cometmq.client.hooks import ConsumeHook, FilterHook
from cometmq.client.offsets import (
    LocalOffsetStore,
    OffsetStore,
    RemoteOffsetStore,
    StartFrom,
    first_offset,
)
from cometmq.client.settings import PushSettings
from cometmq.model import property_names as names
from cometmq.model.message import StoredMessage
from cometmq.model.offsets import QueueOffset
from cometmq.model.queue import MessageQueue
from cometmq.remoting.tasks import Supervisor, is_call_failure

log = logging.getLogger(__name__)

ABORT_S = 1.0
"""Time for each step of a hard stop."""
MINUTE_S = 60.0


@dataclass(frozen=True, slots=True)
class ConsumerSpec:
    """What an application wants of a consumer."""

    group: str
    """As the application knows it."""
    handler: Callable[..., Any] | None
    batch_handler: Callable[..., Any] | None
    ordered: bool
    broadcast: bool
    start_from: StartFrom | datetime | int
    strategy: AllocationStrategy
    offset_store: OffsetStore | None
    on_queues: QueueListener | None
    consume_hooks: Sequence[ConsumeHook] = ()
    filter_hooks: Sequence[FilterHook] = field(default=())


class Engine:
    """The parts of one push consumer.

    Args:
        instance: whose connections are used.
        wish: what the application wants.
        settings: of the consumer.
        subscriptions: what it subscribes to; may change while it runs.
    """

    def __init__(
        self,
        instance: ClientInstance,
        wish: ConsumerSpec,
        settings: PushSettings,
        subscriptions: Subscriptions,
    ) -> None:
        self.group = instance.namespace.wrap_group(wish.group)
        """The group as brokers know it."""
        self.suspended = False
        """Whether nothing is to be pulled for now."""
        self.concurrency = settings.concurrency
        self.started_ms = 0
        """When it was started, in ms since 1970."""
        self.store_error: BaseException | None = None
        """What the offset store raised when the consumer stopped."""
        self.settings = settings
        self.wish = wish
        self.tasks = SupervisedTasks(f"push consumer {self.group}")
        self._pulls = Supervisor(f"push consumer {self.group}")
        self.offsets = QueueOffsets(instance.routes, instance.brokers)
        self.calls = GroupCalls(instance)
        self.statistics = Statistics()
        self.replica = ReplicaChoice()
        self._instance = instance
        self._subscriptions = subscriptions
        self._limits = Limits(settings, spans=not wish.ordered)
        self._listening = Caller(1, f"queues-{self.group}")
        self.store = wish.offset_store or self._own_store()
        self.handling = HandlerCalls(
            wish.handler,
            wish.batch_handler,
            group=wish.group,
            client_id=instance.client_id,
            hooks=wish.consume_hooks,
            threads=settings.concurrency,
            ordered=wish.ordered,
            namespace=instance.namespace,
        )
        self._locks: Locks | None = None
        self._dead_letters = DeadLetterRule.of(settings.deliveries_max, ordered=wish.ordered)
        self.service = self._make_service()
        self.queues = AssignedQueues(
            self.group,
            store=self.store,
            locks=lambda: self._locks,
            first_offset=self._first_offset,
            make_loop=self._make_loop,
            on_divided=self._divided,
            on_free=lambda: self.rebalancer.wake(),
            unlock_delay_s=settings.unlock_delay_ms / 1000,
            tasks=self._pulls,
        )
        self.rebalancer = Rebalancer(
            instance=instance,
            group=self.group,
            broadcast=wish.broadcast,
            strategy=wish.strategy,
            topics=subscriptions.topics,
            owner=self.queues,
            interval_s=settings.rebalance_ms / 1000,
        )

    # --- life ---------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to divide queues, and so to pull and to consume."""
        self.started_ms = time.time_ns() // 1_000_000
        self.service.start()
        if self._locks is not None:
            self._locks.start(self.settings.lock_ms / 1000)
        self.tasks.every(self.settings.persist_ms / 1000, self.queues.persist, "persist")
        self.rebalancer.start(self.tasks)

    async def stop(self, *, grace_s: float, persist_s: float) -> None:
        """Stop in good order: pull no more, let handlers end, keep offsets, unlock.

        Args:
            grace_s: for running handlers.
            persist_s: for keeping offsets.
        """
        await _bounded(self._stop_fetching(), persist_s, "pulls")
        await _bounded(self.service.stop(grace_s=grace_s), grace_s + 2.0, "handlers")
        self.store_error = await _bounded(self.queues.persist(), persist_s, "offsets")
        if self._locks is not None:
            await _bounded(self._locks.stop(), 3.0, "locks")
        await self._end()

    async def abort(self) -> None:
        """Stop at once: cancel handlers, and keep the offsets of what is done if that is quick."""
        await _bounded(self._stop_fetching(), ABORT_S, "pulls")
        await _bounded(self.service.stop(grace_s=0), 2 * ABORT_S, "handlers")
        await _bounded(self.queues.persist(), ABORT_S, "offsets")
        if self._locks is not None:
            await _bounded(self._locks.abandon(), ABORT_S, "locks")
        await self._end()

    async def _stop_fetching(self) -> None:
        self.rebalancer.paused = True
        await self.rebalancer.stop()
        await self.queues.stop_pulling()

    async def _end(self) -> None:
        await self.queues.close()
        self._listening.close()
        await self._pulls.cancel(ABORT_S)
        await self.tasks.cancel(ABORT_S)

    # --- orders while it runs -----------------------------------------------------------------

    def suspend(self) -> None:
        """Pull nothing and divide nothing until `resume`."""
        self.suspended = True
        self.rebalancer.paused = True

    def resume(self) -> None:
        """Pull again, and see which queues are this consumer's now."""
        self.suspended = False
        self.rebalancer.paused = False
        self.rebalancer.wake()
        self.queues.wake()

    def set_concurrency(self, count: int) -> None:
        """Run this many handler calls at a time from now on."""
        self.concurrency = count
        self.service.set_concurrency(count)

    async def move(self, offsets: dict[MessageQueue, QueueOffset]) -> list[MessageQueue]:
        """Go on at other offsets; gives the queues that are this consumer's and were moved."""
        moved = await asyncio.gather(
            *(self.queues.move(queue, offset) for queue, offset in offsets.items())
        )
        return [queue for queue, done in zip(offsets, moved, strict=True) if done]

    # --- what the parts ask -------------------------------------------------------------------

    def _own_store(self) -> OffsetStore:
        if not self.wish.broadcast:
            return RemoteOffsetStore(self._instance, self.group)
        folder = self.settings.offset_folder
        return LocalOffsetStore(
            Path(folder) if folder else None, self._instance.client_id, self.group
        )

    def _make_service(self) -> ConcurrentService | OrderedService:
        back = None if self.wish.broadcast else self._sending_back()
        return self._ordered_service(back) if self.wish.ordered else self._concurrent_service(back)

    def _sending_back(self) -> Retries:
        return Retries(
            self._instance,
            self.group,
            rule=self._dead_letters,
            wrap_topic=self._instance.namespace.wrap_topic,
            on_first=self._retries_begin,
        )

    def _concurrent_service(self, back: Retries | None) -> ConcurrentService:
        return ConcurrentService(
            self.handling,
            store=self.store,
            send_back=back.send if back else None,
            show=self.show,
            concurrency=self.settings.concurrency,
            batch_max=self.settings.batch_max,
            timeout_s=self.settings.consume_minutes_max * MINUTE_S,
            queues=lambda: self.queues.process_queues(),
            statistics=self.statistics,
        )

    def _ordered_service(self, back: Retries | None) -> OrderedService:
        if not self.wish.broadcast:
            self._locks = Locks(
                self.calls,
                self.group,
                self._instance.client_id,
                queues=lambda: self.queues.process_queues(),
                now=time.monotonic,
                on_locked=self._locked_again,
            )
        return OrderedService(
            self.handling,
            store=self.store,
            locks=self._locks,
            give_up=back.give_up if back else None,
            show=self.show,
            concurrency=self.settings.concurrency,
            batch_max=self.settings.batch_max,
            suspend_ms=self.settings.suspend_ms,
            dead_letters=self._dead_letters,
            statistics=self.statistics,
        )

    def _locked_again(self, queue: ProcessQueue) -> None:
        assert isinstance(self.service, OrderedService)
        self.service.go_on(queue)
        self.queues.wake()

    def _retries_begin(self) -> None:
        """Look at once for the retry topic, which the broker has made by now."""
        self.tasks.spawn(self._find_retries(), "retry-topic")

    async def _find_retries(self) -> None:
        topic = self._subscriptions.retry_topic
        if topic is not None and await self._instance.routes.refresh(topic) is not None:
            self.rebalancer.wake()

    async def _first_offset(self, queue: MessageQueue) -> QueueOffset:
        return await first_offset(
            queue,
            store=self.store,
            offsets=self.offsets,
            start=self.wish.start_from,
            retry=queue.topic == self._subscriptions.retry_topic,
        )

    def _make_loop(self, fetched: ProcessQueue, offset: QueueOffset) -> PullLoop:
        topic = fetched.queue.topic
        return PullLoop(
            fetched,
            instance=self._instance,
            group=self.group,
            wanted=lambda: self._subscriptions.wanted(topic),
            first_offset=offset,
            store=self.store,
            service=self.service,
            limits=self._limits,
            keep=self._keep,
            settings=self.settings,
            replica=self.replica,
            suspended=lambda: self.suspended,
            ordered=self._locks is not None,
            commit_with_pull=not self.wish.broadcast,
            stats=self.statistics,
            on_illegal=lambda _: self._begin_anew(fetched),
        )

    async def _begin_anew(self, fetched: ProcessQueue) -> None:
        """Let the next division take a queue whose offset was illegal, once no handler is at it."""
        self.queues.lost(fetched)
        self.rebalancer.wake()

    async def _divided(
        self, topic: str, queues: Collection[MessageQueue], mine: Collection[MessageQueue]
    ) -> None:
        self._limits.share(topic, len(mine))
        self._subscriptions.renew(topic)
        self.tasks.spawn(self._announce(), "heartbeat")
        listener = self.wish.on_queues
        if listener is None or topic == self._subscriptions.retry_topic:
            return
        shown = self.handling.shown
        told = [shown(queue) for queue in queues], [shown(queue) for queue in mine]
        try:
            await self._listening.tell(listener, self._instance.namespace.unwrap(topic), *told)
        except BaseException as error:
            if not is_call_failure(error):
                raise
            log.exception("on_queues callback failed topic=%s group=%s", topic, self.group)

    async def _announce(self) -> None:
        await self._instance.heartbeat()
        self._subscriptions.adopt()

    def _keep(self, queue: MessageQueue, messages: list[StoredMessage]) -> list[StoredMessage]:
        for hook in self.wish.filter_hooks:
            try:
                messages = hook.keep(self.wish.group, self.handling.shown(queue), messages)
            except Exception:
                log.exception("filter hook failed group=%s queue=%s", self.group, queue)
        return messages

    def show(self, queue: ProcessQueue, messages: Sequence[StoredMessage]) -> None:
        """Give messages the topic they were sent to, as the application knows it."""
        if queue.queue.topic == self._subscriptions.retry_topic:
            for message in messages:
                message.topic = message.properties.get(names.RETRY_TOPIC, message.topic)
        if self._instance.namespace:
            for message in messages:
                message.topic = self._instance.namespace.unwrap(message.topic)


async def _bounded(step: Awaitable[None], seconds: float, what: str) -> BaseException | None:
    """Do one step of a stop, and give the error that it failed with; the next step follows."""
    try:
        async with asyncio.timeout(seconds) as limit:
            await step
    except BaseException as error:
        if not is_call_failure(error):
            raise
        if limit.expired():
            log.warning("closing step timed out step=%s seconds=%.1f", what, seconds)
            return None
        log.warning("closing step failed step=%s error=%s: %s", what, type(error).__name__, error)
        return error
    return None
