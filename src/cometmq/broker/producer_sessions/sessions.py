"""The producer sessions of a broker: their table, and the system topic that keeps it.

A session belongs to a topic. The attempt that opened it last may send, all others are refused.

    record := {topic, name, owner, epoch, batch, firstLogOffset, brokers, usedMs, expiryMs,
               baseOffset}

Each opening appends a record to queue 0 of the system topic; the newest record of a session is its
state. `baseOffset` is the queue offset before which no record counts. So the table is read from the
last record on: from its base to the end. The log decides the order of openings and sends, so every
copy of the log has the same sessions.

The table is a cache. It is read when a request first needs it, and forgotten when the role changes
or the log is truncated. Used in the event loop's thread.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from cometmq.broker.cold_reads import ColdReads
from cometmq.broker.prerequisites import PrerequisiteError
from cometmq.broker.producer_sessions.refusals import (
    EPOCH_MAX,
    FencedError,
    batch_old,
    fenced,
    not_owned,
    sessions_full,
    unknown,
)
from cometmq.model.errors import StoreError
from cometmq.model.topic import PRODUCER_SESSION_QUEUE as QUEUE
from cometmq.model.topic import PRODUCER_SESSION_TOPIC
from cometmq.protocol.record import RecordError, body_crc, split_record
from cometmq.remoting.slices import Slices
from cometmq.store import MessageStore, NewRecord
from cometmq.system.clock import Clock

log = logging.getLogger(__name__)

DEAD_RECORDS_MIN = 4_096
"""The records that count no more, and are left, beside one for each session that counts."""
APPENDED_MAX = 100
"""Records that are stored again with one write."""
TOPIC_PART = 4
"""One topic may have a fourth of the sessions."""


class SessionLimits(NamedTuple):
    """The limits of the table."""

    sessions_max: int
    expiry_ms: int
    """A session that is not used for this long is forgotten."""
    records_ms: int
    """A record of this age is stored again, before its file expires."""


class Opening(NamedTuple):
    """What an attempt opens."""

    topic: str
    name: str
    owner: str
    """The name of the attempt alone."""
    batch: int
    epoch: int
    """0 for the next one."""
    brokers: tuple[str, ...]
    """All brokers at which the attempt opens the session."""
    queues: int
    """The number of queues of the topic."""
    expiry_ms: int
    """After how long without use the session is forgotten; 0 for the limit of the broker."""


class Opened(NamedTuple):
    """The outcome of an opening."""

    epoch: int
    brokers: tuple[str, ...]
    """All brokers at which the session was opened for this batch."""
    begins: list[int]
    """The end of each queue at the first opening for this batch."""
    ends: list[int]
    """The end of each queue now."""
    is_complete: bool
    """Whether all messages since the first opening are still stored."""
    log_end: int
    """The log offset behind the record: what the response waits for."""


class _Record(msgspec.Struct, rename="camel"):
    """The content of a record."""

    topic: str
    name: str
    owner: str
    epoch: int
    batch: int
    first_log_offset: int
    """Nothing of the batch is stored before it."""
    brokers: tuple[str, ...]
    used_ms: int
    expiry_ms: int
    base_offset: int


class _Session(msgspec.Struct):
    """The state of a session."""

    record: _Record
    queue_offset: int
    """The queue offset of its newest record."""
    stored_ms: int
    """When that was stored."""


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(_Record).decode


class ProducerSessions:
    """The producer sessions of a broker.

    Args:
        store: contains their records.
        limits: returns the limits of the table.
        clock: the time of their last use.
        cold_reads: reads what is on the disk only.
        store_host: the address of this broker as records carry it.
    """

    def __init__(
        self,
        store: MessageStore,
        limits: Callable[[], SessionLimits],
        *,
        clock: Clock,
        cold_reads: ColdReads,
        store_host: bytes,
    ) -> None:
        self._store = store
        self._limits = limits
        self._clock = clock
        self._cold_reads = cold_reads
        self._store_host = store_host
        self._sessions: dict[tuple[str, str], _Session] = {}
        """By topic and name; the session with the oldest record first."""
        self._of_topic: Counter[str] = Counter()
        self._is_loaded = False
        self._term = 0
        """Counts how often the table was forgotten."""
        self._loading = asyncio.Lock()
        self.refused = 0
        """Openings and sends that were refused because of a newer attempt."""

    def __len__(self) -> int:
        return len(self._sessions)

    # --- requests -------------------------------------------------------------------------------

    def check_send(self, topic: str, name: str, epoch: int, owner: str) -> None:
        """Check that a send is one of the attempt that opened its session last.

        Raises:
            PrerequisiteError: the table has to be read first.
            ResponseError: it is not.
        """
        self._require_loaded()
        session = self._sessions.get((topic, name))
        if session is None or epoch > session.record.epoch:
            raise unknown(topic, name, epoch, None if session is None else session.record.epoch)
        newest = session.record
        if epoch < newest.epoch or owner != newest.owner:
            self.refused += 1
            raise fenced(topic, name, epoch, newest.epoch)
        newest.used_ms = self._clock.now_ms()

    def open(self, opening: Opening) -> Opened:
        """Open a session: from now on only its owner can send.

        Raises:
            PrerequisiteError: the table has to be read first.
            FencedError: another attempt has this epoch, or a newer one.
            ResponseError: the batch is older than that of the session, or there are too many.
            StoreError: the record cannot be stored; nothing has changed.
        """
        self._require_loaded()
        known = self._sessions.get((opening.topic, opening.name))
        newest = None if known is None else known.record
        if newest is None:
            self._check_room(opening.topic)
        elif opening.batch < newest.batch:
            self.refused += 1
            raise batch_old(opening.topic, opening.name, opening.batch, newest.batch)
        epoch = self._epoch_of(opening, newest)
        self._store.appender.finish_deferred()
        log_end = self._store.written_to
        repeated = newest if newest is not None and newest.batch == opening.batch else None
        brokers = () if repeated is None else repeated.brokers
        record = _Record(
            opening.topic,
            opening.name,
            opening.owner,
            epoch,
            opening.batch,
            log_end if repeated is None else repeated.first_log_offset,
            tuple(dict.fromkeys(brokers + opening.brokers)),
            self._clock.now_ms(),
            opening.expiry_ms,
            0,
        )
        stored_to = self._append([record])
        queues = range(opening.queues)
        ends = [self._store.next_offset(opening.topic, number) for number in queues]
        begins, first = ends, record.first_log_offset
        if repeated is not None:
            begins = [self._store.end_at(opening.topic, number, first) for number in queues]
        is_complete = first >= self._store.min_log_offset
        return Opened(epoch, record.brokers, begins, ends, is_complete, stored_to)

    def _epoch_of(self, opening: Opening, newest: _Record | None) -> int:
        current = 0 if newest is None else newest.epoch
        epoch = opening.epoch or current + 1
        is_repeated = newest is not None and epoch == current and opening.owner == newest.owner
        if epoch <= current and not is_repeated:
            self.refused += 1
            raise FencedError(opening.topic, opening.name, epoch, current)
        if epoch > EPOCH_MAX:
            raise not_owned(epoch)
        return epoch

    def _check_room(self, topic: str) -> None:
        most = self._limits().sessions_max
        of_topic = -(-most // TOPIC_PART)
        if len(self._sessions) >= most or self._of_topic[topic] >= of_topic:
            raise sessions_full(len(self._sessions), most, topic, self._of_topic[topic], of_topic)

    def _require_loaded(self) -> None:
        if not self._is_loaded:
            raise PrerequisiteError(self.load)

    # --- records --------------------------------------------------------------------------------

    def _append(self, records: list[_Record]) -> int:
        """Store records, the newest of their sessions; return where they end in the log."""
        base = self._base({(record.topic, record.name) for record in records})
        for record in records:
            record.base_offset = base
        now_ms = self._clock.now_ms()
        stored = self._store.append_all(
            [
                NewRecord(
                    PRODUCER_SESSION_TOPIC,
                    QUEUE,
                    _encode(record),
                    born_time_ms=now_ms,
                    born_host=self._store_host,
                    store_host=self._store_host,
                )
                for record in records
            ]
        )
        for record, place in zip(records, stored, strict=True):
            self._put(_Session(record, place.queue_offset, place.store_time_ms))
        return stored[-1].log_offset_end

    def _base(self, renewed: set[tuple[str, str]]) -> int:
        """Return the queue offset of the oldest record that counts.

        Args:
            renewed: the sessions that get a new record now.
        """
        for key, session in self._sessions.items():
            if key not in renewed:
                return session.queue_offset
        return self._store.next_offset(PRODUCER_SESSION_TOPIC, QUEUE)

    def _put(self, session: _Session) -> None:
        key = (session.record.topic, session.record.name)
        if self._sessions.pop(key, None) is None:
            self._of_topic[key[0]] += 1
        self._sessions[key] = session  # behind all others: its record is the newest

    def _remove(self, key: tuple[str, str]) -> None:
        del self._sessions[key]
        self._of_topic[key[0]] -= 1
        if not self._of_topic[key[0]]:
            del self._of_topic[key[0]]

    # --- reading the table ----------------------------------------------------------------------

    def unload(self) -> None:
        """Forget the table: the log may get other records than those that it was read from."""
        self._sessions, self._of_topic = {}, Counter()
        self._is_loaded = False
        self._term += 1

    async def load(self) -> None:
        """Read the table, once.

        Raises:
            StoreError, ResponseError: the disk cannot read, or queues lack records of the log, or
                the role has changed meanwhile; the next call tries again.
        """
        async with self._loading:
            if not self._is_loaded:
                await self._load()

    async def _load(self) -> None:
        if self._store.dispatch_backlog_bytes:
            raise StoreError("producer sessions: queues lack records of the log, the disk is full")
        term, now_ms = self._term, self._clock.now_ms()
        sessions: dict[tuple[str, str], _Session] = {}
        start = await self._newest_base()
        slices = Slices()
        units = self._store.written_units(PRODUCER_SESSION_TOPIC, QUEUE, start)
        damaged = count = 0
        for log_offset, size in units:
            session = await self._read(log_offset, size)
            count += 1
            if session is None:
                damaged += 1
            else:
                key = (session.record.topic, session.record.name)
                sessions.pop(key, None)
                sessions[key] = session
            await slices.pause()
            if self._term != term:
                raise StoreError("producer sessions: the role of this broker has changed")
        if damaged:
            log.error(
                "passed over damaged records of producer sessions count=%d: an earlier attempt of a"
                " session may be able to send",
                damaged,
            )
        self._sessions = {
            key: each for key, each in sessions.items() if not self._is_expired(each.record, now_ms)
        }
        self._of_topic = Counter(topic for topic, _ in self._sessions)
        self._is_loaded = True
        if count:
            log.info("read producer sessions count=%d records=%d", len(self._sessions), count)

    async def _newest_base(self) -> int:
        """Return the queue offset from which on records count."""
        end = self._store.next_offset(PRODUCER_SESSION_TOPIC, QUEUE)
        last = next(self._store.written_units(PRODUCER_SESSION_TOPIC, QUEUE, end - 1), None)
        if last is None or (session := await self._read(*last)) is None:
            return 0
        return session.record.base_offset

    async def _read(self, log_offset: int, size: int) -> _Session | None:
        """Return the session of a record; None if the disk has damaged it."""
        await self._cold_reads.run(self._store.cold_record(log_offset, size))
        data = self._store.written_record_at(log_offset, size)
        try:
            parts = None if data is None else split_record(data)
            if parts is None or body_crc(parts.body) != parts.body_crc:
                return None
            return _Session(_decode(parts.body), parts.queue_offset, parts.store_time_ms)
        except (RecordError, msgspec.MsgspecError):
            return None

    # --- maintenance ----------------------------------------------------------------------------

    async def maintain(self) -> None:
        """Forget expired sessions, and store records again that expire or stand behind dead ones.

        Raises:
            StoreError: the disk refused; the next call tries again.
        """
        await self.load()
        term, now_ms = self._term, self._clock.now_ms()
        async for key, session in Slices().each(list(self._sessions.items())):
            if self._term != term:
                return
            is_same = self._sessions.get(key) is session
            if is_same and self._is_expired(session.record, now_ms):
                self._remove(key)
        slices = Slices()
        while self._term == term and (records := self._due()):
            self._append(records)
            await slices.pause()

    def _is_expired(self, record: _Record, now_ms: int) -> bool:
        most_ms = self._limits().expiry_ms
        return record.used_ms + min(record.expiry_ms or most_ms, most_ms) < now_ms

    def _due(self) -> list[_Record]:
        """Return the oldest records, if they have to be stored again."""
        aged_ms = self._clock.now_ms() - self._limits().records_ms
        end = self._store.next_offset(PRODUCER_SESSION_TOPIC, QUEUE)
        most = 2 * len(self._sessions) + DEAD_RECORDS_MIN
        due: list[_Record] = []
        for session in self._sessions.values():
            is_due = session.stored_ms < aged_ms or end - session.queue_offset > most
            if not is_due or len(due) == APPENDED_MAX:
                break
            due.append(session.record)
        return due
