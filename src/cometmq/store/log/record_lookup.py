"""Reads records by their log offset, and brings parts of files into memory for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from cometmq.store.log.commit_log import CommitLog
from cometmq.store.log.record_scan import RecordFacts, body_end, read_facts, record_size
from cometmq.store.log.segments import Segment

HEAD_BYTES = 256
"""Bytes read to find the store time of a record; the kernel reads whole pages anyway."""
_TAIL_BYTES_MAX = 128 * 1024
"""The limit of topic and properties of a record."""


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
        if not segment.is_resident(position, min(position + HEAD_BYTES, segment.size_bytes)):
            return partial(_bring_in_record, segment, log_offset, size_max)
        size_bytes = record_size(segment, position)
        if not 0 < size_bytes <= size_max:
            return None
    if segment.is_resident(position, min(position + size_bytes, segment.size_bytes)):
        return None
    return partial(bring_in, segment, log_offset, size_bytes)


def _bring_in_record(segment: Segment, log_offset: int, size_max: int) -> None:
    bring_in(segment, log_offset, HEAD_BYTES)
    size = record_size(segment, log_offset - segment.base_offset)
    if HEAD_BYTES < size <= size_max:
        bring_in(segment, log_offset, size)


def bring_in_facts(segment: Segment | None, log_offset: int) -> None:
    """Read what `read_facts` needs into memory: what is before the body of a record and behind."""
    if segment is None:  # deleted meanwhile
        return
    bring_in(segment, log_offset, HEAD_BYTES)
    position = log_offset - segment.base_offset
    size = record_size(segment, position)
    behind = body_end(segment, position) - position if size else 0
    if 0 < behind < size and size > HEAD_BYTES:
        bring_in(segment, log_offset + behind, min(size - behind, _TAIL_BYTES_MAX))


def is_in_memory(segment: Segment | None, offset: int, size_bytes: int) -> bool:
    """Return whether bytes at an offset of a stream are in memory, or deleted."""
    if segment is None:
        return True
    start = offset - segment.base_offset
    return segment.is_resident(start, min(start + size_bytes, segment.size_bytes))


def bring_in(segment: Segment | None, offset: int, size_bytes: int) -> None:
    """Read bytes at an offset of a stream into memory if they are not there."""
    if segment is None:  # deleted meanwhile
        return
    start = offset - segment.base_offset
    segment.bring_in_cold(start, min(start + size_bytes, segment.size_bytes))
