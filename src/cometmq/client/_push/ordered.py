"""Consumes each queue's messages in order: one call at a time, and none after one that failed.

A queue is consumed by one chain of calls at a time, which begins when messages come and ends when
none is left:

    locked by the broker?  no -> try to lock it, then go on
    take messages -> call the handler -> commit and go on
                                      -> put them back and pause
                                      -> give them up, once they failed too often

When members share queues, the broker's lock keeps others away, and a chain goes on only while the
lock is fresh. A queue is never consumed by one chain for longer than 60 s while others wait.

Source: ConsumeMessageOrderlyService, RocketMQ 5.3.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Sequence
from types import TracebackType

from cometmq.client._consuming.group_requests import GroupCalls
from cometmq.client._consuming.handler_calls import (
    Ended,
    HandlerCalls,
    OrderedAction,
    OrderedOutcome,
    ordered_outcome_of,
)
from cometmq.client._consuming.retries import DeadLetterRule
from cometmq.client._consuming.statistics import Statistics
from cometmq.client._consuming.workers import CANCEL_S, SLICE_S
from cometmq.client._push.process_queue import FetchedBatch, ProcessQueue
from cometmq.client._supervision import PeriodicLoop, SupervisedTasks, log_text, log_trace
from cometmq.client.handlers import OrderedContext
from cometmq.client.offsets import OffsetStore
from cometmq.model.message import StoredMessage
from cometmq.model.queue import MessageQueue
from cometmq.remoting.tasks import Supervisor, is_call_failure, outlives

log = logging.getLogger(__name__)

FIRST_S = 1.0
"""Until the locks are renewed for the first time."""
AGAIN_S = 3.0
"""From one try to the next to get a lock back that was lost."""
UNLOCK_ALL_S = 2.0


class Locks:
    """The locks of one member of a group.

    Args:
        calls: asks brokers.
        group: as brokers know it.
        client_id: of the member.
        queues: gives the queues that are owned now.
        now: a steady clock in seconds, the one of the process queues.
        on_locked: called with a queue whose lock had been lost and is back.
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
    ) -> None:
        self._calls = calls
        self._group = group
        self._client_id = client_id
        self._queues = queues
        self._now = now
        self._on_locked = on_locked
        self._later: dict[MessageQueue, asyncio.TimerHandle] = {}
        self._tasks = Supervisor(f"locks {group}")
        self._renewed_at = -math.inf
        self._renewals: PeriodicLoop | None = None

    def start(self, interval_s: float, tasks: SupervisedTasks) -> None:
        """Renew all locks every ``interval_s`` seconds, and sooner while one of them is lost."""
        check_s = min(AGAIN_S, interval_s)

        async def renew_due() -> None:
            if self._is_lost() or self._now() - self._renewed_at + check_s >= interval_s:
                await self.renew()

        self._renewals = tasks.repeat(
            check_s, renew_due, "renew-locks", first_s=min(FIRST_S, interval_s)
        )

    def _is_lost(self) -> bool:
        return any(not queue.locked and not queue.dropped for queue in self._queues())

    async def stop(self) -> None:
        """Renew no longer, and give all locks back to the brokers at once."""
        late = list(self._later)
        await self.abandon()
        held = [queue.queue for queue in self._queues() if queue.locked]
        await self._unlock({*held, *late})

    async def abandon(self) -> None:
        """Renew no longer, and leave the locks to expire."""
        for timer in self._later.values():
            timer.cancel()
        self._later.clear()
        if self._renewals is not None:
            await self._renewals.stop()
        await self._tasks.cancel()

    async def obtain(self, queue: MessageQueue) -> bool:
        """Lock one queue that is not owned yet.

        Returns:
            False if another member has it, or its broker did not respond or refused.
        """
        self._forget_unlocking(queue)
        return queue in await self._lock([queue])

    async def regain(self, queue: ProcessQueue) -> bool:
        """Lock an owned queue whose lock was lost or is old."""
        self._note(queue, await self.obtain(queue.queue))
        return queue.locked

    async def renew(self) -> None:
        """Lock all owned queues again; those that no broker confirms are not locked any more."""
        owned = [queue for queue in self._queues() if not queue.dropped]
        self._renewed_at = self._now()
        if not owned:
            return
        locked = await self._lock([queue.queue for queue in owned])
        for queue in owned:
            self._note(queue, queue.queue in locked)

    async def release(self, queue: ProcessQueue, *, delay_s: float = 0.0) -> None:
        """Give a queue's lock back, at once or after a delay.

        Args:
            queue: a revoked queue without a running handler call.
            delay_s: seconds until others can have it.
        """
        queue.locked = False
        if delay_s <= 0:
            await self._unlock({queue.queue})
            return
        loop, which = asyncio.get_running_loop(), queue.queue
        self._later[which] = loop.call_later(delay_s, self._unlock_late, which)

    async def give_back(self, queue: MessageQueue) -> None:
        """Give back the lock of a queue that was not begun after all."""
        await self._unlock({queue})

    def _unlock_late(self, queue: MessageQueue) -> None:
        if self._later.pop(queue, None) is not None:
            self._tasks.spawn(self._unlock({queue}), f"unlock-{queue.queue_id}")

    def _forget_unlocking(self, queue: MessageQueue) -> None:
        timer = self._later.pop(queue, None)
        if timer is not None:
            timer.cancel()

    def _note(self, queue: ProcessQueue, locked: bool) -> None:
        was_fresh = queue.lock_is_fresh()
        if queue.locked and not locked:
            log.warning("queue lock lost group=%s queue=%s", self._group, queue.queue)
        queue.locked = locked
        if locked:
            queue.locked_at_s = self._now()
            if not was_fresh and self._on_locked is not None:
                self._on_locked(queue)

    async def _lock(self, queues: Collection[MessageQueue]) -> set[MessageQueue]:
        try:
            return await self._calls.lock(self._group, self._client_id, queues)
        except BaseException as error:
            if not is_call_failure(error):
                raise
            log.warning(
                "cannot lock queues group=%s error=%s",
                *(self._group, log_text(error)),
                exc_info=log_trace(error),
            )
            return set()

    async def _unlock(self, queues: Collection[MessageQueue]) -> None:
        if not queues:
            return
        try:
            async with asyncio.timeout(UNLOCK_ALL_S):
                await self._calls.unlock(self._group, self._client_id, queues, oneway=True)
        except BaseException as error:
            if not is_call_failure(error):
                raise
            log.warning(
                "cannot unlock queues group=%s error=%s",
                *(self._group, log_text(error)),
                exc_info=log_trace(error),
            )


