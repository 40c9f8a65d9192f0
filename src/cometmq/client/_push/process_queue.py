# cython: annotation_typing=False
"""Keeps the messages of one queue that are fetched and not consumed yet.

    batches  := the messages of each pull, lowest offset first; a batch is removed when all of its
                messages are finished
    open     := offset → message, taken by an ordered consumer and not yet committed

Pulls of a queue follow one another, so messages arrive by rising offset. A message is identified by
its position in its batch; one byte says whether it is finished. A queue belongs to one event loop;
its methods do not wait, except `ProcessQueue.wait_idle`.

Source: ProcessQueue, RocketMQ 5.3.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from cometmq.client.settings import MIB, PushSettings
from cometmq.model.message import StoredMessage
from cometmq.model.offsets import QueueOffset
from cometmq.model.queue import MessageQueue
from cometmq.model.times import now_ms
from cometmq.protocol.bodies.client import ProcessQueueInfo
from cometmq.protocol.lazy_record import LazyMessage, restore

try:
    import cython  # type: ignore[import-untyped]
except ImportError:  # interpreted, without Cython at hand
    from cometmq.system.uncompiled import cython

LOCK_AGE_S = 30.0
"""How long a broker's lock counts after it was renewed; the broker itself keeps it for 60 s."""


class FetchedBatch:
    """The messages of one pull, by offset; shared by the process queue and the workers.

    Args:
        queue: the process queue.
        messages: by rising offset.
    """

    __slots__ = ("_done", "_first", "_forgotten", "messages", "queue")

    queue: ProcessQueue
    messages: list[Any]
    """None replaces a message that is finished or taken, which frees its memory."""

    def __init__(self, queue: ProcessQueue, messages: list[StoredMessage]) -> None:
        self.queue = queue
        self.messages = messages
        self._done = bytearray(len(messages))
        self._first = 0
        self._forgotten = False

    def is_open(self, index: int) -> bool:
        """Return whether a message is not finished: only then it may be sent back."""
        return not self._forgotten and not self._done[index]

    def finish(self, start: int, stop: int) -> None:
        """Finish the messages from ``start`` to before ``stop``; finished ones are ignored."""
        if self._forgotten:
            return
        done, messages, count, size = self._done, self.messages, 0, 0
        for index in range(start, stop):
            if not done[index]:
                done[index] = 1
                count += 1
                size += _size_of(messages[index])
                messages[index] = None
        if count:
            queue = self.queue
            queue.count -= count
            queue.size_bytes -= size
            if self._first >= start:
                self._skip(max(self._first, stop))
            if queue.on_removed is not None:
                queue.on_removed()

    def _skip(self, at: int) -> None:
        """Set the first unfinished message, from a position on."""
        done, end = self._done, len(self._done)
        while at < end and done[at]:
            at += 1
        self._first = at
        if at == end:
            self.queue._drop_finished()


