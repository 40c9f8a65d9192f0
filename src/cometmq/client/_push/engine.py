"""The parts of a push consumer.

    rebalancer -> assigned queues -> pull loops -> process queues -> consume service -> handler
                       |                                                   |
                     locks (in order)             offset store, retries, statistics

Source: DefaultMQPushConsumerImpl, RocketMQ 5.3.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from cometmq.client._connection.broker_calls import QueueOffsets
from cometmq.client._connection.instance import ClientCore
from cometmq.client._consuming.consumer import Subscriptions
from cometmq.client._consuming.continuation import Cause, Continuation
from cometmq.client._consuming.engine import ConsumerSpec, Engine, bounded
from cometmq.client._consuming.group_calls import GroupCalls
from cometmq.client._consuming.handover import DOUBT_S, Handover
from cometmq.client._consuming.pause_detector import PauseDetector
from cometmq.client._consuming.pulls import PullResult, ReplicaChoice
from cometmq.client._consuming.rebalancer import Intervals, MemberAllocation, Rebalancer
from cometmq.client._consuming.retries import DeadLetters, Retries
from cometmq.client._push.assigned_queues import AssignedQueues
from cometmq.client._push.concurrent import ConcurrentService, Redelivery
from cometmq.client._push.ordered import RELOCK_S, Locks, OrderedService
from cometmq.client._push.process_queue import Limits, ProcessQueue
from cometmq.client._push.pull_loop import (
    FirstOffset,
    PullConditions,
    PullConsumption,
    PullLoop,
    PullRequests,
)
from cometmq.client._supervision import (
    ALIKE_MAX,
    SupervisedFailureLog,
    SupervisedTasks,
    raise_non_transient,
)
from cometmq.client.allocation import AllocationStrategy
from cometmq.client.offsets import OffsetStore, default_store
from cometmq.client.settings import PushSettings
from cometmq.model.message import StoredMessage
from cometmq.model.offsets import QueueOffset
from cometmq.model.queue import MessageQueue

log = logging.getLogger(__name__)

ANNOUNCING_PAUSE, ANNOUNCING_PAUSE_S_MAX = 4.0, 1.0
"""The pause after an announcement of subscriptions, in the time that it took."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PushSpec(ConsumerSpec):
    """The arguments of a push consumer, checked."""

    broadcast: bool
    strategy: AllocationStrategy
    offset_store: OffsetStore | None


