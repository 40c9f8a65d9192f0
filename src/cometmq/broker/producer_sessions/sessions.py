"""The producer sessions of a broker: their table, and the system topic that keeps it.

A session belongs to a topic. The attempt that opened it last may send, all others are refused.

    record := {topic, name, owner, epoch, batch, firstLogOffset, brokers, usedMs, expiryMs,
               baseOffset}

Each opening appends a record to queue 0 of the system topic; the newest record of a session is its
state. `baseOffset` is the queue offset before which no record counts. So the table is read from the
last record on: from its base to the end. The log decides the order of openings and sends, so every
copy of the log has the same sessions.

A broker that is missing in the openings of a topic for less than a minute, and was in those before,
counts as one at which the session was opened. Otherwise two attempts may have no broker in common:
the first one opens at `a` while `b` restarts, the second one at `b` while `a` does.

The table is a cache. It is read when a request first needs it, and forgotten when the role changes
or the log is truncated. Used in the event loop's thread.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Collection
from typing import NamedTuple

import msgspec

from cometmq.broker.cold_reads import ColdReads
from cometmq.broker.prerequisites import PrerequisiteError
from cometmq.broker.producer_sessions.refusals import (
    BROKERS_CHARS_MAX,
    EPOCH_MAX,
    FencedError,
    batch_old,
    fenced,
    not_owned,
    sessions_full,
    too_many_brokers,
    unknown,
)
from cometmq.model.errors import StoreError
from cometmq.model.topic import PRODUCER_SESSION_QUEUE as QUEUE
from cometmq.model.topic import PRODUCER_SESSION_TOPIC
from cometmq.protocol.record import RecordError, body_crc, split_record
from cometmq.remoting.slices import Slices
from cometmq.store import MessageStore, NewRecord, SegmentNotReadyError
from cometmq.system.clock import Clock

log = logging.getLogger(__name__)

DEAD_RECORDS_MIN = 4_096
"""The records that count no more, and are left, beside one for each session that counts."""
TOPIC_PART = 4
"""One topic may have a fourth of the sessions."""
USED_PART = 4
"""The last use of a session is stored again after a fourth of the time to its expiry."""
LOG_FILES_MIN = 4
"""Records in the older half of a log of more files are stored again: a full disk deletes them."""
MISSED_MS = 60_000
"""A broker that the openings of a topic lack for so long is gone, and not restarting."""
TEXT_CHARS_MAX = 256 * 1024 * 1024
"""The limit of the names and lists of brokers of all sessions together."""


class SessionLimits(NamedTuple):
    """The limits of the table."""

    sessions_max: int
    expiry_ms: int
    """A session that is not used for this long is forgotten."""
    records_ms: int
    """A record of this age is stored again, before its file expires."""

    @property
    def of_topic_max(self) -> int:
        """How many sessions one topic may have."""
        return -(-self.sessions_max // TOPIC_PART)


class SessionUsage(NamedTuple):
    """How much of the limits of the table is used."""

    sessions: int
    limit: int
    topic: str
    """The topic with the most sessions; empty if there is none."""
    of_topic: int
    limit_of_topic: int

    @property
    def ratio(self) -> float:
        """The used part of the limit of all sessions, or of one topic if that is more."""
        return max(self.sessions / self.limit, self.of_topic / self.limit_of_topic)


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
    """All brokers at which the session was opened for this batch, or may have been."""
    begins: list[int]
    """The end of each queue at the first opening for this batch."""
    ends: list[int]
    """The end of each queue now."""
    is_complete: bool
    """Whether all messages since the first opening are still stored."""
    log_end: int
    """The log offset behind the record: what the response waits for."""


class _Record(msgspec.Struct, rename="camel"):
    """The content of a record, the state of a session when it was stored."""

    topic: str
    name: str
    owner: str
    epoch: int
    batch: int
    first_log_offset: int
    """Nothing of the batch is stored before it."""
    brokers: str
    """Joined by semicolons."""
    used_ms: int
    expiry_ms: int
    base_offset: int

    @property
    def chars(self) -> int:
        """The length of its texts."""
        return len(self.topic) + len(self.name) + len(self.owner) + len(self.brokers)


class _Session(msgspec.Struct):
    """A session."""

    record: _Record
    """Its newest record."""
    queue_offset: int
    log_offset: int
    stored_ms: int
    """When the record was stored."""
    used_ms: int
    """When the session was used last."""


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
        self._chars = 0
        """The length of all texts."""
        self._members: dict[str, dict[str, int]] = {}
        """By topic the brokers of its openings: since when, in ms, openings lack one, 0 if the last
        one has it."""
        self._is_loaded = False
        self._term = 0
        """Counts how often the table was forgotten."""
        self._loading = asyncio.Lock()
        self.refused = 0
        """Openings and sends that were refused because of a newer attempt."""
        self.refused_full = 0
        """Openings that were refused because there were too many sessions."""

    def __len__(self) -> int:
        return len(self._sessions)

    def usage(self) -> SessionUsage:
        """Return how much of the limits is used, by the sessions that were read since the start."""
        topic = max(self._of_topic, key=self._of_topic.__getitem__, default="")
        limits = self._limits()
        of_topic = self._of_topic[topic], limits.of_topic_max
        return SessionUsage(len(self), limits.sessions_max, topic, *of_topic)

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
        session.used_ms = self._clock.now_ms()

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
        brokers = self._brokers_of(opening, repeated)
        record = _Record(
            opening.topic,
            opening.name,
            opening.owner,
            epoch,
            opening.batch,
            log_end if repeated is None else repeated.first_log_offset,
            ";".join(brokers),
            self._clock.now_ms(),
            opening.expiry_ms,
            0,
        )
        stored_to = self._append(record)
        queues = range(opening.queues)
        ends = [self._store.next_offset(opening.topic, number) for number in queues]
        begins, first = ends, record.first_log_offset
        if repeated is not None:
            begins = [self._store.end_at(opening.topic, number, first) for number in queues]
        is_complete = first >= self._store.min_log_offset
        self._note_members(record, opening.brokers)
        brokers = tuple(dict.fromkeys((*brokers, *self._members[opening.topic])))
        return Opened(epoch, brokers, begins, ends, is_complete, stored_to)

    @staticmethod
    def _brokers_of(opening: Opening, repeated: _Record | None) -> tuple[str, ...]:
        """Return all brokers at which the session was opened for this batch."""
        known = repeated.brokers.split(";") if repeated is not None and repeated.brokers else ()
        brokers = tuple(dict.fromkeys((*known, *opening.brokers)))
        if (chars := sum(map(len, brokers)) + len(brokers)) > BROKERS_CHARS_MAX:
            raise too_many_brokers(opening.topic, opening.name, len(brokers), chars)
        return brokers

    def _note_members(self, record: _Record, brokers: Collection[str]) -> None:
        """Note at which brokers a session was opened, and which ones openings lack."""
        members = self._members.setdefault(record.topic, {})
        for broker in [each for each in members if each not in brokers]:
            missed_ms = members[broker] = members[broker] or record.used_ms
            if record.used_ms - missed_ms >= MISSED_MS:
                del members[broker]
        members |= dict.fromkeys(brokers, 0)
        if sum(map(len, members)) > BROKERS_CHARS_MAX:
            self._members[record.topic] = dict.fromkeys(brokers, 0)

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
        most, of_topic_max = self._limits().sessions_max, self._limits().of_topic_max
        of_topic = self._of_topic[topic]
        is_full = len(self._sessions) >= most or self._chars >= TEXT_CHARS_MAX
        if is_full or of_topic >= of_topic_max:
            self.refused_full += 1
            raise sessions_full(len(self._sessions), most, topic, of_topic, of_topic_max)

    def _require_loaded(self) -> None:
        if not self._is_loaded:
            raise PrerequisiteError(self.load)

    # --- records --------------------------------------------------------------------------------

    def _append(self, record: _Record) -> int:
        """Store a record, the newest of its session; return where it ends in the log."""
        key = (record.topic, record.name)
        others = (session for other, session in self._sessions.items() if other != key)
        oldest = next(others, None)
        end = self._store.next_offset(PRODUCER_SESSION_TOPIC, QUEUE)
        record.base_offset = end if oldest is None else oldest.queue_offset
        stored = self._store.append(
            NewRecord(
                PRODUCER_SESSION_TOPIC,
                QUEUE,
                _encode(record),
                born_time_ms=self._clock.now_ms(),
                born_host=self._store_host,
                store_host=self._store_host,
            )
        )
        if key in self._sessions:
            self._remove(key)
        place = stored.queue_offset, stored.log_offset, stored.store_time_ms
        self._add(_Session(record, *place, record.used_ms))
        return stored.log_offset_end

    def _remove(self, key: tuple[str, str]) -> None:
        self._chars -= self._sessions.pop(key).record.chars
        self._of_topic[key[0]] -= 1
        if not self._of_topic[key[0]]:
            del self._of_topic[key[0]]

    def _add(self, session: _Session) -> None:
        """Add a session behind all others: its record is the newest."""
        record = session.record
        self._sessions[record.topic, record.name] = session
        self._of_topic[record.topic] += 1
        self._chars += record.chars

    # --- reading the table ----------------------------------------------------------------------

    def unload(self) -> None:
        """Forget the table: the log may get other records than those that it was read from."""
        self._clear()
        self._term += 1

    def _clear(self) -> None:
        self._sessions, self._of_topic, self._chars = {}, Counter(), 0
        self._members = {}
        self._is_loaded = False

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
            self._check_term(term)
        if damaged:
            log.error(
                "passed over damaged records of producer sessions count=%d: an earlier attempt of a"
                " session may be able to send",
                damaged,
            )
        self._clear()
        async for session in slices.each(sessions.values()):
            self._check_term(term)
            if not self._is_expired(session, now_ms):
                self._add(session)
                self._note_members(session.record, session.record.brokers.split(";"))
        self._check_term(term)
        self._is_loaded = True
        if count:
            log.info("read producer sessions count=%d records=%d", len(self._sessions), count)

    def _check_term(self, term: int) -> None:
        if self._term != term:
            raise StoreError("producer sessions: the role of this broker has changed")

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
            record = _decode(parts.body)
            place = parts.queue_offset, parts.log_offset, parts.store_time_ms
            return _Session(record, *place, record.used_ms)
        except (RecordError, msgspec.MsgspecError):
            return None

    # --- maintenance ----------------------------------------------------------------------------

    async def maintain(self) -> None:
        """Forget expired sessions, and store records again that would be lost or out of date.

        Raises:
            StoreError: the disk refused; the next call tries again.
        """
        await self.load()
        term, now_ms = self._term, self._clock.now_ms()
        async for key, session in Slices().each(list(self._sessions.items())):
            if self._term != term:
                return
            if self._sessions.get(key) is not session:  # opened meanwhile
                continue
            if self._is_expired(session, now_ms):
                self._remove(key)
                if key[0] not in self._of_topic:
                    del self._members[key[0]]
            elif self._is_due(session, now_ms):
                try:
                    self._append(msgspec.structs.replace(session.record, used_ms=session.used_ms))
                except SegmentNotReadyError:  # the next call goes on
                    return

    def _expiry_ms(self, record: _Record) -> int:
        most_ms = self._limits().expiry_ms
        return min(record.expiry_ms or most_ms, most_ms)

    def _is_expired(self, session: _Session, now_ms: int) -> bool:
        return session.used_ms + self._expiry_ms(session.record) < now_ms

    def _is_due(self, session: _Session, now_ms: int) -> bool:
        """Return whether the record of a session has to be stored again.

        It does before it is deleted with its file, if it stands behind many dead records, or if it
        says that the session was used long ago, and it was not.
        """
        store, record = self._store, session.record
        kept, end = store.min_log_offset, store.written_to
        if end - kept > LOG_FILES_MIN * store.settings.commit_log_file_bytes:
            kept = (kept + end) // 2
        records = store.next_offset(PRODUCER_SESSION_TOPIC, QUEUE) - session.queue_offset
        return (
            session.log_offset < kept
            or session.stored_ms < now_ms - self._limits().records_ms
            or records > 2 * len(self._sessions) + DEAD_RECORDS_MIN
            or session.used_ms - record.used_ms > self._expiry_ms(record) // USED_PART
        )
