"""Recovery: where does the log end, and what do queues and index still lack?

The log is walked, record by record, from a segment known to be whole. It ends where no whole record
begins. What follows tells why:

    nothing but zeros or garbage          the end, or a record torn by a crash: cut there
    whole records, newer than the last    damage in the middle: refuse, and change nothing
    the same, after a crash, beyond a     writes that never reached the disk, and that no sync had
    page of zeros, newer than the         vouched for: cut there
    checkpoint

Records that are older than the last good one are left-overs of an earlier cut and prove nothing.
What is cut is made zero, so that it cannot be taken for records later. Nothing is written until
the end of the log is known. Source: CommitLog.recoverNormally and recoverAbnormally,
RocketMQ 5.3; refusing, zeroing and ``>=`` are ours.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from cometmq.model.errors import CometError
from cometmq.protocol.record import MAGIC_V1, MAGIC_V2
from cometmq.store.checkpoint import Checkpoint
from cometmq.store.dispatch import Dispatcher, QueueTable
from cometmq.store.errors import StoreCorruptError
from cometmq.store.records import RecordFacts, read_facts, walk
from cometmq.store.segments import Segment, Segments

logger = logging.getLogger(__name__)

_PAGE_BYTES = 4096
_MAGICS = tuple((magic & 0xFFFFFFFF).to_bytes(4, "big") for magic in (MAGIC_V1, MAGIC_V2))


@dataclass(frozen=True, slots=True)
class LogEnd:
    """Where the log ends."""

    offset: int
    """The end of the last whole record."""
    last_store_ms: int
    """When that record was stored; 0 if none was met."""
    problem: str
    """What stands there instead of a record."""


@dataclass(frozen=True, slots=True)
class Follower:
    """A whole record behind the end of the log."""

    log_offset: int
    store_ms: int


def start_after_clean_stop(segments: Segments, max_physical: int) -> int:
    """Return the index of the segment to begin with: the newest that the queues knew of."""
    for index in range(len(segments.items) - 1, -1, -1):
        if segments.items[index].base_offset <= max_physical:
            return index
    return 0


def start_after_crash(segments: Segments, whole_until_ms: int) -> int:
    """Return the index of the newest segment that begins with a record surely on the disk."""
    for index in range(len(segments.items) - 1, -1, -1):
        facts = read_facts(segments.items[index], 0, False)
        if facts.problem is None and facts.total and 0 < facts.store_ms <= whole_until_ms:
            return index
    return 0


def find_end(
    segments: Segments, first: int, *, check_crc: bool, synced_ms: int | None = None
) -> LogEnd:
    """Walk the records of the log to their end.

    Args:
        segments: the log.
        first: the index of the segment to begin with.
        check_crc: whether the checksum of each body must match.
        synced_ms: after a crash, the store time before which records are surely on the disk; a
            later one may have lost the end of its properties, which no checksum covers.
    """
    last_store_ms = 0
    for segment in segments.items[first:]:
        position, store_ms, problem = walk(segment, check_crc, synced_ms)
        last_store_ms = store_ms or last_store_ms
        if problem is not None:
            return LogEnd(segment.base_offset + position, last_store_ms, problem)
    last = segments.last()
    return LogEnd(last.end_offset if last is not None else 0, last_store_ms, "the last file's end")


def find_follower(segments: Segments, end: LogEnd) -> Follower | None:
    """Return the first whole record after the end of the log that is no left-over, if any."""
    for segment in segments.items:
        if segment.end_offset <= end.offset:
            continue
        start = max(0, end.offset + 5 - segment.base_offset)  # behind the magic at the end itself
        for first, stop in segment.file.data_ranges(start, segment.size_bytes):
            found = _follower_in(segment, first, stop, end.last_store_ms)
            if found is not None:
                return found
    return None


def _follower_in(segment: Segment, start: int, stop: int, newer_than_ms: int) -> Follower | None:
    for magic in _MAGICS:
        at = segment.file.map.find(magic, start, stop)
        while at >= 0:
            if at >= 4:
                facts = read_facts(segment, at - 4, True)
                if facts.problem is None and facts.total and facts.store_ms >= newer_than_ms:
                    return Follower(facts.log_offset, facts.store_ms)
            at = segment.file.map.find(magic, at + 1, stop)
    return None


def check_end(
    segments: Segments,
    end: LogEnd,
    checkpoint: Checkpoint,
    *,
    crashed: bool,
    max_physical: int,
    cut_damaged: bool,
) -> None:
    """Refuse a log that goes on behind its end.

    Args:
        segments: the log.
        end: where its whole records end.
        checkpoint: what was on the disk for certain.
        crashed: whether the store was not closed.
        max_physical: the end of the newest record that a queue knows of, -1 for none.
        cut_damaged: cut even so.

    Raises:
        StoreCorruptError: whole records follow.
    """
    follower = find_follower(segments, end)
    segment = segments.find(end.offset)
    if follower is None or segment is None:
        return
    if not crashed and 0 <= max_physical <= end.offset:
        return
    if (
        crashed
        and follower.store_ms >= checkpoint.physic_ms
        and _is_lost_write(segment, end.offset, follower.log_offset)
    ):
        return
    error = StoreCorruptError(
        segment.file.path,
        end.offset - segment.base_offset,
        end.problem,
        f"a record, as whole records follow from log offset {follower.log_offset} on"
        " (cutDamagedLog=true truncates the log there and loses them)",
    )
    if not cut_damaged:
        raise error
    logger.error("damaged log truncated error=%s", error)


def _is_lost_write(segment: Segment, start: int, stop: int) -> bool:
    """Whether a page between two log offsets has only zeros from the first of them on."""
    position = start - segment.base_offset
    limit = min(stop - segment.base_offset, segment.size_bytes)
    while position < limit:
        page_end = min(position - position % _PAGE_BYTES + _PAGE_BYTES, segment.size_bytes)
        page = segment.file.map[position:page_end]
        if page.count(0) == len(page):
            return True
        position = page_end
    return False


def redispatch(
    segments: Segments, start: int, end: int, table: QueueTable, dispatcher: Dispatcher
) -> int:
    """Dispatch the records from log offset ``start`` to ``end`` again; return how many.

    What queues and index have already stays as it is; only the keys of the index's last record may
    get there a second time, which queries do not show.

    Raises:
        OSError: the disk is full or broken.
    """
    count = 0
    for segment in segments.items:
        if segment.end_offset <= start or segment.base_offset >= end:
            continue
        position = max(0, start - segment.base_offset)
        while position < segment.size_bytes and segment.base_offset + position < end:
            facts = read_facts(segment, position, False)
            if facts.problem is not None or facts.total == 0:
                break
            _dispatch(facts, table, dispatcher)
            position += facts.total
            count += 1
    return count


def _dispatch(facts: RecordFacts, table: QueueTable, dispatcher: Dispatcher) -> None:
    try:
        topic = table.topic(facts.topic.decode())
        queue = table.queue(topic, facts.queue_id)
    except (CometError, UnicodeDecodeError) as problem:
        logger.error("record not dispatched physical_offset=%d error=%s", facts.log_offset, problem)
        return
    dispatcher.dispatch(
        topic,
        queue,
        facts.log_offset,
        facts.total,
        facts.queue_offset,
        facts.sys_flag,
        facts.store_ms,
        facts.properties,
    )


def record_begins(segments: Segments, offset: int) -> bool:
    """Return whether a record, a blank or nothing yet begins at ``offset``."""
    segment = segments.find(offset)
    if segment is None:
        return True
    facts = read_facts(segment, offset - segment.base_offset, False)
    return facts.problem is None or facts.problem == "zeros"
