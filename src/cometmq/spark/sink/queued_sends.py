"""Sends batches: in order within a queue, concurrently across queues.

A batch leaves only after the batch before it in the same queue was acknowledged. A batch that
failed is retried before the next one, so the order of a queue's messages never changes, except for
duplicates. Batches for any queue are spread over several send queues, and their retries go to
other brokers. Bytes, requests and time are bounded.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from cometmq.client.errors import SendTimeoutError, TopicNotFoundError
from cometmq.client.library import EncodedSender
from cometmq.client.receipt import SendStatus
from cometmq.model.errors import CometError, RemotingError, ResponseError
from cometmq.model.queue import MessageQueue
from cometmq.protocol.codes import ResponseCode
from cometmq.remoting.tasks import Supervisor
from cometmq.spark.errors import DeliveryError
from cometmq.spark.sink.message_batches import MessageBatch
from cometmq.spark.sink.rate_limit import RateLimit
from cometmq.spark.sink.unique_ids import Origin

PAUSE_S, PAUSE_MAX_S = 0.05, 1.0
"""The back-off before the first retry, and the longest back-off."""

QUEUES_S = 30.0
"""The time after which a topic without brokers counts as missing."""

RETRIED = frozenset(
    {
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.GO_AWAY,
    }
)
"""Response codes that are retried; any other error code fails the task."""

PERMANENT = ("timerWheelEnable is false",)
"""Parts of remarks that are not retried despite their code: they report a setting of the broker.

