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
from collections import deque
from collections.abc import Callable
from typing import Final

from cometmq.broker.cold_reads import ColdReads
from cometmq.broker.timers.delivered import SCAN_BYTES_MAX, log_offset_at, read_copy
from cometmq.broker.timers.figures import TimerFigures
from cometmq.broker.timers.queue_reader import TimerQueue, waiting_of
from cometmq.broker.timers.routing import TIMER_QUEUE
from cometmq.broker.timers.slot_delivery import STORE_BUSY_S, Send, SlotDelivery, Topics
from cometmq.model.errors import CometError, ProtocolError, ResponseError, StoreError
from cometmq.model.topic import TIMER_TOPIC
from cometmq.protocol.hashing import java_hash
from cometmq.protocol.record import split_record
from cometmq.remoting import Supervisor
from cometmq.remoting.slices import Slices
from cometmq.store import MessageStore
from cometmq.store.timers.checkpoint import Passed
from cometmq.store.timers.index import Count, TimerIndex
from cometmq.store.timers.timer_log import NONE
from cometmq.store.timers.wheel import SLOTS
from cometmq.system.clock import Clock
from cometmq.system.failure_log import FailureLog, RateLimitedLog

log = logging.getLogger(__name__)

CHECK_INTERVAL_S: Final = 1.0
"""The longest time until clock and queue are read again."""
SEND_RETRY_S: Final = 1.0
FAILURE_S: Final = 10.0
FINISH_S: Final = 2.0
"""How long a stop goes on with a slot that has begun: RocketMQ would deliver all of it again."""
SAMPLES: Final = 11


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
        self._tasks = Supervisor("timers")
        self._task: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._passed_one = asyncio.Event()
        self._delivers = False
        self._samples = deque([(clock.monotonic(), 0, 0)], SAMPLES)
        self._waits = FailureLog(
            log,
            fails="timer messages wait",
            works="timer messages are delivered again",
            name="for",
        )
        self._skipped = RateLimitedLog(log, "timer messages were skipped or moved")
        self._queue = TimerQueue(
            store,
            index,
            clock=clock,
            cold_reads=cold_reads,
            skipped=self._skipped,
        )
        self._slot = SlotDelivery(
            self._queue,
            topics=topics,
            on_delivery=on_delivery,
            request_sync=request_sync,
            refusal=refusal,
        )

    # --- lifecycle ------------------------------------------------------------------------------

    def load(self) -> None:
        """Read the files of the index.

        Raises:
            StoreError: the disk refused.
        """
        index = self._index
        index.load(self._queue_offset_of)
        passed = index.passed
        # A slave has copied from a master of RocketMQ that slots are passed, but not to where.
        has_followed = passed.read_ms > 0 and passed.log_offset == 0
        if index.was_rocketmq or has_followed:
            self._slot.knows_rocketmq = True
            start = log_offset_at(self._store, passed.read_ms)
            queue_offset = passed.queue_offset
            if index.was_rocketmq:
                queue_offset = max(queue_offset, index.queue_offset)
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
        self._slot.restart(send)
        self._queue.new_from = self._store.written_to
        self._delivers = True
        self._wake.set()

    def stop(self) -> None:
        """Deliver no more; the queue is read further."""
        self._delivers = False
        self._queue.new_from = None
        self._slot.restart()

    async def finish(self) -> None:
        """Deliver the rest of the slot that has begun, and pass it; then deliver no more.

        RocketMQ would deliver again what was delivered of a slot that is not passed.
        """
        slot = self._slot
        opened = slot.opened
        if self._delivers and opened is not None:
            try:
                async with asyncio.timeout(FINISH_S):
                    while slot.opened is opened and opened.has_more():
                        self._passed_one.clear()
                        await self._passed_one.wait()
            except TimeoutError:
                log.warning("a slot of timer messages is not finished slot_ms=%d", opened.slot_ms)
            else:
                last = self._index.last_position(opened.slot_ms)
                if slot.opened is opened and opened.seen == last:
                    slot.pass_slot(opened, opened.slot_ms + self._index.precision_ms)
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
        self._slot.knows_rocketmq = is_rocketmq
        slices = Slices()
        precision = index.precision_ms
        last = min(passed.read_ms, index.latest_ms + precision)
        for slot_ms in range(max(before, last - SLOTS * precision), last, precision):
            if before > 0 and index.last_position(slot_ms) != NONE:
                index.forget_units(slot_ms, index.counts_in(slot_ms), self._clock.now_ms())
            await slices.pause()
            if self._delivers or index.passed.read_ms != before:
                return
        index.follow(passed)

    def advance(self, passed: Passed) -> None:
        """Take over the slots that a slave has passed as the acting master, before the start.

        What it has sent to other brokers has no copies in the log here. What it did not have in its
        queue is due at once, and what it had put off for later rolls here.

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
                if unit.log_offset >= border or unit.rolls:
                    index.put_again(unit, passed.read_ms)
            index.forget_units(slot_ms, index.counts_in(slot_ms), self._clock.now_ms())
        queue_offset = min(passed.queue_offset, index.queue_offset)
        index.follow(Passed(passed.read_ms, index.passed.log_offset, queue_offset))

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
                    first_ms = min(first_ms, index.slot_of(waiting_of(waited))[0])
            if first_ms < passed.read_ms:  # it began before, nobody knows where
                oldest = store.file_start(max(0, log_end - SCAN_BYTES_MAX))
                log_offset = max(store.min_log_offset, oldest)
            passed = Passed(first_ms, log_offset, passed.queue_offset)
        queue_end = store.end_at(TIMER_TOPIC, TIMER_QUEUE, log_end)
        index.truncate(log_end, queue_end, passed)
        self._slot.forget()
        self.save()

    # --- the disk -------------------------------------------------------------------------------

    async def persist(self) -> None:
        """Write the index if it has changed.

        Raises:
            StoreError: the disk refused; the next call tries again.
        """
        self._skipped.settle()
        index = self._index
        slices = Slices()
        while index.delete_before(self._store.min_log_offset):
            await slices.pause()
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
        index, slot = self._index, self._slot
        over_ms = self._clock.now_ms() - index.passed.read_ms - index.precision_ms
        first, last = self._samples[0], self._samples[-1]
        seconds = max(last[0] - first[0], 1.0)
        return TimerFigures(
            sum(each.waiting for each in index.counts()),
            0 if index.is_empty or not self._delivers else max(0, over_ms),
            max(0, end - index.queue_offset),
            *(self._queue.enqueued, slot.delivered, slot.recalled, slot.rolled),
            *((last[1] - first[1]) / seconds, (last[2] - first[2]) / seconds),
        )

    def counts(self) -> list[Count]:
        """Return how many messages of each topic wait."""
        return self._index.counts()

    def sample(self) -> None:
        """Note the counters, for rates; called once a second."""
        self._samples.append((self._clock.monotonic(), self._queue.enqueued, self._slot.delivered))

    def read_ms(self) -> int:
        """Return the first slot that is not passed; the present one if nothing waits."""
        read_ms, now_ms = self._index.passed.read_ms, self._clock.now_ms()
        present_ms = now_ms - now_ms % self._index.precision_ms
        return max(read_ms, present_ms) if self._delivers and self._index.is_empty else read_ms

    def has_begun(self, slot_ms: int) -> bool:
        """Return whether messages of a slot may be delivered, whatever the clock shows now."""
        return slot_ms < self._index.passed.read_ms or slot_ms <= self._slot.begun_ms

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
        if self._index.is_damaged:
            self._slot.forget()
            self._index.make_again()
        await self._queue.read(slices)
        if not self._delivers:
            return CHECK_INTERVAL_S  # a slave is not notified
        if self._index.is_empty and self._index.uncounted_from is None:
            return None
        if not self._slot.knows_delivered:
            await self._queue.read_late(slices)
            await self._slot.find_delivered(slices)
        await self._count_again(slices)
        # A change of the role in between forgets what was delivered.
        while self._delivers and self._slot.knows_delivered and not self._index.is_empty:
            slot_ms = self._index.passed.read_ms
            now_ms = self._clock.now_ms()
            if now_ms <= slot_ms:
                return min((slot_ms + 1 - now_ms) / 1000, CHECK_INTERVAL_S)
            if self._pass_empty(slot_ms, now_ms):
                await slices.pause()
                continue
            wait_s = await self._slot.deliver(slot_ms, slices)
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
            and index.queue_offset >= self._queue.end()
        )
        if is_passed:
            self._slot.pass_to(end_ms)
        return is_passed

    async def _count_again(self, slices: Slices) -> None:
        index = self._index
        if index.uncounted_from is None:
            return
        names = {java_hash(name): name for name in list(self._topics.all())}
        while (slot_ms := index.uncounted_from) is not None:
            index.count_slot(slot_ms, index.counts_in(slot_ms), names)
            await slices.pause()
