"""Looks up messages by offset, by time and by key.

Source: ConsumeQueue.getOffsetInQueueByTime, IndexFile.selectPhyOffset and QueryMessageProcessor,
RocketMQ 5.3. Unlike there, a query has exact times and each message once.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import msgspec

from cometmq.protocol.hashing import extend_hash, index_hash, java_hash
from cometmq.protocol.properties import index_keys_of
from cometmq.store.commit_log import CommitLog
from cometmq.store.consume_queue import UNIT_BYTES, ConsumeQueue
from cometmq.store.index import Index, IndexFile
from cometmq.store.record_scan import read_facts, record_size, store_time
from cometmq.store.segments import Segment

_INDEX_STEP_MS = 1000
_STEP_ENTRIES = 100
_ENTRIES_PER_RECORD = 20
"""The cost of reading one record, in index entries."""
_HEAD_BYTES = 256
"""Bytes read to find the store time of a record; the kernel reads whole pages anyway."""
_RECORD_BYTES = 4096
"""Bytes read at once of a record that may have the key."""
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


def record_at(log: CommitLog, log_offset: int, size_bytes: int | None) -> memoryview | None:
    """Return the whole record at an offset, or None if none begins there."""
    segment = log.segments.find(log_offset)
    if segment is None or log_offset < 0:
        return None
    position = log_offset - segment.base_offset
    total = record_size(segment, position)
    if total == 0 or (size_bytes is not None and size_bytes != total):
        return None
    facts = read_facts(segment, position, False)
    if facts.problem is not None:
        return None
    return log.record(log_offset, total)


def cold_record(log: CommitLog, log_offset: int) -> Callable[[], None] | None:
    """Return a function that reads a record into memory, for any thread; None if it is there."""
    segment = None if log.is_recent(log_offset) else log.segments.find(log_offset)
    if segment is None or log_offset < 0:
        return None
    position = log_offset - segment.base_offset
    if segment.is_resident(position, min(position + _HEAD_BYTES, segment.size_bytes)):
        stop = position + record_size(segment, position)
        if segment.is_resident(position, min(max(stop, position + 1), segment.size_bytes)):
            return None
    return partial(_bring_in_record, segment, log_offset)


def _bring_in_record(segment: Segment, log_offset: int) -> None:
    _bring_in(segment, log_offset, _HEAD_BYTES)
    size = record_size(segment, log_offset - segment.base_offset)
    if size > _HEAD_BYTES:
        _bring_in(segment, log_offset, size)


def store_time_of_unit(log: CommitLog, queue: ConsumeQueue, queue_offset: int) -> int:
    """Return when the message of a unit was stored, or -1 if its record is deleted."""
    if not queue.min_offset <= queue_offset < queue.max_offset:
        return -1
    log_offset, size, _ = queue.unit(queue_offset)
    segment = log.segments.find(log_offset)
    if segment is None or log_offset + size > log.readable_to():
        return -1
    position = log_offset - segment.base_offset
    return store_time(segment, position) if record_size(segment, position) == size else -1


def offset_at_time(log: CommitLog, queue: ConsumeQueue, timestamp_ms: int, *, upper: bool) -> int:
    """Return the offset of the message stored at a time; see `MessageStore.offset_at_time`."""
    low, high = queue.min_offset, queue.end_at(log.readable_to())
    while low < high:
        middle = (low + high) // 2
        stored_ms = store_time_of_unit(log, queue, middle)
        if stored_ms < timestamp_ms or (upper and stored_ms == timestamp_ms):
            low = middle + 1
        else:
            high = middle
    return max(low - 1, queue.min_offset) if upper else low


class TimeSearchPages:
    """Reads the pages that `offset_at_time` needs into memory.

    Make it in the thread of the store, call it in any: it has its own list of the queue's files,
    which stay in memory as long as it does.

    Args:
        log, queue: of the search.
        timestamp_ms: the store time that is searched for.
    """

    def __init__(self, log: CommitLog, queue: ConsumeQueue, timestamp_ms: int) -> None:
        self._log = log
        self._timestamp_ms = timestamp_ms
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
            if self._store_time(middle) < self._timestamp_ms:
                low = middle + 1
            else:
                high = middle

    def _store_time(self, queue_offset: int) -> int:
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
    stop = min(start + size_bytes, segment.size_bytes)
    if not segment.file.is_resident(start, stop):
        segment.file.bring_in(start, stop)


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
                    _bring_in(self._log.segments.find(log_offset), log_offset, _RECORD_BYTES)
            if entries_max <= 0:
                return

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
        """Return what was found so far."""
        self._result.records = [self._found[log_offset] for log_offset in sorted(self._found)]
        return self._result


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
