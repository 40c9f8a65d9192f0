"""Fetches queues ahead of the application: one loop per queue, and one buffer for all.

The buffer is bounded, for each queue and for all together; a queue is not fetched while there is no
room. Messages of a paused queue stay in a buffer of their own and do not count for the others. A
queue that is moved or revoked loses its fetched messages.

Source: DefaultLitePullConsumerImpl.PullTaskImpl, RocketMQ 5.3.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Awaitable, Callable, KeysView, Set
from dataclasses import dataclass, replace
from typing import NamedTuple

from cometmq.client._consuming.continuation import Cause, cause_of, log_cause
from cometmq.client._consuming.pulls import PullResult
from cometmq.client._consuming.rebalancer import QueueTable
from cometmq.client._supervision import ALIKE_MAX, STEP_S_MAX, FetchLoop, SupervisedFailureLog
from cometmq.model.errors import ResponseError
from cometmq.model.message import StoredMessage
from cometmq.model.offsets import QueueOffset
from cometmq.model.queue import MessageQueue
from cometmq.model.times import now_ms
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.lazy_record import restore
from cometmq.remoting import Supervisor

log = logging.getLogger(__name__)

PullFrom = Callable[[MessageQueue, QueueOffset], Awaitable[PullResult]]
Moved = Callable[[Cause, MessageQueue, PullResult, int], Awaitable[None]]
StartOf = Callable[[MessageQueue], Awaitable[QueueOffset]]

UNLIMITED = 2**63 - 1
MOVE_S = 0.5
"""The pause of a queue that continues elsewhere, for a broker that accepts no offset at all."""


@dataclass(slots=True)
class Batch:
    """Messages of one queue, in order, and where the queue goes on behind them.

    Without messages it only says that nothing up to ``next_offset`` was wanted.
    """

    queue: MessageQueue
    messages: list[StoredMessage]
    next_offset: QueueOffset

    def split_off(self, count: int) -> Batch:
        """Remove the first ``count`` messages and give them; at least one message must remain."""
        first = self.messages[:count]
        del self.messages[:count]  # moves pointers only, which is cheap even for large batches
        return Batch(self.queue, first, QueueOffset(first[-1].queue_offset + 1))

    @property
    def begins(self) -> int:
        """The offset of its first message, or where an empty one ends."""
        return self.messages[0].queue_offset if self.messages else self.next_offset

    @property
    def count(self) -> int:
        """The number of messages that it counts for; an empty one counts for one."""
        return len(self.messages) or 1

    @property
    def size_bytes(self) -> int:
        """Bytes of the records of its messages, as the broker stores them."""
        if len(self.messages) == 1:
            return self.messages[0].size_bytes
        return sum(message.size_bytes for message in self.messages)

    @property
    def bounds(self) -> list[tuple[int, int]]:
        """The first and the last offset of its messages; nothing for an empty one."""
        if not self.messages:
            return []
        return [(self.messages[0].queue_offset, self.messages[-1].queue_offset)]


class _Stream(FetchLoop[PullResult]):
    """One queue being fetched."""

    _recheck_s = math.inf  # the fetcher wakes it

    def __init__(self, fetcher: Fetcher, queue: MessageQueue, offset: QueueOffset | None) -> None:
        super().__init__(
            f"fetch-{queue}",
            str(queue),
            fetcher.failures,
            retry_s=fetcher.retry_s,
            step_s_max=fetcher.step_s_max,
        )
        self.queue = queue
        self.offset = offset
        """The offset of the next pull; None until it is known."""
        self.paused = False
        self.count = 0
        self.size_bytes = 0
        self.bounds: deque[tuple[int, int]] = deque()
        self.set_aside: deque[Batch] = deque()
        """Messages of a paused queue."""
        self.pulled_ms = 0
        self.received_ms = 0
        """When the last message that was received had been stored; 0 for none."""
        self.topic_missed = False
        """Whether the broker has responded that the topic does not exist."""
        self._is_hung = False
        self._fetcher = fetcher

    @property
    def span(self) -> int:
        """From the first to the last offset of what is in the buffer."""
        return self.bounds[-1][1] - self.bounds[0][0] if self.bounds else 0

    def _is_blocked(self) -> bool:
        return self.offset is not None and not self._fetcher.is_below_limits(self)

    async def _wait(self, seconds: float) -> None:
        self._fetcher.waiting.add(self)
        try:
            await super()._wait(seconds)
        finally:
            self._fetcher.waiting.discard(self)

    async def _fetch(self) -> PullResult | None:
        if self.offset is None:
            task = self._task
            offset = await self._fetcher.start_of(self.queue)
            if self._task is not task:
                return None
            self.offset = offset
            self._fetcher.started.set()
            if not self._fetcher.is_below_limits(self):
                return None
        try:
            return await self._fetcher.pull(self.queue, self.offset)
        except ResponseError as error:
            if error.code == ResponseCode.TOPIC_NOT_EXIST and not self.topic_missed:
                self.topic_missed = True
                self._fetcher.forget_deleted(self)
            raise

    def _replace(self) -> None:
        super()._replace()
        self._is_hung = True
        self._fetcher.events.hung(self.queue)

    def _forget_failures(self) -> None:
        if not self._is_hung:  # else the stream that follows counts on
            super()._forget_failures()

    async def _act(self, response: PullResult, took_s: float) -> bool:
        self.pulled_ms = now_ms()
        cause = cause_of(response, self.offset, topic_missed=self.topic_missed)
        if cause is not None:
            log_cause(log, cause, self.queue, self._fetcher.group, self.offset, response)
        if cause is not None and cause is not Cause.BELOW_START:
            await asyncio.sleep(MOVE_S)
            await self._fetcher.events.moved(cause, self.queue, response, self.received_ms)
            return True
        if response.messages:
            self.received_ms = response.messages[-1].store_time_ms
        if not response.messages and response.next_offset == self.offset:
            return False
        self._fetcher.add(self, Batch(self.queue, response.messages, response.next_offset))
        self.offset = response.next_offset
        return True


@dataclass(frozen=True, slots=True)
class Held:
    """How much of a queue waits for the application."""

    count: int
    size_bytes: int
    pulled_ms: int
    """When the response to its last pull came, in ms since 1970."""


class BufferLimits(NamedTuple):
    """The limits of what is fetched and not taken yet."""

    messages_max: int
    """Messages of all queues together, beyond which none is pulled."""
    queue_messages_max: int = UNLIMITED
    """Messages of one queue, beyond which it is not pulled."""
    queue_bytes_max: int = UNLIMITED
    """Bytes of their records."""
    span_max: int = UNLIMITED
    """How far the first and the last of them may lie apart, in offsets."""


class QueueEvents(NamedTuple):
    """What happens to a fetched queue beside its messages."""

    moved: Moved
    """Called when a queue cannot continue at its offset, with the cause, the queue, the response,
    and when the last message that was received had been stored; begins it anew."""
    topic_missed: Callable[[MessageQueue], None]
    """Called with a queue whose topic does not exist any more."""
    hung: Callable[[MessageQueue], None] = lambda queue: None
    """Called with a queue whose pull made no progress for long."""


class Fetcher:
    """Keeps the buffer filled from all assigned queues.

    Args:
        pull: pulls messages of a queue.
        start_of: returns where a queue starts.
        limits: when enough is fetched.
        retry_s: pause of a queue after a pull of it failed.
        step_s_max: seconds after which a pull that hangs is cancelled and started again.
        group: the consumer group.
        on_permanent: called when retrying cannot cure the failure of a queue.
        events: called when something happens to a queue.
    """

    def __init__(
        self,
        pull: PullFrom,
        start_of: StartOf,
        *,
        limits: BufferLimits,
        retry_s: float,
        step_s_max: float = STEP_S_MAX,
        group: str,
        on_permanent: Callable[[BaseException], None] | None = None,
        events: QueueEvents,
    ) -> None:
        self.pull = pull
        self.events = events
        self.start_of = start_of
        self.retry_s = retry_s
        self.step_s_max = step_s_max
        self.group = group
        self.failures = SupervisedFailureLog(
            log,
            fails="pull failed, retrying",
            works="pull succeeds again",
            name="queue",
            more=f"group={group}",
            alike_max=ALIKE_MAX,
            on_permanent=on_permanent,
        )
        self.waiting: set[_Stream] = set()
        """Queues that wait until they are below the limits."""
        self.started = asyncio.Event()
        """Set when the first offset of a queue is known."""
        self._limits = limits
        self._streams: QueueTable[_Stream] = QueueTable()
        self._ready: deque[tuple[_Stream, Batch]] = deque()
        self._held = 0
        self._stopped = False
        self._failure: BaseException | None = None
        self._arrived = asyncio.Event()
        self._tasks = Supervisor(f"consumer {group}")

    async def until_started(self) -> None:
        """Wait until the first offsets of all queues are known."""
        while any(stream.offset is None for stream in self._streams.values()):
            self.started.clear()
            await self.started.wait()

    @property
    def queues(self) -> list[MessageQueue]:
        """The queues being fetched."""
        return list(self._streams)

    def begun(self) -> list[MessageQueue]:
        """Return the queues whose first offset is known."""
        return [queue for queue, stream in self._streams.items() if stream.offset is not None]

    def of_topic(self, topic: str) -> list[MessageQueue]:
        """Return the queues of a topic that are being fetched."""
        return self._streams.of_topic(topic)

    def fetches(self) -> KeysView[MessageQueue]:
        """Return a live view of the queues being fetched: with thousands, a list takes long."""
        return self._streams.keys()

    @property
    def held(self) -> int:
        """Messages fetched and not yet taken, without the messages of paused queues."""
        return self._held

    def held_of(self, queue: MessageQueue) -> Held:
        """Return how much of a queue waits; nothing for one that is not fetched."""
        stream = self._streams.get(queue)
        return Held(stream.count, stream.size_bytes, stream.pulled_ms) if stream else Held(0, 0, 0)

    @property
    def paused(self) -> set[MessageQueue]:
        """The queues of which nothing is handed out for now."""
        return {queue for queue, stream in self._streams.items() if stream.paused}

    def begin(self, queue: MessageQueue, offset: QueueOffset | None = None) -> None:
        """Fetch a queue, from ``offset`` or from where it is to start; drops what it held.

        A queue that was paused stays so.
        """
        paused = queue in self._streams and self._streams[queue].paused
        self.end(queue)
        stream = self._streams[queue] = _Stream(self, queue, offset)
        stream.paused = paused
        stream.start(self._tasks)

    def end(self, *queues: MessageQueue) -> None:
        """Fetch these queues no longer and drop what was fetched of them."""
        removed = map(self._streams.remove, queues)
        streams = {stream for stream in removed if stream is not None}
        if streams:
            for stream in streams:
                stream.cancel()
            self.started.set()
            self._set_aside(streams)
            self._wake_below_limits()

    def forget_deleted(self, stream: _Stream) -> None:
        """Drop the messages and the offsets of a deleted topic's queue.

        Committed later, its offsets would skip messages of the next topic of this name.
        """
        self._set_aside({stream})
        stream.set_aside.clear()
        stream.count = stream.size_bytes = 0
        stream.bounds.clear()
        self.events.topic_missed(stream.queue)
        self._wake_below_limits()

    def pause(self, queue: MessageQueue) -> None:
        """Hand out nothing of a queue, and pull it no more, until it is resumed."""
        stream = self._streams[queue]
        if not stream.paused:
            stream.paused = True
            self._set_aside({stream})
            self._wake_below_limits()

    def resume(self, queue: MessageQueue) -> None:
        """Hand out and pull a queue again."""
        stream = self._streams[queue]
        if stream.paused:
            stream.paused = False
            batches, stream.set_aside = stream.set_aside, deque()
            stream.count = stream.size_bytes = 0
            stream.bounds.clear()
            for batch in batches:
                self.add(stream, batch)
            self._wake_below_limits()

    async def take(self, messages_max: int = UNLIMITED) -> Batch | None:
        """Wait for messages and take them out of the buffer; None once the fetcher was stopped.

        Any number of tasks may wait at a time.

        Args:
            messages_max: how many to take of the first batch; the rest stays the first.

        Raises:
            Exception: the buffer is empty, and the consumer cannot go on.
        """
        while not self._ready:
            if self._stopped:
                return None
            if self._failure is not None:
                raise self._failure
            self._arrived.clear()
            await self._arrived.wait()
        stream, batch = self._ready[0]
        if messages_max < len(batch.messages):
            rest = batch.messages
            batch = batch.split_off(messages_max)
            stream.bounds[0] = rest[0].queue_offset, stream.bounds[0][1]
        else:
            self._ready.popleft()
            if batch.messages:
                stream.bounds.popleft()
        count = batch.count
        self._held -= count
        stream.count -= count
        stream.size_bytes -= batch.size_bytes
        self._wake_below_limits()
        return batch

    def fail(self, error: BaseException) -> None:
        """Raise an error in all tasks that wait for a batch."""
        self._failure = error
        self._arrived.set()

    def put_back(self, batch: Batch) -> None:
        """Let messages wait once more, before later messages of their queue.

        What a reader has changed in them is undone.
        """
        stream = self._streams.get(batch.queue)
        if stream is None:
            return
        batch = replace(batch, messages=batch.messages.copy())  # the reader may keep the list
        for message in batch.messages:
            restore(message)
        stream.count += batch.count
        stream.size_bytes += batch.size_bytes
        stream.bounds = deque(sorted([*stream.bounds, *batch.bounds]))
        if stream.paused:
            earlier = [each for each in stream.set_aside if each.begins < batch.begins]
            stream.set_aside.insert(len(earlier), batch)
            return
        positions = [at for at, (owner, _) in enumerate(self._ready) if owner is stream]
        later = [at for at in positions if self._ready[at][1].begins > batch.begins]
        at = later[0] if later else positions[-1] + 1 if positions else 0
        self._ready.insert(at, (stream, batch))
        self._held += batch.count
        self._arrived.set()

    def lowest(self, queue: MessageQueue) -> int | None:
        """Return the lowest offset of a queue's messages that wait; None if none waits."""
        stream = self._streams.get(queue)
        return stream.bounds[0][0] if stream is not None and stream.bounds else None

    async def stop(self) -> None:
        """End every task and empty the buffer; tasks that wait for a batch get None."""
        self._stopped = True
        self._arrived.set()
        self.end(*self.queues)
        await self._tasks.cancel()

    def is_below_limits(self, stream: _Stream) -> bool:
        """Return whether a queue may be pulled."""
        return (
            not stream.paused
            and self._held < self._limits.messages_max
            and stream.count < self._limits.queue_messages_max
            and stream.size_bytes < self._limits.queue_bytes_max
            and stream.span <= self._limits.span_max
        )

    def _wake_below_limits(self) -> None:
        if self._held >= self._limits.messages_max:
            return  # at once: thousands of queues may wait
        for stream in self.waiting:
            if self.is_below_limits(stream):
                stream.wake()

    def add(self, stream: _Stream, batch: Batch) -> None:
        """Add messages after all others of their queue."""
        count, size_bytes, bounds = batch.count, batch.size_bytes, batch.bounds
        stream.count += count
        stream.size_bytes += size_bytes
        stream.bounds.extend(bounds)
        if stream.paused:
            stream.set_aside.append(batch)
        else:
            self._ready.append((stream, batch))
            self._held += count
            self._arrived.set()

    def _set_aside(self, streams: Set[_Stream]) -> None:
        """Take streams' batches out of the ready ones; they still are the streams'."""
        stays: deque[tuple[_Stream, Batch]] = deque()
        for entry in self._ready:
            stream, batch = entry
            if stream not in streams:
                stays.append(entry)
                continue
            stream.set_aside.append(batch)
            self._held -= batch.count
        self._ready = stays
