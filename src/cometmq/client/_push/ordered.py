"""Consumes each queue's messages in order: one call at a time, and none after one that failed.

A queue is consumed by one chain of calls at a time, which begins when messages are fetched and ends
when none is left:

    locked by the broker?  no -> lock it, then continue
    take messages -> call the handler -> commit and continue
                                      -> put them back and pause
                                      -> dead-letter them after the last retry

When members share queues, the broker's lock excludes other members, and a chain continues only
while the lock is fresh. A chain pauses after 60 s, so that other queues are consumed.

Source: ConsumeMessageOrderlyService, RocketMQ 5.3.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Callable, Collection, Sequence

from cometmq.client._consuming.group_calls import GroupCalls
from cometmq.client._consuming.handler_calls import (
    Ended,
    HandlerCalls,
    OrderedAction,
    OrderedOutcome,
    ordered_outcome_of,
)
from cometmq.client._consuming.retries import DeadLetters
from cometmq.client._consuming.statistics import Statistics
from cometmq.client._consuming.workers import CANCEL_S, SLICE_S
from cometmq.client._push.process_queue import FetchedBatch, ProcessQueue
from cometmq.client._supervision import PeriodicLoop, SupervisedTasks
from cometmq.client.handlers import OrderedContext
from cometmq.client.offsets import OffsetStore
from cometmq.model.message import StoredMessage
from cometmq.model.queue import MessageQueue
from cometmq.remoting.tasks import Supervisor, outlives

log = logging.getLogger(__name__)

FIRST_RENEWAL_S = 1.0
"""The time from the start to the first renewal of the locks."""
RELOCK_S = 3.0
"""The interval of attempts to renew a lost lock."""


class Locks:
    """The broker locks of one member of a group.

    Args:
        calls: sends the requests.
        group: as brokers know it.
        client_id: of the member.
        queues: returns the assigned queues.
        now: a steady clock in seconds.
        on_locked: called with a queue whose lost lock was renewed.
        unlock_delay_s: seconds until a released queue with messages left is unlocked.
    """

    def __init__(
        self,
        calls: GroupCalls,
        group: str,
        client_id: str,
        *,
        queues: Callable[[], Collection[ProcessQueue]],
        now: Callable[[], float],
        on_locked: Callable[[ProcessQueue], None] | None = None,
        unlock_delay_s: float = 0.0,
    ) -> None:
        self._calls = calls
        self._group = group
        self._client_id = client_id
        self._queues = queues
        self._now = now
        self._on_locked = on_locked
        self._unlock_delay_s = unlock_delay_s
        self._later: dict[MessageQueue, asyncio.TimerHandle] = {}
        self._unconfirmed: set[MessageQueue] = set()
        """Queues whose lock was requested: a call that was cancelled leaves its queue here."""
        self._tasks = Supervisor(f"locks {group}")
        self._renewed_at = -math.inf
        self._renewals: PeriodicLoop | None = None

    def start(self, interval_s: float, tasks: SupervisedTasks) -> None:
        """Renew all locks every ``interval_s`` seconds, and sooner while a lock is lost."""
        check_s = min(RELOCK_S, interval_s)

        async def renew_due() -> None:
            if self._is_lost() or self._now() - self._renewed_at + check_s >= interval_s:
                await self.renew()

        self._renewals = tasks.repeat(
            check_s, renew_due, "renew-locks", first_s=min(FIRST_RENEWAL_S, interval_s)
        )

    def renew_soon(self) -> None:
        """Renew all locks now: a broker that restarted has lost them."""
        self._tasks.spawn(self.renew(), "renew-locks")

    def _is_lost(self) -> bool:
        return any(not queue.locked and not queue.dropped for queue in self._queues())

    async def stop(self) -> None:
        """Stop renewing, and unlock all queues at once."""
        delayed = list(self._later)
        await self.stop_renewing()
        held = [queue.queue for queue in self._queues() if queue.locked]
        await self._unlock_all({*held, *delayed, *self._unconfirmed})

    async def stop_renewing(self) -> None:
        """Stop renewing: the locks expire."""
        for timer in self._later.values():
            timer.cancel()
        self._later.clear()
        if self._renewals is not None:
            await self._renewals.stop()
        await self._tasks.cancel()

    async def lock(self, queue: MessageQueue) -> bool:
        """Lock one queue that is not assigned yet.

        Returns:
            False if another member has it, or its broker did not respond or refused.
        """
        self._cancel_unlock(queue)
        self._unconfirmed.add(queue)
        locked = queue in await self._lock_all([queue])
        self._unconfirmed.discard(queue)
        return locked

    async def relock(self, queue: ProcessQueue) -> bool:
        """Lock an assigned queue whose lock was lost or is too old; return whether it is locked."""
        self._set_locked(queue, await self.lock(queue.queue))
        return queue.locked

    async def renew(self) -> None:
        """Renew the locks of all assigned queues; a lock that no broker confirms is lost."""
        owned = [queue for queue in self._queues() if not queue.dropped]
        self._renewed_at = self._now()
        if not owned:
            return
        locked = await self._lock_all([queue.queue for queue in owned])
        for queue in owned:
            self._set_locked(queue, queue.queue in locked)

    async def release(self, queue: ProcessQueue) -> None:
        """Unlock a queue: at once if it is empty, else after the delay.

        Args:
            queue: a revoked queue without a running handler call.
        """
        queue.locked = False
        if not queue.count or self._unlock_delay_s <= 0:
            await self._unlock_all({queue.queue})
            return
        loop, which = asyncio.get_running_loop(), queue.queue
        self._later[which] = loop.call_later(self._unlock_delay_s, self._unlock_due, which)

    async def unlock(self, queue: MessageQueue) -> None:
        """Unlock a queue that was locked and not assigned."""
        await self._unlock_all({queue})

    def _unlock_due(self, queue: MessageQueue) -> None:
        if self._later.pop(queue, None) is not None:
            self._tasks.spawn(self._unlock_all({queue}), f"unlock-{queue.queue_id}")

    def _cancel_unlock(self, queue: MessageQueue) -> None:
        timer = self._later.pop(queue, None)
        if timer is not None:
            timer.cancel()

    def _set_locked(self, queue: ProcessQueue, locked: bool) -> None:
        was_fresh = queue.lock_is_fresh()
        if queue.locked and not locked:
            log.warning("queue lock lost queue=%s group=%s", queue.queue, self._group)
        if not locked:
            queue.locked = False
            return
        queue.note_lock()
        if not was_fresh and self._on_locked is not None:
            self._on_locked(queue)

    async def _lock_all(self, queues: Collection[MessageQueue]) -> set[MessageQueue]:
        return await self._calls.lock(self._group, self._client_id, queues)

    async def _unlock_all(self, queues: Collection[MessageQueue]) -> None:
        if queues:
            await self._calls.unlock(self._group, self._client_id, queues)


CONTINUOUS_S = 60.0
"""The longest time of one chain, if other queues wait."""
NEXT_CHAIN_S = 0.01
"""The pause before the next chain of a queue that is locked and has messages."""
FAILED_CHAIN_S = 3.0
"""The pause before the next chain of a queue whose chain failed."""
UNTIL_LOCKED_S = math.inf
"""The pause of a queue that could not be locked: `Locks` renews lost locks, and resumes it."""


class OrderedService:
    """The consume service of a consumer that keeps the order of each queue.

    Args:
        handling: calls the handler.
        store: receives the offsets to commit.
        locks: the broker locks; None if every member consumes all queues.
        dead_letters: which messages are dead-lettered, and how.
        restore_topics: gives the messages of a queue the topics that applications know.
        suspend_ms: the pause of a queue after a failure.
        statistics: counts.
        continuous_s: the longest time of one chain.
    """

    def __init__(
        self,
        handling: HandlerCalls,
        *,
        store: OffsetStore,
        locks: Locks | None,
        dead_letters: DeadLetters,
        restore_topics: Callable[[ProcessQueue, Sequence[StoredMessage]], None],
        suspend_ms: int,
        statistics: Statistics,
        continuous_s: float = CONTINUOUS_S,
    ) -> None:
        self._handling = handling
        self._store = store
        self._locks = locks
        self._dead_letters = dead_letters
        self._restore_topics = restore_topics
        self._limit = ConcurrencyLimit(handling.limits.concurrency)
        self._batch_max = handling.limits.batch_max
        self._suspend_ms = suspend_ms
        self._statistics = statistics
        self._continuous_s = continuous_s
        self._chains: set[ProcessQueue] = set()
        self._timers: dict[ProcessQueue, asyncio.TimerHandle] = {}
        self._unlocked: set[ProcessQueue] = set()
        """Queues whose next chain waits for their lock."""
        self._tasks = Supervisor(f"consumer {handling.group}")
        self._stopping = False

    def start(self) -> None:
        """Do nothing: chains begin when messages are fetched."""

    def submit(self, queue: ProcessQueue, batch: FetchedBatch) -> None:
        """Consume what is in the queue; never blocks."""
        self._restore_topics(queue, batch.messages)
        if queue.begin_ordered():
            self._begin(queue)

    def set_concurrency(self, count: int) -> None:
        """Set how many queues are consumed at a time."""
        self._limit.resize(count)
        self._handling.resize(count)

    def runs_handlers(self, task: object) -> bool:
        """Return whether a task calls handlers."""
        return task in self._tasks

    def resume(self, queue: ProcessQueue) -> None:
        """Begin the next chain of a queue now, because its lost lock was renewed."""
        timer = self._timers.pop(queue, None)
        if timer is not None:
            timer.cancel()
        if timer is not None or queue in self._unlocked:
            self._unlocked.discard(queue)
            self._begin(queue)

    async def stop(self, *, grace_s: float) -> None:
        """Take no further messages, wait for running handlers, then cancel what still runs."""
        self._stopping = True
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        self._limit.close()
        if grace_s > 0:
            await self._tasks.drain(grace_s)
        left, abandoned = len(self._tasks), list(self._chains)
        if left:
            await self._tasks.cancel(CANCEL_S)
        self._handling.end(left)
        if self._handling.plain:
            # Their threads still run: other members must wait until the locks expire.
            for queue in abandoned:
                queue.locked = False

    def _begin(self, queue: ProcessQueue) -> None:
        if self._stopping or queue.dropped or queue in self._chains:
            return
        self._chains.add(queue)
        self._tasks.spawn(self._chain(queue), f"queue-{queue.queue.queue_id}")

    def _later(self, queue: ProcessQueue, seconds: float) -> None:
        """Begin the next chain after a pause; until then the queue counts as being consumed."""
        if self._stopping or queue.dropped:
            return
        if seconds == UNTIL_LOCKED_S:
            self._unlocked = {each for each in self._unlocked if not each.dropped} | {queue}
            return

        def again() -> None:
            self._timers.pop(queue, None)
            self._begin(queue)

        before = self._timers.pop(queue, None)
        if before is not None:
            before.cancel()
        self._timers[queue] = asyncio.get_running_loop().call_later(seconds, again)

    async def _chain(self, queue: ProcessQueue) -> None:
        try:
            async with self._limit:
                pause_s = await self._consume_until_empty(queue)
        except BaseException as error:
            if not outlives(error, stopping=self._stopping):
                raise
            log.exception(
                "consuming in order failed, retrying queue=%s group=%s",
                queue.queue,
                self._handling.group,
            )
            queue.rollback()
            pause_s = FAILED_CHAIN_S
        finally:
            self._chains.discard(queue)
        if pause_s is not None:
            self._later(queue, pause_s)

    async def _consume_until_empty(self, queue: ProcessQueue) -> float | None:
        """Call the handler until nothing is left; else return the pause before the next chain."""
        loop = asyncio.get_running_loop()
        begun_s = yielded_s = loop.time()
        while not queue.dropped and not self._stopping:
            if self._locks is not None and not queue.lock_is_fresh():
                if queue.locked:
                    log.warning(
                        "queue lock expired queue=%s group=%s", queue.queue, self._handling.group
                    )
                await self._locks.relock(queue)
                return NEXT_CHAIN_S if queue.lock_is_fresh() else UNTIL_LOCKED_S
            if loop.time() - begun_s > self._continuous_s:
                return NEXT_CHAIN_S
            messages = queue.take(self._batch_max)
            if not messages:
                return None
            pause_s = await self._consume(queue, messages)
            if pause_s is not None:
                return pause_s
            if loop.time() - yielded_s > SLICE_S:
                await asyncio.sleep(0)
                yielded_s = loop.time()
        return None

    async def _consume(self, queue: ProcessQueue, messages: list[StoredMessage]) -> float | None:
        context = self._handling.ordered_context(queue.queue)
        async with queue.consuming:
            if queue.dropped:
                return None
            ended = await self._handling.run(messages, context)
            outcome = ordered_outcome_of(
                ended.result, ended.error, context, suspend_ms=self._suspend_ms
            )
            self._count(queue, messages, ended, outcome)
            return await self._settle(queue, messages, outcome, context)

    def _count(
        self,
        queue: ProcessQueue,
        messages: list[StoredMessage],
        ended: Ended,
        outcome: OrderedOutcome,
    ) -> None:
        failed = outcome.action in (OrderedAction.SUSPEND, OrderedAction.ROLL_BACK)
        lost = len(messages) if failed else 0
        self._statistics.consumed(
            queue.queue.topic, len(messages) - lost, lost, ended.seconds * 1000
        )
        self._handling.after(ended, outcome.end)
        rule, level, pause_s = self._dead_letters.rule, outcome.delay_level, outcome.pause_s
        after = rule.redelivery(messages[-lost], level, pause_s) if lost else ""
        self._handling.report(messages, ended, lost, after)

    async def _settle(
        self,
        queue: ProcessQueue,
        messages: list[StoredMessage],
        outcome: OrderedOutcome,
        context: OrderedContext,
    ) -> float | None:
        """Commit or put back the messages of a call; return the pause before the next, if any."""
        if outcome.action is OrderedAction.LEAVE_OPEN:
            return None
        if outcome.action is OrderedAction.ROLL_BACK:
            queue.rollback()
            return outcome.pause_s
        if outcome.action is OrderedAction.SUSPEND:
            if not await self._all_given_up(messages, outcome):
                queue.put_back(messages)
                return outcome.pause_s
            if not context.auto_commit:
                return None
        self._commit(queue)
        return None

    def _commit(self, queue: ProcessQueue) -> None:
        """Store the offset to commit; of a revoked queue, only while its lock is held."""
        offset = queue.take_open()
        if offset is None:
            return
        if queue.dropped and self._locks is not None and not queue.lock_is_fresh():
            log.info(
                "result ignored: the queue is revoked, its lock expired queue=%s group=%s",
                queue.queue,
                self._handling.group,
            )
            return
        self._store.update(queue.queue, offset)

    async def _all_given_up(self, messages: list[StoredMessage], outcome: OrderedOutcome) -> bool:
        """Dead-letter messages after their last retry; return whether that was done with all."""
        is_kept = False
        for message in messages:
            is_dead = self._dead_letters.rule.applies_to(message, outcome.delay_level)
            if not is_dead or not await self._dead_letters.store(message, outcome.error):
                self._handling.failed(message, outcome.error, is_dead=False)
                message.reconsume_times += 1
                is_kept = True
        return not is_kept


class ConcurrencyLimit:
    """Limits how many tasks run at a time; waiting tasks enter in the order they came.

    Args:
        count: the limit.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._entered = 0
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._closed = False

    def resize(self, count: int) -> None:
        """Change the limit; tasks that have entered stay."""
        self._count = count
        self._admit()

    def close(self) -> None:
        """Let all waiting tasks enter: they find nothing to do, and end."""
        self._closed = True
        self._admit()

    async def __aenter__(self) -> None:
        if self._entered < self._count and not self._waiters:
            self._entered += 1
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        self._admit()
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self._leave()
            elif waiter in self._waiters:
                self._waiters.remove(waiter)
            raise

    async def __aexit__(self, *error: object) -> None:
        self._leave()

    def _leave(self) -> None:
        self._entered -= 1
        self._admit()

    def _admit(self) -> None:
        while self._waiters and (self._closed or self._entered < self._count):
            waiter = self._waiters.popleft()
            if not waiter.done():
                self._entered += 1
                waiter.set_result(None)
