"""Fetches ahead: one task for each queue pulls, and what it found waits for the application.

All queues of a consumer share one bounded buffer; a task whose turn it is waits while the buffer
is full. Batches of a queue that was sought or given up meanwhile are dropped when they come out.

Source: ours, after DefaultLitePullConsumerImpl.PullTaskImpl, RocketMQ 5.3.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from cometmq.client.pulling import PullResult, PullStatus
from cometmq.model.errors import CometError
from cometmq.model.message import StoredMessage
from cometmq.model.offsets import QueueOffset
from cometmq.model.queue import MessageQueue
from cometmq.remoting import Supervisor

log = logging.getLogger(__name__)

PullFrom = Callable[[MessageQueue, QueueOffset], Awaitable[PullResult]]
StartOf = Callable[[MessageQueue], Awaitable[QueueOffset]]


@dataclass(frozen=True, slots=True)
class Batch:
    """Messages of one queue, in order, and where the queue goes on behind them.

    Without messages it only says that nothing up to ``next_offset`` was wanted.
    """

    queue: MessageQueue
    messages: list[StoredMessage]
    next_offset: QueueOffset


class _Stream:
    """One queue being fetched."""

    def __init__(self, queue: MessageQueue) -> None:
        self.queue = queue
        self.task: asyncio.Task[None] | None = None
        self.failing = False

    def stop(self) -> None:
        if self.task is not None:
            self.task.cancel()

    def note_failure(self, error: CometError) -> None:
        """Log the first failure of a row; the others say nothing new."""
        level = logging.DEBUG if self.failing else logging.WARNING
        log.log(level, "pull failed and is tried again queue=%s error=%s", self.queue, error)
        self.failing = True

    def note_success(self, offset: QueueOffset, result: PullResult) -> None:
        if self.failing:
            log.info("pull works again queue=%s", self.queue)
            self.failing = False
        if result.status is PullStatus.OFFSET_ILLEGAL:
            log.warning(
                "a queue does not hold the wanted offset queue=%s offset=%d goes_on_at=%d",
                self.queue,
                offset,
                result.next_offset,
            )


class Fetcher:
    """Keeps the buffer filled from all assigned queues."""

    def __init__(
        self, pull: PullFrom, start_of: StartOf, *, fetched_max: int, retry_s: float, name: str
    ) -> None:
        self._pull = pull
        self._start_of = start_of
        self._fetched_max = fetched_max
        self._retry_s = retry_s
        self._streams: dict[MessageQueue, _Stream] = {}
        self._ready: deque[tuple[_Stream, Batch]] = deque()
        self._held = 0
        self._changed = asyncio.Condition()
        self._tasks = Supervisor(name)

    @property
    def queues(self) -> list[MessageQueue]:
        """The queues being fetched."""
        return list(self._streams)

    @property
    def held(self) -> int:
        """Messages fetched and not yet taken."""
        return self._held

    def begin(self, queue: MessageQueue, offset: QueueOffset | None = None) -> None:
        """Fetch a queue, from ``offset`` or from where it is to start; drops what it held."""
        self.end(queue)
        stream = self._streams[queue] = _Stream(queue)
        stream.task = self._tasks.spawn(self._run(stream, offset), f"fetch-{queue}")

    def end(self, queue: MessageQueue) -> None:
        """Fetch a queue no longer and drop what was fetched of it."""
        stream = self._streams.pop(queue, None)
        if stream is not None:
            stream.stop()
            self._drop(stream)

    async def take(self) -> Batch:
        """Wait for a batch and take it out of the buffer."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._ready)
            _, batch = self._ready.popleft()
            self._held -= len(batch.messages)
            self._changed.notify_all()
        return batch

    async def stop(self) -> None:
        """End every task and empty the buffer."""
        for queue in self.queues:
            self.end(queue)
        await self._tasks.cancel()

    async def _run(self, stream: _Stream, offset: QueueOffset | None) -> None:
        while True:
            try:
                if offset is None:
                    offset = await self._start_of(stream.queue)
                await self._wait_for_room()
                result = await self._pull(stream.queue, offset)
            except CometError as error:
                stream.note_failure(error)
                await asyncio.sleep(self._retry_s)
                continue
            stream.note_success(offset, result)
            if result.messages or result.next_offset != offset:
                batch = Batch(stream.queue, result.messages, result.next_offset)
                await self._put(stream, batch)
            offset = result.next_offset

    async def _wait_for_room(self) -> None:
        if not self._has_room():
            async with self._changed:
                await self._changed.wait_for(self._has_room)

    def _has_room(self) -> bool:
        return max(self._held, len(self._ready)) < self._fetched_max

    async def _put(self, stream: _Stream, batch: Batch) -> None:
        async with self._changed:
            self._ready.append((stream, batch))
            self._held += len(batch.messages)
            self._changed.notify_all()

    def _drop(self, stream: _Stream) -> None:
        kept = [entry for entry in self._ready if entry[0] is not stream]
        self._ready = deque(kept)
        self._held = sum(len(batch.messages) for _, batch in kept)
