# cython: annotation_typing=False
"""Keeps the check points in the log: in RocketMQ's revive topic, which every slave copies.

A pop stores its check points before it responds. An acknowledgement is stored before it is
answered, together with all others of the same iteration of the event loop. So a start, or a slave
that becomes the master, reads what is in flight from the topic, whatever ended the last process.

    committed offset of CID_RMQ_SYS_REVIVE_GROUP              the last record that counts no more
    committed offset of CID_RMQ_SYS_COMETMQ_REVIVE_END        the end of the topic, at the time of
                                                              the other committed offsets

The first is RocketMQ's, whose brokers read on behind it. Committed offsets are written to their
file some seconds late. A check point behind the second says that its group was further by then.

A check point that stays in flight for long is stored again when many records are behind it: what a
start reads is bounded by what is in flight, not by what was acknowledged.

Used in the event loop's thread.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Final

import msgspec

from cometmq.broker.checks import sent_to_slave
from cometmq.broker.cold_reads import ColdReads
from cometmq.broker.offsets.offset_store import REVIVE_END_GROUP, OffsetStore
from cometmq.broker.pop.check_points import CheckPoint, CheckPoints
from cometmq.broker.pop.records import (
    ACKS,
    CHECK_POINT,
    AckOf,
    StoredCheckPoint,
    acks_body,
    check_point_body,
    json_text,
    properties_of,
    read_record,
)
from cometmq.broker.prerequisites import PrerequisiteError, after_prerequisites
from cometmq.broker.thread_calls import SharedCall
from cometmq.model.errors import ProtocolError, StoreError
from cometmq.protocol.record import encode_host, split_record
from cometmq.remoting.slices import Slices, batched
from cometmq.store import Appended, MessageStore, NewRecord, SegmentNotReadyError
from cometmq.system.clock import Clock

log = logging.getLogger(__name__)

REVIVE_GROUP: Final = "CID_RMQ_SYS_REVIVE_GROUP"
DEAD_RECORDS_MIN: Final = 4_096
"""The records that count no more, and are left, beside two for each check point in flight."""
APPENDED_MAX: Final = 100
"""Check points that are stored again with one write."""
EARLY_ACKS_MAX: Final = 100_000
"""Acknowledgements that wait for the check points which a broker of RocketMQ has delayed."""
EARLY_MS: Final = 5_000
"""How long they wait beyond the invisible time."""
CLOCK_MS: Final = 1_000
"""A clock that was set back by less delays what is in flight by less than that."""
FOREIGN_MS: Final = 2_000
"""RocketMQ's acknowledgements may be stored so long behind the end of the invisible time."""


class _EarlyAck(msgspec.Struct, eq=False):
    """Acknowledgements of one delivery whose check point is not in the topic yet."""

    key: tuple[str, str, int, int, int]
    offsets: set[int]
    expires_ms: int
    queue: int
    """The queue of the revive topic that has the record."""
    record_offset: int


