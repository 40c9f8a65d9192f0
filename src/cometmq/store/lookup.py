"""Looks up messages by offset, by time and by key.

Source: ConsumeQueue.getOffsetInQueueByTime, IndexFile.selectPhyOffset and QueryMessageProcessor,
RocketMQ 5.3. Unlike there, a query has exact times and each message once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import msgspec

from cometmq.protocol.hashing import extend_hash, index_hash, java_hash
from cometmq.protocol.properties import index_keys_of
from cometmq.store.commit_log import CommitLog
from cometmq.store.consume_queue import UNIT_BYTES, ConsumeQueue
from cometmq.store.index import Index, IndexFile
from cometmq.store.record_scan import RecordFacts, body_end, read_facts, record_size, store_time
from cometmq.store.repair import Repair
from cometmq.store.segments import Segment

_INDEX_STEP_MS = 1000
_STEP_ENTRIES = 100
_ENTRIES_PER_RECORD = 20
"""The cost of reading one record, in index entries."""
_HEAD_BYTES = 256
"""Bytes read to find the store time of a record; the kernel reads whole pages anyway."""
_TAIL_BYTES_MAX = 128 * 1024
"""The limit of topic and properties of a record."""
_FILES_AT_ONCE = 64
ENTRIES_MAX = 2_000_000
"""The limit of index entries that one search reads, the newest first."""


class QueryResult(msgspec.Struct):
    """The messages with a key."""

    records: list[memoryview] = msgspec.field(default_factory=list)
    """In the order of the log."""
    index_last_update_timestamp: int = 0
    """The store time of the newest message in the index."""
    index_last_update_phyoffset: int = 0
    """The log offset of the newest message in the index."""


def record_at(
    log: CommitLog,
    log_offset: int,
    size_bytes: int | None,
    size_max: int,
    log_end: int | None = None,
) -> memoryview | None:
    """Return the whole record at an offset, or None if none begins there, or its body is damaged.

    Args:
        log: the log.
        log_offset: of the record.
        size_bytes: its size, as its unit says; None if the offset is all that is known.
        size_max: the limit of its size in that case: a body may imitate a record.
        log_end: where the log counts as ended; None for what readers see.
    """
    segment = log.segments.find(log_offset)
    if segment is None or log_offset < 0:
        return None
    position = log_offset - segment.base_offset
    total = record_size(segment, position)
    if total == 0 or log_offset + total > (log.readable_to() if log_end is None else log_end):
        return None
    if total > size_max if size_bytes is None else total != size_bytes:
        return None
    facts = read_facts(segment, position, True)
    if facts.problem is not None:
        return None
    return log.slice(log_offset, log_offset + total)


def place_at(log: CommitLog, log_offset: int, size_max: int) -> tuple[str, int, int] | None:
    """Return topic, queue and queue offset of what `record_at` would find with no size known.

    Its body is not looked at.
    """
    segment = log.segments.find(log_offset)
    if segment is None or log_offset < 0:
        return None
    position = log_offset - segment.base_offset
    if not 0 < record_size(segment, position) <= size_max:
        return None
    facts = read_facts(segment, position, False)
    if facts.problem is not None:
        return None
    try:
        return facts.topic.decode(), facts.queue_id, facts.queue_offset
    except UnicodeDecodeError:
        return None


def facts_from(
    log: CommitLog, log_offset: int, log_end: int | None = None
) -> Iterator[RecordFacts]:
    """Yield the fields of each record from an offset on, up to where no record begins.

    It ends at ``log_end`` at the latest; None for what readers see.
    """
    for segment in list(log.segments.items):
        position = max(0, log_offset - segment.base_offset)
        while position < segment.size_bytes:
            end = log.readable_to() if log_end is None else log_end
            if segment.base_offset + position >= end:
                return
            facts = read_facts(segment, position, False)
            if facts.problem is not None:
                return
            if facts.total == 0:  # the blank at the end of a file
                break
            if segment.base_offset + position + facts.total > end:
                return
            yield facts
            position += facts.total


def cold_record(
    log: CommitLog, log_offset: int, size_bytes: int | None, size_max: int
) -> Callable[[], None] | None:
    """Return a function that reads a record into memory, for any thread; None if it is there.

    The arguments are those of `record_at`.
    """
    segment = None if log.is_recent(log_offset) else log.segments.find(log_offset)
    if segment is None or log_offset < 0:
        return None
    position = log_offset - segment.base_offset
    if size_bytes is None:
        if not segment.is_resident(position, min(position + _HEAD_BYTES, segment.size_bytes)):
            return partial(_bring_in_record, segment, log_offset, size_max)
        size_bytes = record_size(segment, position)
        if not 0 < size_bytes <= size_max:
            return None
    if segment.is_resident(position, min(position + size_bytes, segment.size_bytes)):
        return None
    return partial(_bring_in, segment, log_offset, size_bytes)


def _bring_in_record(segment: Segment, log_offset: int, size_max: int) -> None:
    _bring_in(segment, log_offset, _HEAD_BYTES)
    size = record_size(segment, log_offset - segment.base_offset)
    if _HEAD_BYTES < size <= size_max:
        _bring_in(segment, log_offset, size)


def _bring_in_facts(segment: Segment | None, log_offset: int) -> None:
    """Read what `read_facts` needs into memory: what is before the body of a record and behind."""
    if segment is None:  # deleted meanwhile
        return
    _bring_in(segment, log_offset, _HEAD_BYTES)
    position = log_offset - segment.base_offset
    size = record_size(segment, position)
    behind = body_end(segment, position) - position if size else 0
    if 0 < behind < size and size > _HEAD_BYTES:
        _bring_in(segment, log_offset + behind, min(size - behind, _TAIL_BYTES_MAX))


def cold_store_time(
    log: CommitLog, queue: ConsumeQueue, queue_offset: int
) -> Callable[[], object] | None:
    """Return a function that reads what `store_time_of_unit` needs; None if it is in memory."""
    if not queue.min_offset <= queue_offset < queue.max_offset:
        return None
    at = queue_offset * UNIT_BYTES
    is_recent = queue_offset >= queue.recent_from()
    is_there = is_recent or _is_in_memory(queue.segments.find(at), at, UNIT_BYTES)
    if is_there:
        log_offset = queue.unit(queue_offset)[0]
        is_there = log.is_recent(log_offset) or _is_in_memory(
            log.segments.find(log_offset), log_offset, _HEAD_BYTES
        )
    return None if is_there else partial(TimeSearchPages(log, queue, 0).store_time, queue_offset)


def _is_in_memory(segment: Segment | None, offset: int, size_bytes: int) -> bool:
    """Return whether bytes at an offset of a stream are in memory, or deleted."""
    if segment is None:
        return True
    start = offset - segment.base_offset
    return segment.is_resident(start, min(start + size_bytes, segment.size_bytes))


def store_time_of_unit(
    log: CommitLog, queue: ConsumeQueue, queue_offset: int, repair: Repair
) -> int:
    """Return when the message of a unit was stored, or -1 if its record is deleted."""
    if not queue.min_offset <= queue_offset < queue.max_offset:
        return -1
    found_ms = _store_time_of(log, queue, queue_offset)
    if found_ms < 0 and repair.repair(queue, queue_offset):
        found_ms = _store_time_of(log, queue, queue_offset)
    return found_ms


def _store_time_of(log: CommitLog, queue: ConsumeQueue, queue_offset: int) -> int:
    log_offset, size, _ = queue.unit(queue_offset)
    segment = log.segments.find(log_offset)
    if segment is None or log_offset + size > log.readable_to():
        return -1
    position = log_offset - segment.base_offset
    return store_time(segment, position) if record_size(segment, position) == size else -1


def offset_at_time(
    log: CommitLog, queue: ConsumeQueue, timestamp_ms: int, repair: Repair, *, upper: bool
) -> int:
    """Return the offset of the message stored at a time; see `MessageStore.offset_at_time`."""
    low, high = queue.min_offset, queue.end_at(log.readable_to())
    while low < high:
        middle = (low + high) // 2
        stored_ms = store_time_of_unit(log, queue, middle, repair)
        if _is_before(stored_ms, timestamp_ms, upper):
            low = middle + 1
        else:
            high = middle
    return max(low - 1, queue.min_offset) if upper else low


def _is_before(stored_ms: int, timestamp_ms: int, upper: bool) -> bool:
    return stored_ms < timestamp_ms or (upper and stored_ms == timestamp_ms)


class TimeSearchPages:
    """Reads the pages that `offset_at_time` needs into memory.

    Make it in the thread of the store, call it in any: it has its own list of the queue's files,
    which stay in memory as long as it does.

    Args:
        log, queue: of the search.
        timestamp_ms, upper: see `offset_at_time`.
    """

    def __init__(
        self, log: CommitLog, queue: ConsumeQueue, timestamp_ms: int, *, upper: bool = False
    ) -> None:
        self._log = log
        self._timestamp_ms = timestamp_ms
        self._upper = upper
        self._segments = list(queue.segments.items)
        self._offsets = range(queue.min_offset, queue.max_offset)
        self._buffered = queue.buffered_log_offsets()

    def __call__(self) -> None:
        """Read them.

        Raises:
            OSError: the disk is broken.
        """
        low, high = self._offsets.start, self._offsets.stop
        while low < high:
            middle = (low + high) // 2
            stored_ms = self.store_time(middle)
            if _is_before(stored_ms, self._timestamp_ms, self._upper):
                low = middle + 1
            else:
                high = middle

    def store_time(self, queue_offset: int) -> int:
        """Return the store time of a unit, after reading what it needs into memory."""
        log_offset = self._buffered.get(queue_offset)
        if log_offset is None:
            log_offset = self._log_offset(queue_offset * UNIT_BYTES)
        segment = self._log.segments.find(log_offset)
        if segment is None:
            return -1
        _bring_in(segment, log_offset, _HEAD_BYTES)
        return store_time(segment, log_offset - segment.base_offset)

    def _log_offset(self, unit_at: int) -> int:
        for segment in self._segments:
            if segment.base_offset <= unit_at < segment.end_offset:
                _bring_in(segment, unit_at, UNIT_BYTES)
                at = unit_at - segment.base_offset
                return int.from_bytes(segment.view[at : at + 8], signed=True)
        return -1


def _bring_in(segment: Segment | None, offset: int, size_bytes: int) -> None:
    """Read bytes at an offset of a stream into memory if they are not there."""
    if segment is None:  # deleted meanwhile
        return
    start = offset - segment.base_offset
    segment.bring_in_cold(start, min(start + size_bytes, segment.size_bytes))


class KeySearch:
    """Finds the newest messages with a key, some index entries at a time.

    Args:
        log, index: those of the store.
        topic, key: those of the messages.
        max_num: the limit of messages.
        begin_ms, end_ms: the span of store times, ends included.
    """

    def __init__(
        self,
        log: CommitLog,
        index: Index | None,
        topic: str,
        key: str,
        max_num: int,
        begin_ms: int,
        end_ms: int,
    ) -> None:
        self._log = log
        self._topic, self._key = topic.encode(), key.encode()
        self._hashed = index_hash(extend_hash(java_hash(topic + "#"), self._key))
        self._max_num = max_num
        self._begin_ms, self._end_ms = begin_ms, end_ms
        self._found: dict[int, memoryview] = {}
        self._left = ENTRIES_MAX
        self._result = QueryResult()
        self._files: list[IndexFile] = []
        """The files still to be searched, the newest last."""
        self._number = 0
        """The number of the next entry to read in the last of them."""
        if index is None:
            return
        if index.newest is not None:
            self._result.index_last_update_timestamp = index.newest.end_ms
            self._result.index_last_update_phyoffset = index.newest.end_log
        self._files = [
            item
            for item in index.items
            if item.begin_ms <= end_ms and item.end_ms >= begin_ms - _INDEX_STEP_MS
        ]

    def advance(self, entries_max: int) -> bool:
        """Read up to so many index entries; return whether the search is complete."""
        while self._files and self._left > 0 and len(self._found) < self._max_num:
            if entries_max <= 0:
                return False
            item = self._files[-1]
            step = min(entries_max, self._left, _STEP_ENTRIES)
            number = self._number or item.newest_of(self._hashed)
            matches, self._number = item.follow(self._hashed, number, step)
            entries_max -= step + _ENTRIES_PER_RECORD * len(matches)
            self._left -= step
            for log_offset, nearly_ms in matches:
                self._check(log_offset, nearly_ms)
            if self._number == 0:
                self._files.pop()
        return True

    def bring_in(self, entries_max: int) -> None:
        """Read the pages that the next `advance` needs into memory; from any thread.

        Raises:
            OSError: the disk is broken.
        """
        number = self._number
        for item in reversed(self._files[-_FILES_AT_ONCE:]):
            number = number or item.bring_in_newest(self._hashed)
            while number and entries_max > 0:
                item.bring_in_entry(number)
                matches, number = item.follow(self._hashed, number, 1)
                entries_max -= 1 + _ENTRIES_PER_RECORD * len(matches)
                for log_offset, _ in matches:
                    _bring_in_facts(self._log.segments.find(log_offset), log_offset)
            if entries_max <= 0:
                return

    def bring_in_found(self, bytes_max: int) -> None:
        """Read the messages found so far into memory, up to so many bytes; from any thread.

        Raises:
            OSError: the disk is broken.
        """
        for log_offset in sorted(self._found):
            size_bytes = len(self._found[log_offset])
            bytes_max -= size_bytes
            if bytes_max < 0:
                return
            _bring_in(self._log.segments.find(log_offset), log_offset, size_bytes)

    def _check(self, log_offset: int, nearly_ms: int) -> None:
        if len(self._found) >= self._max_num or log_offset in self._found:
            return
        if not self._begin_ms - _INDEX_STEP_MS <= nearly_ms <= self._end_ms:
            return
        record = _record_with_key(
            self._log, log_offset, self._topic, self._key, self._begin_ms, self._end_ms
        )
        if record is not None:
            self._found[log_offset] = record

    def result(self) -> QueryResult:
        """Return what was found so far, without messages whose bodies are damaged."""
        self._result.records = [
            self._found[log_offset]
            for log_offset in sorted(self._found)
            if self._has_whole_body(log_offset)
        ]
        return self._result

    def _has_whole_body(self, log_offset: int) -> bool:
        segment = self._log.segments.find(log_offset)
        if segment is None:  # deleted meanwhile
            return True
        return read_facts(segment, log_offset - segment.base_offset, True).problem is None


def _record_with_key(
    log: CommitLog, log_offset: int, topic: bytes, key: bytes, begin_ms: int, end_ms: int
) -> memoryview | None:
    """Return the record at an offset if it has the topic, the key and a time in the span."""
    segment = log.segments.find(log_offset)
    if segment is None:
        return None
    facts = read_facts(segment, log_offset - segment.base_offset, False)
    if facts.problem is not None or not begin_ms <= facts.store_ms <= end_ms:
        return None
    if facts.topic != topic or key not in index_keys_of(facts.properties):
        return None
    return log.record(log_offset, facts.total)
