"""Sends batches: in order within a queue, concurrently across queues.

Parcels for one queue form a lane: each leaves only after the one before it was acknowledged, and
one that failed is tried again before the next, so that the order of a queue's messages never
changes (but for repetitions). Parcels that any queue may take have lanes of their own, whose tries
go elsewhere. All waiting is bounded: by bytes, by requests and by time.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from cometmq.client._sending.outgoing import Outgoing
from cometmq.client._sending.retry_policy import RetryPolicy
from cometmq.client._sending.sender import Sender
from cometmq.client._sending.targets import ANY_QUEUE, SendTarget
from cometmq.client.errors import SendTimeoutError, TopicNotFoundError
from cometmq.client.receipt import SendStatus
from cometmq.model.errors import CometError, RemotingError, ResponseError
from cometmq.model.queue import MessageQueue
from cometmq.protocol.codes import ResponseCode
from cometmq.remoting.tasks import Supervisor
from cometmq.spark.errors import DeliveryError
from cometmq.spark.writing.identity import Origin
from cometmq.spark.writing.parcels import Parcel

PAUSE_S, PAUSE_MAX_S = 0.05, 1.0
"""The pause before the second try, and the longest one."""

QUEUES_S = 30.0
"""How long a topic may be without brokers before it counts as one that does not exist."""

RETRIED = frozenset(
    {
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.GO_AWAY,
    }
)
"""Refusals that may pass; any other one ends the task."""

PERMANENT = ("timerWheelEnable is false",)
"""Parts of remarks with one of these codes that report a setting of the broker: no retry helps.

