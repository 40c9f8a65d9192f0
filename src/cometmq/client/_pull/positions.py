"""The offsets of each queue of a pull consumer, and the messages that its readers process.

    committed ≤ finished ≤ delivered        offsets of the next message, of each queue

A reader is the task or thread that requests messages. It finishes a message by requesting the next
one, so that what is committed was processed to its end. Several readers may hold messages of one
queue: everything before the lowest unfinished message is finished. It is counted when it is needed,
not for each message, so that many readers cost no more than one. This module sends no request.

Source: AssignedMessageQueue of RocketMQ 5.3 moves the consumed offset before the application has
received the messages; this module does not.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Collection, Iterable
from contextvars import ContextVar
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeVar

from cometmq.client._pull.fetcher import Batch
from cometmq.client.errors import NotAssignedError
from cometmq.client.hooks import DeliveryContext
from cometmq.model.message import StoredMessage
from cometmq.model.offsets import QueueOffset
from cometmq.model.queue import MessageQueue

Offsets = dict[MessageQueue, QueueOffset]


@dataclass(slots=True)
class Unfinished:
    """The messages that one reader received last and has not finished."""

    batch: Batch
    before: QueueOffset | None
    """The queue's offset of delivery before them."""
    delivery: DeliveryContext | None = None
    """The context that the hooks got; None without hooks."""
    dropped: bool = False
    """Whether its queue was moved or revoked meanwhile: it no longer counts."""
    begun_s: float = field(default_factory=time.monotonic)
    """When it was delivered, in seconds of the steady clock."""
    ended: asyncio.Future[bool] | None = None
    """Gets whether it was finished; None if no other code waits for that."""
    reported: bool = False
    """Whether the log contains that it has not been finished for long."""

    @property
    def messages(self) -> list[StoredMessage]:
        """The messages, in order."""
        return self.batch.messages


@dataclass(frozen=True, slots=True)
class Released:
    """A queue that was released while readers had messages of it."""

    queue: MessageQueue
    offset: QueueOffset | None
    """The offset after the last finished message; None if none was finished."""
    last: list[Unfinished]
    """The messages of readers, by offset."""

    async def finished(self, timeout_s: float) -> QueueOffset | None:
        """Wait for the readers; return the offset up to which everything is finished then."""
        futures = [each.ended for each in self.last if each.ended is not None]
        if futures:
            await asyncio.wait(futures, timeout=timeout_s)
        offset = self.offset
        for each in self.last:
            is_next = offset is None or offset == each.batch.begins
            has_ended = each.ended is not None and each.ended.done() and each.ended.result()
            if not is_next or not has_ended:
                break
            offset = each.batch.next_offset
        return offset