RocketMQ's SendMessageProcessor refuses a timer message with SYSTEM_ERROR and this remark.
"""


@dataclass(frozen=True)
class SendLimits:
    """Limits of the sends of one task."""

    requests: int
    """Limit on requests in flight."""
    bytes: int
    """Limit on unacknowledged bytes."""
    request_s: float
    """Timeout of one request."""
    delivery_s: float
    """Timeout of a batch, all retries included."""
    safe: bool
    """Whether a batch is sent again that is stored, but not flushed and replicated as configured.
    """


@dataclass(slots=True)
class _SendQueue:
    batches: deque[MessageBatch] = field(default_factory=deque)
    is_sending: bool = False


class QueuedSends:
    """Sends the batches of one task.

    Args:
        sender: sends requests to brokers.
        limits: the limits of the sends.
        rate: delays the batches.
        origin: the origin of the rows, for error messages.

    Use it in the sender's event loop only.
    """

    def __init__(
        self, sender: EncodedSender, limits: SendLimits, rate: RateLimit, origin: Origin
    ) -> None:
        self._sender = sender
        self._limits = limits
        self._rate = rate
        self._origin = origin
        self._queues: dict[object, _SendQueue] = {}
        self._next_any = 0
        self._tasks = Supervisor("spark write")
        self._slots = asyncio.Semaphore(limits.requests)
        self._changed = asyncio.Event()
        self.pending_bytes = 0
        """Bytes not acknowledged yet, queued or in flight."""
        self._failure: BaseException | None = None
        self.acknowledged = 0
        """Acknowledged messages."""
        self.requests = 0
        """Acknowledged requests."""
        self.retries = 0
        """Requests that failed and were sent again."""

    async def queues(self, topic: str) -> list[MessageQueue]:
        """Return the writable queues of a topic.

        Raises:
            DeliveryError: no broker has the topic, or no name server responded, for `QUEUES_S`.
        """
        deadline = _now() + min(QUEUES_S, self._limits.delivery_s)
        pause_s = PAUSE_S
        while True:
            try:
                return await self._sender.queues(topic, timeout=self._limits.request_s)
            except CometError as error:
                if _now() + pause_s > deadline or not is_retried(error):
                    raise DeliveryError(
                        f"topic {topic}: its queues are not known: {error}"
                    ) from error
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, PAUSE_MAX_S)

    async def put(self, batches: list[MessageBatch]) -> None:
        """Queue batches; return when all are within the limits on rate and unacknowledged bytes.

        Raises:
            DeliveryError: an earlier batch was not acknowledged.
        """
        for batch in batches:
            await self._until(partial(self._has_room, len(batch.data)))
            start = self._rate.start_of(batch.messages, len(batch.data), now := _now())
            if start > now:
                await self._sleep(start - now)
            queue = self._queue_of(batch)
            queue.batches.append(batch)
            self.pending_bytes += len(batch.data)
            if not queue.is_sending:
                queue.is_sending = True
                self._tasks.spawn(self._send_queued(queue), "send queue")

    async def finish(self) -> None:
        """Return when every batch is acknowledged.

        Raises:
            DeliveryError: a batch was not acknowledged.
        """
        await self._until(lambda: not self.pending_bytes)

    async def cancel(self) -> None:
        """Stop sending. Batches in flight may be stored."""
        await self._tasks.cancel()

    async def _until(self, condition: Callable[[], bool]) -> None:
        while self._failure is None and not condition():
            self._changed.clear()
            await self._changed.wait()
        if self._failure is not None:
            raise self._failure

    async def _sleep(self, seconds: float) -> None:
        """Sleep, but raise at once if a batch fails."""
        is_over = asyncio.Event()
        timer = asyncio.get_running_loop().call_later(seconds, self._wake, is_over)
        try:
            await self._until(is_over.is_set)
        finally:
            timer.cancel()

    def _wake(self, event: asyncio.Event) -> None:
        event.set()
        self._changed.set()

    def _has_room(self, size: int) -> bool:
        return not self.pending_bytes or self.pending_bytes + size <= self._limits.bytes

    def _queue_of(self, batch: MessageBatch) -> _SendQueue:
        key: object = batch.queue
        if key is None:
            key = self._next_any
            self._next_any = (self._next_any + 1) % self._limits.requests
        return self._queues.setdefault(key, _SendQueue())

    async def _send_queued(self, queue: _SendQueue) -> None:
        try:
            while queue.batches and self._failure is None:
                batch = queue.batches[0]
                await self._deliver(batch)
                queue.batches.popleft()
                self.pending_bytes -= len(batch.data)
                self.acknowledged += batch.messages
                self.requests += 1
                self._changed.set()
        except Exception as error:
            self._failure = self._failure or error
        finally:
            queue.is_sending = False
            self._changed.set()

    async def _deliver(self, batch: MessageBatch) -> None:
        """Send a batch, with retries, until a broker acknowledges it or the deadline passes."""
        deadline = _now() + self._limits.delivery_s
        pause_s = PAUSE_S
        maybe_stored = False
        last: CometError | None = None
        while True:
            error = await self._attempt(batch, deadline)
            if error is None:
                return
            if last is not None and isinstance(error, SendTimeoutError) and not error.attempts:
                error = last  # the deadline passed before the request was sent
            last = error
            maybe_stored |= is_maybe_stored(error)
            left_s = deadline - _now()
            if left_s <= 0 or not is_retried(error):
                raise self._failed(batch, error, maybe_stored) from error
            self.retries += 1
            await asyncio.sleep(min(pause_s * random.uniform(0.5, 1.0), left_s))
            pause_s = min(2 * pause_s, PAUSE_MAX_S)

    async def _attempt(self, batch: MessageBatch, deadline: float) -> CometError | None:
        timeout = max(min(self._limits.request_s, deadline - _now()), 0.001)
        async with self._slots:
            try:
                receipt = await self._sender.send(
                    batch.topic,
                    batch.data,
                    single=batch.single,
                    queue=batch.queue,
                    retried=RETRIED,
                    timeout=timeout,
                )
            except CometError as error:
                return error
        if receipt.status is SendStatus.SEND_OK or not self._limits.safe:
            return None
        return NotSafeError(receipt.status)

    def _failed(self, batch: MessageBatch, error: CometError, maybe_stored: bool) -> DeliveryError:
        where = batch.queue if batch.queue is not None else f"any queue of {batch.topic}"
        first = self._origin.position(batch.first_row)
        return DeliveryError(
            f"{batch.messages} rows for {where}, from {first} to row {batch.last_row}, were not "
            f"acknowledged{': they may be stored' if maybe_stored else ''}: "
            f"{type(error).__name__}: {error}"
        )


class NotSafeError(CometError):
    """A message is stored, but not flushed or replicated as the broker is configured."""

    def __init__(self, status: SendStatus) -> None:
        super().__init__(
            f"stored with {status.name}; the option send.acknowledge=stored counts that as sent"
        )


def is_retried(error: CometError) -> bool:
    """Return whether a retry may succeed.

    A topic without a route may exist: its brokers may all be down.
    """
    if isinstance(error, ResponseError):
        is_permanent = any(text in error.remark for text in PERMANENT)
        return error.code in RETRIED and not is_permanent
    return isinstance(error, RemotingError | TopicNotFoundError | NotSafeError)


def is_maybe_stored(error: CometError) -> bool:
    """Return whether the broker may have stored the messages despite the error."""
    return isinstance(error, NotSafeError) or getattr(error, "maybe_stored", False)


def _now() -> float:
    return asyncio.get_running_loop().time()
