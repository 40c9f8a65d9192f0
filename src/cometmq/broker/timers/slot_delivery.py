"""Delivers the messages of one slot after the other, each at its time.

A slot is opened when it begins, and passed when it is over and nothing in it is left. A message is
stored in its topic, or stored again in the queue because it is far away, or passed over because it
is recalled or was delivered before. In place of a master, messages go to other brokers instead, one
after the other.
"""

from __future__ import annotations

import logging
from array import array
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from heapq import heappop, heappush
from time import monotonic
from typing import Final, Protocol

from cometmq.broker.targets import stored_again, waiting_target
from cometmq.broker.timers.delivered import Delivered, delivered_behind
from cometmq.broker.timers.queue_reader import READ_MESSAGES, TimerQueue, waiting_of
from cometmq.broker.timers.routing import TIMER_QUEUE
from cometmq.broker.timers.senders import Recallers, without_sender
from cometmq.model import property_names as names
from cometmq.model.errors import CometError, InvalidMessageError, ResponseError
from cometmq.model.topic import TIMER_TOPIC
from cometmq.protocol.properties import (
    decode_properties,
    encode_properties,
    join_properties,
    marker,
    value_of,
)
from cometmq.protocol.record import RecordParts, split_record
from cometmq.remoting.slices import SLICE_S, Slices
from cometmq.store import Appended, NewRecord, StoreUnavailableError
from cometmq.store.timers.timer_log import AGAIN, DELETE, NONE, Unit
from cometmq.store.timers.wheel import SLOT_MS_MAX

log = logging.getLogger(__name__)

STORE_BUSY_S: Final = 0.1
RUN_MESSAGES_MAX: Final = 64
RUN_BYTES_MAX: Final = 256 * 1024
"""The limits of what has one write to the log, besides a quarter of a log file."""
SORTED_MAX: Final = 50_000
"""Messages of a slot that are delivered in the order of their times; further ones come later."""
_POSITION_BITS: Final = 48
_POSITION_MASK: Final = (1 << _POSITION_BITS) - 1
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


class OpenSlot:
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
        self.recallers = Recallers()
        self.counts: Counter[int] = Counter()

    def has_more(self) -> bool:
        """Return whether messages of the slot are to be delivered."""
        return bool(self.due or self.further or self.in_flight)