class Positions:
    """The offsets of one consumer, and the unfinished messages of its readers.

    Args:
        lowest_waiting: returns the lowest offset of a queue's fetched and undelivered messages.
    """

    def __init__(self, lowest_waiting: Callable[[MessageQueue], int | None]) -> None:
        self.unfinished: dict[Reader, Unfinished] = {}
        """The unfinished messages of each reader."""
        self._lowest_waiting = lowest_waiting
        self._delivered: Offsets = {}
        self._finished: Offsets = {}
        self._uncounted: set[MessageQueue] = set()
        """Queues with messages that were finished after the last `count_finished`."""
        self._committed: Offsets = {}
        self._moved: set[MessageQueue] = set()
        """Queues that the application has moved since their last commit."""

    def deliver(self, reader: Reader, batch: Batch) -> Unfinished:
        """Note that messages are delivered to a reader, which has finished the ones before."""
        before = self._note_delivered(batch)
        unfinished = self.unfinished[reader] = Unfinished(batch, before)
        return unfinished

    def pass_over(self, batch: Batch) -> None:
        """Count a batch without messages as delivered and finished."""
        self._note_delivered(batch)
        self._uncounted.add(batch.queue)

    def _note_delivered(self, batch: Batch) -> QueueOffset | None:
        before = self._delivered.get(batch.queue)
        if before is None or before < batch.next_offset:
            self._delivered[batch.queue] = batch.next_offset
        return before

    def finish(self, reader: Reader) -> Unfinished | None:
        """Count the unfinished messages of a reader as finished, and return them."""
        unfinished = self.unfinished.pop(reader, None)
        if unfinished is not None:
            if not unfinished.dropped:
                self._uncounted.add(unfinished.batch.queue)
            elif unfinished.ended is not None:
                _end(unfinished.ended, finished=True)
        return unfinished

    def take_back(self, reader: Reader) -> Unfinished | None:
        """Count the unfinished messages of a reader as not delivered, and return them."""
        unfinished = self.unfinished.pop(reader, None)
        if unfinished is None or unfinished.dropped:
            if unfinished is not None and unfinished.ended is not None:
                _end(unfinished.ended, finished=False)
            return unfinished
        queue = unfinished.batch.queue
        if self._delivered.get(queue) == unfinished.batch.next_offset:
            self._delivered.pop(queue)
            if unfinished.before is not None:
                self._delivered[queue] = unfinished.before
        return unfinished

    def move(self, queue: MessageQueue, offset: QueueOffset) -> None:
        """Continue at another offset of a queue; the next commit stores it."""
        self.drop(queue)
        self._delivered[queue] = self._finished[queue] = offset
        self._moved.add(queue)

    def release(self, queue: MessageQueue) -> Released:
        """Forget a queue whose readers may still finish their messages."""
        offset = self.finished(queue)
        last = [
            each
            for each in self.unfinished.values()
            if each.batch.queue == queue and not each.dropped
        ]
        for each in last:
            each.ended = asyncio.get_running_loop().create_future()
        self.drop(queue)
        return Released(queue, offset, sorted(last, key=lambda each: each.batch.begins))

    def is_moved(self, queue: MessageQueue) -> bool:
        """Return whether the application has chosen the offset that the next commit stores."""
        return queue in self._moved

    def drop(self, queue: MessageQueue) -> None:
        """Forget a queue, and the unfinished messages of it."""
        for table in (self._delivered, self._finished, self._committed):
            table.pop(queue, None)
        self._uncounted.discard(queue)
        self._moved.discard(queue)
        for unfinished in self.unfinished.values():
            unfinished.dropped = unfinished.dropped or unfinished.batch.queue == queue

    def position(self, queue: MessageQueue) -> QueueOffset | None:
        """Return the offset after the last delivered message of a queue."""
        return self._delivered.get(queue)

    def fetch_from(self, queue: MessageQueue) -> QueueOffset | None:
        """Return the offset of the first message that was not delivered, or was taken back."""
        self.count_finished()  # while messages that were taken back are in the buffer
        offset, waiting = self._delivered.get(queue), self._lowest_waiting(queue)
        return offset if offset is None or waiting is None else QueueOffset(min(offset, waiting))

    def finished(self, queue: MessageQueue) -> QueueOffset | None:
        """Return the offset after the last finished message of a queue."""
        self.count_finished()
        return self._finished.get(queue)

    def to_commit(self, queues: Iterable[MessageQueue] | None = None) -> Offsets:
        """Return the offsets that are finished and not committed, of these queues or of all."""
        self.count_finished()
        chosen = self._finished if queues is None else queues
        return {
            queue: self._finished[queue]
            for queue in chosen
            if queue in self._finished and self._committed.get(queue) != self._finished[queue]
        }

    def committed(self, queue: MessageQueue, offset: QueueOffset) -> None:
        """Note that this offset was committed."""
        self.count_finished()
        if queue in self._finished:
            self._committed[queue] = offset
            self._moved.discard(queue)

    def set_finished(self, queue: MessageQueue, offset: QueueOffset) -> None:
        """Set the finished offset of a queue, independent of the deliveries."""
        self._uncounted.discard(queue)
        self._finished[queue] = offset
        self._moved.add(queue)

    def count_finished(self) -> None:
        """Count the finished offset of each queue in which a reader has finished messages.

        Call this before fetching ends: it needs the buffer.
        """
        if not self._uncounted:
            return
        lowest: dict[MessageQueue, int] = {}
        for unfinished in self.unfinished.values():
            queue = unfinished.batch.queue
            if not unfinished.dropped and queue in self._uncounted:
                lowest[queue] = min(
                    unfinished.batch.begins, lowest.get(queue, unfinished.batch.begins)
                )
        for queue in self._uncounted:
            offset = self._delivered.get(queue)
            if offset is not None:
                waiting = self._lowest_waiting(queue)
                bounds = [each for each in (lowest.get(queue), waiting) if each is not None]
                self._finished[queue] = QueueOffset(min([offset, *bounds]))
        self._uncounted.clear()


def _end(ended: asyncio.Future[bool], *, finished: bool) -> None:
    if not ended.done():
        ended.set_result(finished)


LISTED_MAX = 8
"""Limit on the assigned queues in an error's text."""


def check_assigned(queue: MessageQueue, assigned: Collection[MessageQueue]) -> None:
    """Check that a queue is assigned.

    Raises:
        NotAssignedError: it is not; the text lists the assigned queues.
    """
    if queue not in assigned:
        known = sorted(assigned)
        listed = ", ".join(map(str, known[:LISTED_MAX])) or "none"
        more = f" and {len(known) - LISTED_MAX} more" if len(known) > LISTED_MAX else ""
        raise NotAssignedError(
            f"{queue} is not assigned to this consumer; assigned are: {listed}{more}. "
            "Use one of these, or call assign"
        )


T = TypeVar("T")

Reader = asyncio.Task[Any] | threading.Thread
"""A task, or a thread that uses the blocking client."""

_thread: ContextVar[threading.Thread | None] = ContextVar("reading thread", default=None)


class ReaderState(Enum):
    """Whether a reader will finish its messages."""

    RUNNING = "running"
    RETURNED = "returned"
    """A task returned: its result may be the messages, which its caller processes."""
    FAILED = "failed"
    """A task failed or was cancelled, or a thread ended, which may have failed."""


def current_reader() -> Reader | None:
    """Return the thread that this call is made for, else the current task, else None."""
    thread = _thread.get()
    if thread is not None:
        return thread
    try:
        return asyncio.current_task()
    except RuntimeError:  # no loop runs in this thread
        return None


def state_of(reader: Reader) -> ReaderState:
    """Return whether a reader still runs, or how it ended."""
    if isinstance(reader, threading.Thread):
        return ReaderState.RUNNING if reader.is_alive() else ReaderState.FAILED
    if not reader.done():
        return ReaderState.RUNNING
    failed = reader.cancelled() or reader.exception() is not None
    return ReaderState.FAILED if failed else ReaderState.RETURNED


async def read_as(
    thread: threading.Thread, call: Callable[..., Awaitable[T]], *arguments: Any
) -> T:
    """Call a consumer for a thread, in a task of its own."""
    _thread.set(thread)
    return await call(*arguments)