class ProcessQueue:
    """The messages of one assigned queue between the pull and the end of their handler call.

    Args:
        queue: the queue of the messages.
        now: a steady clock, in seconds.
    """

    def __init__(self, queue: MessageQueue, *, now: Callable[[], float] = time.monotonic) -> None:
        self.queue = queue
        self.dropped = False
        """Whether the queue was revoked: its messages are not passed to further handler calls."""
        self.locked = False
        """Whether a broker has locked the queue for this client."""
        self.locked_at_s = self.pulled_at_s = self.consumed_at_s = now()
        """When the lock was renewed, the last pull began, the last message was consumed."""
        self.locked_at_ms = now_ms()
        self.unlock_tries = 0
        """How often the queue could not be unlocked because a handler call was running."""
        self.calls = 0
        """Workers that call handlers with messages of the queue; used if order is not kept."""
        self.consuming = asyncio.Lock()
        """Held while a handler call with messages of the queue runs; used if order is kept."""
        self.count = 0
        """Messages that are not consumed yet, also messages of running handler calls."""
        self.size_bytes = 0
        """The bytes of their encoded records."""
        self.last_offset: QueueOffset | None = None
        """The highest offset that was put in; None if there was none."""
        self.received_ms = 0
        """When the broker stored the last message that was put in; 0 if there was none."""
        self.doubt_ends_s = 0.0
        """Until when another member may commit offsets of the queue."""
        self.lock_is_new = False
        """Whether a lost lock was renewed, and it is not known yet if another member had it."""
        self.topic_missed = False
        """Whether the broker has responded that the topic does not exist: no offset is committed,
        since those of the former topic would skip messages of the next one."""
        self.is_offset_pending = False
        """Whether the offset store does not have the newest offset to commit yet."""
        self.on_removed: Callable[[], None] | None = None
        """Called when messages were removed, or the queue was dropped."""
        self._now = now
        self._batches: deque[Any] = deque()
        self._open: dict[QueueOffset, StoredMessage] = {}
        self._being_consumed = False
        self._idle: asyncio.Future[None] | None = None

    @property
    def first_unconsumed(self) -> QueueOffset | None:
        """The lowest offset that is neither consumed nor open; None if there is none."""
        if not self._batches:
            return None
        return self._head_offset()

    def _head_offset(self) -> QueueOffset:
        head = self._batches[0]
        offset: QueueOffset = head.messages[head._first].queue_offset
        return offset

    @property
    def span(self) -> int:
        """The last minus the first offset that is not consumed; 0 for fewer than two."""
        return self._last_unconsumed() - self._head_offset() if self._batches else 0

    def _last_unconsumed(self) -> int:
        """Return the last offset that is not consumed, or 0."""
        for batch in reversed(self._batches):
            for index in range(len(batch.messages) - 1, batch._first - 1, -1):
                if not batch._done[index]:
                    return int(batch.messages[index].queue_offset)
        return 0

    def put(self, messages: list[StoredMessage]) -> FetchedBatch | None:
        """Add the messages of a pull, by rising offset; skip messages that were put in before.

        Returns:
            The new messages; None if there are none.
        """
        last = self.last_offset
        if last is not None and messages and messages[0].queue_offset <= last:
            messages = [each for each in messages if each.queue_offset > last]
        if not messages:
            return None
        self.last_offset = messages[-1].queue_offset
        self.received_ms = messages[-1].store_time_ms
        size = 0
        for message in messages:
            size += _size_of(message)
        self.count += len(messages)
        self.size_bytes += size
        batch = FetchedBatch(self, messages)
        self._batches.append(batch)
        return batch

    def begin_call(self) -> None:
        """Count a worker that begins to call handlers with messages of the queue."""
        self.calls += 1

    def end_call(self) -> None:
        """Count a worker that has processed the results of its handler calls and leaves."""
        self.calls -= 1
        self.consumed_at_s = self._now()
        if self.calls == 0 and self._idle is not None and not self._idle.done():
            self._idle.set_result(None)

    async def wait_idle(self, timeout: float) -> bool:
        """Wait until no handler call runs; return False if one still runs after ``timeout`` s."""
        if self.calls:
            self._idle = asyncio.get_running_loop().create_future()
            await asyncio.wait([self._idle], timeout=timeout)
        return self.calls == 0

    def committable(self) -> QueueOffset | None:
        """Return the offset to commit: all messages before it are finished.

        None if nothing was fetched, or `clear` removed all of it.
        """
        if self._batches:
            return self._head_offset()
        return None if self.last_offset is None else QueueOffset(self.last_offset + 1)

    def _drop_finished(self) -> None:
        batches = self._batches
        while batches:
            head = batches[0]
            if head._first < len(head.messages):
                return
            batches.popleft()

    def begin_ordered(self) -> bool:
        """Begin to consume in order; return False if that runs already or nothing is fetched."""
        if self._being_consumed or not self._batches:
            return False
        self._being_consumed = True
        return True

    def take(self, count: int) -> list[StoredMessage]:
        """Return the first messages for an ordered consumer; they are open until `take_open`.

        An empty list ends the consumption in order, until `begin_ordered`.
        """
        self.consumed_at_s = self._now()
        taken: list[StoredMessage] = []
        while self._batches and len(taken) < count:
            head = self._batches[0]
            first = head._first
            part = head.messages[first : first + count - len(taken)]
            head._first = first + len(part)
            head.messages[first : head._first] = [None] * len(part)
            taken += part
            self._drop_finished()
        for message in taken:
            self._open[message.queue_offset] = message
        if not taken:
            self._being_consumed = False
        return taken

    def take_open(self) -> QueueOffset | None:
        """Remove all open messages; return the offset after them, None if there were none."""
        if not self._open:
            return None
        last = max(self._open)
        self.count -= len(self._open)
        for message in self._open.values():
            self.size_bytes -= message.size_bytes
        self._open.clear()
        self._notify_removed()
        return QueueOffset(last + 1)

    def rollback(self) -> None:
        """Put all open messages back in front of the others."""
        self.put_back(list(self._open.values()))

    def put_back(self, messages: Sequence[StoredMessage]) -> None:
        """Put these open messages back at their positions, so that `take` returns them again.

        What a handler has changed in them is undone.
        """
        back = [each for each in messages if self._open.pop(each.queue_offset, None) is not None]
        if not back:
            return
        for message in back:
            restore(message)
        last = max([each.queue_offset for each in back])
        while self._batches and self._head_offset() < last:
            head = self._batches.popleft()
            back += head.messages[head._first :]
        back.sort(key=_offset_of)
        self._batches.appendleft(FetchedBatch(self, back))

    def drop(self) -> None:
        """Mark the queue as revoked: no further handler call starts with its messages."""
        self.dropped = True
        self._notify_removed()

    def clear(self) -> None:
        """Remove all messages, also messages of running handler calls."""
        for batch in self._batches:
            batch._forgotten = True
        self._batches.clear()
        self._open.clear()
        self.count = self.size_bytes = 0
        self.last_offset = None
        self._notify_removed()

    def _notify_removed(self) -> None:
        if self.on_removed is not None:
            self.on_removed()

    def note_lock(self) -> None:
        """Record that a broker has just confirmed the lock."""
        self.locked = True
        self.locked_at_s, self.locked_at_ms = self._now(), now_ms()

    def lock_is_fresh(self, max_age_s: float = LOCK_AGE_S) -> bool:
        """Whether a broker has confirmed the lock within the last ``max_age_s`` seconds.

        By both clocks: the steady one may stand still while the machine is suspended, and another
        member may have the lock afterwards.
        """
        if not self.locked or self.lock_is_new or self._now() - self.locked_at_s > max_age_s:
            return False
        return now_ms() - self.locked_at_ms <= max_age_s * 1000

    def doubt(self, seconds: float) -> None:
        """Note that another member may have the queue, too, for this time."""
        self.doubt_ends_s = self._now() + seconds

    def is_in_doubt(self) -> bool:
        """Return whether another member may have the queue, too."""
        return self.doubt_ends_s > 0 and self._now() < self.doubt_ends_s

    def note_pull(self) -> None:
        """Record the time of a pull, or of a reason not to pull now."""
        self.pulled_at_s = self._now()

    def info(self, committed: QueueOffset | None = None) -> ProcessQueueInfo:
        """Return the state of the queue for administrators.

        Args:
            committed: the group's committed offset.
        """
        return ProcessQueueInfo(
            commit_offset=committed or 0,
            cached_msg_min_offset=self.first_unconsumed or 0,
            cached_msg_max_offset=self._last_unconsumed(),
            cached_msg_count=self.count - len(self._open),
            cached_msg_size_in_mib=self.size_bytes // MIB,
            transaction_msg_min_offset=min(self._open, default=0),
            transaction_msg_max_offset=max(self._open, default=0),
            transaction_msg_count=len(self._open),
            locked=self.locked,
            try_unlock_times=self.unlock_tries,
            last_lock_timestamp=self.locked_at_ms,
            droped=self.dropped,
            last_pull_timestamp=self._wall_ms(self.pulled_at_s),
            last_consume_timestamp=self._wall_ms(self.consumed_at_s),
        )

    def _wall_ms(self, moment: float) -> int:
        return now_ms() - int((self._now() - moment) * 1000)


