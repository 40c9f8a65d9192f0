"""Consumes messages in any order, several at a time.

    fetched batch -> waiting -> a worker calls the handler -> removed from its queue, offset noted
                        ^                 |
                        +-- after 5 s ----+-> sent back to the broker, to come again

What is committed of a queue never passes a message that is not done with: a crash repeats messages
and loses none. A message that failed counts as done with once a broker has taken it back; if no
broker does, it is tried again here.

Source: ConsumeMessageConcurrentlyService, RocketMQ 5.3.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence

from cometmq.client._consuming.handler_calls import Ended, HandlerCalls
from cometmq.client._consuming.outcomes import Outcome, outcome_of
from cometmq.client._consuming.process_queue import ProcessQueue
from cometmq.client._consuming.statistics import Statistics
from cometmq.client._consuming.workers import Workers
from cometmq.client.handlers import ConsumeContext
from cometmq.client.hooks import ConsumeEnd
from cometmq.client.offsets import OffsetStore
from cometmq.model.message import StoredMessage
from cometmq.remoting.tasks import Supervisor, is_call_failure

log = logging.getLogger(__name__)

LOCAL_RETRY_S = 5.0
"""Until a message that no broker took back is consumed again here."""
LATE_LEVEL = 3
"""The delay level of a message whose handler took too long."""

Batch = tuple[ProcessQueue, list[StoredMessage]]
SendBack = Callable[[StoredMessage, int, BaseException | None], Awaitable[bool]]
"""Has a message delivered again: the message, a delay level, why it failed; says whether it will
be."""


class ConcurrentService:
    """The consume service of a consumer that does not keep order.

    Args:
        handling: calls the handler.
        store: is told how far each queue is consumed.
        send_back: has a message delivered again; None drops failed messages, as in broadcasting.
        show: prepares messages for the handler, by the queue they are in.
        concurrency: calls that run at a time.
        batch_max: messages of one call.
        timeout_s: a message that a handler has for longer is sent back while it still runs.
        queues: gives the queues that are owned now, to look for such messages.
        statistics: counts.
        local_retry_s: until a message that could not be sent back is consumed again.
    """

    def __init__(
        self,
        handling: HandlerCalls,
        *,
        store: OffsetStore,
        send_back: SendBack | None,
        show: Callable[[ProcessQueue, Sequence[StoredMessage]], None],
        concurrency: int,
        batch_max: int,
        timeout_s: float,
        queues: Callable[[], Collection[ProcessQueue]],
        statistics: Statistics,
        local_retry_s: float = LOCAL_RETRY_S,
    ) -> None:
        self._handling = handling
        self._store = store
        self._send_back = send_back
        self._show = show
        self._batch_max = 1 if handling.takes_one else batch_max
        self._timeout_s = timeout_s
        self._queues = queues
        self._statistics = statistics
        self._local_retry_s = local_retry_s
        self._timers: set[asyncio.TimerHandle] = set()
        self._checks = Supervisor(f"consumer {handling.group}")
        self._workers: Workers[Batch] = Workers(
            self._consume_safely, concurrency, owner=f"consumer {handling.group}"
        )
        self._stopping = False

    def start(self) -> None:
        """Begin looking for handlers that take too long."""
        if self._send_back is not None:
            self._checks.every(min(self._timeout_s, 60.0), self.send_late_ones_back, "late")

    def submit(
        self, queue: ProcessQueue, messages: list[StoredMessage], *, begins: bool = False
    ) -> None:
        """Consume these messages, which are in the queue already; never blocks."""
        size = self._batch_max
        if size == 1:
            self._workers.add([(queue, [message]) for message in messages])
        else:
            starts = range(0, len(messages), size)
            self._workers.add([(queue, messages[start : start + size]) for start in starts])

    def set_concurrency(self, count: int) -> None:
        """Run this many calls at a time from now on; running ones go on."""
        self._workers.resize(count)
        self._handling.resize(count)

    async def stop(self, *, grace_s: float) -> None:
        """Take no further messages, wait for running handlers, then cancel what still runs."""
        self._stopping = True
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()
        await self._checks.cancel()
        self._handling.end(await self._workers.stop(grace_s=grace_s))

    async def send_late_ones_back(self) -> None:
        """Send back the messages whose handlers take too long; they are done with here then."""
        for queue in list(self._queues()):
            for message in queue.late(self._timeout_s):
                if queue.dropped or not await self._sent_back(message, LATE_LEVEL, None):
                    break
                log.warning(
                    "handler exceeds its time limit, sending the message back topic=%s id=%s",
                    message.topic,
                    message.message_id,
                )
                if queue.holds(message):
                    self._finish(queue, [message])

    async def _consume_safely(self, batch: Batch) -> None:
        queue, messages = batch
        try:
            if not queue.dropped:
                await self._consume(queue, messages)
        except BaseException as error:
            if not is_call_failure(error):
                raise
            log.exception("consuming failed, retrying queue=%s", queue.queue)
            self._again_later(queue, messages)

    async def _consume(self, queue: ProcessQueue, messages: list[StoredMessage]) -> None:
        self._show(queue, messages)
        queue.begin(messages)
        try:
            context = ConsumeContext(self._handling.group, self._handling.shown(queue.queue))
            ended = await self._handling.run(messages, context)
            outcome = outcome_of(ended.result, ended.error, context, len(messages))
            self._count(queue, messages, ended, outcome)
            finished = messages[: outcome.done]
            if outcome.done < len(messages) and not queue.dropped:
                finished += await self._settle_failed(queue, messages, outcome)
            self._finish(queue, finished)
        finally:
            queue.end()

    def _count(
        self, queue: ProcessQueue, messages: list[StoredMessage], ended: Ended, outcome: Outcome
    ) -> None:
        cost_ms = ended.seconds * 1000
        failed = len(messages) - outcome.done
        self._statistics.consumed(queue.queue.topic, outcome.done, failed, cost_ms)
        if ended.delivery is not None:
            took_too_long = ended.seconds >= self._timeout_s
            self._handling.after(ended, ConsumeEnd.TIMEOUT if took_too_long else outcome.end)
        self._handling.report(messages, ended)

    async def _settle_failed(
        self, queue: ProcessQueue, messages: list[StoredMessage], outcome: Outcome
    ) -> list[StoredMessage]:
        """Send the failed ones back; those that no broker takes stay, to be tried again here.

        Those of a revoked queue are left to its next owner instead.
        """
        finished, stays = [], []
        for message in messages[outcome.done :]:
            if not queue.holds(message):
                continue
            if await self._sent_back(message, outcome.delay_level, outcome.error):
                finished.append(message)
            else:
                message.reconsume_times += 1
                stays.append(message)
        if stays:
            self._again_later(queue, stays)
        return finished

    async def _sent_back(
        self, message: StoredMessage, delay_level: int, error: BaseException | None
    ) -> bool:
        if self._send_back is None:
            log.warning(
                "handler failed, broadcast message dropped topic=%s id=%s",
                message.topic,
                message.message_id,
            )
            return True
        return await self._send_back(message, delay_level, error)

    def _finish(self, queue: ProcessQueue, messages: Sequence[StoredMessage]) -> None:
        offset = queue.remove(messages)
        if offset is not None:
            self._store.update(queue.queue, offset, increase_only=True)

    def _again_later(self, queue: ProcessQueue, messages: list[StoredMessage]) -> None:
        if self._stopping or queue.dropped:
            return

        def again() -> None:
            self._timers.discard(timer)
            self._workers.add([(queue, messages)])

        timer = asyncio.get_running_loop().call_later(self._local_retry_s, again)
        self._timers.add(timer)
