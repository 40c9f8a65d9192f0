# cython: annotation_typing=False
"""What was fetched of one queue and is not consumed yet.

    batches  := what each pull brought, lowest offset first; each leaves when all of it is finished
    open     := offset → message, taken by an ordered consumer and not yet committed

Pulls of a queue come one after the other, so messages arrive by rising offset. A message is known
by its position in its batch, and finished by one byte: nothing is looked up for it. A queue belongs
to one event loop; its methods do not wait, except `ProcessQueue.idle`.

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
from cometmq.protocol.bodies import ProcessQueueInfo
from cometmq.protocol.lazy_record import LazyMessage

try:
    import cython  # type: ignore[import-untyped]
except ImportError:  # interpreted, without Cython at hand
    from cometmq.system.uncompiled import cython

LOCK_AGE_S = 30.0
"""How long a broker's lock counts after it was renewed; the broker itself keeps it for 60 s."""


class FetchedBatch:
    """Messages of one pull, in the order of the queue; process queue and workers share it.

    Args:
        queue: the process queue.
        messages: by rising offset.
    """

    __slots__ = ("_done", "_first", "_forgotten", "messages", "queue")

    queue: ProcessQueue
    messages: list[Any]
    """None in place of those that are finished or taken, so that their memory is freed."""

    def __init__(self, queue: ProcessQueue, messages: list[StoredMessage]) -> None:
        self.queue = queue
        self.messages = messages
        self._done = bytearray(len(messages))
        self._first = 0
        self._forgotten = False

    def is_open(self, index: int) -> bool:
        """Return whether a message is not finished, so that it may be sent back."""
        return not self._forgotten and not self._done[index]

    def finish(self, start: int, stop: int) -> None:
        """Finish the messages from one position to another; those that are finished stay so."""
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
            if queue.on_room is not None:
                queue.on_room()

    def _skip(self, at: int) -> None:
        """Find the first message from a position on that is not finished."""
        done, end = self._done, len(self._done)
        while at < end and done[at]:
            at += 1
        self._first = at
        if at == end:
            self.queue._drop_finished()


