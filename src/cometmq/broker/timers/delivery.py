"""Delivers timer messages: each is stored in its target queue when its time has come.

The queue of the timer topic is read as soon as it has a message, on slaves, too. A master opens one
slot after the other, when it begins, and delivers its messages at their times: not at the end of
the slot, as RocketMQ does. A slot is passed when it is over and everything in it is delivered. So
a broker that was down, or is slower than the clock, passes every slot. Recalls that were stored
before a slot began count before anything in it is delivered.

A message that a crash or a failover made known as delivered is passed over. A slave that acts as
the master sends messages to other brokers instead, one after the other.

All work is done in slices, in one task in the event loop's thread.
"""

from __future__ import annotations

import asyncio
import logging
from array import array
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from heapq import heappop, heappush
from time import monotonic
from typing import Final, Protocol

from cometmq.broker.cold_reads import ColdReads
from cometmq.broker.targets import stored_again, waiting_target
from cometmq.broker.timers.delivered import (
    REAL_TOPIC,
    SCAN_BYTES_MAX,
    Delivered,
    delivered_behind,
    log_offset_at,
    read_copy,
)
from cometmq.broker.timers.figures import TimerFigures
from cometmq.broker.timers.routing import TIMER_QUEUE
from cometmq.model import property_names as names
from cometmq.model.errors import (
    CometError,
    InvalidMessageError,
    ProtocolError,
    ResponseError,
    StoreError,
)
from cometmq.model.topic import TIMER_TOPIC
from cometmq.protocol.hashing import java_hash
from cometmq.protocol.properties import (
    UNIQ_KEY_MARKER,
    decode_properties,
    encode_properties,
    join_properties,
    marker,
    value_of,
)
from cometmq.protocol.record import RecordParts, split_record
from cometmq.remoting import Supervisor
from cometmq.remoting.slices import SLICE_S, Slices
from cometmq.store import Appended, MessageStore, NewRecord, StoreUnavailableError
from cometmq.store.message_store import bring_in
from cometmq.store.timers.checkpoint import Passed
from cometmq.store.timers.index import Count, TimerIndex, Waiting
from cometmq.store.timers.timer_log import DELETE, NONE, Unit
from cometmq.store.timers.wheel import SLOT_MS_MAX, SLOTS
from cometmq.system.clock import Clock
from cometmq.system.failure_log import FailureLog, RateLimitedLog

log = logging.getLogger(__name__)

CHECK_INTERVAL_S: Final = 1.0
"""The longest time until clock and queue are read again."""
STORE_BUSY_S: Final = 0.1
SEND_RETRY_S: Final = 1.0
FAILURE_S: Final = 10.0
FINISH_S: Final = 2.0
"""How long a stop goes on with a slot that has begun: RocketMQ would deliver all of it again."""
READ_MESSAGES: Final = 128
"""Messages of the queue that are read between two looks at the clock."""
RUN_MESSAGES_MAX: Final = 64
RUN_BYTES_MAX: Final = 256 * 1024
"""The limits of what has one write to the log."""
SORTED_MAX: Final = 50_000
"""Messages of a slot that are delivered in the order of their times; further ones come later."""
SAMPLES: Final = 11
_POSITION_BITS: Final = 48
_POSITION_MASK: Final = (1 << _POSITION_BITS) - 1
_DEL_KEY = marker(names.TIMER_DEL_UNIQKEY.encode())
_DEQUEUE = marker(names.TIMER_DEQUEUE_MS.encode())
_TIMES: Final = b"TIMER_ENQUEUE_MS\x01%d\x02TIMER_DEQUEUE_MS\x01%d\x02"

Send = Callable[[str, RecordParts], Awaitable[None]]
"""Sends a message that is due to its topic at another broker; CometError if none has stored it."""


class Topics(Protocol):
    """The topics of a broker, as far as the delivery needs them."""

    def all(self) -> Mapping[str, object]:
        """Return the topics by their names."""

    def queue_for(self, name: str, queue_id: int, log_offset: int) -> int | None:
        """Return the queue of a message that was sent to a queue; None for a deleted topic."""


