"""The half queue: which half messages are decided, and how that is stored.

    decided := its op message is stored, or its offset is before the committed one

In memory there is one bit for each half message from the committed offset on. A start reads them
from the op queue, from the op offset on that was committed with it; both belong to the group
``CID_RMQ_SYS_TRANS``, so a broker of RocketMQ continues with the same files.

What becomes of a half message is stored in one write with its op message behind it: the message for
consumers, the copy that is put back, the copy that is discarded. A power cut leaves a prefix of the
log, so only the last record can lack its op message, and a start appends it first. If the disk is
full then, the store takes no message until it is appended. Therefore a message is delivered once,
whenever the broker is killed.

A decision may name a half message that was put back since; then it counts for the newest copy,
which the index finds by the unique id. Used in the event loop's thread.

`half_queue_states` has the states of the queue: whether it is known what is decided.

Source: TransactionalMessageServiceImpl, RocketMQ 5.3, which does not keep what is decided.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import msgspec

from cometmq.broker.cold_reads import ColdReads
from cometmq.broker.offsets.offset_store import OffsetStore
from cometmq.broker.timers.routing import TimerRouting
from cometmq.broker.transactions.decided_offsets import DecidedOffsets
from cometmq.broker.transactions.half_message import (
    HALF_QUEUE,
    HalfMessage,
    op_offsets,
    read_half,
)
from cometmq.broker.transactions.half_queue_states import TABLE, Action, Event, State
from cometmq.model import property_names as names
from cometmq.model.errors import CometError, StoreError
from cometmq.model.flags import SysFlag, transaction_type
from cometmq.model.topic import (
    DELAY_TOPIC,
    HALF_TOPIC,
    OP_HALF_TOPIC,
    TIMER_TOPIC,
    TRANSACTION_DISCARD_TOPIC,
)
from cometmq.protocol.record import (
    BODY_CRC_AT,
    BODY_LENGTH_BEFORE_BODY,
    QUEUE_OFFSET_AT,
    RECORD_BYTES_MIN,
    SYS_FLAG_AT,
    RecordError,
    body_at,
    body_crc,
)
from cometmq.remoting.slices import Slices
from cometmq.store import Appended, GetResult, MessageStore, NewRecord
from cometmq.store.message_store import bring_in
from cometmq.system.clock import Clock

log = logging.getLogger(__name__)

GROUP = "CID_RMQ_SYS_TRANS"
"""The group that commits the offsets of half queue and op queue."""
READ_MESSAGES = 32
READ_BYTES = 256 * 1024
"""The limits of one read; what is put back together has one write."""
LEFTOVERS_MAX = 100_000
"""Undecided half messages of a store of RocketMQ that a start compares with each other."""
SEARCHES_MAX = 20_000
"""Undecided half messages that a start looks up in the index: they may be delivered."""
EARLY_MAX = 100_000
"""Decided offsets before the committed one that are kept, for copies that RocketMQ put back."""
SEARCH_ENTRIES = 2_000
"""Index entries that are examined before other requests are handled."""
COPIES_MAX = 64
"""Copies of one message that are examined, the newest first."""
LATEST_MS = 2**62
"""A time later than all others."""
_HELD = "what a crash has cut off of a transaction must be stored first"
"""Why the store refuses messages if the disk is full or cannot be read at the start."""


class HalfMessageFigures(msgspec.Struct):
    """How many half messages there are, and what became of others since the start."""

    undecided: int = 0
    committed: int = 0
    rolled_back: int = 0
    put_back: int = 0
    """How often one was stored again: for a check, or for an operator."""
    discarded: int = 0


class HalfQueue:
    """The half messages of a broker.

    Args:
        store: contains them.
        offsets: the committed offsets.
        timers: decide how long committed messages wait.
        clock: the time of op messages.
        cold_reads: reads what is on the disk only.
    """

    def __init__(
        self,
        store: MessageStore,
        offsets: OffsetStore,
        timers: TimerRouting,
        *,
        clock: Clock,
        cold_reads: ColdReads,
    ) -> None:
        self._store = store
        self._offsets = offsets
        self._timers = timers
        self._clock = clock
        self._cold_reads = cold_reads
        self._decided = DecidedOffsets()
        self._early: set[int] = set()
        self._figures = HalfMessageFigures()
        self._op_offset = 0
        """The first op message that names a half message which is not before the base."""
        self._at_start: list[NewRecord] = []
        """Messages that a crash has cut off, and that are not appended yet."""
        self._last_record: bytes | None = None
        """The log's last record at the start, until it is loaded."""
        self._unconfirmed: tuple[int, int, int] | None = None
        """The last offsets to commit, of half queue and op queue, and the end of the log then."""
        self._loading = asyncio.Lock()
        self.on_stored: Callable[[str, int], object] | None = None
        """Called with topic and size of each half message put back, and of each op message."""
        self.on_read: Callable[[str, int, int, int], object] | None = None
        """Called with topic, queue, number and size of the messages of each read of a queue."""
        self.term = 0
        """Counts how often what was read was forgotten, because the role has changed."""
        self._state = TABLE.first
        self.is_loaded = False
        """Whether decisions are stored: the state is `State.LOADED`. Each decision reads it."""

    # --- start ----------------------------------------------------------------------------------

    def unload(self) -> None:
        """Forget what was read: a slave gets further half messages and decisions with the log.

        From now on nothing is stored, also by requests and rounds that have begun.
        """
        self._happened(Event.UNLOADED)

    def elected(self) -> None:
        """Read and append nothing until `confirmed`: this broker is about to become the master."""
        self._happened(Event.ELECTED)

    def confirmed(self) -> None:
        """Let `load` read again: the other replicas have the log of this new master."""
        self._happened(Event.CONFIRMED)

    def _happened(self, event: Event) -> Action | None:
        """Take the next state; return the action, which is done already if it needs no wait."""
        row = TABLE.row(self._state, event)
        self._state = row.after
        self.is_loaded = row.after is State.LOADED
        if row.action is Action.FORGET:
            self._last_record = self._unconfirmed = None
            self.term += 1
        return row.action

    def note_log_end(self) -> None:
        """Note the log's last record, before a slave that becomes the master appends others."""
        if not self.is_loaded and self._last_record is None:
            self._last_record = self._store.last_record()

    async def load(self, *, reads_only: bool = False) -> bool:
        """Read from the store which half messages are decided, and append what is missing, once.

        If this fails though the log's last record may lack its op message, the store takes no
        messages until it succeeds: with others behind it, after another crash, that record could
        not be found any more.

        Args:
            reads_only: append nothing: the log is a copy of the log of a master.

        Returns:
            False while a full disk keeps records of the log out of the queues, while this broker is
            taking over, and if it becomes a slave meanwhile.

        Raises:
            StoreError, ResponseError: the disk cannot read, or is full; the next call tries again.
        """
        async with self._loading:  # a job and a change of the role may call it at the same time
            action = self._happened(Event.LOAD)
            return self.is_loaded if action is None else await self._load(action, reads_only)

    async def _load(self, action: Action | None, reads_only: bool) -> bool:
        if self._store.dispatch_backlog_bytes:
            if reads_only:
                return False
            self._store.hold(f"{_HELD}, and queues and index catch up with the log")
            return False
        if self._last_record is None:
            self._last_record = self._store.last_record()
        if action is Action.READ:
            term = self.term
            try:
                await self._read_decided(reads_only)
            except CometError as problem:
                if not reads_only and self.term == term and self._last_lacking_op() is not None:
                    self._store.hold(f"{_HELD}: {problem}")
                raise
            if self.term != term:
                return False
            action = self._happened(Event.HAS_READ)
        if action is Action.APPEND and not reads_only:
            self._append_missing()
        self._happened(Event.HAS_APPENDED)
        self._last_record = None
        return True

    async def _read_decided(self, reads_only: bool) -> None:
        """Read which half messages are decided, and find what is missing in the log."""
        low, high = self._store.bounds(HALF_TOPIC, HALF_QUEUE)
        self._decided = DecidedOffsets(self._committed(HALF_TOPIC, low, high))
        self._op_offset = self._committed(
            OP_HALF_TOPIC, *self._store.bounds(OP_HALF_TOPIC, HALF_QUEUE)
        )
        self._early, self._at_start = set(), []
        slices = Slices()
        offset, damaged, has_ops_of_rocketmq = self._op_offset, 0, False
        while found := await self._read_records(OP_HALF_TOPIC, offset):
            for body in map(_intact_body, found.records):
                if body is None:
                    damaged += 1
                else:
                    self._note_decided(op_offsets(body), high)
                    # It was the master, perhaps a moment ago, and is killed or this one's slave.
                    has_ops_of_rocketmq |= body.endswith(b",")
            offset = found.next_offset
            await slices.pause()
        await self._find_missing_op(slices)
        if damaged:
            log.error(
                "passed over damaged op messages count=%d: half messages that they decided are"
                " checked again, and one that was committed is delivered again if the index does"
                " not have its message",
                damaged,
            )
        if damaged or has_ops_of_rocketmq or self._store.continues_rocketmq:
            await self._settle_leftovers(slices, puts_back=not reads_only)

    def _committed(self, topic: str, low: int, high: int) -> int:
        offset = self._offsets.committed(GROUP, topic, HALF_QUEUE)
        return low if offset is None else min(max(offset, low), high)

    def _note_decided(self, offsets: Sequence[int], high: int) -> None:
        for offset in offsets:
            if self._decided.base <= offset < high:
                self._decided.add(offset)
            elif offset < self._decided.base and len(self._early) < EARLY_MAX:
                self._early.add(offset)

    async def _find_missing_op(self, slices: Slices) -> None:
        """Find the half message of the log's last record, whose op message a crash has cut off."""
        last = self._last_lacking_op()
        if last is None:
            return
        if is_committed(last):
            half = _read_intact(self._store.record_at(last.record.prepared_offset))
        else:
            half = await self._newest_before(last, slices)
        if (
            half is not None
            and half.record.topic == HALF_TOPIC
            and half.is_copy_of(last)
            and not self.is_decided(half.queue_offset)
        ):
            self._decide_at_start(half.op(self._clock.now_ms()))

    def _last_lacking_op(self) -> HalfMessage | None:
        """Return the log's last record if it is what became of a half message; else None."""
        last = _read_intact(self._last_record)
        if last is None or is_committed(last):
            return last
        topic = last.record.topic
        is_put_back = topic == HALF_TOPIC and last.times_checked >= 0
        return last if is_put_back or topic == TRANSACTION_DISCARD_TOPIC else None

    async def _newest_before(self, copy: HalfMessage, slices: Slices) -> HalfMessage | None:
        """Return the newest undecided half message of which another one is the copy."""
        newest = None
        async for half in self.undecided(slices):
            if half.record.log_offset == copy.record.log_offset:
                break
            if half.is_copy_of(copy):
                newest = half
        return newest

    async def undecided(self, slices: Slices) -> AsyncIterator[HalfMessage]:
        """Yield the undecided half messages in their order, but no damaged ones."""
        end = self._store.bounds(HALF_TOPIC, HALF_QUEUE)[1]
        offset = self.first_open(0)
        while offset < end and (found := await self._read_records(HALF_TOPIC, offset)):
            for record in found.records:
                if record is None or self.is_decided(queue_offset_of(record)):
                    continue
                half = _read_intact(record)
                if half is not None:
                    yield half
            offset = self.first_open(found.next_offset)
            await slices.pause()

    async def _settle_leftovers(self, slices: Slices, *, puts_back: bool) -> None:
        """Count as decided what was committed without an op message, or put back.

        A killed broker of RocketMQ leaves such: it stores no op message for what it puts back, its
        offsets every five seconds, and the op messages of release 5 every three. What it did in
        between would be done again. Damaged op messages leave them, too.

        Args:
            slices: the work is divided into them.
            puts_back: whether copies may be put back, so that only the newest has to count.
        """
        newest: dict[object, NewRecord] = {}
        renewed: set[object] = set()
        async for half in self.undecided(slices):
            if not puts_back:
                break
            if len(newest) >= LEFTOVERS_MAX:
                log.warning("only %d undecided half messages were examined", LEFTOVERS_MAX)
                break
            before = newest.pop(half.identity, None)
            if before is not None and half.is_copy:
                self._decide_at_start(before)
                if half.first_offset >= 0:  # else it would count as decided with the first one
                    renewed.add(half.identity)
            newest[half.identity] = half.op(self._clock.now_ms())
        searches = 0
        async for half in self.undecided(slices):
            searches += 1
            if searches > SEARCHES_MAX:
                log.warning("only %d undecided half messages were looked up", SEARCHES_MAX)
                break
            if await self._is_delivered(half):
                self._decide_at_start(half.op(self._clock.now_ms()))
            elif half.identity in renewed:
                self._at_start.append(half.put_back(max(half.times_checked, 0)).waiting())
                self._decide_at_start(half.op(self._clock.now_ms()))

    async def _is_delivered(self, half: HalfMessage) -> bool:
        """Return whether the message for consumers is stored already, or waits for its delay."""
        topics = [half.named_target()[0]]
        if names.DELAY in half.properties:
            topics.append(DELAY_TOPIC)
        elif half.properties.keys() & names.TIMERS:
            topics.append(TIMER_TOPIC)
        for topic in topics:
            found = await self.newest_copy(half, topic)
            if found is not None and is_committed(found):
                return True
        return False

    def _decide_at_start(self, op: NewRecord) -> None:
        """Count a half message as decided whose op message is to be appended."""
        (offset,) = op_offsets(op.body)
        self._decided.add(offset)
        self._at_start.append(op)

    def _append_missing(self) -> None:
        """Append the messages that were found missing; before all others.

        Raises:
            StoreError: the store does not take them; it takes no others until it does.
        """
        self._store.release()
        try:
            while self._at_start:
                some = self._at_start[:READ_MESSAGES]
                self._store.append_all(some)
                del self._at_start[: len(some)]
        except StoreError as problem:
            self._store.hold(f"{_HELD}: {problem}")
            raise

    # --- reading --------------------------------------------------------------------------------

    def figures(self) -> HalfMessageFigures | None:
        """Return how many half messages there are and were; None until they are loaded."""
        if not self.is_loaded:
            return None
        end = self._store.bounds(HALF_TOPIC, HALF_QUEUE)[1]
        self._figures.undecided = max(end - self._decided.base - self._decided.count, 0)
        return self._figures

    @property
    def is_unused(self) -> bool:
        """Whether it is known that there never was a half message."""
        return self.is_loaded and self._store.bounds(HALF_TOPIC, HALF_QUEUE)[1] == 0

    def is_decided(self, offset: int) -> bool:
        """Return whether a half message is decided, put back or discarded."""
        return offset in self._decided

    def is_decided_copy(self, half: HalfMessage) -> bool:
        """Return whether the message of which RocketMQ put back this copy is decided."""
        first = half.first_offset
        return first >= 0 and (
            first in self._early or (first >= self._decided.base and first in self._decided)
        )

    def first_open(self, offset: int) -> int:
        """Return the first undecided offset from an offset on; it may have no message yet."""
        return self._decided.first_open(offset)

    async def read(self, offset: int, count: int) -> GetResult | None:
        """Return up to ``count`` half messages from an offset on, in memory; None for none.

        Raises:
            StoreError, ResponseError: the disk cannot read, or too many other reads wait.
        """
        return await self._read(HALF_TOPIC, offset, count)

    async def _read(self, topic: str, offset: int, count: int = READ_MESSAGES) -> GetResult | None:
        """Return messages of queue 0 from an offset on, in memory; None at its end."""
        low, high = self._store.bounds(topic, HALF_QUEUE)
        offset = max(offset, low)
        if offset >= high:
            return None
        count = min(count, READ_MESSAGES)
        reader = self._store.reader
        cold = reader.cold_units(topic, HALF_QUEUE, offset, count, None)
        if cold:
            await self._cold_reads.run(partial(bring_in, cold))
        found = self._store.get(topic, HALF_QUEUE, offset, count, max_bytes=READ_BYTES)
        if found.next_begin_offset <= offset:
            return None
        cold = reader.cold_records(found)
        if cold:
            await self._cold_reads.run(partial(bring_in, cold))
        if self.on_read is not None and found.count:
            self.on_read(topic, HALF_QUEUE, found.count, found.size_bytes)
        return found

    async def _read_records(self, topic: str, offset: int) -> _Records | None:
        """Return the records of queue 0 from an offset on, in memory; None at its end.

        If the disk has damaged one of them, only the first is read.
        """
        count = READ_MESSAGES
        while (found := await self._read(topic, offset, count)) is not None:
            try:
                records: list[memoryview | None] = [*records_of(found)]
            except RecordError:
                records = []
            if len(records) == found.count:
                return _Records(records, found.next_begin_offset)
            if found.count == 1:
                return _Records([None], found.next_begin_offset)
            count = 1
        return None

    async def newest_copy(self, half: HalfMessage, topic: str = HALF_TOPIC) -> HalfMessage | None:
        """Return the newest record of a topic that is a copy of a half message, perhaps itself.

        Args:
            half: the half message, as it was sent or as it was put back.
            topic: the half topic, or the topic of the half messages that were discarded.

        Returns:
            None if the index has none of them, for example because it is disabled.
        """
        if not half.unique_key:
            return None
        search = self._store.search(topic, half.unique_key, COPIES_MAX, 0, LATEST_MS)
        slices = Slices()
        while True:
            await self._cold_reads.run(partial(search.bring_in, SEARCH_ENTRIES))
            await slices.pause()
            if search.advance(SEARCH_ENTRIES):
                break
        await self._cold_reads.run(partial(search.bring_in_found, READ_BYTES))
        for data in reversed(search.result().records):
            found = _read_intact(data)
            if found is not None and found.is_copy_of(half):
                return found
        return None

    # --- deciding -------------------------------------------------------------------------------

    def commit(
        self, half: HalfMessage, topic: str, queue_id: int
    ) -> tuple[NewRecord, list[Appended]]:
        """Store the message for consumers; return it, and its record followed by the op message.

        Args:
            half: the half message.
            topic, queue_id: the target queue.

        Raises:
            StoreError, InvalidMessageError: the store does not take it; nothing has changed.
        """
        self._require_loaded()
        message = half.committed(self._timers, topic, queue_id)
        stored = self._append([message, half.op(self._clock.now_ms())])
        self._decided.add(half.queue_offset)
        self._figures.committed += 1
        return message, stored

    def roll_back(self, half: HalfMessage) -> Appended:
        """Store that a half message is rolled back.

        Raises:
            StoreError: the store does not take the op message; nothing has changed.
        """
        self._require_loaded()
        (stored,) = self._append([half.op(self._clock.now_ms())])
        self._decided.add(half.queue_offset)
        self._figures.rolled_back += 1
        return stored

    def replace(self, pairs: Sequence[tuple[HalfMessage, NewRecord]]) -> list[Appended]:
        """Store half messages again, elsewhere or at the end of the half queue.

        Args:
            pairs: each half message, and what is stored for it.

        Returns:
            Where the new messages are.

        Raises:
            StoreError, InvalidMessageError: the store does not take them; nothing has changed.
        """
        self._require_loaded()
        now_ms = self._clock.now_ms()
        messages: list[NewRecord] = []
        for half, message in pairs:
            messages += (message, half.op(now_ms))
        stored = self._append(messages)
        for half, message in pairs:
            self._decided.add(half.queue_offset)
            if message.topic == HALF_TOPIC:
                self._figures.put_back += 1
            else:
                self._figures.discarded += 1
        return stored[::2]

    def resume(self, discarded: HalfMessage) -> tuple[HalfMessage, Appended]:
        """Put a half message that was discarded back into the half queue, as if never checked.

        Raises:
            StoreError, InvalidMessageError: the store does not take it; nothing has changed.
        """
        self._require_loaded()
        copy = discarded.put_back(0)
        (stored,) = self._append([copy.waiting()])
        return copy.stored_at(stored.queue_offset, stored.log_offset), stored

    def _append(self, messages: list[NewRecord]) -> list[Appended]:
        stored = self._store.append_all(messages)
        if self.on_stored is not None:
            for message, result in zip(messages, stored, strict=True):
                if message.topic in (HALF_TOPIC, OP_HALF_TOPIC):
                    self.on_stored(message.topic, result.size_bytes)
        return stored

    def _require_loaded(self) -> None:
        """Refuse to store anything on a slave, or before it is known what is decided.

        Raises:
            StoreError: the role of this broker has changed since the request or round began.
        """
        if not self.is_loaded:
            raise StoreError("it is not known which transactions are decided: the role has changed")

    def skip(self, offset: int) -> None:
        """Count an offset as decided whose record is deleted, or cannot be read."""
        self._decided.add(offset)

    # --- committed offsets ----------------------------------------------------------------------

    async def commit_offsets(self, offset: int, slices: Slices) -> None:
        """Commit how far all is decided, in half queue and op queue.

        Args:
            offset: the first half message that may be undecided; none after it counts.
            slices: the work is divided into them.
        """
        if not self.is_loaded:
            return
        term = self.term
        end = self._store.bounds(HALF_TOPIC, HALF_QUEUE)[1]
        self._decided.advance(min(offset, end))
        base = self._decided.base
        while found := await self._read_records(OP_HALF_TOPIC, self._op_offset):
            if self.term != term:
                return
            done = _done_before(found.records, base)
            self._op_offset = found.next_offset - len(found.records) + done
            if done < len(found.records):
                break
            await slices.pause()
        if self.term != term:
            return
        done_before = self._confirmed(base, self._op_offset)
        if done_before is None:
            return
        for topic, done_to in zip((HALF_TOPIC, OP_HALF_TOPIC), done_before, strict=True):
            # Without a change there is nothing to write to the file, nor a log to flush before.
            if done_to != (self._offsets.committed(GROUP, topic, HALF_QUEUE) or 0):
                self._offsets.commit(GROUP, topic, HALF_QUEUE, done_to)

    def take_back(self, log_end: int) -> None:
        """Count the half messages as undecided whose op messages are about to be truncated.

        Persist the committed offsets before the log is truncated.

        Args:
            log_end: the end that the log gets.
        """
        store = self._store
        committed = self._offsets.committed(GROUP, HALF_TOPIC, HALF_QUEUE) or 0
        op_end = store.end_at(OP_HALF_TOPIC, HALF_QUEUE, log_end)
        records = (
            store.written_record_at(*unit)
            for unit in store.written_units(OP_HALF_TOPIC, HALF_QUEUE, op_end)
        )
        bodies = (_intact_body(memoryview(record)) for record in records if record is not None)
        named = (offset for body in bodies if body is not None for offset in op_offsets(body))
        first = min(named, default=committed)
        half = next(store.written_units(HALF_TOPIC, HALF_QUEUE, first, first + 1), None)
        if first >= committed or half is None:
            return
        # The op messages of all half messages from there on are behind it.
        op_offset = min(op_end, store.end_at(OP_HALF_TOPIC, HALF_QUEUE, half[0]))
        log.warning(
            "the log is truncated where it has decisions, their transactions are checked again"
            " from=%d to=%d",
            *(committed, first),
        )
        self._offsets.commit(GROUP, HALF_TOPIC, HALF_QUEUE, first)
        self._offsets.commit(GROUP, OP_HALF_TOPIC, HALF_QUEUE, op_offset)

    def _confirmed(self, base: int, op_offset: int) -> tuple[int, int] | None:
        """Return offsets to commit whose op messages cannot be truncated any more.

        If other replicas must confirm the log, those are the ones of the last call: a master that
        is elected may lack the newest op messages, and a half message before its committed offset
        would count as decided there.
        """
        if not self._store.confirms:
            return base, op_offset
        before, self._unconfirmed = self._unconfirmed, (base, op_offset, self._store.written_to)
        if before is None or before[2] > self._store.confirmed_to:
            return None
        return before[:2]