class ProcessQueue:
    """The messages of one owned queue on their way from the pull to the handler.

    Args:
        queue: whose messages they are.
        now: a steady clock, in seconds.
    """

    def __init__(self, queue: MessageQueue, *, now: Callable[[], float] = time.monotonic) -> None:
        self.queue = queue
        self.dropped = False
        """Whether the queue was revoked: its messages are not passed to further handler calls."""
        self.locked = False
        """Whether a broker has locked the queue for this client."""
        self.locked_at = self.pulled_at = self.consumed_at = now()
        """When the lock was renewed, the last pull begun, the last message consumed; in seconds of
        the clock."""
        self.unlock_tries = 0
        """How often the queue could not be released because a handler call was running."""
        self.calls = 0
        """Workers that call handlers with messages of the queue, when consuming in any order."""
        self.consuming = asyncio.Lock()
        """Held while a handler has messages of the queue, when consuming in order."""
        self.count = 0
        """Messages that are not consumed yet, those of running handler calls included."""
        self.size_bytes = 0
        """Bytes of their records, as they lie in memory until a handler looks at them."""
        self.lag = 0
        """From the last fetched message to the end of the queue as it was then."""
        self.max_offset: QueueOffset | None = None
        """The highest offset that was ever put in."""
        self.is_unnoted = False
        """Whether the offset to commit has risen since it was noted in the store."""
        self.on_room: Callable[[], None] | None = None
        """Called when messages left the queue, or it was dropped."""
        self._now = now
        self._batches: deque[Any] = deque()
        self._open: dict[QueueOffset, StoredMessage] = {}
        self._being_consumed = False
        self._idle: asyncio.Future[None] | None = None

    @property
    def min_offset(self) -> QueueOffset | None:
        """The lowest offset that no handler is done with, or None; open ones left out."""
        if not self._batches:
            return None
        return self._first_offset()

    def _first_offset(self) -> QueueOffset:
        head = self._batches[0]
        offset: QueueOffset = head.messages[head._first].queue_offset
        return offset

    @property
    def span(self) -> int:
        """From the first to the last offset that is not consumed; 0 for fewer than two."""
        return self._last_offset() - self._first_offset() if self._batches else 0

    def _last_offset(self) -> int:
        """Return the last offset that is not consumed, or 0."""
        for batch in reversed(self._batches):
            for index in range(len(batch.messages) - 1, batch._first - 1, -1):
                if not batch._done[index]:
                    return int(batch.messages[index].queue_offset)
        return 0

    def put(
        self, messages: list[StoredMessage], *, behind: int | None = None
    ) -> FetchedBatch | None:
        """Take in what a pull has brought, by rising offset; what is there already stays.

        Args:
            messages: of this queue.
            behind: the queue's end when they were fetched, to tell the lag.

        Returns:
            What is new of it; None if nothing is.
        """
        highest = self.max_offset
        if highest is not None and messages and messages[0].queue_offset <= highest:
            messages = [each for each in messages if each.queue_offset > highest]
        if not messages:
            return None
        self.max_offset = messages[-1].queue_offset
        if behind is not None:
            self.lag = max(0, behind - messages[-1].queue_offset)
        size = 0
        for message in messages:
            size += _size_of(message)
        self.count += len(messages)
        self.size_bytes += size
        batch = FetchedBatch(self, messages)
        self._batches.append(batch)
        return batch

    def begin(self) -> None:
        """Note that a worker begins to call handlers with messages of the queue."""
        self.calls += 1

    def end(self) -> None:
        """Note that a worker goes on elsewhere, and what its handlers did is dealt with."""
        self.calls -= 1
        self.consumed_at = self._now()
        if self.calls == 0 and self._idle is not None and not self._idle.done():
            self._idle.set_result(None)

    async def idle(self, timeout: float) -> bool:
        """Wait until no handler call runs; False if one still does after so many seconds."""
        if self.calls:
            self._idle = asyncio.get_running_loop().create_future()
            await asyncio.wait([self._idle], timeout=timeout)
        return self.calls == 0

    def committable(self) -> QueueOffset | None:
        """Return the offset that may be committed: nothing before it is unfinished.

        None if nothing was fetched, or all of it was forgotten by `clear`.
        """
        if self._batches:
            return self._first_offset()
        return None if self.max_offset is None else QueueOffset(self.max_offset + 1)

    def _drop_finished(self) -> None:
        batches = self._batches
        while batches:
            head = batches[0]
            if head._first < len(head.messages):
                return
            batches.popleft()

    def claim(self) -> bool:
        """Return whether an ordered consumer has to begin, because none is at the queue."""
        if self._being_consumed or not self._batches:
            return False
        self._being_consumed = True
        return True

    def take(self, count: int) -> list[StoredMessage]:
        """Give the first messages to an ordered consumer; they are open until it commits.

        An empty list means that the consumer ends, and `claim` tells when another has to begin.
        """
        self.consumed_at = self._now()
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

    def commit(self) -> QueueOffset | None:
        """Take out all open messages, and give the offset behind them; None if there were none."""
        if not self._open:
            return None
        last = max(self._open)
        self.count -= len(self._open)
        for message in self._open.values():
            self.size_bytes -= message.size_bytes
        self._open.clear()
        self._notify_room()
        return QueueOffset(last + 1)

    def rollback(self) -> None:
        """Put all open messages back in front of the others."""
        self.again(list(self._open.values()))

    def again(self, messages: Sequence[StoredMessage]) -> None:
        """Put these open messages back to their places, so that `take` gives them again."""
        back = [each for each in messages if self._open.pop(each.queue_offset, None) is not None]
        if not back:
            return
        last = max([each.queue_offset for each in back])
        while self._batches and self._first_offset() < last:
            head = self._batches.popleft()
            back += head.messages[head._first :]
        back.sort(key=_offset_of)
        self._batches.appendleft(FetchedBatch(self, back))

    def drop(self) -> None:
        """Start no further handler call with messages of the queue."""
        self.dropped = True
        self._notify_room()

    def clear(self) -> None:
        """Forget all messages, those of running handler calls included."""
        for batch in self._batches:
            batch._forgotten = True
        self._batches.clear()
        self._open.clear()
        self.count = self.size_bytes = self.lag = 0
        self.max_offset = None
        self._notify_room()

    def _notify_room(self) -> None:
        if self.on_room is not None:
            self.on_room()

    def lock_is_fresh(self, max_age_s: float = LOCK_AGE_S) -> bool:
        """Whether a broker has confirmed the lock within the last ``max_age_s`` seconds."""
        return self.locked and self._now() - self.locked_at <= max_age_s

    def note_pull(self) -> None:
        """Note that a pull begins, or that there is a reason not to pull now."""
        self.pulled_at = self._now()

    def info(self, committed: QueueOffset | None = None) -> ProcessQueueInfo:
        """Return the state of the queue for administrators.

        Args:
            committed: the group's committed offset, which this object does not know.
        """
        return ProcessQueueInfo(
            commit_offset=committed or 0,
            cached_msg_min_offset=self.min_offset or 0,
            cached_msg_max_offset=self._last_offset(),
            cached_msg_count=self.count - len(self._open),
            cached_msg_size_in_mib=self.size_bytes // MIB,
            transaction_msg_min_offset=min(self._open, default=0),
            transaction_msg_max_offset=max(self._open, default=0),
            transaction_msg_count=len(self._open),
            locked=self.locked,
            try_unlock_times=self.unlock_tries,
            last_lock_timestamp=self._wall_ms(self.locked_at),
            droped=self.dropped,
            last_pull_timestamp=self._wall_ms(self.pulled_at),
            last_consume_timestamp=self._wall_ms(self.consumed_at),
        )

    def _wall_ms(self, moment: float) -> int:
        return time.time_ns() // 1_000_000 - int((self._now() - moment) * 1000)