class _OpenSlot:
    """The slot that is being delivered."""

    def __init__(self, slot_ms: int, fence: int) -> None:
        self.slot_ms = slot_ms
        self.fence = fence
        """The end of the queue when the slot began: what is before it may be a recall."""
        self.seen = NONE
        """The position of the newest unit that was taken."""
        self.due: list[int] = []
        """A heap of times in the slot, each with the position of its unit in the lower bits."""
        self.in_flight = 0
        """How many were taken out of the heap and are not stored yet."""
        self.further: array[int] = array("q")
        """Positions of units behind these, the newest first."""
        self.recalled: set[bytes] = set()
        self.counts: Counter[int] = Counter()

    def has_more(self) -> bool:
        """Return whether messages of the slot are to be delivered."""
        return bool(self.due or self.further or self.in_flight)


class TimerDelivery:
    """The delivery of timer messages.

    Args:
        store: contains the timer topic and the target topics.
        index: of the timer topic.
        topics: the topics of the broker.
        clock: decides when a message is due.
        cold_reads: reads what is on the disk only.
        on_delivery: called with topic, queue and size of every message that was delivered.
        request_sync: called after messages were delivered, if readers wait for the disk.
        refusal: returns why too few replicas would have a message that is stored now, or None.
    """

    def __init__(
        self,
        store: MessageStore,
        index: TimerIndex,
        *,
        topics: Topics,
        clock: Clock,
        cold_reads: ColdReads,
        on_delivery: Callable[[str, int, int], None] | None = None,
        request_sync: Callable[[], object] | None = None,
        refusal: Callable[[], ResponseError | None] = lambda: None,
    ) -> None:
        self._store = store
        self.index = self._index = index
        self._topics = topics
        self._clock = clock
        self._cold_reads = cold_reads
        self._on_delivery = on_delivery
        self._request_sync = request_sync
        self._refusal = refusal
        self._tasks = Supervisor("timers")
        self._task: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._passed_one = asyncio.Event()
        self._delivers = False
        self._send: Send | None = None
        self._found: Delivered | None = None
        """What was delivered before, while it may count; None until the log was read."""
        self._found_until_ms = 0
        self._knows_rocketmq = False
        """Whether RocketMQ may have delivered messages of slots that are not passed."""
        self._open: _OpenSlot | None = None
        self._is_ring_full = False
        """Whether the next message of the queue waits until slots are passed."""
        self._enqueued = self._delivered = self._recalled = self._rolled = 0
        self._samples = deque([(clock.monotonic(), 0, 0)], SAMPLES)
        self._waits = FailureLog(
            log,
            fails="timer messages wait",
            works="timer messages are delivered again",
            name="for",
        )
        self._skipped = RateLimitedLog(log, "timer messages were skipped or moved")

    # --- lifecycle ------------------------------------------------------------------------------

    def load(self) -> None:
        """Read the files of the index.

        Raises:
            StoreError: the disk refused.
        """
        index = self._index
        index.load(self._queue_offset_of)
        if index.was_rocketmq:
            self._knows_rocketmq = True
            passed = index.passed
            start = log_offset_at(self._store, passed.read_ms)
            queue_offset = max(passed.queue_offset, index.queue_offset)
            index.follow(Passed(passed.read_ms, start, queue_offset))

    def _queue_offset_of(self, log_offset: int, size_bytes: int) -> int | None:
        data = self._store.written_record_at(log_offset, size_bytes)
        try:
            return None if data is None else split_record(data).queue_offset
        except ProtocolError:
            return None

    def begin(self) -> None:
        """Begin to read the queue; the event loop must be running."""
        if self._task is None:
            self._task = self._tasks.spawn(self._run(), "timers")

    def start(self, send: Send | None = None) -> None:
        """Begin to deliver, as a master or in place of one.

        Args:
            send: where messages go; None to store them here.
        """
        if self._delivers:
            return
        self._send, self._found, self._open = send, None, None
        self._delivers = True
        self._wake.set()

    def stop(self) -> None:
        """Deliver no more; the queue is read further."""
        self._delivers = False
        self._open = self._send = self._found = None

    async def finish(self) -> None:
        """Deliver the rest of the slot that has begun, and pass it; then deliver no more.

        RocketMQ would deliver again what was delivered of a slot that is not passed.
        """
        opened = self._open
        if self._delivers and opened is not None:
            try:
                async with asyncio.timeout(FINISH_S):
                    while self._open is opened and opened.has_more():
                        self._passed_one.clear()
                        await self._passed_one.wait()
            except TimeoutError:
                log.warning("a slot of timer messages is not finished slot_ms=%d", opened.slot_ms)
            else:
                if self._open is opened and opened.seen == self._index.last_position(
                    opened.slot_ms
                ):
                    self._pass(opened, opened.slot_ms + self._index.precision_ms)
        self.stop()

    async def end(self) -> None:
        """Finish, and end the task."""
        await self.finish()
        await self._tasks.cancel()
        self._task = None
        self._skipped.settle(now=True)

    def arrived(self) -> None:
        """Note that readers see another message of the queue."""
        self._wake.set()

    async def follow(self, passed: Passed, is_rocketmq: bool) -> None:
        """Take over which slots the master has passed; ignored by a master.

        Args:
            passed: from the master.
            is_rocketmq: whether the master is RocketMQ's.
        """
        index = self._index
        before = index.passed.read_ms
        if self._delivers or passed.read_ms <= before:
            return
        self._knows_rocketmq = is_rocketmq
        slices = Slices()
        precision = index.precision_ms
        last = min(passed.read_ms, index.latest_ms + precision)
        for slot_ms in range(max(before, last - SLOTS * precision), last, precision):
            if before > 0 and index.last_position(slot_ms) != NONE:
                self._forget(slot_ms, self._counts_in(slot_ms))
            await slices.pause()
            if self._delivers or index.passed.read_ms != before:
                return
        index.follow(passed)

    def advance(self, passed: Passed) -> None:
        """Take over the slots that a slave has passed as the acting master, before the start.

        What it has sent to other brokers has no copies in the log here. What it did not have in its
        queue is due at once.

        Raises:
            StoreError: the disk refused.
        """
        index, precision = self._index, self._index.precision_ms
        before = index.passed.read_ms
        if passed.read_ms <= before:
            return
        units = self._store.written_units(TIMER_TOPIC, TIMER_QUEUE, passed.queue_offset)
        border = next(units, (self._store.written_to, 0))[0]
        last = min(passed.read_ms, index.latest_ms + precision)
        for slot_ms in range(max(before, last - SLOTS * precision), last, precision):
            for position in list(index.positions(slot_ms)):
                unit = index.unit(position)
                if unit.log_offset >= border:
                    index.put_again(unit, passed.read_ms)
            self._forget(slot_ms, self._counts_in(slot_ms))
        queue_offset = min(passed.queue_offset, index.queue_offset)
        index.follow(Passed(passed.read_ms, self._store.written_to, queue_offset))

    def take_back(self, log_end: int) -> None:
        """Forget what is known of records that are about to be truncated.

        Messages whose copies are truncated wait again.

        Raises:
            StoreError: the disk refused.
        """
        store, index = self._store, self._index
        passed = index.passed
        if passed.log_offset > log_end:
            first_ms, log_offset = passed.read_ms, log_end
            for facts in store.written_facts_from(log_end):
                if facts.log_offset - log_end > SCAN_BYTES_MAX:
                    break
                copy = read_copy(store, facts)
                data = None if copy is None else store.record_at(copy.prepared_offset)
                waited = None if data is None else split_record(data)
                if waited is not None and waited.topic == TIMER_TOPIC:
                    first_ms = min(first_ms, index.slot_of(_waiting_of(waited))[0])
            if first_ms < passed.read_ms:  # it began before, nobody knows where
                oldest = store.file_start(max(0, log_end - SCAN_BYTES_MAX))
                log_offset = max(store.min_log_offset, oldest)
            passed = Passed(first_ms, log_offset, passed.queue_offset)
        queue_end = store.end_at(TIMER_TOPIC, TIMER_QUEUE, log_end)
        index.truncate(log_end, queue_end, passed)
        self._found = self._open = None
        self.save()

    # --- the disk -------------------------------------------------------------------------------

    async def persist(self) -> None:
        """Write the index if it has changed.

        Raises:
            StoreError: the disk refused; the next call tries again.
        """
        self._skipped.settle()
        index = self._index
        index.delete_before(self._store.min_log_offset)
        if not index.has_changed:
            return
        snapshot = index.snapshot(0, self._clock.now_ms())

        def write() -> None:
            self._store.flush()  # no power cut loses a message that counts as read or delivered
            index.save(snapshot)

        await asyncio.get_running_loop().run_in_executor(None, write)

    def save(self) -> None:
        """Write the index at once.

        Raises:
            StoreError: the disk refused.
        """
        if self._index.has_changed:
            self._store.flush()
            self._index.save(self._index.snapshot(0, self._clock.now_ms()))

    # --- figures --------------------------------------------------------------------------------

    def figures(self) -> TimerFigures:
        """Return how far the timers are."""
        end = self._store.next_offset(TIMER_TOPIC, TIMER_QUEUE)
        index = self._index
        over_ms = self._clock.now_ms() - index.passed.read_ms - index.precision_ms
        first, last = self._samples[0], self._samples[-1]
        seconds = max(last[0] - first[0], 1.0)
        return TimerFigures(
            sum(each.waiting for each in index.counts()),
            0 if index.is_empty or not self._delivers else max(0, over_ms),
            max(0, end - index.queue_offset),
            *(self._enqueued, self._delivered, self._recalled, self._rolled),
            *((last[1] - first[1]) / seconds, (last[2] - first[2]) / seconds),
        )

    def counts(self) -> list[Count]:
        """Return how many messages of each topic wait."""
        return self._index.counts()

    def sample(self) -> None:
        """Note the counters, for rates; called once a second."""
        self._samples.append((self._clock.monotonic(), self._enqueued, self._delivered))

    def read_ms(self) -> int:
        """Return the first slot that is not passed; the present one if nothing waits."""
        read_ms, now_ms = self._index.passed.read_ms, self._clock.now_ms()
        present_ms = now_ms - now_ms % self._index.precision_ms
        return max(read_ms, present_ms) if self._delivers and self._index.is_empty else read_ms

    # --- the task -------------------------------------------------------------------------------

    async def _run(self) -> None:
        slices = Slices()
        while True:
            self._wake.clear()
            wait_s: float | None = FAILURE_S
            try:
                wait_s = await self._work(slices)
                self._waits.succeeded("the store")
            except StoreError as problem:
                self._waits.failed("the store", problem)
                wait_s = STORE_BUSY_S
            except ResponseError as problem:  # too many reads wait for the disk
                self._waits.failed("the disk", problem)
                wait_s = STORE_BUSY_S
            except CometError as problem:
                self._waits.failed("other brokers", problem)
                wait_s = SEND_RETRY_S
            except Exception:
                log.exception("the delivery of timer messages failed")
            self._passed_one.set()
            await self._sleep(wait_s)

    async def _sleep(self, seconds: float | None) -> None:
        if seconds is not None and seconds <= 0:
            await asyncio.sleep(0)
            return
        try:
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        except TimeoutError:
            return

    async def _work(self, slices: Slices) -> float | None:
        """Read the queue and deliver what is due; return the seconds until there may be more."""
        await self._read_queue(slices)
        if not self._delivers:
            return CHECK_INTERVAL_S  # a slave is not notified
        if self._index.is_empty and self._index.uncounted_from is None:
            return None
        if self._found is None:
            await self._find_delivered(slices)
        await self._count_again(slices)
        while self._delivers and not self._index.is_empty:
            slot_ms = self._index.passed.read_ms
            now_ms = self._clock.now_ms()
            if now_ms <= slot_ms:
                return min((slot_ms + 1 - now_ms) / 1000, CHECK_INTERVAL_S)
            if self._pass_empty(slot_ms, now_ms):
                await slices.pause()
                continue
            wait_s = await self._deliver_slot(slot_ms, slices)
            if wait_s is not None:
                return wait_s
            self._passed_one.set()
        return 0.0

    def _pass_empty(self, slot_ms: int, now_ms: int) -> bool:
        """Pass a slot that is over and has no messages; return whether it was."""
        index = self._index
        end_ms = slot_ms + index.precision_ms
        is_passed = (
            now_ms > end_ms
            and index.last_position(slot_ms) == NONE
            and index.queue_offset >= self._queue_end()
        )
        if is_passed:
            index.pass_to(end_ms, self._store.written_to)
        return is_passed

    # --- the queue ------------------------------------------------------------------------------

    def _queue_end(self) -> int:
        return self._store.bounds(TIMER_TOPIC, TIMER_QUEUE)[1]

    async def _read_queue(self, slices: Slices) -> None:
        """Put the messages of the queue into their slots, as far as readers see them."""
        index, store = self._index, self._store
        low = store.bounds(TIMER_TOPIC, TIMER_QUEUE)[0]
        if index.queue_offset < low:
            index.queue_offset = low
        while index.queue_offset < self._queue_end():
            queue = (TIMER_TOPIC, TIMER_QUEUE, index.queue_offset, READ_MESSAGES)
            if cold := store.reader.cold_units(*queue, None):
                await self._cold_reads.run(partial(bring_in, cold))
            for log_offset, size, _ in store.consume_queue_units(*queue):
                if (read := store.cold_record(log_offset, size)) is not None:
                    await self._cold_reads.run(read)
                self._is_ring_full = not self._add(log_offset, size)
                if self._is_ring_full:
                    return
                await slices.pause()

    def _add(self, log_offset: int, size: int) -> bool:
        index = self._index
        now_ms = self._clock.now_ms()
        data = self._store.record_at(log_offset, size)
        try:
            record = None if data is None else split_record(data)
        except ProtocolError:
            record = None
        if record is None:
            self._skipped.add("skipped a damaged timer message log_offset=%d", log_offset)
            index.queue_offset += 1
            return True
        if (
            self._delivers
            and index.is_empty
            and index.passed.read_ms > 0
            and index.queue_offset >= index.passed.queue_offset
        ):  # nothing waits, so all slots of the past are passed
            present_ms = now_ms - now_ms % index.precision_ms
            if present_ms > index.passed.read_ms:
                index.pass_to(present_ms, self._store.written_to)
        waiting = _waiting_of(record)._replace(queue_offset=index.queue_offset)
        if not index.add(waiting, now_ms):
            return False
        self._enqueued += 1
        return True

    # --- what is known from before --------------------------------------------------------------

    async def _find_delivered(self, slices: Slices) -> None:
        """Find what was delivered of slots that are not passed."""
        found = await delivered_behind(
            self._store,
            self._index.passed.log_offset,
            slices,
            knows_rocketmq=self._knows_rocketmq,
        )
        self._found_until_ms = self._clock.now_ms() + self._index.precision_ms
        self._found = found
        if found:
            log.info("timer messages were delivered already count=%d", len(found))

    async def _count_again(self, slices: Slices) -> None:
        index = self._index
        if index.uncounted_from is None:
            return
        names = {java_hash(name): name for name in list(self._topics.all())}
        while (slot_ms := index.uncounted_from) is not None:
            index.count_slot(slot_ms, self._counts_in(slot_ms), names)
            await slices.pause()

    def _counts_in(self, slot_ms: int) -> Counter[int]:
        counts: Counter[int] = Counter()
        for position in self._index.positions(slot_ms):
            unit = self._index.unit(position)
            counts[unit.topic_hash] += -1 if unit.magic & DELETE else 1
        return counts

    def _forget(self, slot_ms: int, counts: Counter[int]) -> None:
        self._index.forget_units(slot_ms, counts, self._clock.now_ms())

    # --- one slot -------------------------------------------------------------------------------

    async def _deliver_slot(self, slot_ms: int, slices: Slices) -> float | None:
        """Deliver what is due of a slot; return the seconds until more is; None if it is passed."""
        index = self._index
        end_ms = slot_ms + index.precision_ms
        opened = self._open
        if opened is None or opened.slot_ms != slot_ms:
            fence = self._store.next_offset(TIMER_TOPIC, TIMER_QUEUE)
            opened = self._open = _OpenSlot(slot_ms, fence)
        if index.queue_offset < opened.fence and not self._is_ring_full:
            if self._request_sync is not None:
                self._request_sync()
            return STORE_BUSY_S
        await self._take_units(opened, slices)
        await self._deliver_due(opened, slices)
        if self._open is not opened:  # it delivers no more, or the log was truncated
            return 0.0
        now_ms = self._clock.now_ms()
        if opened.due:
            return max(0.0, (slot_ms + (opened.due[0] >> _POSITION_BITS) - now_ms) / 1000)
        if now_ms <= end_ms:
            return (end_ms + 1 - now_ms) / 1000
        if opened.seen != index.last_position(slot_ms):
            return 0.0
        self._pass(opened, end_ms)
        await slices.pause()
        return None

    def _pass(self, opened: _OpenSlot, end_ms: int) -> None:
        self._forget(opened.slot_ms, opened.counts)
        self._index.pass_to(end_ms, self._store.written_to)
        self._open = None
        if self._found and end_ms > self._found_until_ms:
            self._found = Delivered()
            self._knows_rocketmq = False

    async def _take_units(self, opened: _OpenSlot, slices: Slices) -> None:
        """Take the units of a slot that came since the last call."""
        index = self._index
        last = index.last_position(opened.slot_ms)
        if last == opened.seen:
            return
        positions: array[int] = array("q")
        for position in index.positions(opened.slot_ms, opened.seen):
            positions.append(position)
            if len(positions) % READ_MESSAGES == 0:
                await slices.pause()
        recalls: list[Unit] = []
        kept: array[int] = array("q")
        for position in positions:
            unit = index.unit(position)
            opened.counts[unit.topic_hash] += -1 if unit.magic & DELETE else 1
            if unit.recalls:
                recalls.append(unit)
            else:
                kept.append(position)
            if len(kept) % READ_MESSAGES == 0:
                await slices.pause()
        if recalls:
            await self._take_recalls(opened, recalls, slices)
        opened.seen = last
        kept.extend(opened.further)
        opened.further = kept

    async def _take_recalls(self, opened: _OpenSlot, units: Sequence[Unit], slices: Slices) -> None:
        for unit in units:
            read = self._store.cold_record(unit.log_offset, unit.record_bytes)
            if read is not None:
                await self._cold_reads.run(read)
            data = self._store.record_at(unit.log_offset, unit.record_bytes)
            key = None if data is None else value_of(split_record(data).properties, _DEL_KEY)
            if key is not None:
                opened.recalled.add(key)
            await slices.pause()

    def _sort_further(self, opened: _OpenSlot) -> None:
        """Put units into the heap, the oldest first, as far as there is room."""
        slot_ms = opened.slot_ms
        end_ms = slot_ms + self._index.precision_ms
        end_s = monotonic() + SLICE_S
        while opened.further and len(opened.due) < SORTED_MAX:
            position = opened.further.pop()
            unit = self._index.unit(position)
            due_ms = unit.due_ms or (slot_ms if unit.rolls else end_ms)
            after_ms = min(max(due_ms - slot_ms, 0), SLOT_MS_MAX)
            heappush(opened.due, after_ms << _POSITION_BITS | position)
            if monotonic() >= end_s:
                return

    async def _deliver_due(self, opened: _OpenSlot, slices: Slices) -> None:
        while self._open is opened:
            while opened.further and len(opened.due) < SORTED_MAX:
                self._sort_further(opened)
                await slices.pause()
                if self._open is not opened:
                    return
            now_in_slot = self._clock.now_ms() - opened.slot_ms
            run: list[int] = []
            run_bytes = 0
            while (
                opened.due
                and opened.due[0] >> _POSITION_BITS <= now_in_slot
                and len(run) < RUN_MESSAGES_MAX
                and run_bytes < RUN_BYTES_MAX
            ):
                run.append(heappop(opened.due))
                run_bytes += self._index.unit(run[-1] & _POSITION_MASK).record_bytes
            if not run:
                return
            is_done = 0
            opened.in_flight = len(run)
            try:
                units = [self._index.unit(key & _POSITION_MASK) for key in run]
                await self._bring_in(units)
                if self._open is not opened:
                    return
                if self._send is not None:
                    for unit in units:
                        await self._send_away(self._send, opened, unit)
                        is_done += 1
                else:
                    self._deliver(opened, units)
                    is_done = len(run)
            finally:
                for key in run[is_done:]:
                    heappush(opened.due, key)
                opened.in_flight = 0
            await slices.pause()

    async def _bring_in(self, units: Sequence[Unit]) -> None:
        reads = [self._store.cold_record(unit.log_offset, unit.record_bytes) for unit in units]
        cold = [read for read in reads if read is not None]
        if not cold:
            return

        def read_all() -> None:
            for read in cold:
                read()

        await self._cold_reads.run(read_all)

    def _deliver(self, opened: _OpenSlot, units: Sequence[Unit]) -> None:
        """Store the messages of some units in their target queues, with one write.

        Raises:
            StoreError: the store takes none of them now.
        """
        if (lack := self._refusal()) is not None:
            raise StoreUnavailableError(lack.remark)
        records: list[NewRecord] = []
        is_rolled = 0
        for unit in units:
            try:
                record = self._record_of(opened, unit)
                if record is not None:
                    records.append(record)
                    is_rolled += unit.rolls
            except CometError as problem:
                self._skip(unit, problem)
        if not records:
            return
        try:
            stored = self._store.append_all(records)
        except InvalidMessageError:
            stored = self._store_singly(records)
        self._rolled += is_rolled
        self._delivered += len(records) - is_rolled
        if self._on_delivery is not None:
            for record, at in zip(records, stored, strict=True):
                self._on_delivery(record.topic, record.queue_id, at.size_bytes)
        if self._request_sync is not None:
            self._request_sync()

    def _store_singly(self, records: list[NewRecord]) -> list[Appended]:
        stored: list[Appended] = []
        for record in list(records):
            try:
                stored.append(self._store.append(record))
            except InvalidMessageError as problem:
                records.remove(record)
                self._skipped.add(
                    "skipped a timer message topic=%s error=%s", record.topic, problem
                )
        return stored

    def _read(self, unit: Unit) -> RecordParts:
        data = self._store.record_at(unit.log_offset, unit.record_bytes)
        if data is None:
            raise InvalidMessageError(
                f"no record of {unit.record_bytes} bytes at {unit.log_offset}"
            )
        return split_record(data)

    def _is_over(self, opened: _OpenSlot, record: RecordParts) -> bool:
        """Return whether a message is recalled, or was delivered before."""
        if self._found and self._found.has(record):
            return True
        if not opened.recalled:
            return False
        topic = value_of(record.properties, REAL_TOPIC) or b""
        key = value_of(record.properties, UNIQ_KEY_MARKER) or b""
        if topic + b"+" + key not in opened.recalled:
            return False
        self._recalled += 1
        return True

    def _record_of(self, opened: _OpenSlot, unit: Unit) -> NewRecord | None:
        """Return what is stored for a message; None for nothing.

        Raises:
            CometError: there is no record, or it has no target.
        """
        record = self._read(unit)
        if self._is_over(opened, record):
            return None
        now_ms = self._clock.now_ms()
        times = _TIMES % (unit.written_ms, now_ms)
        text = record.properties
        if unit.rolls or value_of(text, _DEQUEUE) is not None:
            properties = decode_properties(text) | decode_properties(times)
            if unit.rolls:
                before = properties.get(names.TIMER_ROLL_TIMES, "0")
                count = int(before) + 1 if before.isdecimal() and len(before) < 9 else 1
                properties[names.TIMER_ROLL_TIMES] = str(count)
            text = encode_properties(properties)
        else:
            text = join_properties(text, times)
        topic, queue_id = (TIMER_TOPIC, TIMER_QUEUE) if unit.rolls else self._target(record)
        return stored_again(
            record, topic, queue_id, properties=text, prepared_offset=unit.log_offset
        )

    def _target(self, record: RecordParts) -> tuple[str, int]:
        topic, queue_id = waiting_target(record.properties)
        moved = self._topics.queue_for(topic, queue_id, record.log_offset)
        if moved is None:
            raise InvalidMessageError(f"met topic {topic[:300]!r}, expected one that exists")
        if moved != queue_id:
            self._skipped.add(
                "moved a timer message, its queue does not exist any more topic=%s queue=%d to=%d",
                *(topic, queue_id, moved),
            )
        return topic, moved

    async def _send_away(self, send: Send, opened: _OpenSlot, unit: Unit) -> None:
        """Send a message to another broker.

        Raises:
            CometError: none has stored it.
        """
        try:
            record = self._read(unit)
            topic, _ = waiting_target(record.properties)
        except CometError as problem:
            self._skip(unit, problem)
            return
        if unit.rolls:
            self._index.put_again(unit, unit.slot_ms + self._index.roll_ms)
        elif not self._is_over(opened, record):
            await send(topic, record)
            self._delivered += 1

    def _skip(self, unit: Unit, reason: object) -> None:
        self._skipped.add("skipped a timer message log_offset=%d error=%s", unit.log_offset, reason)


def _waiting_of(record: RecordParts) -> Waiting:
    return Waiting(
        record.queue_offset,
        record.log_offset,
        record.size_bytes,
        record.properties,
        record.store_time_ms,
    )
