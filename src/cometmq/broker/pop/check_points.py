# cython: annotation_typing=False
"""The check points of a broker: what was popped, and is neither acknowledged nor redelivered yet.

A check point stands for the messages of one queue that one pop has delivered. It is kept while one
of them is in flight, found by its receipts, and due when its invisible time is over. Nothing here
depends on how many messages were acknowledged before: a check point whose last message is
acknowledged is gone.

    table   (group, topic, queue) -> (start, pop time) -> check point
    wheel   tick of the time when it is due -> its check points

Used in the event loop's thread. It does no I/O: ``revive_log.py`` stores what changes here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import heappop, heappush
from itertools import islice
from typing import Final

TICK_MS: Final = 100
"""Check points become due together at whole ticks."""
HORIZON_MS: Final = 600_000
"""The wheel reaches that far: what is due later is looked at once more then."""

_ONE = 1
"""A number of Python once compiled, too: a check point may have more messages than C's has bits."""

QueueKey = tuple[str, str, int]
"""A group, a topic, and the id of a queue."""


class CheckPoint:
    """The messages of one queue that one pop has delivered.

    Args:
        group, topic, queue_id: by whom and where they were popped; perhaps a retry topic.
        start: the queue offset from which the pop has read.
        offsets: the queue offsets of the messages, in order.
        pop_ms: the time of the pop; with ``start`` it tells the check points of a queue apart.
        invisible_ms: for how long they are invisible.
        revive_queue: the queue of the revive topic that has its records.
    """

    __slots__ = (
        "acked",
        "acking",
        "failures",
        "group",
        "invisible_ms",
        "offsets",
        "pop_ms",
        "queue_id",
        "record_offset",
        "revive_queue",
        "start",
        "tick",
        "topic",
        "visible_ms",
    )

    def __init__(
        self,
        group: str,
        topic: str,
        queue_id: int,
        start: int,
        offsets: range | tuple[int, ...],
        pop_ms: int,
        invisible_ms: int,
        revive_queue: int,
    ) -> None:
        self.group = group
        self.topic = topic
        self.queue_id = queue_id
        self.start = start
        self.offsets = offsets
        self.pop_ms = pop_ms
        self.invisible_ms = invisible_ms
        self.revive_queue = revive_queue
        self.acked = 0
        """A bit for each message that is acknowledged, the first one in the lowest bit."""
        self.acking = 0
        """Bits of messages whose acknowledgement is being stored."""
        self.record_offset = -1
        """The queue offset of its record in the revive topic."""
        self.tick = 0
        self.visible_ms = 0
        """When it is due; later than `due_ms` after a failure."""
        self.failures = 0
        """How often it could not be revived."""

    @property
    def due_ms(self) -> int:
        """When its messages are visible again."""
        return self.pop_ms + self.invisible_ms

    @property
    def end(self) -> int:
        """The queue offset behind its last message."""
        return self.offsets[-1] + 1

    def bit_of(self, offset: int) -> int:
        """Return the bit of a message; 0 if it is not one of these."""
        offsets = self.offsets
        if isinstance(offsets, range):
            return _ONE << (offset - offsets.start) if offset in offsets else 0
        try:
            return _ONE << offsets.index(offset)
        except ValueError:
            return 0

    def all_bits(self) -> int:
        """Return the bits of all its messages."""
        return (_ONE << len(self.offsets)) - 1

    def offsets_of(self, bits: int) -> Sequence[int]:
        """Return the offsets of some of its messages."""
        if bits == self.all_bits():
            return self.offsets
        return [offset for n, offset in enumerate(self.offsets) if bits >> n & 1]

    def left(self) -> int:
        """Return how many of its messages are in flight."""
        return len(self.offsets) - self.acked.bit_count()


class PoppedQueue:
    """What a group has popped from one queue."""

    __slots__ = ("check_points", "in_flight", "pulled")

    def __init__(self) -> None:
        self.check_points: dict[tuple[int, int], CheckPoint] = {}
        self.in_flight = 0
        """How many messages are not acknowledged."""
        self.pulled = -1
        """Up to where the group had pulled at its last pop; -1 before that."""


