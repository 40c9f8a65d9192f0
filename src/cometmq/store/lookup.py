"""Looking messages up: by place, by time and by key.

Source: ConsumeQueue.getOffsetInQueueByTime (RocketMQ 5.3), IndexFile.selectPhyOffset and
QueryMessageProcessor; that a query's times are exact and its messages occur once is ours.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from cometmq.protocol.hashing import extend_hash, index_hash, java_hash
from cometmq.protocol.properties import index_keys_of
from cometmq.store.commit_log import CommitLog
from cometmq.store.consume_queue import ConsumeQueue
from cometmq.store.index import Index
from cometmq.store.records import read_facts, record_size, store_time

_INDEX_STEP_MS = 1000


@dataclass(slots=True)
class QueryResult:
    """The messages that carry a key."""

    records: list[memoryview] = field(default_factory=list)
    """In the order of the log."""
    index_last_update_timestamp: int = 0
    """The store time of the newest message in the index."""
    index_last_update_phyoffset: int = 0
    """The log offset of the newest message in the index."""


def record_at(log: CommitLog, log_offset: int, size_bytes: int | None) -> memoryview | None:
    """Return the whole record at an offset, or None where none begins."""
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


def store_time_of_unit(log: CommitLog, queue: ConsumeQueue, queue_offset: int) -> int:
    """Return when the message of a unit was stored, or -1 where its record is gone."""
    if not queue.min_offset <= queue_offset < queue.max_offset:
        return -1
    log_offset, size, _ = queue.unit(queue_offset)
    segment = log.segments.find(log_offset)
    if segment is None or log_offset + size > log.written_to:
        return -1
    position = log_offset - segment.base_offset
    return store_time(segment, position) if record_size(segment, position) == size else -1


def offset_at_time(log: CommitLog, queue: ConsumeQueue, timestamp_ms: int, *, upper: bool) -> int:
    """Return the offset of the message stored at a time; see `MessageStore.offset_at_time`."""
    low, high = queue.min_offset, queue.max_offset
    while low < high:
        middle = (low + high) // 2
        stored_ms = store_time_of_unit(log, queue, middle)
        if stored_ms < timestamp_ms or (upper and stored_ms == timestamp_ms):
            low = middle + 1
        else:
            high = middle
    return max(low - 1, queue.min_offset) if upper else low


def query(
    log: CommitLog,
    index: Index,
    topic: str,
    key: str,
    max_num: int,
    begin_ms: int,
    end_ms: int,
) -> QueryResult:
    """Return the messages with a key that were stored in a span of time, ends included."""
    result = QueryResult()
    if index.newest is not None:
        result.index_last_update_timestamp = index.newest.end_ms
        result.index_last_update_phyoffset = index.newest.end_log
    found: dict[int, memoryview] = {}
    wanted = key.encode()
    hashed = index_hash(extend_hash(java_hash(topic + "#"), wanted))
    for item in reversed(index.items):
        if len(found) >= max_num:
            break
        if item.begin_ms > end_ms or item.end_ms < begin_ms - _INDEX_STEP_MS:
            continue
        for log_offset, nearly_ms in item.chain(hashed):
            if len(found) >= max_num:
                break
            if nearly_ms > end_ms or nearly_ms < begin_ms - _INDEX_STEP_MS or log_offset in found:
                continue
            record = _record_with_key(log, log_offset, topic.encode(), wanted, begin_ms, end_ms)
            if record is not None:
                found[log_offset] = record
    result.records = [found[log_offset] for log_offset in sorted(found)]
    return result


def _record_with_key(
    log: CommitLog, log_offset: int, topic: bytes, key: bytes, begin_ms: int, end_ms: int
) -> memoryview | None:
    """The record at an offset if it is what the index took it for."""
    segment = log.segments.find(log_offset)
    if segment is None:
        return None
    facts = read_facts(segment, log_offset - segment.base_offset, False)
    if facts.problem is not None or not begin_ms <= facts.store_ms <= end_ms:
        return None
    if facts.topic != topic or key not in index_keys_of(facts.properties):
        return None
    return log.record(log_offset, facts.total)