class SlotDelivery:
    """The slot that is being delivered, and what is known of earlier deliveries.

    Args:
        queue: the queue of the timer topic, with its store, index and clock.
        topics: the topics of the broker.
        on_delivery: called with topic, queue and size of every message that was delivered.
        request_sync: called after messages were delivered, if readers wait for the disk.
        refusal: returns why too few replicas would have a message that is stored now, or None.
    """

    def __init__(
        self,
        queue: TimerQueue,
        *,
        topics: Topics,
        on_delivery: Callable[[str, int, int], None] | None,
        request_sync: Callable[[], object] | None,
        refusal: Callable[[], ResponseError | None],
    ) -> None:
        self._store = queue.store
        self._index = queue.index
        self._queue = queue
        self._topics = topics
        self._clock = queue.clock
        self._cold_reads = queue.cold_reads
        self._skipped = queue.skipped
        self._on_delivery = on_delivery
        self._request_sync = request_sync
        self._refusal = refusal
        self.opened: OpenSlot | None = None
        self._send: Send | None = None
        self._found: Delivered | None = None
        """What was delivered before, while it may count; None until the log was read."""
        self._forgotten = 0
        """How often that was forgotten."""
        self._found_from = self._found_until_ms = 0
        """Where in the log it was looked for, and the end of the last slot of which it has any."""
        self._first_ms = 0
        """The first slot that was not passed then."""
        self._again: dict[int, int] = {}
        """The slots in which messages with a second unit are delivered, by their log offsets."""
        self.knows_rocketmq = False
        """Whether RocketMQ may have delivered messages of slots that are not passed."""
        self.begun_ms = 0
        """The last slot of which messages may be delivered, wherever the clock was set since."""
        self.delivered = self.recalled = self.rolled = 0

    def restart(self, send: Send | None = None) -> None:
        """Forget the slot that is open, and deliver to another place from now on.

        Args:
            send: where messages go; None to store them here.
        """
        self.forget()
        self._send = send

    def forget(self) -> None:
        """Forget the slot that is open, and what was delivered before."""
        self.opened = self._found = None
        self._forgotten += 1

    @property
    def knows_delivered(self) -> bool:
        """Whether it is known what was delivered before."""
        return self._found is not None

    # --- what is known from before --------------------------------------------------------------

    async def find_delivered(self, slices: Slices) -> None:
        """Find what was delivered of slots that are not passed; forgotten if the role changes."""
        forgotten = self._forgotten
        start = self._index.passed.log_offset
        found = await delivered_behind(
            self._store, start, slices, knows_rocketmq=self.knows_rocketmq
        )
        if self._forgotten != forgotten:
            return
        latest_ms = max(self._clock.now_ms(), found.latest_ms)
        self._found_from, self._found_until_ms = start, latest_ms + self._index.precision_ms
        self._found = found
        self._first_ms = self._index.passed.read_ms
        self._again.clear()
        self.begun_ms = max(self.begun_ms, found.latest_ms)
        if found:
            log.info("timer messages were delivered already count=%d", len(found))

    # --- one slot -------------------------------------------------------------------------------

    async def deliver(self, slot_ms: int, slices: Slices) -> float | None:
        """Deliver what is due of a slot; return the seconds until more is; None if it is passed."""
        index = self._index
        end_ms = slot_ms + index.precision_ms
        opened = self.opened
        if opened is None or opened.slot_ms != slot_ms:
            fence = self._store.next_offset(TIMER_TOPIC, TIMER_QUEUE)
            opened = self.opened = OpenSlot(slot_ms, fence)
            self.begun_ms = max(self.begun_ms, slot_ms)
        if index.queue_offset < opened.fence and not self._queue.is_ring_full:
            if self._request_sync is not None:
                self._request_sync()
            return STORE_BUSY_S
        await self._take_units(opened, slices)
        await self._deliver_due(opened, slices)
        if self.opened is not opened:  # it delivers no more, or the log was truncated
            return 0.0
        now_ms = self._clock.now_ms()
        if opened.due:
            return max(0.0, (slot_ms + (opened.due[0] >> _POSITION_BITS) - now_ms) / 1000)
        if now_ms <= end_ms:
            return (end_ms + 1 - now_ms) / 1000
        if opened.seen != index.last_position(slot_ms) or index.is_damaged:
            return 0.0
        self.pass_slot(opened, end_ms)
        await slices.pause()
        return None

    def pass_slot(self, opened: OpenSlot, end_ms: int) -> None:
        """Pass the slot that is open.

        Args:
            opened: the slot.
            end_ms: when it ends.
        """
        self._index.forget_units(opened.slot_ms, opened.counts, self._clock.now_ms())
        self.pass_to(end_ms)
        self.opened = None

    def pass_to(self, end_ms: int) -> None:
        """Pass the slots that end until a time.

        As long as copies of later slots may have been found, the next start looks for them in the
        same part of the log.
        """
        if self._found and end_ms > self._found_until_ms:
            self._found = Delivered()
            self.knows_rocketmq = False
        self._index.pass_to(end_ms, self._found_from if self._found else self._store.written_to)

    async def _take_units(self, opened: OpenSlot, slices: Slices) -> None:
        """Take the units of a slot that came since the last call."""
        index = self._index
        last = index.last_position(opened.slot_ms)
        if last == opened.seen:
            return
        positions: array[int] = array("q")
        count = index.count_in(opened.slot_ms)
        for position in index.positions(opened.slot_ms, opened.seen):
            positions.append(position)
            if len(positions) % READ_MESSAGES == 0:
                await slices.pause()
        if index.is_damaged:  # it has further units, which are known once the queue is read again
            return
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
        if opened.seen == NONE and positions:
            index.compare(opened.slot_ms, count, opened.counts.total(), positions[-1])
            if index.is_damaged:
                return
        if recalls:
            await self._take_recalls(opened, recalls, slices)
        opened.seen = last
        kept.extend(opened.further)
        opened.further = kept

    async def _take_recalls(self, opened: OpenSlot, units: Sequence[Unit], slices: Slices) -> None:
        for unit in units:
            read = self._store.cold_record(unit.log_offset, unit.record_bytes)
            if read is not None:
                await self._cold_reads.run(read)
            data = self._store.record_at(unit.log_offset, unit.record_bytes)
            if data is not None:
                opened.recallers.add(split_record(data).properties)
            await slices.pause()

    def _sort_further(self, opened: OpenSlot) -> None:
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

    async def _deliver_due(self, opened: OpenSlot, slices: Slices) -> None:
        run_bytes_max = min(RUN_BYTES_MAX, self._store.log_file_bytes // 4)
        while self.opened is opened:
            while opened.further and len(opened.due) < SORTED_MAX:
                self._sort_further(opened)
                await slices.pause()
                if self.opened is not opened:
                    return
            now_in_slot = self._clock.now_ms() - opened.slot_ms
            run: list[int] = []
            run_bytes = 0
            while (
                opened.due
                and opened.due[0] >> _POSITION_BITS <= now_in_slot
                and len(run) < RUN_MESSAGES_MAX
                and run_bytes < run_bytes_max
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
                if self.opened is not opened:
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

    def _deliver(self, opened: OpenSlot, units: Sequence[Unit]) -> None:
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
        self.rolled += is_rolled
        self.delivered += len(records) - is_rolled
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
        """Return the record of a unit.

        Raises:
            InvalidMessageError: the record is deleted or damaged.
            StoreError: the unit is damaged.
        """
        data = self._store.record_at(unit.log_offset, unit.record_bytes)
        if data is None:
            self._index.require(unit, self._is_gone(unit))
            raise InvalidMessageError(
                f"no record of {unit.record_bytes} bytes at {unit.log_offset}"
            )
        record = split_record(data)
        is_its_unit = self._index.is_unit_of(unit, waiting_of(record))
        self._index.require(unit, record.topic == TIMER_TOPIC and is_its_unit)
        return record

    def _is_gone(self, unit: Unit) -> bool:
        """Return whether a record that cannot be read is deleted, or damaged but in the queue."""
        store, log_offset = self._store, unit.log_offset
        if 0 <= log_offset < store.min_log_offset:
            return True
        at = store.end_at(TIMER_TOPIC, TIMER_QUEUE, log_offset)
        units = store.written_units(TIMER_TOPIC, TIMER_QUEUE, at, at + 1)
        return (log_offset, unit.record_bytes) in units

    def _is_over(self, opened: OpenSlot, record: RecordParts) -> bool:
        """Return whether a message is recalled, or was delivered before."""
        if self._found and self._found.has(record):
            return True
        if not opened.recallers.recall(record.properties):
            return False
        self.recalled += 1
        return True

    def _is_repeated(self, unit: Unit, record: RecordParts) -> bool:
        """Return whether this is the second unit of a message whose other one was delivered."""
        if not unit.magic & AGAIN:
            return False
        if self._index.slot_of(waiting_of(record))[0] >= self._first_ms:
            return True  # a truncation has made its own slot one that is not passed
        return self._again.setdefault(unit.log_offset, unit.slot_ms) != unit.slot_ms

    def _record_of(self, opened: OpenSlot, unit: Unit) -> NewRecord | None:
        """Return what is stored for a message; None for nothing.

        Raises:
            CometError: there is no record, or it has no target.
        """
        record = self._read(unit)
        if self._is_over(opened, record) or self._is_repeated(unit, record):
            return None
        now_ms = self._clock.now_ms()
        times = _TIMES % (unit.written_ms, now_ms)
        text = record.properties
        if unit.rolls or value_of(text, _DEQUEUE) is not None:
            properties = decode_properties(text) | decode_properties(times)
            if not unit.rolls:
                properties.pop(names.TIMER_SENDER, None)
            else:
                before = properties.get(names.TIMER_ROLL_TIMES, "0")
                count = int(before) + 1 if before.isdecimal() and len(before) < 9 else 1
                properties[names.TIMER_ROLL_TIMES] = str(count)
            text = encode_properties(properties)
        else:
            text = join_properties(without_sender(text), times)
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

    async def _send_away(self, send: Send, opened: OpenSlot, unit: Unit) -> None:
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
        elif not self._is_over(opened, record) and not self._is_repeated(unit, record):
            await send(topic, record._replace(properties=without_sender(record.properties)))
            self.delivered += 1

    def _skip(self, unit: Unit, reason: object) -> None:
        self._skipped.add("skipped a timer message log_offset=%d error=%s", unit.log_offset, reason)
