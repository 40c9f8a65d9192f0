"""Consumes popped messages, several at a time, and settles each.

    popped -> waiting -> handler -> acknowledged
                                 -> negatively acknowledged: redelivered after a delay
                                 -> dead letter, then acknowledged, once it failed too often

A message whose invisible time is over before the handler is called is skipped: its broker
redelivers it, to any member.

Source: ConsumeMessagePopConcurrentlyService, RocketMQ 5.3, whose dead letters do not
contain the error.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from cometmq.client._consuming.handler_calls import (
    Ended,
    HandlerCalls,
    MessageFilter,
    Outcome,
    outcome_of,
)
from cometmq.client._consuming.retries import DeadLetters, pop_delay_s
from cometmq.client._consuming.statistics import Statistics
from cometmq.client._consuming.workers import Workers
from cometmq.client._pop.calls import Acks, PopRequests, ReceiptHandle
from cometmq.client._supervision import FetchLoop, SupervisedFailureLog, step_limit_s
from cometmq.client.filters import Filter
from cometmq.client.settings import PopSettings
from cometmq.model.message import StoredMessage
from cometmq.model.queue import MessageQueue

log = logging.getLogger(__name__)


class PopQueue:
    """A queue that messages are popped from; broker number -1 stands for all of a broker's.

    Args:
        queue: the queue.
    """

    def __init__(self, queue: MessageQueue) -> None:
        self.queue = queue
        self.dropped = False
        """Whether it is no longer assigned; popped messages are still consumed."""
        self.popped_at = time.monotonic()
        """When the last request was sent, in seconds of the steady clock."""
        self.on_removed: Callable[[], None] | None = None
        """Called after `remove`: there may be room for other messages."""
        self._waiting = 0

    @property
    def waiting(self) -> int:
        """Messages that were popped and are neither settled nor skipped."""
        return self._waiting

    def add(self, count: int) -> None:
        """Count messages that were popped."""
        self._waiting += count

    def remove(self, count: int) -> None:
        """Count messages that were settled or skipped."""
        self._waiting -= count
        if self.on_removed is not None:
            self.on_removed()


@dataclass(slots=True)
class Popped:
    """Messages of one pop, for one call of the handler."""

    source: PopQueue
    messages: list[StoredMessage]
    handles: list[ReceiptHandle]
    topic: str
    """As brokers know it."""
    got_at: float = field(default_factory=time.monotonic)
    """When the response came, in seconds of the steady clock."""


class PopService:
    """Calls the handler with popped messages.

    Args:
        handling: calls it.
        acks: acknowledges messages, or negatively.
        dead_letters: which messages are dead-lettered, and how.
        show: prepares messages for the handler.
        statistics: counts.
    """

    def __init__(
        self,
        handling: HandlerCalls,
        *,
        acks: Acks,
        dead_letters: DeadLetters,
        show: Callable[[Sequence[StoredMessage]], None],
        statistics: Statistics,
    ) -> None:
        self._handling = handling
        self.acks = acks
        """Acknowledges messages, or negatively."""
        self._dead_letters = dead_letters
        self._show = show
        self._batch_max = handling.limits.batch_max
        self._statistics = statistics
        self._workers: Workers[Popped] = Workers(
            self._consume, handling.limits.concurrency, owner=f"pop consumer {handling.group}"
        )

    def submit(self, popped: Popped) -> None:
        """Consume what a pop has brought; never blocks."""
        popped.source.add(len(popped.messages))
        self._workers.add(self._calls(popped))

    def _calls(self, popped: Popped) -> Iterator[Popped]:
        """Cut it into calls of the handler; all messages of one are of one queue."""
        pairs = zip(popped.messages, popped.handles, strict=True)
        by_queue: dict[int, list[tuple[StoredMessage, ReceiptHandle]]] = {}
        for message, handle in pairs:
            by_queue.setdefault(message.queue_id, []).append((message, handle))
        for part in by_queue.values():
            for begin in range(0, len(part), self._batch_max):
                messages, handles = zip(*part[begin : begin + self._batch_max], strict=True)
                yield replace(popped, messages=list(messages), handles=list(handles))

    def set_concurrency(self, count: int) -> None:
        """Run this many calls at a time from now on."""
        self._workers.resize(count)
        self._handling.resize(count)

    def runs_handlers(self, task: object) -> bool:
        """Return whether a task calls handlers."""
        return task in self._workers

    async def stop(self, *, grace_s: float) -> None:
        """Take no further messages, wait for running handlers, then cancel what still runs.

        Messages that no handler has received are not settled: brokers redeliver them.
        """
        self._handling.end(await self._workers.stop(grace_s=grace_s))

    async def _consume(self, popped: Popped) -> None:
        try:
            if not _is_over(popped):
                await self._call(popped)
        finally:
            popped.source.remove(len(popped.messages))

    async def _call(self, popped: Popped) -> None:
        context = self._handling.context(popped.messages[0].queue)
        self._show(popped.messages)
        ended = await self._handling.run(popped.messages, context)
        outcome = outcome_of(ended.result, ended.error, context, len(popped.messages))
        self._count(popped, ended, outcome)
        await asyncio.gather(
            *(self._settle(popped, position, outcome) for position in range(len(popped.messages)))
        )

    def _count(self, popped: Popped, ended: Ended, outcome: Outcome) -> None:
        failed = len(popped.messages) - outcome.done
        self._statistics.consumed(popped.topic, outcome.done, failed, ended.seconds * 1000)
        self._handling.after(ended, outcome.end)
        after = ""
        if failed:
            first = popped.messages[-failed]
            level, wait_s = outcome.delay_level, _delay_s(first, outcome)
            after = self._dead_letters.rule.redelivery(first, level, wait_s)
        self._handling.report(popped.messages, ended, failed, after)

    async def _settle(self, popped: Popped, position: int, outcome: Outcome) -> None:
        message, handle = popped.messages[position], popped.handles[position]
        if position >= outcome.done:
            is_dead = self._dead_letters.rule.applies_to(message, outcome.delay_level)
            if not is_dead or not await self._dead_letters.store(message, outcome.error):
                self._handling.failed(message, outcome.error, is_dead=False)
                await self.acks.nack(popped.topic, handle, _delay_s(message, outcome))
                return
        await self.acks.ack(popped.topic, handle)


def _delay_s(message: StoredMessage, outcome: Outcome) -> float:
    """Return the seconds until a message that failed is redelivered."""
    if outcome.delay_s is not None:
        return outcome.delay_s
    return pop_delay_s(message.reconsume_times, outcome.delay_level)


def _is_over(popped: Popped) -> bool:
    """Return whether the invisible time is over, by the time since the pop: clocks may differ."""
    shortest_ms = min(handle.invisible_ms for handle in popped.handles)
    over = time.monotonic() - popped.got_at >= shortest_ms / 1000
    if over:
        log.info(
            "invisible time expired, messages are redelivered topic=%s messages=%d",
            popped.topic,
            len(popped.messages),
        )
    return over


STOP_S = 1.0
"""Time for a loop to end once it is cancelled."""

_Response = tuple[Filter, list[tuple[StoredMessage, ReceiptHandle]]]
"""The filter of the request, and the popped messages."""


class PopLoop(FetchLoop[_Response]):
    """Pops one queue, or all queues of a broker.

    If messages cannot be handed over, they are redelivered when their invisible time is over.

    Args:
        source: the queue.
        requests: the requests of the group.
        wanted: returns the filter of the topic; None while it is not subscribed, or suspended.
        service: consumes.
        keep: takes messages out that are not to be consumed.
        settings: of the consumer.
        statistics: counts.
        failures: logs failed pops.
    """

    def __init__(
        self,
        source: PopQueue,
        *,
        requests: PopRequests,
        wanted: Callable[[], Filter | None],
        service: PopService,
        keep: MessageFilter,
        settings: PopSettings,
        statistics: Statistics,
        failures: SupervisedFailureLog,
    ) -> None:
        super().__init__(
            f"pop-{source.queue}",
            str(source.queue),
            failures,
            retry_s=settings.retry_ms / 1000,
            step_s_max=step_limit_s((settings.hold_ms + settings.response_margin_ms) / 1000),
        )
        self.source = source
        self.begun = asyncio.Event()
        """Set after the first response to a pop: the broker knows where the group starts."""
        self._requests = requests
        self._wanted = wanted
        self._service = service
        self._keep = keep
        self._settings = settings
        self._statistics = statistics
        source.on_removed = self._wake_if_free

    def retire(self) -> None:
        """Send no further request; what the one that is under way brings is still consumed.

        No other consumer would receive its messages before their invisible time is over.
        """
        self.source.dropped = True
        self.begun.set()  # it will not begin any more
        self.wake()

    async def stop(self, timeout: float | None = STOP_S) -> None:
        """Stop; what a held request still brings is redelivered later."""
        self.retire()
        await super().stop(timeout)

    def _has_ended(self) -> bool:
        return self.source.dropped

    def _has_room(self) -> bool:
        return self.source.waiting <= self._settings.queue_messages_max

    def _is_blocked(self) -> bool:
        return self._wanted() is None or not self._has_room()

    def _wake_if_free(self) -> None:
        if self._has_room():
            self.wake()

    async def _fetch(self) -> _Response | None:
        wanted = self._wanted()
        if wanted is None:
            return None
        self.source.popped_at = time.monotonic()
        popped = await self._requests.pop(
            self.source.queue,
            wanted,
            max_messages=self._settings.pop_batch,
            invisible_ms=self._settings.invisible_ms,
            hold_ms=self._settings.hold_ms if self.begun.is_set() else 0,
            margin_s=self._settings.response_margin_ms / 1000,
        )
        self.begun.set()
        return wanted, popped

    async def _act(self, response: _Response, took_s: float) -> bool:
        queue, (wanted, popped) = self.source.queue, response
        if not popped:
            return False
        self._statistics.pulled(queue.topic, len(popped), took_s * 1000)
        kept = self._keep(queue, wanted.selected([message for message, _ in popped]))
        ids = {id(message) for message in kept}
        if kept:
            chosen = [handle for message, handle in popped if id(message) in ids]
            self._service.submit(Popped(self.source, list(kept), chosen, queue.topic))
        for message, handle in popped:
            if id(message) not in ids:
                await self._service.acks.ack(queue.topic, handle)
        return True
