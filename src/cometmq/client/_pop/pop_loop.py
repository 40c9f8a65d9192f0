"""Pops one queue again and again: a task per queue, with one request at a time.

A request is held by the broker until a message comes. No more is asked for while too many messages
wait to be answered for.

Source: DefaultMQPushConsumerImpl.popMessage, RocketMQ 5.3.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable

from cometmq.client._consuming.pull_loop import MessageFilter
from cometmq.client._consuming.statistics import Statistics
from cometmq.client._failure_log import trace_of
from cometmq.client._pop.receipts import Handle
from cometmq.client._pop.requests import Acks, PopRequests
from cometmq.client._pop.service import Popped, PopQueue, PopService
from cometmq.client.filters import Filter
from cometmq.client.offsets import StartFrom
from cometmq.client.settings import PopSettings
from cometmq.model.errors import ResponseError
from cometmq.model.message import StoredMessage
from cometmq.protocol.codes import ResponseCode
from cometmq.remoting.tasks import Supervisor, is_call_failure

log = logging.getLogger(__name__)

BROKER_BUSY_S = 0.02
QUICK_S = 0.01
"""An answer without messages that comes sooner was not held by the broker."""
LOOK_S = 1.0
JITTER = 0.2
POP_EXPIRED_S = 120.0
"""A queue whose loop has not moved for so long is popped by a new loop."""
STOP_S = 1.0
"""Time for a loop to end once it is cancelled."""


class PopLoop:
    """Pops one queue, or all queues of a broker.

    Args:
        source: the queue.
        requests: those of the group.
        group: as brokers know it.
        wanted: gives the filter of the topic; None while it is not subscribed.
        start: where a group begins that has consumed nothing.
        service: consumes.
        acks: acknowledges what a filter takes out.
        keep: takes messages out that are not to be consumed.
        settings: of the consumer.
        statistics: counts.
        suspended: whether nothing is to be popped for now.
    """

    def __init__(
        self,
        source: PopQueue,
        *,
        requests: PopRequests,
        group: str,
        wanted: Callable[[], Filter | None],
        start: StartFrom,
        service: PopService,
        acks: Acks,
        keep: MessageFilter,
        settings: PopSettings,
        statistics: Statistics,
        suspended: Callable[[], bool],
    ) -> None:
        self.source = source
        self._requests = requests
        self._group = group
        self._wanted = wanted
        self._start = start
        self._service = service
        self._acks = acks
        self._keep = keep
        self._settings = settings
        self._statistics = statistics
        self._suspended = suspended
        self._woken = asyncio.Event()
        self._failures = 0
        self._task: asyncio.Task[None] | None = None
        self.begun = asyncio.Event()
        """Set when the broker has answered a pop: it knows where the group starts."""

    def start(self, tasks: Supervisor) -> None:
        """Begin popping in the background."""
        assert self._task is None, "a pop loop starts once"
        self._task = tasks.spawn(self._run(), f"pop-{self.source.queue}")

    def retire(self) -> None:
        """Ask no more; what the request brings that is under way is still consumed.

        Its messages would come to nobody else before their time is over.
        """
        self.source.dropped = True
        self.begun.set()  # it will not begin any more
        self._woken.set()

    @property
    def ended(self) -> bool:
        """Whether nothing is under way any more."""
        return self._task is None or self._task.done()

    @property
    def failed(self) -> bool:
        """Whether nothing is popped any more though the queue is assigned still."""
        return self.ended or self.source.idle_s() > POP_EXPIRED_S

    def abandon(self) -> None:
        """Stop popping, and wait for nothing."""
        self.retire()
        if self._task is not None:
            self._task.cancel()

    async def stop(self) -> None:
        """Stop popping; what a request that is held still brings comes again later."""
        self.abandon()
        if self._task is not None:
            await asyncio.wait([self._task], timeout=STOP_S)

    def wake(self) -> None:
        """Look again at once whether there is something to wait for."""
        self._woken.set()

    async def _run(self) -> None:
        while not self.source.dropped:
            self.source.active_at = time.monotonic()
            wanted = self._wanted()
            if self._suspended() or wanted is None:
                await self._pause(LOOK_S)
                continue
            if not await self._has_room() or self.source.dropped:
                continue
            try:
                await self._pop(wanted)
            except BaseException as error:
                if not is_call_failure(error):
                    raise
                await self._recover(error)
            else:
                self._recovered()

    async def _has_room(self) -> bool:
        """Wait a moment for handlers to be through with messages; False if too many are left."""
        try:
            async with asyncio.timeout(LOOK_S):
                await self.source.below(self._settings.queue_messages_max)
        except TimeoutError:
            return False
        return True

    async def _pause(self, seconds: float) -> None:
        self._woken.clear()
        try:
            async with asyncio.timeout(seconds):
                await self._woken.wait()
        except TimeoutError:
            pass

    async def _pop(self, wanted: Filter) -> None:
        self.source.popped_at = began = time.monotonic()
        popped = await self._requests.pop(
            self.source.queue,
            wanted,
            max_messages=self._settings.pop_batch,
            invisible_ms=self._settings.invisible_ms,
            start=self._start,
            hold_ms=self._settings.hold_ms if self.begun.is_set() else 0,
            margin_s=self._settings.answer_margin_ms / 1000,
        )
        self.begun.set()
        if popped:
            await self._take(popped, wanted, time.monotonic() - began)
        elif time.monotonic() - began < QUICK_S:
            await asyncio.sleep(QUICK_S)

    async def _take(
        self, popped: list[tuple[StoredMessage, Handle]], wanted: Filter, took_s: float
    ) -> None:
        queue = self.source.queue
        self._statistics.pulled(queue.topic, len(popped), took_s * 1000)
        kept = self._keep(queue, [message for message, _ in popped if wanted.takes(message.tags)])
        ids = {id(message) for message in kept}
        if kept:
            chosen = [handle for message, handle in popped if id(message) in ids]
            self._service.submit(Popped(self.source, list(kept), chosen, queue.topic))
        for message, handle in popped:
            if id(message) not in ids:
                await self._acks.done(queue.topic, handle)

    async def _recover(self, error: BaseException) -> None:
        self._failures += 1
        log.log(
            logging.WARNING if self._failures == 1 else logging.DEBUG,
            "pop failed, retrying queue=%s group=%s failures=%d error=%s: %s",
            *(self.source.queue, self._group, self._failures, type(error).__name__, error),
            exc_info=trace_of(error),
        )
        if isinstance(error, ResponseError) and error.code == ResponseCode.FLOW_CONTROL:
            await asyncio.sleep(BROKER_BUSY_S)
        else:
            pause_s = self._settings.retry_ms / 1000
            await asyncio.sleep(pause_s * random.uniform(1, 1 + JITTER))

    def _recovered(self) -> None:
        if self._failures:
            log.info("pop succeeds again queue=%s", self.source.queue)
            self._failures = 0