class ReviveLog:
    """The check points of a broker, in memory and in the log.

    Args:
        store: contains their records.
        offsets: the committed offsets of all groups.
        clock: the time.
        cold_reads: reads what is on the disk only.
        topic: the revive topic.
        queues: returns the number of its queues; called again for each load.
        broker_name: the name of this broker, which its records carry.
        may_load: returns whether they may be loaded: a slave stores nothing of its own.
    """

    def __init__(
        self,
        store: MessageStore,
        offsets: OffsetStore,
        *,
        may_load: Callable[[], bool],
        clock: Clock,
        cold_reads: ColdReads,
        topic: str,
        queues: Callable[[], int],
        broker_name: str,
    ) -> None:
        self._store = store
        self._offsets = offsets
        self._clock = clock
        self._cold_reads = cold_reads
        self._may_load = may_load
        self.topic = topic
        self.broker_name = broker_name
        self._broker_json = json_text(broker_name)
        self._count_queues = queues
        self._segment = SharedCall(store.wait_for_segment)
        self.store_host = encode_host("127.0.0.1", 0)
        """The address of this broker as records contain it."""
        self.points = CheckPoints()
        """The check points, once they are loaded."""
        self.is_loaded = False
        self.loaded_ms = 0
        """When they were loaded: receipts of earlier pops may be those of another master."""
        self.on_load: Callable[[], object] = _ignore
        """Called when they are loaded."""
        self.on_added: Callable[[], object] = _ignore
        """Called when a check point was read that another broker has stored."""
        self._term = 0
        """Counts how often they were forgotten."""
        self._clock_ms = 0
        """The clock when it was last looked at, or when the last message was popped."""
        self._loading = asyncio.Lock()
        self._reading = asyncio.Lock()
        self._forget()

    def _forget(self) -> None:
        self.queue_count = self._count_queues()
        """The number of queues of the revive topic."""
        self._queues = range(self.queue_count)
        self.points = CheckPoints()
        self._read_to = dict.fromkeys(self._queues, 0)
        """The queue offset up to which each queue of the revive topic is read."""
        self._own: dict[int, set[int]] = {queue: set() for queue in self._queues}
        """The own records behind these offsets."""
        self._live: dict[int, dict[int, CheckPoint | _EarlyAck]] = {
            queue: {} for queue in self._queues
        }
        """What counts in each queue, by the offset of its record, in that order."""
        self._early: dict[tuple[str, str, int, int, int], _EarlyAck] = {}
        self._ends: dict[tuple[str, str, int], int] = {}
        """While they are read: how far groups were, by records newer than the committed offsets."""
        self._ends_before: dict[int, int] = {}
        """Where these records begin, by the queue of the revive topic."""

    def require_loaded(self) -> None:
        """Check that the check points are loaded.

        Raises:
            PrerequisiteError: they have to be read first.
        """
        if not self.is_loaded:
            raise PrerequisiteError(self.load)

    # --- changes --------------------------------------------------------------------------------

    def add(self, points: list[CheckPoint], now_ms: int) -> int:
        """Store check points, and keep them.

        Returns:
            The log offset behind the records.

        Raises:
            PrerequisiteError: a file of the log has to be created first; nothing has changed.
            StoreError: the store refuses; nothing has changed.
        """
        records = [self._check_point_record(point, now_ms) for point in points]
        stored = self._append(records)
        for point, place in zip(points, stored, strict=True):
            self._keep(point, place.queue_offset, now_ms)
        self._commit_end(records, stored)
        return stored[-1].log_offset_end

    def replace(self, point: CheckPoint, bit: int, renewed: CheckPoint, now_ms: int) -> int:
        """Store a check point in the place of one message of another one.

        Returns:
            The log offset behind the records.

        Raises:
            PrerequisiteError, StoreError: as `add`.
        """
        records = [
            self._check_point_record(renewed, now_ms),
            self._acks_record(point, point.offsets_of(bit), now_ms),
        ]
        stored = self._append(records)
        self._keep(renewed, stored[0].queue_offset, now_ms)
        self.settle(point, bit)
        self._commit_end(records, stored)
        return stored[-1].log_offset_end

    def acknowledge(self, acks: Mapping[CheckPoint, int], now_ms: int) -> int:
        """Store acknowledgements.

        Args:
            acks: the bits of messages, by check point.
            now_ms: the time.

        Returns:
            The log offset behind the records.

        Raises:
            PrerequisiteError, StoreError: as `add`.
        """
        records = [
            self._acks_record(point, point.offsets_of(bits), now_ms) for point, bits in acks.items()
        ]
        stored = self._append(records)
        for point, bits in acks.items():
            self.settle(point, bits)
        self._commit_end(records, stored)
        return stored[-1].log_offset_end

    def store_with_acks(
        self, messages: list[NewRecord], point: CheckPoint, bits: int, now_ms: int
    ) -> int:
        """Store messages together with the acknowledgement of others, all or none.

        Returns:
            The log offset behind the records.

        Raises:
            PrerequisiteError, StoreError: as `add`.
        """
        ack = self._acks_record(point, point.offsets_of(bits), now_ms)
        stored = self._append([*messages, ack])
        self.settle(point, bits)
        self._commit_end([ack], stored[-1:])
        return stored[-1].log_offset_end

    def acknowledge_apart(self, ack: AckOf, revive_queue: int) -> int:
        """Store an acknowledgement without a check point: of an ordered pop, or an early one.

        The check point of an early one is not in the topic yet: RocketMQ delays check points.

        Returns:
            The log offset behind the record.

        Raises:
            PrerequisiteError, StoreError: as `add`.
        """
        ids = ack.group, ack.topic, ack.queue_id, ack.start, ack.pop_ms
        if not ack.next_offset and all(self.has_early(*ids, offset) for offset in ack.offsets):
            return self._store.written_to
        now_ms = self._clock.now_ms()
        record = self._record(revive_queue, ACKS, acks_body(ack), now_ms)
        (stored,) = self._append([record])
        if not ack.next_offset:
            self._keep_early(ack, revive_queue, stored.queue_offset)
        self._commit_end([record], [stored])
        return stored.log_offset_end

    async def forget(self, topic: str) -> None:
        """Acknowledge all messages of a topic that was deleted.

        A topic of this name that is created again has other messages at the same offsets.

        Raises:
            StoreError, ResponseError: the disk refused, or cannot read the check points, or the
                role has changed; the other messages are in flight still.
        """
        await self.load()
        term, slices = self._term, Slices()
        async for key in slices.each(list(self.points.queues())):
            queue = self.points.queues().get(key) if key[1] == topic else None
            points = [] if queue is None else list(queue.check_points.values())
            for part in batched(points, APPENDED_MAX):
                await after_prerequisites(partial(self._acknowledge_all, part, term))
                await slices.pause()

    def _acknowledge_all(self, points: list[CheckPoint], term: int) -> None:
        if self._term == term:
            left = {point: bits for point in points if (bits := point.all_bits() & ~point.acked)}
            if left:
                self.acknowledge(left, self._clock.now_ms())

    def settle(self, point: CheckPoint, bits: int) -> None:
        """Note that the acknowledgement of messages is stored."""
        if self.points.acknowledge(point, bits):
            self._live[point.revive_queue].pop(point.record_offset, None)

    def _keep(self, point: CheckPoint, record_offset: int, now_ms: int) -> None:
        point.record_offset = record_offset
        self._live[point.revive_queue][record_offset] = point
        self._clock_ms = max(self._clock_ms, point.pop_ms)  # the clock was there, seen or not
        self.points.add(point, now_ms)

    def has_early(
        self, group: str, topic: str, queue_id: int, start: int, pop_ms: int, offset: int
    ) -> bool:
        """Return whether the early acknowledgement of a message is stored."""
        early = self._early.get((group, topic, queue_id, start, pop_ms))
        return early is not None and offset in early.offsets

    def _keep_early(self, ack: AckOf, queue: int, record_offset: int) -> None:
        expires_ms = max(self._clock.now_ms(), ack.pop_ms + ack.invisible_ms) + EARLY_MS
        key = (ack.group, ack.topic, ack.queue_id, ack.start, ack.pop_ms)
        early = self._early.get(key)
        if early is None:
            if len(self._early) >= EARLY_ACKS_MAX:
                self._drop_early(next(iter(self._early.values())))
            early = _EarlyAck(key, set(ack.offsets), expires_ms, queue, record_offset)
            self._early[key] = early
            self._live[queue][record_offset] = early
        else:  # the first record stays live, and with it the others behind it
            early.offsets.update(ack.offsets)

    def _drop_early(self, early: _EarlyAck) -> None:
        self._early.pop(early.key, None)
        self._live[early.queue].pop(early.record_offset, None)

    # --- records --------------------------------------------------------------------------------

    def _check_point_record(self, point: CheckPoint, now_ms: int) -> NewRecord:
        body = check_point_body(point, self._broker_json)
        return self._record(point.revive_queue, CHECK_POINT, body, now_ms)

    def _acks_record(self, point: CheckPoint, offsets: Sequence[int], now_ms: int) -> NewRecord:
        ack = AckOf(
            point.group,
            point.topic,
            point.queue_id,
            point.start,
            point.pop_ms,
            self.broker_name,
            offsets,
        )
        return self._record(point.revive_queue, ACKS, acks_body(ack), now_ms)

    def _record(self, queue: int, tag: bytes, body: bytes, now_ms: int) -> NewRecord:
        return NewRecord(
            self.topic,
            queue,
            body,
            properties_of(tag, now_ms),
            born_time_ms=now_ms,
            born_host=self.store_host,
            store_host=self.store_host,
        )

    def _append(self, records: list[NewRecord]) -> list[Appended]:
        try:
            stored = self._store.append_all(records)
        except SegmentNotReadyError:
            raise PrerequisiteError(self._segment) from None
        for record, place in zip(records, stored, strict=True):
            if record.topic == self.topic:
                self._note_own(record.queue_id, place.queue_offset)
        return stored

    def _note_own(self, queue: int, record_offset: int) -> None:
        """Note a record that need not be read."""
        if record_offset == self._read_to[queue]:
            self._read_to[queue] = record_offset + 1
        else:
            self._own[queue].add(record_offset)

    def _commit_end(self, records: list[NewRecord], stored: list[Appended]) -> None:
        ends = {
            record.queue_id: place.queue_offset + 1
            for record, place in zip(records, stored, strict=True)
            if record.topic == self.topic
        }
        for queue, end in ends.items():
            self._offsets.commit(REVIVE_END_GROUP, self.topic, queue, end)

    # --- reading --------------------------------------------------------------------------------

    def unload(self) -> None:
        """Forget the check points: the log may get other records than those that were read."""
        self._forget()
        self.is_loaded = False
        self._term += 1

    async def load(self) -> None:
        """Read the check points, once.

        Raises:
            StoreError, ResponseError: the disk cannot read, or queues lack records of the log, or
                this broker is a slave, or the role has changed meanwhile; the next call tries
                again.
        """
        async with self._loading:
            if not self._may_load():
                raise sent_to_slave()
            if not self.is_loaded:
                self._forget()
                await self._load()

    async def _load(self) -> None:
        if self._store.dispatch_backlog_bytes:
            raise StoreError("check points: queues lack records of the log, the disk is full")
        for queue in self._queues:
            handled = self._offsets.committed(REVIVE_GROUP, self.topic, queue)
            self._read_to[queue] = 0 if handled is None else handled + 1
            self._ends_before[queue] = (
                self._offsets.committed(REVIVE_END_GROUP, self.topic, queue) or 0
            )
        count = await self._read_new(is_first=True)
        ends, self._ends = self._ends, {}
        for (group, topic, queue_id), end in ends.items():
            known = self._offsets.committed(group, topic, queue_id)
            if known is None or known < end:
                reached = min(end, self._store.next_offset(topic, queue_id))
                self._offsets.commit(group, topic, queue_id, reached)
        self.is_loaded = True
        self.loaded_ms = self._clock.now_ms()
        if count:
            log.info("read check points in_flight=%d records=%d", len(self.points), count)
        self.on_load()

    async def read_new(self) -> None:
        """Read the records that were not stored by this object: those of RocketMQ's timers.

        Raises:
            StoreError, ResponseError: as `load`.
        """
        if self.is_loaded and any(self._has_new(queue) for queue in self._queues):
            async with self._reading:
                await self._read_new(is_first=False)
            self.on_added()

    def _has_new(self, queue: int) -> bool:
        return self._store.next_offset(self.topic, queue) > self._read_to[queue]

    async def _read_new(self, *, is_first: bool) -> int:
        term, slices, count, damaged = self._term, Slices(), 0, 0
        for queue in self._queues:
            own = self._own[queue]
            start = max(self._read_to[queue], self._store.bounds(self.topic, queue)[0])
            for number, unit in enumerate(self._store.written_units(self.topic, queue, start)):
                if start + number in own:
                    own.discard(start + number)
                else:
                    count += 1
                    damaged += not await self._take(*unit, is_first)
                    if self._term != term:
                        raise StoreError("check points: the role of this broker has changed")
                self._read_to[queue] = max(self._read_to[queue], start + number + 1)
                await slices.pause()
                if self._term != term:
                    raise StoreError("check points: the role of this broker has changed")
        if damaged:
            log.error("passed over damaged records of check points count=%d", damaged)
        return count

    async def _take(self, log_offset: int, size: int, is_first: bool) -> bool:
        """Take a record into account; return False if it is damaged."""
        term = self._term
        await self._cold_reads.run(self._store.cold_record(log_offset, size))
        data = self._store.written_record_at(log_offset, size)
        if data is None or self._term != term:
            return False
        try:
            parts = split_record(data)
            found = read_record(parts)
        except ProtocolError:
            return False
        if isinstance(found, StoredCheckPoint):
            if found.broker_name == self.broker_name:
                self._take_check_point(found, is_first)
        elif isinstance(found, AckOf) and found.broker_name == self.broker_name:
            if found.next_offset:
                if is_first:
                    place = parts.queue_id, parts.queue_offset
                    self._note_end(
                        found.group, found.topic, found.queue_id, found.next_offset, place
                    )
            else:
                self._take_ack(found, parts.queue_id, parts.queue_offset)
        return True

    def _note_end(
        self, group: str, topic: str, queue_id: int, end: int, place: tuple[int, int]
    ) -> None:
        """Note how far a group was, if a record is newer than the committed offsets."""
        queue, record_offset = place
        if record_offset >= self._ends_before[queue]:
            key = (group, topic, queue_id)
            self._ends[key] = max(self._ends.get(key, 0), end)

    def _take_check_point(self, found: StoredCheckPoint, is_first: bool) -> None:
        point, now_ms = found.point, self._clock.now_ms()
        key = (point.group, point.topic, point.queue_id)
        if is_first and not found.is_foreign:
            self._note_end(*key, point.end, (point.revive_queue, point.record_offset))
        known = self.points.find(*key, point.start, point.pop_ms)
        if known is not None:  # it was stored again
            live = self._live[point.revive_queue]
            live.pop(known.record_offset, None)
            known.record_offset = point.record_offset
            live[point.record_offset] = known
            self.settle(known, point.acked)
            return
        if point.acked == point.all_bits():
            return
        self._keep(point, point.record_offset, now_ms)
        if found.is_foreign:
            self.points.delay(point, max(point.visible_ms, now_ms) + FOREIGN_MS, now_ms)
        early = self._early.get((*key, point.start, point.pop_ms))
        if early is not None:
            self._drop_early(early)
            for offset in early.offsets:
                self.settle(point, point.bit_of(offset))

    def _take_ack(self, ack: AckOf, queue: int, record_offset: int) -> None:
        point = self.points.find(ack.group, ack.topic, ack.queue_id, ack.start, ack.pop_ms)
        if point is None:
            # Of a check point that is acknowledged, or that a timer of RocketMQ still delays.
            self._keep_early(ack, queue, record_offset)
            return
        for offset in ack.offsets:
            self.settle(point, point.bit_of(offset))

    def take_back(self, log_end: int) -> int:
        """Move offsets of groups back whose check points are about to be truncated.

        Else the group would skip these messages, should this broker become the master again before
        it has copied the offset of the group.

        A check point that only was stored again is behind others, and moves nothing.

        Args:
            log_end: where the log is about to end.

        Returns:
            How many check points that were.
        """
        points = sorted(self._truncated(log_end), key=lambda point: point.start, reverse=True)
        count = 0
        for point in points:
            key = point.group, point.topic, point.queue_id
            if point.start < (self._offsets.committed(*key) or 0) <= point.end:
                self._offsets.commit(*key, point.start)
                count += 1
        return count

    def _truncated(self, log_end: int) -> Iterator[CheckPoint]:
        """Yield the check points behind an end of the log."""
        for queue in self._queues:
            start = self._store.end_at(self.topic, queue, log_end)
            for unit in self._store.written_units(self.topic, queue, start):
                data = self._store.written_record_at(*unit)
                try:
                    found = None if data is None else read_record(split_record(data))
                except ProtocolError:
                    continue
                if isinstance(found, StoredCheckPoint) and found.broker_name == self.broker_name:
                    yield found.point

    def oldest_pop_ms(self) -> int | None:
        """Return when the message was popped that is in flight for longest; None for none.

        One that was stored again since counts only if all others were, too.
        """
        first = (next(iter(live.values()), None) for live in self._live.values())
        return min((one.pop_ms for one in first if isinstance(one, CheckPoint)), default=None)

    # --- maintenance ----------------------------------------------------------------------------

    async def maintain(self) -> None:
        """Commit the last record that counts no more; store check points again behind many dead.

        Raises:
            StoreError: the disk refused; the next call tries again.
        """
        if not self.is_loaded:
            return
        now_ms, term, slices = self._clock.now_ms(), self._term, Slices()
        async for early in slices.each(list(self._early.values())):
            if early.expires_ms <= now_ms and self._early.get(early.key) is early:
                self._drop_early(early)
        for queue in self._queues:
            await slices.pause()
            if self._term != term:
                return
            self._store_again(queue, self._live[queue], now_ms)
        self.commit_base()

    async def follow_clock(self) -> None:
        """Let nothing be invisible for longer than its invisible time if the clock was set back."""
        before_ms, now_ms = self._clock_ms, self._clock.now_ms()
        self._clock_ms = now_ms
        if now_ms >= before_ms - CLOCK_MS:
            return
        points, slices = self.points, Slices()
        for queue in list(points.queues().values()):
            for key, point in list(queue.check_points.items()):
                last_ms = now_ms + point.invisible_ms
                if point.visible_ms > last_ms and queue.check_points.get(key) is point:
                    points.delay(point, last_ms, now_ms)
                await slices.pause()
        self.on_added()

    def commit_base(self) -> None:
        """Commit the last record of each queue that counts no more."""
        for queue, live in self._live.items():
            base = next(iter(live), self._read_to[queue])
            handled = self._offsets.committed(REVIVE_GROUP, self.topic, queue)
            if base > 0 and handled != base - 1:
                self._offsets.commit(REVIVE_GROUP, self.topic, queue, base - 1)

    def _store_again(
        self, queue: int, live: dict[int, CheckPoint | _EarlyAck], now_ms: int
    ) -> None:
        most = 2 * len(live) + DEAD_RECORDS_MIN
        end = self._store.next_offset(self.topic, queue)
        due = [
            point
            for record_offset, point in islice(live.items(), APPENDED_MAX)
            if end - record_offset > most and isinstance(point, CheckPoint)
        ]
        if not due:
            return
        try:
            stored = self._append([self._check_point_record(point, now_ms) for point in due])
        except PrerequisiteError:  # the next call finds the file
            return
        for point, place in zip(due, stored, strict=True):
            live.pop(point.record_offset, None)
            point.record_offset = place.queue_offset
            live[place.queue_offset] = point


def _ignore() -> None:
    """Called when nothing has to be done."""
