"""What was fetched of one queue and is not consumed yet.

    fetched  := offset → message, lowest offset first
    open     := offset → message, taken by an ordered consumer and not yet committed
    order    := the offsets of ``fetched`` from the lowest on, and perhaps some that left it

Pulls of a queue come one after the other, so messages arrive by rising offset and nothing has to be
sorted. A queue belongs to one event loop; its methods do not wait.

Source: ProcessQueue, RocketMQ 5.3.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence

from cometmq.client.settings import MIB, PushSettings
from cometmq.model.message import StoredMessage
from cometmq.model.offsets import QueueOffset
from cometmq.model.queue import MessageQueue
from cometmq.protocol.bodies import ProcessQueueInfo

LATE_MAX = 16
"""Late messages that are looked at in one turn."""
LOCK_AGE_S = 30.0
"""How long a broker's lock counts after it was renewed; the broker itself keeps it for 60 s."""


class ProcessQueue:
    """The messages of one owned queue on their way from the pull to the handler.

    Args:
        queue: whose messages they are.
        now: a steady clock, in seconds.
    """

    def __init__(self, queue: MessageQueue, *, now: Callable[[], float] = time.monotonic) -> None:
        self.queue = queue
        self.dropped = False
        """Whether the queue was given up: no further handler gets messages of it."""
        self.locked = False
        """Whether a broker has locked the queue for this client."""
        self.locked_at = self.pulled_at = self.consumed_at = now()
        """When the lock was renewed, the last pull begun, the last message consumed; in seconds of
        the clock."""
        self.unlock_tries = 0
        """How often the queue could not be given up because a handler was at it."""
        self.calls = 0
        """Handler calls that run, when consuming in any order."""
        self.consuming = asyncio.Lock()
        """Held while a handler has messages of the queue, when consuming in order."""
        self.count = 0
        """Messages that are not consumed yet, those in a handler's hands included."""
        self.size_bytes = 0
        """Bytes of their records, as they lie in memory until a handler looks at them."""
        self.lag = 0
        """From the last fetched message to the end of the queue as it was then."""
        self.max_offset: QueueOffset | None = None
        """The highest offset that was ever put in."""
        self.on_room: Callable[[], None] | None = None
        """Called when messages left the queue, or it was dropped."""
        self._now = now
        self._fetched: dict[QueueOffset, StoredMessage] = {}
        self._open: dict[QueueOffset, StoredMessage] = {}
        self._order: deque[QueueOffset] = deque()
        self._begun: dict[QueueOffset, float] = {}
        self._being_consumed = False
        self._idle: asyncio.Future[None] | None = None

    @property
    def min_offset(self) -> QueueOffset | None:
        """The lowest offset that no handler is done with, or None; open ones left out."""
        return self._order[0] if self._fetched else None

    @property
    def span(self) -> int:
        """From the first to the last offset that is not consumed; 0 for fewer than two."""
        return self._order[-1] - self._order[0] if len(self._fetched) > 1 else 0

    def put(self, messages: Sequence[StoredMessage], *, behind: int | None = None) -> bool:
        """Take in what a pull has brought, by rising offset; what is there already stays.

        Args:
            messages: of this queue.
            behind: the queue's end when they were fetched, to tell the lag.

        Returns:
            Whether an ordered consumer has to begin, because none is at the queue.
        """
        if messages:
            self._put(messages)
            if behind is not None:
                self.lag = max(0, behind - messages[-1].queue_offset)
        if self._being_consumed or not self._fetched:
            return False
        self._being_consumed = True
        return True

    def _put(self, messages: Sequence[StoredMessage]) -> None:
        in_order = self.max_offset is None or messages[0].queue_offset > self.max_offset
        fresh = messages if in_order else [each for each in messages if not self._has(each)]
        self.count += len(fresh)
        for message in fresh:
            self.size_bytes += message.size_bytes
            self._fetched[message.queue_offset] = message
        self._order.extend([message.queue_offset for message in fresh])
        if not in_order:
            self._sort()
        self.max_offset = max(self.max_offset or QueueOffset(0), messages[-1].queue_offset)

    def _has(self, message: StoredMessage) -> bool:
        return message.queue_offset in self._fetched or message.queue_offset in self._open

    def begin(self, messages: Sequence[StoredMessage]) -> None:
        """Note that a handler gets these messages now; `late` looks at it, `end` ends it."""
        self.calls += 1
        now = self._now()
        for message in messages:
            self._begun[message.queue_offset] = now

    def end(self) -> None:
        """Note that a handler call has ended, and its result is dealt with."""
        self.calls -= 1
        if self.calls == 0 and self._idle is not None and not self._idle.done():
            self._idle.set_result(None)

    async def idle(self, timeout: float) -> bool:
        """Wait until no handler call runs; False if one still does after so many seconds."""
        if self.calls:
            self._idle = asyncio.get_running_loop().create_future()
            await asyncio.wait([self._idle], timeout=timeout)
        return self.calls == 0

    def remove(self, messages: Sequence[StoredMessage]) -> QueueOffset | None:
        """Take out messages that are done with.

        Returns:
            The offset that may be committed now: nothing before it is unfinished. None if the queue
            was empty before, as it is after `clear`.
        """
        self.consumed_at = self._now()
        fetched, begun, order = self._fetched, self._begun, self._order
        if not fetched:
            return None
        for message in messages:
            offset = message.queue_offset
            found = fetched.pop(offset, None)
            if found is not None:
                begun.pop(offset, None)
                self.count -= 1
                self.size_bytes -= found.size_bytes
        while order and order[0] not in fetched:
            order.popleft()
        while order and order[-1] not in fetched:
            order.pop()
        if self.on_room is not None:
            self.on_room()
        return order[0] if order else self._behind_all()

    def _behind_all(self) -> QueueOffset | None:
        return None if self.max_offset is None else QueueOffset(self.max_offset + 1)

    def take(self, count: int) -> list[StoredMessage]:
        """Give the first messages to an ordered consumer; they are open until it commits.

        An empty list means that the consumer ends, and `put` tells when another has to begin.
        """
        self.consumed_at = self._now()
        taken: list[StoredMessage] = []
        while self._order and len(taken) < count:
            offset = self._order.popleft()
            message = self._fetched.pop(offset, None)
            if message is not None:
                self._open[offset] = message
                taken.append(message)
        if not taken:
            self._being_consumed = False
        return taken

    def commit(self) -> QueueOffset | None:
        """Take out all open messages, and give the offset behind them; None if there were none."""
        if not self._open:
            return None
        last = max(self._open)
        self.count -= len(self._open)
        self.size_bytes -= sum(message.size_bytes for message in self._open.values())
        self._open.clear()
        self._tell_of_room()
        return QueueOffset(last + 1)

    def rollback(self) -> None:
        """Put all open messages back in front of the others."""
        self.again(list(self._open.values()))

    def again(self, messages: Sequence[StoredMessage]) -> None:
        """Put these open messages back to their places, so that `take` gives them again."""
        for message in messages:
            if self._open.pop(message.queue_offset, None) is not None:
                self._fetched[message.queue_offset] = message
        self._sort()

    def _sort(self) -> None:
        self._fetched = dict(sorted(self._fetched.items()))
        self._order = deque(self._fetched)

    def late(self, older_than_s: float, limit: int = LATE_MAX) -> list[StoredMessage]:
        """Give the first messages, as long as a handler has had them for longer than this.

        Args:
            older_than_s: seconds since `begin`.
            limit: how many at most.
        """
        latest_start = self._now() - older_than_s
        found: list[StoredMessage] = []
        for offset in self._order:
            if offset not in self._fetched:
                continue
            begun = self._begun.get(offset)
            if begun is None or begun >= latest_start or len(found) == limit:
                break
            found.append(self._fetched[offset])
        return found

    def holds(self, message: StoredMessage) -> bool:
        """Whether this very message is in the queue and not consumed, so that it may be resent."""
        return self._fetched.get(message.queue_offset) is message

    def drop(self) -> None:
        """Give the queue up: a handler that runs is the last one."""
        self.dropped = True
        self._tell_of_room()

    def clear(self) -> None:
        """Forget all messages, those in a handler's hands included."""
        self._fetched.clear()
        self._open.clear()
        self._order.clear()
        self._begun.clear()
        self.count = self.size_bytes = self.lag = 0
        self.max_offset = None
        self._tell_of_room()

    def _tell_of_room(self) -> None:
        if self.on_room is not None:
            self.on_room()

    def lock_is_fresh(self, max_age_s: float = LOCK_AGE_S) -> bool:
        """Whether a broker has the queue locked for this client, and told so not long ago."""
        return self.locked and self._now() - self.locked_at <= max_age_s

    def note_pull(self) -> None:
        """Note that a pull begins, or that there is a reason not to pull now."""
        self.pulled_at = self._now()

    def idle_s(self) -> float:
        """Give the seconds since the last pull began."""
        return self._now() - self.pulled_at

    def info(self, committed: QueueOffset | None = None) -> ProcessQueueInfo:
        """Say what administrators are told of the queue.

        Args:
            committed: how far the group has come, which the queue itself does not know.
        """
        return ProcessQueueInfo(
            commit_offset=committed or 0,
            cached_msg_min_offset=self.min_offset or 0,
            cached_msg_max_offset=self._order[-1] if self._fetched else 0,
            cached_msg_count=len(self._fetched),
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
        for look in list(self.waiting):
            look()

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