CONTINUOUS_S = 60.0
"""How long one chain may be at a queue before it lines up again behind the others."""
SOON_S = 0.01
LOCK_RETRY_S = 3.0
"""Until a queue that could not be locked is tried again."""

GiveUp = Callable[[StoredMessage, BaseException | None], Awaitable[bool]]
"""Makes a dead letter of a message; says whether a broker took it."""


class OrderedService:
    """The consume service of a consumer that keeps the order of each queue.

    Args:
        handling: calls the handler.
        store: is told how far each queue is consumed.
        locks: the brokers' locks; None when every member reads all queues.
        give_up: makes a dead letter; None when that is not done, as in broadcasting.
        restore_topics: gives the messages of a queue the topics that applications know.
        concurrency: queues that are consumed at a time.
        batch_max: messages of one call.
        suspend_ms: the pause of a queue after a failure.
        dead_letters: decides which messages become dead letters.
        statistics: counts.
        continuous_s: how long one chain may be at a queue.
    """

    def __init__(
        self,
        handling: HandlerCalls,
        *,
        store: OffsetStore,
        locks: Locks | None,
        give_up: GiveUp | None,
        restore_topics: Callable[[ProcessQueue, Sequence[StoredMessage]], None],
        concurrency: int,
        batch_max: int,
        suspend_ms: int,
        dead_letters: DeadLetterRule,
        statistics: Statistics,
        continuous_s: float = CONTINUOUS_S,
    ) -> None:
        self._handling = handling
        self._store = store
        self._locks = locks
        self._give_up = give_up
        self._restore_topics = restore_topics
        self._permits = Permits(concurrency)
        self._batch_max = 1 if handling.takes_one else batch_max
        self._suspend_ms = suspend_ms
        self._dead_letters = dead_letters
        self._statistics = statistics
        self._continuous_s = continuous_s
        self._chains: set[ProcessQueue] = set()
        self._timers: dict[ProcessQueue, asyncio.TimerHandle] = {}
        self._tasks = Supervisor(f"consumer {handling.group}")
        self._stopping = False

    def start(self) -> None:
        """There is nothing to begin: chains begin when messages come."""

    def submit(self, queue: ProcessQueue, batch: FetchedBatch) -> None:
        """Consume what is in the queue; never blocks."""
        self._restore_topics(queue, batch.messages)
        if queue.begin_ordered():
            self._begin(queue)

    def set_concurrency(self, count: int) -> None:
        """Let this many queues be consumed at a time from now on."""
        self._permits.resize(count)
        self._handling.resize(count)

    def runs_handlers(self, task: object) -> bool:
        """Return whether a task calls handlers."""
        return task in self._tasks

    def go_on(self, queue: ProcessQueue) -> None:
        """Look at a queue again now, because its lock is back."""
        timer = self._timers.pop(queue, None)
        if timer is not None:
            timer.cancel()
            self._begin(queue)

    async def stop(self, *, grace_s: float) -> None:
        """Take no further messages, wait for running handlers, then cancel what still runs."""
        self._stopping = True
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        self._permits.close()
        if grace_s > 0:
            await self._tasks.drain(grace_s)
        left, abandoned = len(self._tasks), list(self._chains)
        if left:
            await self._tasks.cancel(CANCEL_S)
        self._handling.end(left)
        if self._handling.plain:
            # Their threads go on: no other member may consume these queues before the locks expire.
            for queue in abandoned:
                queue.locked = False

    def _begin(self, queue: ProcessQueue) -> None:
        if self._stopping or queue.dropped or queue in self._chains:
            return
        self._chains.add(queue)
        self._tasks.spawn(self._chain(queue), f"queue-{queue.queue.queue_id}")

    def _later(self, queue: ProcessQueue, seconds: float) -> None:
        """Begin a new chain after a while; the queue counts as being consumed meanwhile."""
        if self._stopping or queue.dropped:
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
            async with self._permits:
                pause_s = await self._consume_on_end(queue)
        except BaseException as error:
            if not outlives(error, stopping=self._stopping):
                raise
            log.exception("consuming in order failed, retrying queue=%s", queue.queue)
            queue.rollback()
            pause_s = LOCK_RETRY_S
        finally:
            self._chains.discard(queue)
        if pause_s is not None:
            self._later(queue, pause_s)

    async def _consume_on_end(self, queue: ProcessQueue) -> float | None:
        """Call the handler until nothing is left; or give the seconds until to go on."""
        loop = asyncio.get_running_loop()
        begun = breathed = loop.time()
        while not queue.dropped and not self._stopping:
            if self._locks is not None and not queue.lock_is_fresh():
                if queue.locked:
                    log.warning("queue lock expired queue=%s", queue.queue)
                return SOON_S if await self._locks.regain(queue) else LOCK_RETRY_S
            if loop.time() - begun > self._continuous_s:
                return SOON_S
            messages = queue.take(self._batch_max)
            if not messages:
                return None
            pause_s = await self._consume(queue, messages)
            if pause_s is not None:
                return pause_s
            if loop.time() - breathed > SLICE_S:
                await asyncio.sleep(0)
                breathed = loop.time()
        return None

    async def _consume(self, queue: ProcessQueue, messages: list[StoredMessage]) -> float | None:
        context = OrderedContext(self._handling.group, self._handling.shown(queue.queue))
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
        self._handling.report(messages, ended)

    async def _settle(
        self,
        queue: ProcessQueue,
        messages: list[StoredMessage],
        outcome: OrderedOutcome,
        context: OrderedContext,
    ) -> float | None:
        """Do what the outcome asks for, and give the seconds of the pause, if there is one."""
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
        """Note how far a queue is consumed; of one that is revoked, while its lock is held."""
        offset = queue.take_open()
        if offset is None:
            return
        if queue.dropped and self._locks is not None and not queue.lock_is_fresh():
            log.info("result ignored: the queue is revoked, its lock expired queue=%s", queue.queue)
            return
        self._store.update(queue.queue, offset)

    async def _all_given_up(self, messages: list[StoredMessage], outcome: OrderedOutcome) -> bool:
        """Dead-letter the messages that are not retried any more; whether that is all of them."""
        stays = False
        for message in messages:
            is_dead = self._dead_letters.applies_to(message, outcome.delay_level)
            if not is_dead or not await self._given_up(message, outcome.error):
                message.reconsume_times += 1
                stays = True
        return not stays

    async def _given_up(self, message: StoredMessage, error: BaseException | None) -> bool:
        if self._give_up is None:
            log.warning(
                "retries exhausted, broadcast message dropped topic=%s id=%s",
                message.topic,
                message.message_id,
            )
            return True
        return await self._give_up(message, error)


class Permits:
    """Lets so many tasks in at a time, in the order they came.

    Args:
        count: how many.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._taken = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._closed = False

    def resize(self, count: int) -> None:
        """Let this many in from now on; those that are in stay."""
        self._count = count
        self._let_in()

    def close(self) -> None:
        """Let all waiting tasks in: they find nothing to do, and end."""
        self._closed = True
        self._let_in()

    async def __aenter__(self) -> None:
        if self._taken < self._count and not self._waiting:
            self._taken += 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        self._let_in()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._leave()
            elif turn in self._waiting:
                self._waiting.remove(turn)
            raise

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._leave()

    def _leave(self) -> None:
        self._taken -= 1
        self._let_in()

    def _let_in(self) -> None:
        while self._waiting and (self._closed or self._taken < self._count):
            turn = self._waiting.popleft()
            if not turn.done():
                self._taken += 1
                turn.set_result(None)
