"""Fetches ahead: one task for each queue pulls, and what it found waits for the application.

What waits is bounded, for each queue and for all together; a task whose turn it is waits while
there is no room. What a queue that is paused holds is set aside and does not count for the others.
A queue that is sought or given up loses what was fetched of it.

Source: ours, after DefaultLitePullConsumerImpl.PullTaskImpl, RocketMQ 5.3.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, replace

from cometmq.client._consuming.pulls import PullResult, PullStatus
from cometmq.client._failure_log import trace_of
from cometmq.model.errors import ResponseError
from cometmq.model.message import StoredMessage
from cometmq.model.offsets import QueueOffset
from cometmq.model.queue import MessageQueue
from cometmq.protocol.codes import ResponseCode
from cometmq.remoting import Supervisor
from cometmq.remoting.tasks import is_call_failure

log = logging.getLogger(__name__)

PullFrom = Callable[[MessageQueue, QueueOffset], Awaitable[PullResult]]
StartOf = Callable[[MessageQueue], Awaitable[QueueOffset]]

UNLIMITED = 2**63 - 1
IDLE_S = 0.1
"""Shortest time from one pull to the next when the first brought nothing new."""
FLOW_CONTROL_S = 0.02
"""Pause after a broker said that it has too much to do."""
JITTER = 0.2
"""By how much of itself a pause is made longer at random, lest many come back at once."""


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
        """What it counts for: an empty one takes up room, too."""
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


class _Stream:
    """One queue being fetched."""

    def __init__(self, queue: MessageQueue) -> None:
        self.queue = queue
        self.task: asyncio.Task[None] | None = None
        self.failing = False
        self.paused = False
        self.count = 0
        self.size_bytes = 0
        self.bounds: deque[tuple[int, int]] = deque()
        self.aside: deque[Batch] = deque()
        self.pulled_ms = 0
        self.started = False
        """Whether it is known where the queue starts."""

    @property
    def span(self) -> int:
        """From the first to the last offset of what waits."""
        return self.bounds[-1][1] - self.bounds[0][0] if self.bounds else 0

    def stop(self) -> None:
        if self.task is not None:
            self.task.cancel()

    def note_failure(self, error: BaseException) -> None:
        """Log the first failure of a row; the others say nothing new."""
        log.log(
            logging.DEBUG if self.failing else logging.WARNING,
            "pull failed, retrying queue=%s error=%s: %s",
            *(self.queue, type(error).__name__, error),
            exc_info=trace_of(error),
        )
        self.failing = True

    def note_success(self, offset: QueueOffset, result: PullResult) -> None:
        if self.failing:
            log.info("pull succeeds again queue=%s", self.queue)
            self.failing = False
        if result.status is PullStatus.OFFSET_ILLEGAL:
            log.warning(
                "offset out of range queue=%s offset=%d next=%d",
                self.queue,
                offset,
                result.next_offset,
            )


@dataclass(frozen=True, slots=True)
class Held:
    """How much of a queue waits for the application."""

    count: int
    size_bytes: int
    pulled_ms: int
    """When the last pull of it was answered, in ms since 1970."""


class Fetcher:
    """Keeps the buffer filled from all assigned queues.

    Args:
        pull: asks for the messages of a queue.
        start_of: tells where a queue is to begin.
        fetched_max: messages of all queues together, beyond which none is pulled.
        queue_messages_max: messages of one queue, beyond which it is not pulled.
        queue_bytes_max: the same by the size of their records.
        span_max: how far the first and the last of them may lie apart, in offsets.
        retry_s: pause of a queue after a pull of it failed.
        name: of the tasks.
    """

    def __init__(
        self,
        pull: PullFrom,
        start_of: StartOf,
        *,
        fetched_max: int,
        queue_messages_max: int = UNLIMITED,
        queue_bytes_max: int = UNLIMITED,
        span_max: int = UNLIMITED,
        retry_s: float,
        name: str,
    ) -> None:
        self._pull = pull
        self._start_of = start_of
        self._fetched_max = fetched_max
        self._queue_messages_max = queue_messages_max
        self._queue_bytes_max = queue_bytes_max
        self._span_max = span_max
        self._retry_s = retry_s
        self._streams: dict[MessageQueue, _Stream] = {}
        self._ready: deque[tuple[_Stream, Batch]] = deque()
        self._held = 0
        self._stopped = False
        self._arrived = asyncio.Event()
        self._room = asyncio.Event()
        self._started = asyncio.Event()
        self._tasks = Supervisor(name)

    async def until_started(self) -> None:
        """Wait until it is known of all queues where they start."""
        while not all(stream.started for stream in self._streams.values()):
            self._started.clear()
            await self._started.wait()

    @property
    def queues(self) -> list[MessageQueue]:
        """The queues being fetched."""
        return list(self._streams)

    @property
    def held(self) -> int:
        """Messages fetched and not yet taken, those of paused queues left out."""
        return self._held

    def held_of(self, queue: MessageQueue) -> Held:
        """Give how much of a queue waits; nothing for one that is not fetched."""
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
        stream = self._streams[queue] = _Stream(queue)
        stream.paused = paused
        stream.task = self._tasks.spawn(self._run(stream, offset), f"fetch-{queue}")

    def end(self, queue: MessageQueue) -> None:
        """Fetch a queue no longer and drop what was fetched of it."""
        stream = self._streams.pop(queue, None)
        if stream is not None:
            stream.stop()
            self._started.set()
            self._rename_for_deletion(stream)
            self._room.set()

    def pause(self, queue: MessageQueue) -> None:
        """Hand out nothing of a queue, and pull it no more, until it is resumed."""
        stream = self._streams[queue]
        if not stream.paused:
            stream.paused = True
            self._rename_for_deletion(stream)
            self._room.set()

    def resume(self, queue: MessageQueue) -> None:
        """Hand out and pull a queue again."""
        stream = self._streams[queue]
        if stream.paused:
            stream.paused = False
            aside, stream.aside = stream.aside, deque()
            stream.count = stream.size_bytes = 0
            stream.bounds.clear()
            self._enter(stream, aside)
            self._room.set()

    async def take(self, messages_max: int = UNLIMITED) -> Batch | None:
        """Wait for messages and take them out of the buffer; None once the fetcher was stopped.

        Any number of tasks may wait at a time.

        Args:
            messages_max: how many to take of the first batch; the rest stays the first.
        """
        while not self._ready:
            if self._stopped:
                return None
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
        self._room.set()
        return batch

    def put_back(self, batch: Batch) -> None:
        """Let messages wait once more, before those of their queue that come behind them."""
        stream = self._streams.get(batch.queue)
        if stream is None:
            return
        batch = replace(batch, messages=batch.messages.copy())  # the reader may keep the list
        stream.count += batch.count
        stream.size_bytes += batch.size_bytes
        stream.bounds = deque(sorted([*stream.bounds, *batch.bounds]))
        if stream.paused:
            earlier = [each for each in stream.aside if each.begins < batch.begins]
            stream.aside.insert(len(earlier), batch)
            return
        places = [at for at, (owner, _) in enumerate(self._ready) if owner is stream]
        later = [at for at in places if self._ready[at][1].begins > batch.begins]
        at = later[0] if later else places[-1] + 1 if places else 0
        self._ready.insert(at, (stream, batch))
        self._held += batch.count
        self._arrived.set()

    def lowest(self, queue: MessageQueue) -> int | None:
        """Give the lowest offset of a queue's messages that wait; None if none waits."""
        stream = self._streams.get(queue)
        return stream.bounds[0][0] if stream is not None and stream.bounds else None

    async def stop(self) -> None:
        """End every task and empty the buffer; whoever waits for a batch gets None."""
        self._stopped = True
        self._arrived.set()
        for queue in self.queues:
            self.end(queue)
        await self._tasks.cancel()

    async def _run(self, stream: _Stream, offset: QueueOffset | None) -> None:
        clock = asyncio.get_running_loop().time
        while True:
            asked_at = clock()
            try:
                if offset is None:
                    offset = await self._start_of(stream.queue)
                stream.started = True
                self._started.set()
                await self._wait_for_room(stream)
                asked_at = clock()
                result = await self._pull(stream.queue, offset)
            except BaseException as error:
                if not is_call_failure(error):
                    raise
                stream.note_failure(error)
                await asyncio.sleep(self._pause_after(error))
                continue
            stream.pulled_ms = time.time_ns() // 1_000_000
            stream.note_success(offset, result)
            if result.messages or result.next_offset != offset:
                self._enter(stream, [Batch(stream.queue, result.messages, result.next_offset)])
            else:
                await asyncio.sleep(max(0.0, _jittered(IDLE_S) - (clock() - asked_at)))
            offset = result.next_offset

    def _pause_after(self, error: BaseException) -> float:
        busy = isinstance(error, ResponseError) and error.code == ResponseCode.FLOW_CONTROL
        return _jittered(FLOW_CONTROL_S if busy else self._retry_s)

    async def _wait_for_room(self, stream: _Stream) -> None:
        while not self._has_room(stream):
            self._room.clear()
            await self._room.wait()

    def _has_room(self, stream: _Stream) -> bool:
        return (
            not stream.paused
            and self._held < self._fetched_max
            and stream.count < self._queue_messages_max
            and stream.size_bytes < self._queue_bytes_max
            and stream.span <= self._span_max
        )

    def _enter(self, stream: _Stream, batches: Iterable[Batch]) -> None:
        for batch in batches:
            stream.count += batch.count
            stream.size_bytes += batch.size_bytes
            stream.bounds.extend(batch.bounds)
            if stream.paused:
                stream.aside.append(batch)
            else:
                self._ready.append((stream, batch))
                self._held += batch.count
        if self._ready:
            self._arrived.set()

    def _rename_for_deletion(self, stream: _Stream) -> None:
        """Take a stream's batches out of those that are ready; they still are the stream's."""
        stays: deque[tuple[_Stream, Batch]] = deque()
        for entry in self._ready:
            if entry[0] is not stream:
                stays.append(entry)
                continue
            stream.aside.append(entry[1])
            self._held -= entry[1].count
        self._ready = stays


def _jittered(seconds: float) -> float:
    return seconds * (1 + JITTER * random.random())