RocketMQ's SendMessageProcessor refuses a timer message with SYSTEM_ERROR and the first of them.
"""

_ONCE = RetryPolicy(
    0, 0, frozenset(), retry_not_stored=False, retry_when_full=False, waits_for_broker=False
)
_ELSEWHERE = RetryPolicy(
    1, 0, RETRIED, retry_not_stored=False, retry_when_full=False, waits_for_broker=False
)


@dataclass(frozen=True)
class Limits:
    """What bounds the waiting."""

    requests: int
    """Requests on their way at a time."""
    bytes: int
    """Bytes that wait for acknowledgement at a time."""
    try_s: float
    """Time for one request."""
    all_tries_s: float
    """Time for all tries of a parcel, from its first one on."""
    safe: bool
    """Whether what is stored, but not flushed and replicated as set, is sent again."""


@dataclass(slots=True)
class _Lane:
    waiting: deque[Parcel] = field(default_factory=deque)
    is_moving: bool = False


class Lanes:
    """All parcels of one task.

    Args:
        sender: brings requests to brokers.
        limits: of the waiting.
        origin: of the rows, for errors.

    Only for the loop that the sender belongs to.
    """

    def __init__(self, sender: Sender, limits: Limits, origin: Origin) -> None:
        self._sender = sender
        self._limits = limits
        self._origin = origin
        self._lanes: dict[object, _Lane] = {}
        self._next_free = 0
        self._tasks = Supervisor("spark write")
        self._slots = asyncio.Semaphore(limits.requests)
        self._changed = asyncio.Event()
        self.waiting_bytes = 0
        """Bytes that were taken and not acknowledged."""
        self._failure: BaseException | None = None
        self.acknowledged = 0
        """Messages that brokers have acknowledged."""
        self.requests = 0
        """Requests that were acknowledged."""
        self.repeated = 0
        """Tries that failed and were followed by another."""

    async def queues(self, topic: str) -> list[MessageQueue]:
        """Give the queues of a topic that can be written to.

        Raises:
            DeliveryError: nobody serves the topic, or no name server answered, for `QUEUES_S`.
        """
        deadline = _now() + min(QUEUES_S, self._limits.all_tries_s)
        pause_s = PAUSE_S
        while True:
            try:
                return await self._sender.targets.queues(topic, self._limits.try_s)
            except CometError as error:
                if _now() + pause_s > deadline or not may_pass(error):
                    raise DeliveryError(
                        f"topic {topic}: its queues are not known: {error}"
                    ) from error
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, PAUSE_MAX_S)

    async def put(self, parcels: list[Parcel]) -> None:
        """Take parcels; return once there is room for more.

        Raises:
            DeliveryError: an earlier parcel was not acknowledged.
        """
        for parcel in parcels:
            await self._until(partial(self._has_room, len(parcel.data)))
            lane = self._lane_of(parcel)
            lane.waiting.append(parcel)
            self.waiting_bytes += len(parcel.data)
            if not lane.is_moving:
                lane.is_moving = True
                self._tasks.spawn(self._move(lane), "lane")

    async def finish(self) -> None:
        """Return once everything was acknowledged.

        Raises:
            DeliveryError: something was not.
        """
        await self._until(lambda: not self.waiting_bytes)

    async def cancel(self) -> None:
        """Give up what was not acknowledged yet; it may be stored all the same."""
        await self._tasks.cancel()

    async def _until(self, is_so: Callable[[], bool]) -> None:
        while self._failure is None and not is_so():
            self._changed.clear()
            await self._changed.wait()
        if self._failure is not None:
            raise self._failure

    def _has_room(self, size: int) -> bool:
        return not self.waiting_bytes or self.waiting_bytes + size <= self._limits.bytes

    def _lane_of(self, parcel: Parcel) -> _Lane:
        name: object = parcel.queue
        if name is None:
            name = self._next_free
            self._next_free = (self._next_free + 1) % self._limits.requests
        return self._lanes.setdefault(name, _Lane())

    async def _move(self, lane: _Lane) -> None:
        try:
            while lane.waiting and self._failure is None:
                parcel = lane.waiting[0]
                await self._deliver(parcel)
                lane.waiting.popleft()
                self.waiting_bytes -= len(parcel.data)
                self.acknowledged += parcel.messages
                self.requests += 1
                self._changed.set()
        except Exception as error:
            self._failure = self._failure or error
        finally:
            lane.is_moving = False
            self._changed.set()

    async def _deliver(self, parcel: Parcel) -> None:
        """Try until a broker has acknowledged a parcel, or time runs out."""
        outgoing = parcel.outgoing(self._sender.namespace.wrap_topic(parcel.topic))
        deadline = _now() + self._limits.all_tries_s
        pause_s = PAUSE_S
        perhaps_stored = False
        last: CometError | None = None
        while True:
            error = await self._try(parcel, outgoing, deadline)
            if error is None:
                return
            if last is not None and isinstance(error, SendTimeoutError) and not error.attempts:
                error = last  # the time was over before anything was sent
            last = error
            perhaps_stored |= is_perhaps_stored(error)
            left_s = deadline - _now()
            if left_s <= 0 or not may_pass(error):
                raise self._failed(parcel, error, perhaps_stored) from error
            self.repeated += 1
            await asyncio.sleep(min(pause_s * random.uniform(0.5, 1.0), left_s))
            pause_s = min(2 * pause_s, PAUSE_MAX_S)

    async def _try(self, parcel: Parcel, outgoing: Outgoing, deadline: float) -> CometError | None:
        timeout = max(min(self._limits.try_s, deadline - _now()), 0.001)
        place, effort = (
            (ANY_QUEUE, _ELSEWHERE) if parcel.queue is None else (SendTarget(parcel.queue), _ONCE)
        )
        async with self._slots:
            try:
                receipt = await self._sender.send(outgoing, place, timeout=timeout, policy=effort)
            except CometError as error:
                return error
        if receipt.status is SendStatus.SEND_OK or not self._limits.safe:
            return None
        return NotSafeError(receipt.status)

    def _failed(self, parcel: Parcel, error: CometError, stored: bool) -> DeliveryError:
        where = parcel.queue if parcel.queue is not None else f"any queue of {parcel.topic}"
        first = self._origin.position(parcel.first_row)
        return DeliveryError(
            f"{parcel.messages} rows for {where}, from {first} to row {parcel.last_row}, were not "
            f"acknowledged{': they may be stored' if stored else ''}: "
            f"{type(error).__name__}: {error}"
        )


class NotSafeError(CometError):
    """A message is stored, but not as safely as the broker is set to store."""

    def __init__(self, status: SendStatus) -> None:
        super().__init__(
            f"stored with {status.name}; the option send.acknowledge=stored counts that as sent"
        )


def may_pass(error: CometError) -> bool:
    """Whether another try may end better.

    A topic that is not found may be one whose brokers are all away.
    """
    if isinstance(error, ResponseError):
        is_permanent = any(text in error.remark for text in PERMANENT)
        return error.code in RETRIED and not is_permanent
    return isinstance(error, RemotingError | TopicNotFoundError | NotSafeError)


def is_perhaps_stored(error: CometError) -> bool:
    """Whether a try that ended like this may have stored its messages all the same."""
    return isinstance(error, NotSafeError) or getattr(error, "maybe_stored", False)


def _now() -> float:
    return asyncio.get_running_loop().time()
