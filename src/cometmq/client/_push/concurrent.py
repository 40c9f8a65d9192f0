"""Consumes messages in any order, several at a time.

    fetched batch -> waiting -> a worker calls the handler -> removed from its queue, offset stored
                        ^                 |
                        +-- after 5 s ----+-> sent back to the broker for redelivery

The offset to commit never passes a message that is not consumed: after a crash messages are
redelivered and none is lost. A message that failed counts as consumed once a broker has accepted it
for redelivery; if no broker accepts it, the handler is called again here.

In the compiled module, arguments annotated with compiled classes have C types: a message takes a
sixth less time.

Source: ConsumeMessageConcurrentlyService, RocketMQ 5.3.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Iterable, Sequence
from time import monotonic
from typing import NamedTuple

from cometmq.client._consuming.handler_calls import (
    NO_REDELIVERY,
    Ended,
    HandlerCalls,
    Outcome,
    outcome_of,
)
from cometmq.client._consuming.statistics import Statistics
from cometmq.client._consuming.workers import Workers
from cometmq.client._push.process_queue import FetchedBatch, ProcessQueue
from cometmq.client.handlers import ConsumeContext, Consumed
from cometmq.client.hooks import ConsumeEnd
from cometmq.client.offsets import OffsetStore
from cometmq.model.message import StoredMessage
from cometmq.protocol.lazy_record import restore
from cometmq.remoting.tasks import Supervisor, raise_unless_failure
from cometmq.system.failure_log import FailureLog

try:
    import cython  # type: ignore[import-untyped]
except ImportError:  # interpreted, without Cython at hand
    from cometmq.system.uncompiled import cython

if cython.compiled:
    from cython.cimports.cpython.time import monotonic as steady_s  # type: ignore
else:
    steady_s = monotonic

log = logging.getLogger(__name__)

LOCAL_RETRY_S = 5.0
"""The pause until a message that no broker accepted for redelivery is consumed again here."""
_SUCCESS = Consumed.SUCCESS
TIMEOUT_DELAY_LEVEL = 3
"""The delay level of a message that is sent back because its handler exceeds the time limit."""


class Redelivery(NamedTuple):
    """How messages are redelivered that a handler did not consume."""

    send_back: Callable[[StoredMessage, int, BaseException | None], Awaitable[bool]]
    """Sends a message back to a broker: the message, a delay level, the error. Returns whether a
    broker accepted it."""
    delay_of: Callable[[StoredMessage, int], str]
    """Returns after which time a message is redelivered that is sent back with a delay level, for
    the log."""


class Pending:
    """Messages of a batch that wait for a handler; several workers share them.

    Args:
        batch: the batch.
        next: the position of the first one that no worker has taken.
        stop: the position after the last one.
    """

    __slots__ = ("batch", "next", "stop")

    batch: FetchedBatch
    next: int
    stop: int

    def __init__(self, batch: FetchedBatch, next: int, stop: int) -> None:
        self.batch = batch
        self.next = next
        self.stop = stop


class Call:
    """The messages that a worker has passed to a handler.

    Args:
        batch: their batch.
    """

    __slots__ = ("batch", "begun_s", "start", "stop")

    batch: FetchedBatch
    start: int
    stop: int
    begun_s: float
    """When the call began, in seconds of the steady clock."""

    def __init__(self, batch: FetchedBatch) -> None:
        self.batch = batch
        self.start = self.stop = 0
        self.begun_s = 0.0


class ConcurrentService:
    """The consume service of a consumer that does not keep order.

    Args:
        handling: calls the handler.
        store: receives the offsets to commit.
        redelivery: of messages that failed; None drops them, as in broadcasting.
        restore_topics: gives the messages of a queue the topics that applications know.
        statistics: counts.
        check_pause: called before handler calls: drops queues if this process stood still for long.
        local_retry_s: until a message that could not be sent back is consumed again.
        now: a steady clock, in seconds.
    """

    def __init__(
        self,
        handling: HandlerCalls,
        *,
        store: OffsetStore,
        redelivery: Redelivery | None,
        restore_topics: Callable[[ProcessQueue, Sequence[StoredMessage]], None],
        statistics: Statistics,
        check_pause: Callable[[], None] = lambda: None,
        local_retry_s: float = LOCAL_RETRY_S,
        now: Callable[[], float] = monotonic,
    ) -> None:
        self._handling = handling
        self._store = store
        self._redelivery = redelivery
        self._restore_topics = restore_topics
        self._batch_max = handling.limits.batch_max
        self._timeout_s = handling.limits.timeout_s
        self._statistics = statistics
        self._check_pause = check_pause
        self._local_retry_s = local_retry_s
        self._now = now
        self._timers: set[asyncio.TimerHandle] = set()
        self._checks = Supervisor(f"consumer {handling.group}")
        self._calls: set[Call] = set()
        self._failures = FailureLog(
            log,
            fails="cannot update the offset store",
            works="the offset store is updated again",
            name="queue",
            more=f"group={handling.group}",
        )
        self._pending_offsets: set[ProcessQueue] = set()
        """Queues whose newest offset to commit is not in the store yet."""
        self._update_is_scheduled = False
        self._workers: Workers[Pending] = Workers(
            self._consume,
            handling.limits.concurrency,
            owner=f"consumer {handling.group}",
            is_left=lambda each: each.next < each.stop,
            now=now,
        )
        self._stopping = False

    def start(self) -> None:
        """Begin to check for handler calls that exceed the time limit."""
        if self._redelivery is not None:
            self._checks.every(min(self._timeout_s, 60.0), self.send_back_timed_out, "timeouts")

    def submit(self, queue: ProcessQueue, batch: FetchedBatch) -> None:
        """Consume these messages, which are in the queue already; never blocks."""
        self._restore_topics(queue, batch.messages)
        self._workers.add([Pending(batch, 0, len(batch.messages))])

    def set_concurrency(self, count: int) -> None:
        """Set how many calls run at a time; running calls are not interrupted."""
        waiting = [Pending(each.batch, each.next, each.stop) for each in self._workers.waiting]
        self._forget_waiting()  # workers above the limit end with their calls
        self._workers.resize(count)
        self._workers.add(waiting)
        self._handling.resize(count)

    def runs_handlers(self, task: object) -> bool:
        """Return whether a task calls handlers."""
        return task in self._workers

    def _forget_waiting(self) -> None:
        for pending in self._workers.waiting:
            pending.next = pending.stop
        self._workers.waiting.clear()

    async def stop(self, *, grace_s: float) -> None:
        """Take no further messages, wait for running handlers, then cancel what still runs."""
        self._stopping = True
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()
        await self._checks.cancel()
        self._forget_waiting()
        self._handling.end(await self._workers.stop(grace_s=grace_s))
        self._update_store()

    async def send_back_timed_out(self) -> None:
        """Send back the messages of calls that exceed the time limit; they count as consumed."""
        latest_s = self._now() - self._timeout_s
        for call in [call for call in self._calls if call.begun_s < latest_s]:
            batch, start, stop = call.batch, call.start, call.stop
            for index in range(start, stop):
                if batch.queue.dropped or not batch.is_open(index):
                    continue
                message = batch.messages[index]
                if not await self._sent_back(message, TIMEOUT_DELAY_LEVEL, None):
                    break
                log.warning(
                    "handler exceeds its time limit, sending the message back"
                    " topic=%s id=%s group=%s",
                    message.topic,
                    message.message_id,
                    self._handling.group,
                )
                self._finish(batch, index, index + 1)
        self._update_store()

    async def _consume(self, pending: Pending) -> None:
        """Call the handler with pending messages, from which several workers may take."""
        batch, queue = pending.batch, pending.batch.queue
        call = Call(batch)
        self._calls.add(call)
        queue.begin_call()
        try:
            consume = self._consume_fast if self._handling.direct else self._consume_each
            self._check_pause()
            while pending.next < pending.stop and not queue.dropped:
                try:
                    await consume(pending, call)
                except BaseException as error:
                    if not self._workers.goes_on_after(error):
                        raise
                    log.exception(
                        "consuming failed, retrying queue=%s group=%s",
                        queue.queue,
                        self._handling.group,
                    )
                    self._retry_here_later(batch, range(call.start, call.stop))
                call.stop = call.start  # no message is in flight during the pause
                self._update_store()
                if self._now() > self._workers.slice_end:
                    await self._workers.rest()
                    self._check_pause()
            if queue.dropped:
                pending.next = pending.stop
        finally:
            self._calls.discard(call)
            self._update_store()
            queue.end_call()

    async def _consume_each(self, pending: Pending, call: Call) -> None:
        """Call the handler once, on the general path: any handler, with hooks."""
        call.start = pending.next
        call.stop = pending.next = min(pending.next + self._batch_max, pending.stop)
        call.begun_s = self._now()
        messages = call.batch.messages[call.start : call.stop]
        context = self._handling.context(call.batch.queue.queue)
        ended = await self._handling.run(messages, context)
        await self._settle(call, messages, ended, context)

    async def _consume_fast(self, pending: Pending, call: Call) -> None:
        """Call an async handler without hooks, until the slice ends or a call does not succeed.

        Successful calls are counted together. Only other results go to `_settle`.
        """
        batch, queue, fetched = pending.batch, pending.batch.queue, pending.batch.messages
        function, clock = self._handling.direct, self._now
        assert function is not None
        context: ConsumeContext
        messages: Sequence[StoredMessage]
        one: cython.bint = self._handling.takes_one
        if one:  # the handler does not get it, so no call changes it
            context = self._handling.context(queue.queue)
        clock_is_steady: cython.bint = clock is monotonic
        size: cython.Py_ssize_t = self._batch_max
        start: cython.Py_ssize_t
        stop: cython.Py_ssize_t
        calls: cython.Py_ssize_t = 0
        done: cython.Py_ssize_t = 0
        slice_end: cython.double = self._workers.slice_end
        begun_s: cython.double = clock()
        now: cython.double = begun_s
        ended: Ended | None = None
        try:
            while pending.next < pending.stop and not queue.dropped:
                call.start = start = pending.next
                stop = start + size
                if stop > pending.stop:
                    stop = pending.stop
                call.stop = pending.next = stop
                call.begun_s = now
                try:
                    if one:
                        message = fetched[start]
                        result = await function(message)
                    else:
                        context = self._handling.context(queue.queue)
                        messages = fetched[start:stop]
                        result = await function(messages.copy(), context)
                except BaseException as error:
                    raise_unless_failure(error)
                    ended = Ended(None, error, clock() - now, None)
                    break
                if (result is not None and result is not _SUCCESS) or (
                    not one and context.done is not None
                ):
                    ended = Ended(result, None, clock() - now, None)
                    break
                calls += 1
                done += stop - start
                batch.finish(start, stop)
                if not queue.is_offset_pending:
                    self._update_store_soon(queue)
                now = steady_s() if clock_is_steady else clock()
                if now > slice_end:
                    break
        finally:
            if calls:
                cost_ms = (now - begun_s) * 1000
                self._statistics.consumed(queue.queue.topic, done, 0, cost_ms, calls)
        if ended is not None:
            await self._settle(call, [message] if one else messages, ended, context)

    async def _settle(
        self,
        call: Call,
        messages: Sequence[StoredMessage],
        ended: Ended,
        context: ConsumeContext,
    ) -> None:
        """Finish or retry the messages of a call; those already sent back are ignored."""
        batch, start, stop = call.batch, call.start, call.stop
        outcome = outcome_of(ended.result, ended.error, context, stop - start)
        self._count(batch.queue, messages, ended, outcome)
        self._finish(batch, start, start + outcome.done)
        if start + outcome.done < stop and not batch.queue.dropped:
            call.begun_s = math.inf  # the handler has ended, so it cannot exceed its time limit
            await self._settle_failed(batch, range(start + outcome.done, stop), outcome)

    def _count(
        self,
        queue: ProcessQueue,
        messages: Sequence[StoredMessage],
        ended: Ended,
        outcome: Outcome,
    ) -> None:
        cost_ms = ended.seconds * 1000
        failed = len(messages) - outcome.done
        self._statistics.consumed(queue.queue.topic, outcome.done, failed, cost_ms)
        if ended.delivery is not None:
            took_too_long = ended.seconds >= self._timeout_s
            self._handling.after(ended, ConsumeEnd.TIMEOUT if took_too_long else outcome.end)
        after = NO_REDELIVERY
        if failed and self._redelivery is not None:
            after = self._redelivery.delay_of(messages[-failed], outcome.delay_level)
        self._handling.report(messages, ended, failed, after)

    async def _settle_failed(
        self, batch: FetchedBatch, failed: Iterable[int], outcome: Outcome
    ) -> None:
        """Send failed messages back; messages that no broker accepts are retried here.

        Failed messages of a revoked queue are redelivered to its next owner.
        """
        kept = []
        for index in failed:
            if not batch.is_open(index):
                continue
            message = batch.messages[index]
            if await self._sent_back(message, outcome.delay_level, outcome.error):
                self._finish(batch, index, index + 1)
            else:
                restore(message)
                message.reconsume_times += 1
                kept.append(index)
        if kept:
            self._retry_here_later(batch, kept)

    async def _sent_back(
        self, message: StoredMessage, delay_level: int, error: BaseException | None
    ) -> bool:
        if self._redelivery is None:
            log.warning(
                "handler failed, broadcast message dropped topic=%s id=%s group=%s",
                message.topic,
                message.message_id,
                self._handling.group,
            )
            return True
        return await self._redelivery.send_back(message, delay_level, error)

    def _finish(self, batch: FetchedBatch, start: int, stop: int) -> None:
        """Finish messages; the store is updated at the end of this slice, or of the next one."""
        batch.finish(start, stop)
        self._update_store_soon(batch.queue)

    def _update_store_soon(self, queue: ProcessQueue) -> None:
        if not self._update_is_scheduled:
            self._update_is_scheduled = True
            self._workers.call_soon(self._update_store)
        self._pending_offsets.add(queue)
        queue.is_offset_pending = True

    def _update_store(self) -> None:
        """Put pending offsets into the store, which may be an application's and raise."""
        self._update_is_scheduled = False
        for queue in list(self._pending_offsets):
            offset = queue.committable()
            try:
                if offset is not None:
                    self._store.update(queue.queue, offset, increase_only=True)
            except BaseException as error:
                raise_unless_failure(error)
                self._failures.failed(str(queue.queue), error)
            else:
                if self._failures.is_failing:
                    self._failures.succeeded(str(queue.queue))
                self._pending_offsets.discard(queue)
                queue.is_offset_pending = False

    def _retry_here_later(self, batch: FetchedBatch, indexes: Iterable[int]) -> None:
        """Call the handler again with these messages, after a pause."""
        if self._stopping or batch.queue.dropped:
            return
        retried = [Pending(batch, index, index + 1) for index in indexes if batch.is_open(index)]

        def again() -> None:
            self._timers.discard(timer)
            self._workers.add([each for each in retried if batch.is_open(each.next)])

        timer = asyncio.get_running_loop().call_later(self._local_retry_s, again)
        self._timers.add(timer)