class _Records(NamedTuple):
    """Some messages of a queue."""

    records: Sequence[memoryview | None]
    """None for a damaged one."""
    next_offset: int


def _read_intact(record: bytes | memoryview | None) -> HalfMessage | None:
    """Return a half message; None for no record, and for a damaged one."""
    try:
        return None if record is None else read_half(record)
    except RecordError:
        return None


def is_committed(message: HalfMessage) -> bool:
    """Return whether a record is what became of a half message by a commit."""
    return transaction_type(message.record.sys_flag) == SysFlag.TRANSACTION_COMMIT


def records_of(found: GetResult) -> Iterator[memoryview]:
    """Yield the records of a read.

    Raises:
        RecordError: the disk has damaged one.
    """
    for part in found.slices:
        at = 0
        while at < len(part):
            size = int.from_bytes(part[at : at + 4], "big")
            if not RECORD_BYTES_MIN <= size <= len(part) - at:
                raise RecordError(f"a record of {size} bytes, {len(part) - at} are left")
            yield part[at : at + size]
            at += size


def queue_offset_of(record: memoryview) -> int:
    """Return the queue offset of a record."""
    return int.from_bytes(record[QUEUE_OFFSET_AT : QUEUE_OFFSET_AT + 8], "big")


def _intact_body(record: memoryview | None) -> bytes | None:
    """Return the body of an op message; None if the disk has damaged it."""
    if record is None:
        return None
    start = body_at(int.from_bytes(record[SYS_FLAG_AT : SYS_FLAG_AT + 4], "big"))
    size = int.from_bytes(record[start - BODY_LENGTH_BEFORE_BODY : start], "big")
    body = bytes(record[start : start + size])
    crc = int.from_bytes(record[BODY_CRC_AT : BODY_CRC_AT + 4], "big")
    return body if body and body_crc(body) == crc else None


def _done_before(records: Sequence[memoryview | None], base: int) -> int:
    """Return how many op messages name only half messages before the base."""
    done = 0
    for body in map(_intact_body, records):
        if body is not None and any(offset >= base for offset in op_offsets(body)):
            break
        done += 1
    return done
