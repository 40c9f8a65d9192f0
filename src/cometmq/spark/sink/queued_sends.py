"""Sends batches: in order within a queue, concurrently across queues.

A batch leaves only after the batch before it in the same queue was acknowledged. A batch that
failed is retried before the next one, so the order of a queue's messages never changes, except for
duplicates. Batches for any queue are spread over several send queues, and their retries go to
other brokers. Bytes, requests and time are bounded.

The sends of a topic with a producer session are not repeated after an uncertain response. All sends
stop then, with an `UncertainError`: the caller finds out what is stored, and resumes them.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

from cometmq.client.errors import SendTimeoutError, TopicNotFoundError
from cometmq.client.library import EncodedSender, ProducerSession
from cometmq.client.receipt import SendStatus
from cometmq.model.errors import CometError, RemotingError, ResponseError
from cometmq.model.queue import MessageQueue
from cometmq.protocol.codes import ResponseCode
from cometmq.remoting.tasks import Supervisor
from cometmq.spark.errors import DeliveryError, FencedError
from cometmq.spark.sink.message_batches import MessageBatch
from cometmq.spark.sink.unique_ids import Origin

PAUSE_S, PAUSE_MAX_S = 0.05, 1.0
"""The back-off before the first retry, and the longest back-off."""

BATCH_S = 0.1
"""The time of the largest batch, if there is a limit on the rate."""

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

UNCERTAIN = frozenset(
    {
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.PRODUCER_SESSION_UNKNOWN,
    }
)
"""Refusals after which a message may be stored, for example by a master that has been replaced."""

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


class RateLimit:
    """Delays the batches of one task.

    The time of a batch is its rows or bytes divided by the limit. The next batch leaves when that
    time is over, so the rate holds from the first second on: unused time is not saved up. Batches
    hold at most a tenth of a second's worth, so that the broker gets an even load.

    Args:
        rows_per_s: limit on rows per second; 0 for no limit.
        bytes_per_s: limit on bytes of bodies and properties per second; 0 for no limit.
    """

    def __init__(self, rows_per_s: float, bytes_per_s: float) -> None:
        self._row_s = 1 / rows_per_s if rows_per_s else 0.0
        self._byte_s = 1 / bytes_per_s if bytes_per_s else 0.0
        self._free_at = -math.inf
        self.rows_max = max(1, int(rows_per_s * BATCH_S)) if rows_per_s else 1 << 31
        """Size limit of a batch in rows."""
        self.bytes_max = max(1, int(bytes_per_s * BATCH_S)) if bytes_per_s else 1 << 31
        """Size limit of a batch in bytes; a larger row is a batch of its own."""

    def start_of(self, rows: int, size: int, now: float) -> float:
        """Return when a batch may leave, and take the time after that for the batch.

        Args:
            rows: the rows of the batch.
            size: its bytes.
            now: the current time in seconds.
        """
        start = max(now, self._free_at)
        self._free_at = start + max(rows * self._row_s, size * self._byte_s)
        return start


class UncertainError(CometError):
    """It is not known whether the first batch of some queues is stored."""


@dataclass(slots=True)
class _SendQueue:
    batches: deque[MessageBatch] = field(default_factory=deque)
    is_sending: bool = False
    acknowledged_to: int = 0
    """The queue offset behind the last acknowledged message."""


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
        self._arrived: deque[MessageBatch] = deque()
        self._uncertain: dict[str, DeliveryError] = {}
        """The error of each topic with an uncertain response."""
        self.sessions: dict[str, ProducerSession] = {}
        """The producer sessions of topics that have one."""
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
            FencedError: a newer attempt has opened the producer session.
            UncertainError: after `resume`, another call queues the batches that are left.
        """
        self._arrived.extend(batches)
        while self._arrived:
            batch = self._arrived[0]
            await self._until(partial(self._has_room, len(batch.data)))
            start = self._rate.start_of(batch.messages, len(batch.data), now := _now())
            if start > now:
                await self._sleep(start - now)
            queue = self._queue_of(self._arrived.popleft())
            queue.batches.append(batch)
            self.pending_bytes += len(batch.data)
            self._start(queue)

    def _start(self, queue: _SendQueue) -> None:
        if queue.batches and not queue.is_sending:
            queue.is_sending = True
            self._tasks.spawn(self._send_queued(queue), "send queue")

    async def finish(self) -> None:
        """Return when every batch is acknowledged.

        Raises:
            DeliveryError, FencedError, UncertainError: as `put`.
        """
        await self._until(lambda: not self.pending_bytes)

    async def cancel(self) -> None:
        """Stop sending. Batches in flight may be stored."""
        await self._tasks.cancel()

    # --- uncertain responses ----------------------------------------------------------------------

    async def settle(self) -> dict[str, dict[MessageQueue, int]]:
        """Return when no request is in flight, after an `UncertainError`.

        Returns:
            For each uncertain topic its queues with batches, and the offset behind the last
            acknowledged message of each.

        Raises:
            DeliveryError, FencedError: as `put`.
        """
        while any(queue.is_sending for queue in self._queues.values()):
            self._changed.clear()
            await self._changed.wait()
        if self._failure is not None:
            raise self._failure
        return {topic: dict(self._waiting(topic)) for topic in self._uncertain}

    def _waiting(self, topic: str) -> Iterator[tuple[MessageQueue, int]]:
        for key, queue in self._queues.items():
            if isinstance(key, MessageQueue) and key.topic == topic and queue.batches:
                yield key, queue.acknowledged_to

    def error_of(self, topic: str) -> DeliveryError:
        """Return the error of a topic's uncertain response."""
        return self._uncertain[topic]

    def replace_first(self, queue: MessageQueue, kept: MessageBatch | None) -> None:
        """Replace the first batch of a queue by those messages of it that are not stored.

        Args:
            queue: the queue.
            kept: them; None if all are stored.
        """
        batches = self._queues[queue].batches
        batch = batches.popleft()
        if kept is not None:
            batches.appendleft(kept)
        self.pending_bytes -= len(batch.data) - (0 if kept is None else len(kept.data))
        self.acknowledged += batch.messages - (0 if kept is None else kept.messages)

    def first(self, queue: MessageQueue) -> MessageBatch:
        """Return the first batch of a queue."""
        return self._queues[queue].batches[0]

    async def resume(self) -> None:
        """Go on after `settle`: what is stored is removed, and the sessions are open again."""
        self._uncertain.clear()
        for queue in self._queues.values():
            self._start(queue)
        self._changed.set()

    # --- sending ----------------------------------------------------------------------------------

    async def _until(self, condition: Callable[[], bool]) -> None:
        while self._failure is None and not self._uncertain and not condition():
            self._changed.clear()
            await self._changed.wait()
        if self._failure is not None:
            raise self._failure
        if self._uncertain:
            raise UncertainError(f"responses of {', '.join(self._uncertain)} are uncertain")

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
            while queue.batches and self._failure is None and not self._uncertain:
                batch = queue.batches[0]
                queue.acknowledged_to = await self._deliver(batch)
                queue.batches.popleft()
                self.pending_bytes -= len(batch.data)
                self.acknowledged += batch.messages
                self.requests += 1
                self._changed.set()
        except _NotKnownError as unknown:
            self._uncertain.setdefault(unknown.topic, unknown.error)
        except _PausedError:
            pass
        except Exception as error:
            self._failure = self._failure or error
        finally:
            queue.is_sending = False
            self._changed.set()

    async def _deliver(self, batch: MessageBatch) -> int:
        """Send a batch, with retries, until a broker acknowledges it or the deadline passes.

        Returns:
            The queue offset behind its last message.
        """
        deadline = _now() + self._limits.delivery_s
        pause_s = PAUSE_S
        maybe_stored = False
        last: CometError | None = None
        while True:
            error = await self._attempt(batch, deadline)
            if isinstance(error, int):
                return error
            if last is not None and isinstance(error, SendTimeoutError) and not error.attempts:
                error = last  # the deadline passed before the request was sent
            last = error
            maybe_stored |= is_maybe_stored(error)
            if batch.topic in self.sessions:
                self._check_session(batch, error)
            if self._uncertain:
                raise _PausedError("refused while the response to another batch is uncertain")
            left_s = deadline - _now()
            if left_s <= 0 or not is_retried(error):
                raise self._failed(batch, error, maybe_stored) from error
            self.retries += 1
            await asyncio.sleep(min(pause_s * random.uniform(0.5, 1.0), left_s))
            pause_s = min(2 * pause_s, PAUSE_MAX_S)

    def _check_session(self, batch: MessageBatch, error: CometError) -> None:
        """Raise unless the broker has refused the batch, and may take it later."""
        code = error.code if isinstance(error, ResponseError) else None
        if code == ResponseCode.PRODUCER_FENCED:
            raise FencedError(str(self._failed(batch, error, False))) from error
        is_uncertain = code in UNCERTAIN and (code not in RETRIED or is_retried(error))
        if is_uncertain or is_maybe_stored(error):
            raise _NotKnownError(batch.topic, self._failed(batch, error, True)) from error

    async def _attempt(self, batch: MessageBatch, deadline: float) -> CometError | int:
        """Send a batch once; return the queue offset behind its last message, or the error."""
        timeout = max(min(self._limits.request_s, deadline - _now()), 0.001)
        async with self._slots:
            try:
                receipt = await self._sender.send(
                    batch.topic,
                    batch.data,
                    single=batch.single,
                    queue=batch.queue,
                    retried=RETRIED,
                    session=self.sessions.get(batch.topic),
                    timeout=timeout,
                )
            except CometError as error:
                return error
        if receipt.status is SendStatus.SEND_OK or not self._limits.safe:
            return receipt.queue_offset + batch.messages
        return NotSafeError(receipt.status)

    def _failed(self, batch: MessageBatch, error: CometError, maybe_stored: bool) -> DeliveryError:
        where = batch.queue if batch.queue is not None else f"any queue of {batch.topic}"
        first = self._origin.position(batch.first_row)
        return DeliveryError(
            f"{batch.messages} rows for {where}, from {first} to row {batch.last_row}, were not "
            f"acknowledged{': they may be stored' if maybe_stored else ''}: "
            f"{type(error).__name__}: {error}"
        )


class _NotKnownError(CometError):
    """It is not known whether a batch of a topic with a producer session is stored."""

    def __init__(self, topic: str, error: DeliveryError) -> None:
        super().__init__(str(error))
        self.topic = topic
        self.error = error


class _PausedError(CometError):
    """A batch was refused, and is sent again after `QueuedSends.resume`."""


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
