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

from cometmq.client._connection.instance import ClientInstance
from cometmq.client._consuming.pull_loop import MessageFilter
from cometmq.client._consuming.statistics import Statistics
from cometmq.client._failure_log import trace_of
from cometmq.client._pop.receipts import Acks, handles_of
from cometmq.client._pop.service import Popped, PopQueue, PopService
from cometmq.client.errors import QueueNotFoundError
from cometmq.client.filters import Filter
from cometmq.client.offsets import StartFrom
from cometmq.client.settings import PopSettings
from cometmq.model.errors import ResponseError
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.command import Command
from cometmq.protocol.headers import PopMessageRequest, PopMessageResponse
from cometmq.protocol.lazy_record import decode_lazily
from cometmq.remoting.tasks import Supervisor, is_call_failure

log = logging.getLogger(__name__)

FROM_MIN, FROM_MAX = 0, 1
BROKER_BUSY_S = 0.02
QUICK_S = 0.01
"""An answer without messages that comes sooner was not held by the broker."""
LOOK_S = 1.0
JITTER = 0.2
POP_EXPIRED_S = 120.0
"""A queue whose loop has not moved for so long is popped by a new loop."""
STOP_S = 1.0
"""Time for a loop to end once it is cancelled."""

_NOTHING = (ResponseCode.POLLING_TIMEOUT, ResponseCode.PULL_NOT_FOUND)


class PopLoop:
    """Pops one queue, or all queues of a broker.

    Args:
        source: the queue.
        instance: whose connections are used.
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
        instance: ClientInstance,
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
        self._instance = instance
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

    def start(self, tasks: Supervisor) -> None:
        """Begin popping in the background."""
        assert self._task is None, "a pop loop starts once"
        self._task = tasks.spawn(self._run(), f"pop-{self.source.queue}")

    def retire(self) -> None:
        """Ask no more; what the request brings that is under way is still consumed.

        Its messages would come to nobody else before their time is over.
        """
        self.source.dropped = True
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
        queue = self.source.queue
        route = await self._instance.routes.find(queue.topic)
        address = route.master(queue.broker_name)
        if address is None:
            raise QueueNotFoundError(f"broker {queue.broker_name} has no master now")
        self.source.popped_at = began = time.monotonic()
        answer = await self._instance.brokers.call_raw(
            address,
            RequestCode.POP_MESSAGE,
            self._request(wanted),
            timeout=(self._settings.hold_ms + self._settings.answer_margin_ms) / 1000,
        )
        if answer.code == ResponseCode.SUCCESS:
            await self._take(answer, wanted, time.monotonic() - began)
        elif answer.code not in _NOTHING:
            raise ResponseError(answer.code, answer.remark or "")
        elif time.monotonic() - began < QUICK_S:
            await asyncio.sleep(QUICK_S)

    def _request(self, wanted: Filter) -> PopMessageRequest:
        return PopMessageRequest(
            consumer_group=self._group,
            topic=self.source.queue.topic,
            queue_id=self.source.queue.queue_id,
            max_msg_nums=self._settings.pop_batch,
            invisible_time=self._settings.invisible_ms,
            poll_time=self._settings.hold_ms,
            born_time=time.time_ns() // 1_000_000,
            init_mode=FROM_MIN if self._start is StartFrom.FIRST else FROM_MAX,
            exp_type=wanted.kind,
            exp=wanted.expression,
            order=False,
            bname=self.source.queue.broker_name,
        )

    async def _take(self, answer: Command, wanted: Filter, took_s: float) -> None:
        queue = self.source.queue
        messages = list(decode_lazily(answer.body, broker_name=queue.broker_name))
        handles = handles_of(answer.header(PopMessageResponse), messages, queue.broker_name)
        self._statistics.pulled(queue.topic, len(messages), took_s * 1000)
        kept = self._keep(queue, [each for each in messages if wanted.takes(each.tags)])
        ids = {id(message) for message in kept}
        pairs = list(zip(messages, handles, strict=True))
        if kept:
            chosen = [handle for message, handle in pairs if id(message) in ids]
            self._service.submit(Popped(self.source, list(kept), chosen, queue.topic))
        for message, handle in pairs:
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
