# cython: annotation_typing=False, boundscheck=False, wraparound=False, cdivision=True
"""Appends messages: a record in the log, a unit in a queue, keys in the index.

Space in all three is reserved before the first byte is written, so that a full disk refuses a
message instead of tearing it. For keys it is space for the usual number of them: a message with
more is stored, and the next one is refused until all of its keys are in the index. Single writer.
Source: CommitLog.asyncPutMessage and DefaultAppendMessageCallback, RocketMQ 5.3, whose limits
apply.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from cometmq.model import property_names
from cometmq.model.errors import InvalidMessageError, InvalidNameError
from cometmq.model.flags import SysFlag
from cometmq.model.topic import RETRY_PREFIX
from cometmq.protocol import batch, checksum, octets
from cometmq.protocol import properties as property_text
from cometmq.protocol.batch import MESSAGES_MAX
from cometmq.protocol.properties import PROPERTIES_BYTES_MAX
from cometmq.protocol.record import (
    CRC_MASK,
    FIXED_BYTES,
    HOST_V4_BYTES,
    HOST_V6_BITS,
    HOST_V6_BYTES,
    MAGIC_V1,
    MAGIC_V2,
    TOPIC_BYTES_MAX_V1,
)
from cometmq.store.errors import DeferredFullError, StoreUnavailableError
from cometmq.store.index.key_index import Index
from cometmq.store.log import record_layout
from cometmq.store.log.commit_log import CommitLog, room_failure
from cometmq.store.log.new_record import NewRecord
from cometmq.store.log.record_scan import RecordFacts
from cometmq.store.log.segments import Segment
from cometmq.store.paths import directory_name
from cometmq.store.queues.consume_queue import ConsumeQueue
from cometmq.store.queues.dispatch import Dispatcher, QueueTable, TopicQueues
from cometmq.store.queues.redispatch import Redispatched, redispatch
from cometmq.system.files import is_disk_full

logger = logging.getLogger(__name__)

TOPIC_BYTES_MAX = 255
RECORD_MARGIN_BYTES = 64 * 1024
"""The bytes by which a record may exceed the largest body."""

_CATCH_UP_RECORDS = 200
"""Records that are dispatched at a time after a full disk: about 2 ms."""
_KEYS_EXPECTED = 64
_HOST_V4_BYTES, _HOST_V6_BYTES = HOST_V4_BYTES, HOST_V6_BYTES
_V6_EXTRA_BYTES = HOST_V6_BYTES - HOST_V4_BYTES
_BORN_V6, _STORE_V6 = int(SysFlag.BORN_HOST_V6), int(SysFlag.STORE_HOST_V6)
_PREPARED = SysFlag.TRANSACTION_PREPARED
"""Set in the flags of half messages and of rollbacks, which have no unit in a queue."""
_V6_BITS = HOST_V6_BITS
_AS_ONE = int(SysFlag.INNER_BATCH | SysFlag.NEED_UNWRAP)
"""Set in the flags of a batch that is one record, so that clients unwrap it."""
_COUNT, _BASE = property_names.INNER_NUM.encode(), property_names.INNER_BASE.encode()
# These names are C numbers once compiled.
_FIXED_BYTES = FIXED_BYTES
_PROPERTIES_MAX = PROPERTIES_BYTES_MAX
_MARGIN_BYTES = RECORD_MARGIN_BYTES
_V1, _V2 = MAGIC_V1, MAGIC_V2
_CRC_MASK = CRC_MASK

Arrival = Callable[[str, int, int, int, int, bytes], None]
"""Called for each message: topic, queue, queue offset, tags code, store time, properties."""


class Appended:
    """The offsets, the size and the store time of a stored message."""

    __slots__ = ("log_offset", "queue_offset", "size_bytes", "store_time_ms")

    log_offset: int
    size_bytes: int
    queue_offset: int
    store_time_ms: int

    @property
    def log_offset_end(self) -> int:
        """The log offset behind it: what a response to it waits for."""
        return self.log_offset + self.size_bytes


class AppendedBatch:
    """The offsets, the size and the store time of the messages of a stored batch."""

    __slots__ = (
        "count",
        "log_offset_end",
        "packed_offsets",
        "queue_offset",
        "size_bytes",
        "store_time_ms",
    )

    def __init__(
        self,
        packed_offsets: bytearray,
        log_offset_end: int,
        size_bytes: int,
        queue_offset: int,
        store_time_ms: int,
    ) -> None:
        self.count = len(packed_offsets) // 8
        self.packed_offsets = packed_offsets
        self.log_offset_end = log_offset_end
        self.size_bytes = size_bytes
        self.queue_offset = queue_offset
        self.store_time_ms = store_time_ms


class Appender:
    """Appends messages to an open store.

    Args:
        log: the commit log.
        table: the queues.
        index: the index; None if messages cannot be looked up by key.
        dispatcher: appends to queues and index.
        now_ms: the clock of store times.
        message_bytes_max: the largest body.
        long_topics: whether topics over 127 bytes are allowed.

    ``on_arrival`` is called for the messages of the topics in ``awaited``, of all topics if None.
    """

    def __init__(
        self,
        log: CommitLog,
        table: QueueTable,
        index: Index | None,
        dispatcher: Dispatcher,
        now_ms: Callable[[], int],
        message_bytes_max: int,
        long_topics: bool,
    ) -> None:
        self._log = log
        self._table = table
        self._topics = table.topics
        self._index: Any = index
        self._dispatcher = dispatcher
        self._now_ms = now_ms
        self._long_topics = long_topics
        self.message_bytes_max = message_bytes_max
        self.refusal: str | None = None
        self.is_copy = False
        """Whether the log is a copy of the log of a master, so that it gets no other messages."""
        self.on_arrival: Arrival | None = None
        self.awaited: Any = None
        self.on_failure: Callable[[str], StoreUnavailableError] = StoreUnavailableError
        self._queues: Any = None
        self._queue: Any = None
        self._checked_more = b""
        self.on_new_topics: Callable[[list[str]], object] | None = None
        """Called with the topics that got their first queue from the log."""
        self.on_written: Callable[[], object] | None = None
        """Called after each write of records to the log, if there are slaves."""
        self._deferred = False
        self._deferred_ms = 0
        self.on_finish_deferred: Callable[[], None] | None = None
        """Called before others append or read while records are deferred: calls `write_staged`."""
        self._undispatched_at = -1
        self._caught_up_to = -1
        self._units_to = -1
        """The log offset from which records may lack units; -1 if none lacks its unit."""
        self._arrivals: list[tuple[str, int, int, int, int, bytes]] = []
        self._late_arrivals: list[tuple[TopicQueues, int, int, int, bytes]] = []
        self._late_written = 0
        """How many of these have records that are written to the log."""

    def append(self, record: NewRecord) -> Appended:
        """Store one message; see `MessageStore.append`."""
        self.finish_deferred()
        return self._append(record)

    def append_all(self, records: list[NewRecord]) -> list[Appended]:
        """Store several messages with one write; see `MessageStore.append_all`."""
        if len(records) == 1:
            return [self.append(records[0])]
        self.finish_deferred()
        whole = 0
        for record in records:
            self._prepare(record, octets.start_of(record.text))
            whole += record.size_bytes
            self._make_room(self._queue, whole, len(records))
        self.defer()  # all of them fit into the same write now
        try:
            stored = [self._append(record) for record in records]
        except BaseException as problem:
            # A queue may need its next file only after the first messages, and the disk be full.
            self._deferred = False
            try:
                self._discard_staged()
            except OSError as another:
                raise self.on_failure(f"{problem}; then: {another}") from problem
            self._stop_dispatch(self._indexed_to(), problem)
            raise
        self.write_staged()
        return stored

    def _append(self, record: NewRecord) -> Appended:
        self.put(record)
        return _appended(record)

    def append_batch(self, record: NewRecord) -> AppendedBatch:
        """Store the messages of a batch; see `MessageStore.append_batch`."""
        if record.text_at < record.text_end:
            raise InvalidMessageError(
                "a batch with a property string, expected what its messages get in `more`"
            )
        self.finish_deferred()
        return self.put_batch(record)

    def put(self, record: NewRecord) -> None:
        """Store one message, whose log offset, queue offset, size and store time it sets."""
        source, text = octets.start_of(record.source), octets.start_of(record.text)
        self._prepare(record, text)
        self._make_room(self._queue, record.size_bytes, 1)
        kind = record.sys_flag & 0xC
        record.queue_offset = self._queue.max_offset if kind == 0 or kind == 8 else 0
        record.store_time_ms = self._store_ms()
        self._dispatcher.at_once = 1
        self._write(record, source, text)
        if not self._deferred:
            self.write_staged()

    def put_batch(self, record: NewRecord) -> AppendedBatch:
        """Store the messages of a batch."""
        source = octets.start_of(record.source)
        start, stop = record.body_at, record.body_end
        if record.sys_flag & 0xC:
            raise InvalidMessageError("a batch cannot be part of a transaction")
        if stop - start > self.message_bytes_max:
            raise _too_large("a batch", stop - start, self.message_bytes_max)
        self._find_queue(record)
        if self._queues.long_name:
            raise _too_large("the topic of a batch", len(record.topic.encode()), TOPIC_BYTES_MAX_V1)
        if start == stop:
            raise InvalidMessageError("a batch without messages")
        extra = _take_hosts(record)
        item = _item_of(record)
        count = 0
        whole = 0
        position = start
        while position < stop:
            position = _take_item(item, source, position, stop)
            _check_text(source, item.text_at, position)
            whole += self._record_bytes(item) + extra
            count += 1
        if whole > self.message_bytes_max:
            raise _too_large("the records of a batch", whole, self.message_bytes_max)
        self._make_room(self._queue, whole, count)
        item.queue_offset = record.queue_offset = self._queue.max_offset
        item.store_time_ms = record.store_time_ms = self._store_ms()
        packed_offsets = bytearray(count * 8)
        offsets = record_layout.address_of(packed_offsets)
        field_bytes = len(self._queues.field)
        self._dispatcher.at_once = count
        count = 0
        position = start
        while position < stop:
            position = _take_item(item, source, position, stop)
            item.size_bytes = _size_of(field_bytes, item) + extra
            self._write(item, source, source)
            record_layout.put_i64(offsets, count * 8, item.log_offset)
            item.queue_offset += 1
            count += 1
        if not self._deferred:
            self.write_staged()
        return AppendedBatch(
            packed_offsets,
            item.log_offset + item.size_bytes,
            whole,
            record.queue_offset,
            record.store_time_ms,
        )

    def append_as_one(self, record: NewRecord) -> Appended:
        """Store a batch as one record; see `MessageStore.append_as_one`."""
        self.finish_deferred()
        self.put_as_one(record)
        return _appended(record)

    def put_as_one(self, record: NewRecord) -> int:
        """Store a batch as one record; return the number of its messages."""
        if record.sys_flag & 0xC:
            raise InvalidMessageError("a batch cannot be part of a transaction")
        source = octets.start_of(record.source)
        count = batch.count_items(source, record.body_at, record.body_end)
        if not 1 <= count <= MESSAGES_MAX:
            raise InvalidMessageError(f"a batch of {count} messages, expected 1 to {MESSAGES_MAX}")
        self._find_queue(record)
        if not self._queue.holds_batches:
            try:
                self._queue = self._table.hold_batches(self._queues, self._queue)
            except OSError as problem:
                raise room_failure(problem) from problem
        record.sys_flag |= _AS_ONE
        record.more += b"%b\x01%d\x02%b\x01%d\x02" % (
            _COUNT,
            count,
            _BASE,
            self._queue.max_offset,
        )
        self.put(record)
        return count

    def _prepare(self, record: NewRecord, text: Any) -> None:
        """Find the queue of a message, check it, and set its size.

        Raises:
            StoreUnavailableError: the store takes no messages now.
            InvalidMessageError: it breaks a limit.
        """
        self._find_queue(record)
        _check_text(text, record.text_at, record.text_end)
        record.properties_bytes = property_text.joined_bytes(
            text, record.text_at, record.text_end, record.more
        )
        record.size_bytes = self._record_bytes(record) + _take_hosts(record)

    def _find_queue(self, record: NewRecord) -> None:
        """Find the queue of a message, and check that the store takes messages.

        Raises:
            StoreUnavailableError: the store takes no messages now.
            InvalidMessageError: the queue is invalid, or ``more`` is no property string.
        """
        if self.refusal is not None:
            raise StoreUnavailableError(self.refusal)
        if self.is_copy:
            raise StoreUnavailableError("this broker is a slave: its log is that of its master")
        if self._undispatched_at >= 0:
            self.catch_up()
        if self._log.filled == 0:
            self._late_written = len(self._late_arrivals)
        if record.more is not self._checked_more:
            _check_text(record.more, 0, len(record.more))
            self._checked_more = record.more
        queues = self._topics.get(record.topic)
        if queues is None:
            queues = self._new_topic(record.topic)
        queue = queues.queues.get(record.queue_id)
        if queue is None:
            queue = self._new_queue(queues, record.queue_id)
        self._queues, self._queue = queues, queue

    def _store_ms(self) -> int:
        """Return the store time of a message; deferred messages share one."""
        if not self._deferred:
            return self._now_ms()
        if self._deferred_ms == 0:
            self._deferred_ms = self._now_ms()
        return self._deferred_ms

    def _write(self, record: NewRecord, source: Any, text: Any) -> None:
        """Write a record to log, queue and index, which have room for it."""
        queues = self._queues
        record.magic = _V2 if queues.long_name else _V1
        record.body_crc = checksum.crc_of(source, record.body_at, record.body_end) & _CRC_MASK
        record.topic_field = queues.field
        self._log.write(record, source, text)
        filled = self._log.filled
        self._dispatch(
            queues,
            self._queue,
            record.log_offset,
            record.size_bytes,
            record.queue_offset,
            record.sys_flag,
            record.store_time_ms,
            self._log.memory,
            filled - record.properties_bytes,
            filled,
        )

    def _record_bytes(self, record: NewRecord) -> int:
        """Return the size of a record between IPv4 hosts, if it keeps the limits."""
        body_bytes = record.body_end - record.body_at
        if body_bytes > self.message_bytes_max:
            raise _too_large("a body", body_bytes, self.message_bytes_max)
        if record.properties_bytes > _PROPERTIES_MAX:
            raise _too_large("properties", record.properties_bytes, PROPERTIES_BYTES_MAX)
        total = _size_of(len(self._queues.field), record)
        if total > self.message_bytes_max + _MARGIN_BYTES:
            raise _too_large("a record", total, self.message_bytes_max + RECORD_MARGIN_BYTES)
        return total

    def _make_room(self, queue: ConsumeQueue, total: int, count: int) -> None:
        try:
            queue.make_room(count)
            if self._index is not None:
                self._index.make_room(count * _KEYS_EXPECTED)
        except OSError as problem:
            raise room_failure(problem) from problem
        if self._deferred and self._log.filled and not self._log.has_room(total):
            raise DeferredFullError
        try:
            self._log.make_room(total)
        except OSError as problem:
            raise self._log_failed(problem) from problem

    def _dispatch(
        self,
        queues: TopicQueues,
        queue: ConsumeQueue,
        log_offset: int,
        total: int,
        queue_offset: int,
        sys_flag: int,
        store_ms: int,
        memory: Any,
        at: int,
        end: int,
    ) -> None:
        """Dispatch a record that was just written, and note its arrival.

        Its properties are from ``at`` to ``end`` in a buffer.
        """
        tags_code = 0
        if self._undispatched_at < 0:
            try:
                tags_code = self._dispatcher.dispatch_in(
                    queues,
                    queue,
                    log_offset,
                    total,
                    queue_offset,
                    sys_flag,
                    store_ms,
                    memory,
                    at,
                    end,
                )
            except OSError as problem:
                self._stop_dispatch(log_offset, problem)
                self._units_to = self._undispatched_at
        if sys_flag & _PREPARED or not self._has_listener(queues):
            return
        properties = bytes(memory[at:end])
        if self._undispatched_at < 0:
            self._arrivals.append(
                (queues.name, queue.queue_id, queue_offset, tags_code, store_ms, properties)
            )
        else:
            self._late_arrivals.append((queues, queue.queue_id, queue_offset, store_ms, properties))

    def dispatch_copied(
        self, queues: TopicQueues, queue: ConsumeQueue, facts: RecordFacts, segment: Segment
    ) -> None:
        """Dispatch a record of a master that is in a segment of the log, until `finish_copied`."""
        self._dispatcher.at_once = 1
        end = facts.log_offset - segment.base_offset + facts.total
        self._dispatch(
            queues,
            queue,
            facts.log_offset,
            facts.total,
            facts.queue_offset,
            facts.sys_flag,
            facts.store_ms,
            segment.memory,
            end - len(facts.properties),
            end,
        )

    def finish_copied(self) -> None:
        """Add the keys of copied or staged records to the index, and notify of their arrival."""
        try:
            self._dispatcher.add_keys()
        except OSError as problem:
            self._stop_dispatch(self._indexed_to(), problem)
        if self._arrivals:
            self._notify()

    def _has_listener(self, queues: TopicQueues) -> bool:
        """Return whether `on_arrival` is called for the messages of a topic."""
        if self.on_arrival is None:
            return False
        return self.awaited is None or queues.name in self.awaited

    @property
    def is_deferred(self) -> bool:
        """Whether records are deferred until `write_staged`."""
        return self._deferred

    def finish_deferred(self) -> None:
        """Write deferred records before others append or read."""
        if self._deferred and self.on_finish_deferred is not None:
            self.on_finish_deferred()

    def defer(self) -> None:
        """Defer the write of records from now on until `write_staged`, which writes them at once.

        Until then they cannot be read, and no response may say that they are stored. A record that
        does not fit into the same write is refused with DeferredFullError.
        """
        self._deferred = True
        self._deferred_ms = 0

    def write_staged(self) -> None:
        """Write deferred records to log and index, and notify of their arrival.

        Raises:
            StoreUnavailableError: the disk refused; nothing since `defer` is stored.
        """
        self._deferred = False
        try:
            self._log.write_staged()
        except OSError as problem:
            raise self._log_failed(problem) from problem
        except Exception as problem:
            failed = OSError(f"{type(problem).__name__}: {problem}")
            raise self._log_failed(failed) from problem
        self.finish_copied()
        if self.on_written is not None:
            self.on_written()

    def _notify(self) -> None:
        news, self._arrivals = self._arrivals, []
        if self.on_arrival is not None:
            for arrived in news:
                self.on_arrival(*arrived)

    def _log_failed(self, problem: OSError) -> StoreUnavailableError:
        """Discard records that are not in the log; after a full disk, appends may resume later."""
        reason = (
            f"{'disk full' if is_disk_full(problem) else 'the log cannot be written'}: {problem}"
        )
        try:
            self._discard_staged()
        except OSError as another:
            return self.on_failure(f"{reason}; then: {another}")
        if not is_disk_full(problem):
            return self.on_failure(reason)
        # Of records in the log, keys may be missing.
        self._stop_dispatch(self._indexed_to(), problem)
        return StoreUnavailableError(reason)

    def _discard_staged(self) -> None:
        """Discard the records that are not in the log, with their units and keys.

        Raises:
            OSError: the disk refused.
        """
        self._log.discard()
        self._arrivals.clear()
        del self._late_arrivals[self._late_written :]
        written_to = self._log.written_to
        if self._undispatched_at > written_to:
            self._undispatched_at = written_to
        if self._units_to >= written_to:
            self._units_to = -1
        for queue in self._table.all():
            queue.rewind(written_to)
        if self._index is not None:
            self._index.drop_unlogged(written_to)

    def _stop_dispatch(self, log_offset: int, problem: BaseException) -> None:
        """Refuse further messages until `catch_up`: units must be in the order of the log.

        The record is whole, and so are the records that follow it in its batch.
        """
        logger.error("records not dispatched physical_offset=%d error=%s", log_offset, problem)
        if self._undispatched_at < 0 or log_offset < self._undispatched_at:
            self._undispatched_at = log_offset
            self._caught_up_to = -1

    def _indexed_to(self) -> int:
        """Return the log offset of the first record that may lack keys."""
        written_to: int = self._log.written_to
        if self._index is None:
            return written_to
        indexed_to: int = max(self._index.end_log(), self._log.min_offset())
        return min(written_to, indexed_to)

    def resume_at(self, dispatched: Redispatched) -> None:
        """Begin after recovery, with the result of its redispatch."""
        written_to: int = self._log.written_to
        self._undispatched_at = dispatched.to if dispatched.to < written_to else -1
        self._units_to = dispatched.units_to if dispatched.units_to < written_to else -1

    def dispatched_to(self) -> int:
        """Return the log offset up to which all records have units and keys; from any thread."""
        written_to: int = self._log.written_to  # first: a failure that follows is behind it
        behind: int = self._undispatched_at
        return written_to if behind < 0 else min(written_to, behind)

    def catch_up(self) -> None:
        """Dispatch some of the records that a full disk has kept out of queues and index.

        Raises:
            StoreUnavailableError: the disk is still full, or more records are left.
        """
        if self._undispatched_at < 0:
            return
        if self._log.filled:
            raise StoreUnavailableError("queues and index cannot be written for now")
        start = self._backlog_start()
        end = self._log.written_to
        topics_before = len(self._table.topics)
        try:
            done = redispatch(
                self._log.segments,
                start,
                end,
                self._table,
                self._dispatcher,
                records_max=_CATCH_UP_RECORDS,
            )
            self._caught_up_to = done.to
            self._undispatched_at = max(self._undispatched_at, done.to)
            if self._units_to >= 0:
                self._units_to = max(self._units_to, done.units_to)
                if done.problem is not None:  # units do not wait for keys
                    units = redispatch(
                        self._log.segments,
                        self._units_to,
                        end,
                        self._table,
                        self._dispatcher.without_keys(),
                        records_max=_CATCH_UP_RECORDS,
                    )
                    self._units_to = units.units_to
            if self._units_to >= end:
                self._units_to = -1
                self._notify_late()
            if done.problem is not None:
                raise done.problem
        except OSError as problem:
            what = "disk full" if is_disk_full(problem) else "queues and index cannot be written"
            raise StoreUnavailableError(f"{what}: {problem}") from problem
        finally:
            new = list(self._table.topics)[topics_before:]
            if new and self.on_new_topics is not None:
                self.on_new_topics(new)
        if done.to < end:
            raise StoreUnavailableError(
                f"queues and index catch up with the log, {end - done.to} bytes are left"
            )
        self._undispatched_at = self._caught_up_to = -1
        logger.info("records dispatched after a failure physical_offset=%d", end)

    def _notify_late(self) -> None:
        """Notify of the arrival of records that have got their units now."""
        late, self._late_arrivals = self._late_arrivals, []
        for queues, queue_id, queue_offset, store_ms, properties in late:
            tags_code = self._dispatcher.tags_code(queues, store_ms, properties)
            self._arrivals.append(
                (queues.name, queue_id, queue_offset, tags_code, store_ms, properties)
            )
        if not self._deferred:
            self._notify()

    def backlog_bytes(self) -> int:
        """Return how many bytes of the log wait for `catch_up`."""
        return 0 if self._undispatched_at < 0 else self._log.written_to - self._backlog_start()

    def unreadable_bytes(self) -> int:
        """Return how many of the bytes that wait for `catch_up` lack units."""
        return 0 if self._units_to < 0 else self._log.written_to - self._units_to

    def _backlog_start(self) -> int:
        """Return the log offset of the first record that may lack its unit or its keys."""
        if self._caught_up_to >= 0:
            return self._caught_up_to
        return min(self._undispatched_at, self._indexed_to())

    def _new_topic(self, topic: str) -> TopicQueues:
        """Check the name of a topic that has no queue yet, and add it."""
        length = len(topic.encode())
        if not topic:
            raise InvalidMessageError("a topic without a name")
        if length > TOPIC_BYTES_MAX:
            raise _too_large("a topic", length, TOPIC_BYTES_MAX)
        if length > TOPIC_BYTES_MAX_V1 and not (
            self._long_topics and topic.startswith(RETRY_PREFIX)
        ):
            raise _too_large("a topic", length, TOPIC_BYTES_MAX_V1)
        try:
            directory_name(topic)
        except InvalidNameError as problem:
            raise InvalidMessageError(str(problem)) from problem
        return self._table.topic(topic)

    def _new_queue(self, queues: TopicQueues, queue_id: int) -> ConsumeQueue:
        if not 0 <= queue_id < 2**31:
            raise InvalidMessageError(f"queue {queue_id}, expected 0 or more")
        return self._table.queue(queues, queue_id)


def _appended(record: NewRecord) -> Appended:
    appended = Appended.__new__(Appended)  # without __init__, which would box its numbers
    appended.log_offset = record.log_offset
    appended.size_bytes = record.size_bytes
    appended.queue_offset = record.queue_offset
    appended.store_time_ms = record.store_time_ms
    return appended


def _size_of(field_bytes: int, record: NewRecord) -> int:
    """Return the size of a record between IPv4 hosts, whose topic takes ``field_bytes``."""
    return _FIXED_BYTES + field_bytes + record.body_end - record.body_at + record.properties_bytes


def _take_hosts(record: NewRecord) -> int:
    """Set the flags of the hosts with IPv6 addresses; return the bytes that these take more."""
    born_extra, store_extra = _extra_of(record.born_host), _extra_of(record.store_host)
    record.sys_flag &= ~_V6_BITS
    if born_extra:
        record.sys_flag |= _BORN_V6
    if store_extra:
        record.sys_flag |= _STORE_V6
    return born_extra + store_extra


def _extra_of(host: bytes) -> int:
    if len(host) == _HOST_V6_BYTES:
        return _V6_EXTRA_BYTES
    if len(host) != _HOST_V4_BYTES:
        raise InvalidMessageError(f"a host of {len(host)} bytes, expected 8 or 20")
    return 0


def _item_of(batch_record: NewRecord) -> NewRecord:
    """Return the record of the messages of a batch, one after the other; see `_take_item`."""
    item = NewRecord.__new__(NewRecord)  # without __init__, which would box its numbers
    item.source = item.text = batch_record.source
    item.topic, item.queue_id = batch_record.topic, batch_record.queue_id
    item.more, item.sys_flag = batch_record.more, batch_record.sys_flag
    item.born_time_ms, item.born_host = batch_record.born_time_ms, batch_record.born_host
    item.store_host, item.reconsume_times = batch_record.store_host, batch_record.reconsume_times
    item.prepared_offset = 0
    return item


def _take_item(item: NewRecord, source: Any, position: int, stop: int) -> int:
    """Take the message of a batch at ``position``; return where the next one begins."""
    item.flag, item.body_at, item.body_end, item.text_at, item.text_end = batch.item_at(
        source, position, stop
    )
    item.properties_bytes = property_text.joined_bytes(
        source, item.text_at, item.text_end, item.more
    )
    return item.text_end


def _too_large(what: str, met: int, limit: int) -> InvalidMessageError:
    return InvalidMessageError(f"{what} of {met} bytes, at most {limit}")


def _check_text(text: Any, at: int, end: int) -> None:
    """Refuse zeros in properties: recovery would treat the record as torn by a power cut."""
    if octets.end_of_run(text, at, end, 0) != end:
        raise InvalidMessageError("properties with a character of code 0, expected none")