def _size_of(message: Any) -> int:
    """Return the bytes of a message's record."""
    if cython.compiled and type(message) is LazyMessage:
        return cython.cast(LazyMessage, message).size_bytes  # type: ignore[no-any-return]
    return message.size_bytes  # type: ignore[no-any-return]


def _offset_of(message: StoredMessage) -> QueueOffset:
    return message.queue_offset


class Limits:
    """The limits of a consumer's queues.

    Args:
        settings: the limits of one queue, and of all queues of a topic together.
        spans: whether the offsets of what is not consumed may not lie too far apart; not so when
            consuming in order, where the oldest message is always the next.
    """

    def __init__(self, settings: PushSettings, *, spans: bool) -> None:
        self._settings = settings
        self._span_max = settings.span_max if spans else None
        self._shares: dict[str, tuple[int, int]] = {}
        self.waiting: set[Callable[[], None]] = set()
        """Called when a limit has changed."""

    def share(self, topic: str, queues: int) -> None:
        """Divide a topic's limits among the queues that are this consumer's now."""
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

    def of(self, topic: str) -> tuple[int, int]:
        """Give the messages and the bytes that one queue of a topic may hold."""
        return self._shares.get(topic) or (
            self._settings.queue_messages_max,
            self._settings.queue_mib_max * MIB,
        )

    def holds_enough(self, queue: ProcessQueue) -> str | None:
        """Say why nothing more is to be pulled for a queue, or give None."""
        count, size_bytes = self.of(queue.queue.topic)
        if queue.count > count:
            return f"{queue.count} messages, more than {count}"
        if queue.size_bytes > size_bytes:
            return f"{queue.size_bytes} bytes, more than {size_bytes}"
        if self._span_max is not None and queue.span > self._span_max:
            return f"offsets {queue.span} apart, more than {self._span_max}"
        return None