class PushEngine(Engine):
    """The parts of one push consumer.

    Args:
        instance, spec, settings, subscriptions, tasks: as for `Engine`.
    """

    service: ConcurrentService | OrderedService
    spec: PushSpec

    def __init__(
        self,
        instance: ClientCore,
        spec: PushSpec,
        settings: PushSettings,
        subscriptions: Subscriptions,
        tasks: SupervisedTasks,
    ) -> None:
        super().__init__(instance, spec, settings, subscriptions, tasks)
        self.settings = settings
        self.offsets = QueueOffsets(instance.routes, instance.brokers)
        self.calls = GroupCalls(instance, on_permanent=tasks.end)
        self.replica = ReplicaChoice()
        self.store = spec.offset_store or default_store(
            instance, self.group, broadcast=spec.broadcast, folder=settings.offset_folder
        )
        self._continuation = Continuation(
            self.store,
            self.offsets,
            start_from=spec.start_from,
            retry_topic=subscriptions.retry_topic,
        )
        self._announcing, self._announcement_is_due = asyncio.Lock(), False
        self._allocation = MemberAllocation(
            instance, self.group, broadcast=spec.broadcast, strategy=spec.strategy
        )
        self._locks = self._make_locks() if spec.ordered and not spec.broadcast else None
        self._handover: Handover | None = None
        if not spec.broadcast and not spec.ordered:
            self._handover = Handover(self.calls, self.group, self._allocation)
        self._pauses = PauseDetector(self._paused)
        self.service = self._make_service()
        self.queues = AssignedQueues(
            self.group,
            store=self.store,
            exclusion=self._locks or self._handover,
            first_offset=self._continuation.assigned,
            make_loop=self._make_loop,
            on_rebalanced=self._rebalanced,
            on_free=lambda: self.rebalancer.wake(),
            tasks=self._loops,
        )
        self._failures = SupervisedFailureLog(
            log,
            fails="pull failed, retrying",
            works="pull succeeds again",
            name="queue",
            more=f"group={self.group}",
            alike_max=ALIKE_MAX,
            on_permanent=tasks.end,
        )
        self._limits = Limits(settings, spans=not spec.ordered)
        self._requests = PullRequests(
            instance,
            self.group,
            filter_of=subscriptions.filter_of,
            settings=settings,
            replica=self.replica,
            commit_offsets=not spec.broadcast,
        )
        self._conditions = PullConditions(
            self._limits,
            suspended=lambda: self.suspended,
            need_lock=self._locks is not None,
            check_pause=self._pauses.check,
        )
        self._consumption = PullConsumption(
            self._filters.keep, self.service, self.store, self.statistics
        )
        self.rebalancer = Rebalancer(
            instance=instance,
            group=self.group,
            allocate=self._allocation,
            topics=subscriptions.topics,
            owner=self.queues,
            intervals=Intervals(settings.rebalance_ms / 1000),
            on_permanent=tasks.end,
            on_topic=self._look,
        )

    async def load(self) -> None:
        """Read what was stored before the start."""
        await self.store.load()

    async def _start_fetching(self) -> None:
        self.service.start()
        self._pauses.start()
        self._instance.on_broker.append(self._broker_came)
        self._instance.on_broker_lost.append(self._broker_lost)
        if self._locks is not None:
            self._locks.start(self.settings.lock_ms / 1000, self.tasks)
        self.tasks.repeat(
            self.settings.persist_ms / 1000,
            self._persist,
            "persist",
            on_late=self.handling.note_blocked_loop,
        )
        self.rebalancer.start(self.tasks)

    async def _persist(self) -> None:
        raise_non_transient((await self.queues.persist() or {}).values())

    async def _stop_fetching(self) -> None:
        self.rebalancer.paused = True
        await self.rebalancer.stop()
        await self.queues.stop_pulling()

    async def _release_queues(self, step_s: float, *, hard: bool) -> BaseException | None:
        error = await bounded(self.queues.persist(), step_s, "offsets")
        self._pauses.stop()
        if self._broker_came in self._instance.on_broker:
            self._instance.on_broker.remove(self._broker_came)
            self._instance.on_broker_lost.remove(self._broker_lost)
        if self._locks is not None:
            unlock = self._locks.stop_renewing() if hard else self._locks.stop()
            await bounded(unlock, step_s, "locks")
        if self._handover is not None:
            await bounded(self._handover.stop(), step_s, "handover")
        await self.queues.close()
        return error

    def failures(self) -> list[str]:
        """Return what requests for queues and messages fail with now, each with its subject."""
        return [*self.rebalancer.failures(), *self._failures.reasons()]

    async def until_assigned(self) -> None:
        """Wait until each assigned queue has its first offset."""
        await self.rebalancer.until_assigned(lambda: self._subscriptions.announced().keys())
        await self.queues.until_begun()

    def rebalance(self) -> None:
        """Rebalance soon, and pull with a changed subscription."""
        self.rebalancer.wake()
        self.queues.wake()

    def suspend(self) -> None:
        """Pull nothing and rebalance nothing until `resume`."""
        super().suspend()
        self.rebalancer.paused = True

    def resume(self) -> None:
        """Pull and rebalance again."""
        super().resume()
        self.rebalancer.paused = False
        self.rebalancer.wake()
        self.queues.wake()

    async def move(self, offsets: Mapping[MessageQueue, QueueOffset]) -> None:
        """Continue assigned queues at other offsets; ignore other queues."""
        owned = self.queues.queues()
        await asyncio.gather(
            *(self.queues.move(queue, offsets[queue]) for queue in owned if queue in offsets)
        )

    # --- making the parts, and their callbacks ------------------------------------------------

    def _make_locks(self) -> Locks:
        return Locks(
            self.calls,
            self.group,
            self._instance.client_id,
            queues=lambda: self.queues.process_queues(),
            now=time.monotonic,
            on_locked=self._locked_again,
            unlock_delay_s=self.settings.unlock_delay_ms / 1000,
        )

    def _make_service(self) -> ConcurrentService | OrderedService:
        retries = None
        if not self.spec.broadcast:
            retries = self._make_retries(self._retries_begin)
        if self.spec.ordered:
            return self._ordered_service(retries)
        return self._concurrent_service(retries)

    def _concurrent_service(self, retries: Retries | None) -> ConcurrentService:
        return ConcurrentService(
            self.handling,
            store=self.store,
            redelivery=Redelivery(retries.send, retries.redelivery) if retries else None,
            restore_topics=self._restore_topics,
            statistics=self.statistics,
            check_pause=self._pauses.check,
        )

    def _ordered_service(self, retries: Retries | None) -> OrderedService:
        return OrderedService(
            self.handling,
            store=self.store,
            locks=self._locks,
            dead_letters=DeadLetters(
                self._dead_letters, retries.give_up if retries else self._drop
            ),
            restore_topics=self._restore_topics,
            suspend_ms=self.settings.suspend_ms,
            statistics=self.statistics,
        )

    async def _drop(self, message: StoredMessage, error: BaseException | None) -> bool:
        log.warning(
            "retries exhausted, broadcast message dropped topic=%s id=%s group=%s",
            message.topic,
            message.message_id,
            self.spec.group,
        )
        return True

    def _broker_came(self, address: str) -> None:
        """Doubt all queues: a new connection may follow on one that was lost."""
        if not self.spec.broadcast:
            self.queues.doubt(DOUBT_S)
        if self._locks is not None:
            self._locks.renew_soon()

    def _broker_lost(self, address: str) -> None:
        """Doubt all queues until there is a new connection: others may get them meanwhile."""
        if not self.spec.broadcast:
            self.queues.doubt(math.inf)

    def _paused(self, seconds: float) -> None:
        """Doubt all queues, or release them, after this process stood still."""
        if self.spec.broadcast:
            return
        log.warning(
            "the process stood still, other members may have its queues group=%s seconds=%.0f",
            self.group,
            seconds,
        )
        self.queues.note_pause(seconds)
        if self._locks is not None:
            self._locks.renew_soon()

    def _locked_again(self, queue: ProcessQueue) -> None:
        if queue.dropped:
            return
        queue.lock_is_new = True
        self.tasks.spawn(self._continue_locked(queue), "locked-again")

    async def _continue_locked(self, queue: ProcessQueue) -> None:
        """Continue a queue whose lost lock was renewed, unless another member had it meanwhile."""
        assert isinstance(self.service, OrderedService)
        is_overtaken = await self.queues.release_if_overtaken(queue)
        if is_overtaken is None:
            asyncio.get_running_loop().call_later(RELOCK_S, self._locked_again, queue)
        elif not is_overtaken:
            queue.lock_is_new = False
            self.service.resume(queue)
            self.queues.wake()

    def _retries_begin(self) -> None:
        """Find the retry topic at once: the broker created it with the first redelivery."""
        self.tasks.spawn(self._find_retries(), "retry-topic")

    async def _find_retries(self) -> None:
        topic = self._subscriptions.retry_topic
        if topic is not None and await self._instance.routes.refresh(topic) is not None:
            self.rebalancer.wake()

    def _look(self, topic: str, queues: Collection[MessageQueue] | None) -> None:
        self._continuation.look(topic, queues)
        if queues is None:
            self._allocation.forget(topic)

    def _make_loop(self, fetched: ProcessQueue, offset: QueueOffset | FirstOffset) -> PullLoop:
        return PullLoop(
            fetched,
            offset,
            requests=self._requests,
            conditions=self._conditions,
            consumption=self._consumption,
            failures=self._failures,
            on_moved=lambda cause, response: self._continue_elsewhere(fetched, cause, response),
            on_broken=lambda: self.queues.interrupt(fetched),
        )

    async def _continue_elsewhere(
        self, fetched: ProcessQueue, cause: Cause, response: PullResult
    ) -> None:
        """Release a queue that cannot continue; the next rebalance assigns it again elsewhere."""
        offset = await self._continuation.after(cause, fetched.queue, response, fetched.received_ms)
        await self.queues.release_at(fetched, offset)
        self.rebalancer.wake()

    async def _rebalanced(
        self, topic: str, queues: Collection[MessageQueue], mine: Collection[MessageQueue]
    ) -> None:
        self._limits.share(topic, len(mine))
        self._subscriptions.renew(topic)
        self.tasks.spawn(self.queues.persist_first(), "first-offsets")
        if not self._announcement_is_due:
            self._announcement_is_due = True
            self.tasks.spawn(self._announce(), "heartbeat")
        if topic != self._subscriptions.retry_topic:
            await self._listener.call(topic, queues, mine)

    async def _announce(self) -> None:
        """Announce the subscriptions once for all topics that are rebalanced meanwhile.

        The longer it takes, the longer is the pause before the next: of thousands of topics, each
        announcement contains all.
        """
        async with self._announcing:
            self._announcement_is_due = False
            loop = asyncio.get_running_loop()
            begun_s = loop.time()
            await self._subscriptions.announce(self._instance.heartbeat)
            took_s = loop.time() - begun_s
            await asyncio.sleep(min(ANNOUNCING_PAUSE * took_s, ANNOUNCING_PAUSE_S_MAX))

    def _restore_topics(self, queue: ProcessQueue, messages: Sequence[StoredMessage]) -> None:
        """Set messages' topics to those they were sent to, without the namespace."""
        is_retried = queue.queue.topic == self._subscriptions.retry_topic
        self._instance.namespace.unwrap_topics(
            messages, retry_topic=queue.queue.topic if is_retried else None
        )