def _size_of(message: Any) -> int:
    """Return the bytes of a message's record."""
    if cython.compiled and type(message) is LazyMessage:
        return cython.cast(LazyMessage, message).size_bytes  # type: ignore[no-any-return]
    return message.size_bytes  # type: ignore[no-any-return]


def _offset_of(message: StoredMessage) -> QueueOffset:
    return message.queue_offset


class Limits:
    """The limits on what a push consumer buffers.

    Args:
        settings: the limits of one queue, and of all queues of a topic together.
        spans: whether the span of unconsumed offsets is limited; not so if order is kept, where the
            oldest message is always the next one.
    """

    def __init__(self, settings: PushSettings, *, spans: bool) -> None:
        self._settings = settings
        self._span_max = settings.span_max if spans else None
        self._shares: dict[str, tuple[int, int]] = {}
        self.waiting: set[Callable[[], None]] = set()
        """Called when a limit has changed."""

    def share(self, topic: str, queues: int) -> None:
        """Divide a topic's limits among its assigned queues."""
        self._shares.pop(topic, None)
        if queues > 0:
            self._shares[topic] = self._share(queues)
        for call in list(self.waiting):
            call()

    def _share(self, queues: int) -> tuple[int, int]:
        count, size = self._settings.queue_messages_max, self._settings.queue_mib_max * MIB
        if self._settings.topic_messages_max > 0:
            count = max(1, self._settings.topic_messages_max // queues)
        if self._settings.topic_mib_max > 0:
            size = max(1, self._settings.topic_mib_max // queues) * MIB
        return count, size

    def limits_of(self, topic: str) -> tuple[int, int]:
        """Return the limits of one queue of a topic: messages, bytes."""
        return self._shares.get(topic) or (
            self._settings.queue_messages_max,
            self._settings.queue_mib_max * MIB,
        )

    def reached_limit(self, queue: ProcessQueue) -> str | None:
        """Return which limit a queue exceeds, as text for the log; None if it may be pulled."""
        count, size_bytes = self.limits_of(queue.queue.topic)
        if queue.count > count:
            return f"{queue.count} messages, more than {count}"
        if queue.size_bytes > size_bytes:
            return f"{queue.size_bytes} bytes, more than {size_bytes}"
        if self._span_max is not None and queue.span > self._span_max:
            return f"offsets {queue.span} apart, more than {self._span_max}"
        return None
