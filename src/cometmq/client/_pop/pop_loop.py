"""Pops one queue again and again: a task per queue, with one request at a time.

A request is held by the broker until a message comes. None is sent while too many messages are in
flight.

Source: DefaultMQPushConsumerImpl.popMessage, RocketMQ 5.3.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from cometmq.client._consuming.fetch_loop import FetchLoop, step_s_max
from cometmq.client._consuming.pull_loop import MessageFilter
from cometmq.client._consuming.statistics import Statistics
from cometmq.client._failure_log import FailureLog
from cometmq.client._pop.receipts import Handle
from cometmq.client._pop.requests import Acks, PopRequests
from cometmq.client._pop.service import Popped, PopQueue, PopService
from cometmq.client.filters import Filter
from cometmq.client.offsets import StartFrom
from cometmq.client.settings import PopSettings
from cometmq.model.message import StoredMessage

STOP_S = 1.0
"""Time for a loop to end once it is cancelled."""

_Response = tuple[Filter, list[tuple[StoredMessage, Handle]]]
"""The filter of the request, and what it brought."""


class PopLoop(FetchLoop[_Response]):
    """Pops one queue, or all queues of a broker.

    If messages cannot be handed over, they are redelivered when their invisible time is over.

    Args:
        source: the queue.
        requests: those of the group.
        wanted: returns the filter of the topic; None while it is not subscribed.
        start: where a group starts that has consumed nothing.
        service: consumes.
        acks: acknowledges what a filter takes out.
        keep: takes messages out that are not to be consumed.
        settings: of the consumer.
        statistics: counts.
        suspended: returns whether nothing is to be popped for now.
        failures: logs failed pops.
    """

    def __init__(
        self,
        source: PopQueue,
        *,
        requests: PopRequests,
        wanted: Callable[[], Filter | None],
        start: StartFrom,
        service: PopService,
        acks: Acks,
        keep: MessageFilter,
        settings: PopSettings,
        statistics: Statistics,
        suspended: Callable[[], bool],
        failures: FailureLog,
    ) -> None:
        super().__init__(
            f"pop-{source.queue}",
            str(source.queue),
            failures,
            retry_s=settings.retry_ms / 1000,
            step_s_max=step_s_max((settings.hold_ms + settings.answer_margin_ms) / 1000),
        )
        self.source = source
        self.begun = asyncio.Event()
        """Set when the broker has answered a pop: it knows where the group starts."""
        self._requests = requests
        self._wanted = wanted
        self._start_from = start
        self._service = service
        self._acks = acks
        self._keep = keep
        self._settings = settings
        self._statistics = statistics
        self._suspended = suspended
        source.on_settled = self._wake_if_free

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
        return self._suspended() or self._wanted() is None or not self._has_room()

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
            start=self._start_from,
            hold_ms=self._settings.hold_ms if self.begun.is_set() else 0,
            margin_s=self._settings.answer_margin_ms / 1000,
        )
        self.begun.set()
        return wanted, popped

    async def _act(self, response: _Response, took_s: float) -> bool:
        queue, (wanted, popped) = self.source.queue, response
        if not popped:
            return False
        self._statistics.pulled(queue.topic, len(popped), took_s * 1000)
        kept = self._keep(queue, [message for message, _ in popped if wanted.takes(message.tags)])
        ids = {id(message) for message in kept}
        if kept:
            chosen = [handle for message, handle in popped if id(message) in ids]
            self._service.submit(Popped(self.source, list(kept), chosen, queue.topic))
        for message, handle in popped:
            if id(message) not in ids:
                await self._acks.done(queue.topic, handle)
        return True