class CheckPoints:
    """All check points of a broker."""

    def __init__(self) -> None:
        self._queues: dict[QueueKey, PoppedQueue] = {}
        self._wheel: dict[int, dict[CheckPoint, None]] = {}
        self._ticks: list[int] = []
        """The ticks of the wheel, as a heap."""
        self._count = 0
        self.in_flight = 0
        """How many messages are popped and not acknowledged."""

    def __len__(self) -> int:
        return self._count

    def queue(self, group: str, topic: str, queue_id: int) -> PoppedQueue | None:
        """Return what a group has popped from a queue; None for nothing."""
        return self._queues.get((group, topic, queue_id))

    def queues(self) -> dict[QueueKey, PoppedQueue]:
        """Return all queues with check points."""
        return self._queues

    def find(
        self, group: str, topic: str, queue_id: int, start: int, pop_ms: int
    ) -> CheckPoint | None:
        """Return the check point of a receipt."""
        queue = self._queues.get((group, topic, queue_id))
        return None if queue is None else queue.check_points.get((start, pop_ms))

    def free_pop_ms(self, group: str, topic: str, queue_id: int, start: int, pop_ms: int) -> int:
        """Return the first time from ``pop_ms`` on that no check point with this start has."""
        queue = self._queues.get((group, topic, queue_id))
        if queue is not None:
            while (start, pop_ms) in queue.check_points:
                pop_ms += 1
        return pop_ms

    def add(self, point: CheckPoint, now_ms: int) -> None:
        """Keep a check point until its last message is acknowledged.

        It is due after its invisible time at the latest: the clock of the broker that has popped
        may be ahead of this one.
        """
        key = (point.group, point.topic, point.queue_id)
        queue = self._queues.get(key)
        if queue is None:
            queue = self._queues[key] = PoppedQueue()
        queue.check_points[point.start, point.pop_ms] = point
        left = point.left()
        queue.in_flight += left
        self.in_flight += left
        self._count += 1
        self.delay(point, min(point.due_ms, now_ms + point.invisible_ms), now_ms)

    def acknowledge(self, point: CheckPoint, bits: int) -> bool:
        """Note that messages are acknowledged; return whether the check point is gone with that."""
        new = bits & ~point.acked
        if new:
            point.acked |= new
            queue = self._queues[point.group, point.topic, point.queue_id]
            queue.in_flight -= new.bit_count()
            self.in_flight -= new.bit_count()
        if point.acked == point.all_bits():
            self._remove(point)
            return True
        return False

    def _remove(self, point: CheckPoint) -> None:
        key = (point.group, point.topic, point.queue_id)
        queue = self._queues[key]
        if queue.check_points.pop((point.start, point.pop_ms), None) is None:
            return
        self._count -= 1
        if not queue.check_points:
            del self._queues[key]
        self._unschedule(point)

    # --- the time when they are due -------------------------------------------------------------

    def delay(self, point: CheckPoint, visible_ms: int, now_ms: int) -> None:
        """Set when a check point is due."""
        self._unschedule(point)
        point.visible_ms = visible_ms
        point.tick = tick = -(-min(visible_ms, now_ms + HORIZON_MS) // TICK_MS)
        slot = self._wheel.get(tick)
        if slot is None:
            slot = self._wheel[tick] = {}
            heappush(self._ticks, tick)
        slot[point] = None

    def _unschedule(self, point: CheckPoint) -> None:
        slot = self._wheel.get(point.tick)
        if slot is not None:
            slot.pop(point, None)

    def next_due_ms(self) -> int | None:
        """Return when the next check point may be due; None for none."""
        while self._ticks:
            if self._wheel[self._ticks[0]]:
                return self._ticks[0] * TICK_MS
            del self._wheel[heappop(self._ticks)]
        return None

    def take_due(self, now_ms: int, count_max: int) -> list[CheckPoint]:
        """Return check points that are due; they are in the wheel no more.

        Args:
            now_ms: the time.
            count_max: how many check points are looked at.
        """
        taken: list[CheckPoint] = []
        while count_max > 0:
            due_ms = self.next_due_ms()
            if due_ms is None or due_ms > now_ms:
                break
            slot = self._wheel[self._ticks[0]]
            first = list(islice(slot, count_max))  # each look at the first passes all removed ones
            count_max -= len(first)
            for point in first:
                del slot[point]
                if point.visible_ms > now_ms:
                    self.delay(point, point.visible_ms, now_ms)
                else:
                    taken.append(point)
        return taken

    def all(self) -> Iterator[CheckPoint]:
        """Yield all check points; none may be added or removed meanwhile."""
        for queue in self._queues.values():
            yield from queue.check_points.values()
