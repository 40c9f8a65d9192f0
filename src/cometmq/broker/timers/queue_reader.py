"""Reads the queue of the timer topic: each message is put into the slot of its time.

The queue is read on slaves, too, as far as readers see it.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from cometmq.broker.cold_reads import ColdReads
from cometmq.broker.timers.routing import TIMER_QUEUE
from cometmq.model.errors import ProtocolError
from cometmq.model.topic import TIMER_TOPIC
from cometmq.protocol.record import RecordParts, split_record
from cometmq.remoting.slices import Slices
from cometmq.store import MessageStore
from cometmq.store.message_store import bring_in
from cometmq.store.timers.index import TimerIndex, Waiting
from cometmq.system.clock import Clock
from cometmq.system.failure_log import RateLimitedLog

READ_MESSAGES: Final = 128
"""Messages of the queue that are read between two looks at the clock."""


class TimerQueue:
    """The queue of the timer topic, as far as it is in the index.

    Args:
        store: contains the timer topic.
        index: gets its messages.
        clock: the wall clock.
        cold_reads: reads what is on the disk only.
        skipped: logs messages that are passed over.
    """

    def __init__(
        self,
        store: MessageStore,
        index: TimerIndex,
        *,
        clock: Clock,
        cold_reads: ColdReads,
        skipped: RateLimitedLog,
    ) -> None:
        self.store = store
        self.index = index
        self.clock = clock
        self.cold_reads = cold_reads
        self.skipped = skipped
        self.is_ring_full = False
        """Whether the next message of the queue waits until slots are passed."""
        self.new_from: int | None = None
        """The log offset from which on no message was delivered before this broker delivers; None
        if it does not. If nothing else waits when such a message comes, the slots of the past are
        passed at once."""
        self.enqueued = 0
        """Messages that were put into their slots since the start."""

    def end(self) -> int:
        """Return the end of the queue, as readers see it."""
        return self.store.bounds(TIMER_TOPIC, TIMER_QUEUE)[1]

    async def read(self, slices: Slices) -> None:
        """Put the messages of the queue into their slots, as far as readers see them."""
        index, store = self.index, self.store
        low = store.bounds(TIMER_TOPIC, TIMER_QUEUE)[0]
        if index.queue_offset < low:
            index.queue_offset = low
        while index.queue_offset < self.end():
            queue = (TIMER_TOPIC, TIMER_QUEUE, index.queue_offset, READ_MESSAGES)
            if cold := store.reader.cold_units(*queue, None):
                await self.cold_reads.run(partial(bring_in, cold))
            for log_offset, size, _ in store.consume_queue_units(*queue):
                if (read := store.cold_record(log_offset, size)) is not None:
                    await self.cold_reads.run(read)
                self.is_ring_full = not self._add(log_offset, size)
                if self.is_ring_full:
                    return
                await slices.pause()

    async def read_late(self, slices: Slices) -> None:
        """Put late messages into the first slot that is not passed, unless it has them.

        A slave has put them into their own slots before it learnt that these are passed.
        """
        index, store = self.index, self.store
        start, stop = index.passed.queue_offset, index.queue_offset
        here: set[int] | None = None
        for log_offset, size in store.written_units(TIMER_TOPIC, TIMER_QUEUE, start, stop):
            if (read := store.cold_record(log_offset, size)) is not None:
                await self.cold_reads.run(read)
            data = store.record_at(log_offset, size)
            try:
                record = None if data is None else split_record(data)
            except ProtocolError:
                continue
            if record is not None and index.is_late(waiting := waiting_of(record)):
                if here is None:
                    here = set()
                    async for position in slices.each(index.positions(index.passed.read_ms)):
                        here.add(index.unit(position).log_offset)
                if log_offset not in here:
                    index.add_late(waiting, self.clock.now_ms())
            await slices.pause()

    def _add(self, log_offset: int, size: int) -> bool:
        index = self.index
        now_ms = self.clock.now_ms()
        data = self.store.record_at(log_offset, size)
        try:
            record = None if data is None else split_record(data)
        except ProtocolError:
            record = None
        if record is None:
            self.skipped.add("skipped a damaged timer message log_offset=%d", log_offset)
            index.queue_offset += 1
            return True
        if (
            self.new_from is not None
            and record.log_offset >= self.new_from
            and index.is_empty
            and index.passed.read_ms > 0
            and index.queue_offset >= index.passed.queue_offset
        ):  # nothing waits, so all slots of the past are passed
            present_ms = now_ms - now_ms % index.precision_ms
            if present_ms > index.passed.read_ms:
                index.pass_to(present_ms, self.store.written_to)
        waiting = waiting_of(record)._replace(queue_offset=index.queue_offset)
        if not index.add(waiting, now_ms):
            return False
        self.enqueued += 1
        return True


def waiting_of(record: RecordParts) -> Waiting:
    """Return what the index needs of a record of the queue."""
    return Waiting(
        record.queue_offset,
        record.log_offset,
        record.size_bytes,
        record.properties,
        record.store_time_ms,
    )
