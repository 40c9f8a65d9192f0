"""Dispatches records of the log again whose units or keys may be missing.

That is at a start, and after a full disk. What queues and index have already stays as it is.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass

from cometmq.model.errors import CometError
from cometmq.store.log.record_scan import RecordFacts, read_facts
from cometmq.store.log.segments import Segments
from cometmq.store.queues.consume_queue import ConsumeQueue
from cometmq.store.queues.dispatch import Dispatcher, QueueTable
from cometmq.store.queues.repair import Repair
from cometmq.system.files import is_disk_full

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Redispatched:
    """The result of a redispatch."""

    to: int
    """The log offset up to which records have units and keys."""
    units_to: int
    """The log offset up to which records have units."""
    count: int
    """The number of records that were dispatched."""
    problem: OSError | None = None
    """The error because of which keys or units are missing, or None."""


class QueueGapError(Exception):
    """A record is not the next one of its queue: units are missing."""


def write_buffers_out(table: QueueTable) -> None:
    """Let all queues write their buffers to their files.

    Raises:
        OSError: the disk refused.
    """
    for queue in table.all():
        queue.write_and_release_buffer()


def dispatch_again(
    segments: Segments,
    units: Iterable[tuple[int, int]],
    table: QueueTable,
    dispatcher: Dispatcher,
) -> int | None:
    """Dispatch records again whose units were in buffers when the process was killed.

    Their units are in the files when this returns.

    Args:
        segments: the log.
        units: log offset and size of each record, in the order of the log. What is no record any
            more is left out.
        table, dispatcher: the queues, and what fills them; without an index.

    Returns:
        The log offset from which queues may lack units, because the disk is full or a queue lacks
        earlier ones; None if they lack none.

    Raises:
        OSError: the disk is broken.
    """
    missing_from = None
    for log_offset, size in units:
        segment = segments.find(log_offset)
        if segment is None:
            continue
        facts = read_facts(segment, log_offset - segment.base_offset, True)
        if facts.problem is not None or facts.total != size:
            continue
        try:
            _dispatch(facts, table, dispatcher, finds_gaps=True, is_alone=True)
            _complete_unit(facts, table, dispatcher)
        except QueueGapError as gap:
            logger.error("a queue lacks units before those in its buffer: %s", gap)
            missing_from = segments.items[0].base_offset
        except OSError as problem:
            if not is_disk_full(problem):
                raise
            logger.warning("units not written, disk full physical_offset=%d", log_offset)
            missing_from = log_offset if missing_from is None else missing_from
            break
    write_buffers_out(table)
    return missing_from


def _complete_unit(facts: RecordFacts, table: QueueTable, dispatcher: Dispatcher) -> None:
    """Write the unit of a record again if only a part of it was written: the disk was full."""
    queue = table.find(facts.topic.decode(errors="replace"), facts.queue_id)
    if queue is None or not queue.min_offset <= facts.queue_offset < queue.max_offset:
        return
    number = queue.number_of(facts.queue_offset)
    met = queue.unit(number)
    right = facts.log_offset, facts.total, code_of(facts, queue, table, dispatcher, met[2])
    if met != right:
        queue.replace(number, *right)


def code_of(
    facts: RecordFacts, queue: ConsumeQueue, table: QueueTable, dispatcher: Dispatcher, met: int
) -> int:
    """Return the tags code of a record; ``met`` if units have addresses instead."""
    if queue.ext is not None:
        return met
    return dispatcher.tags_code(table.topic(queue.topic), facts.store_ms, facts.properties)


def redispatch(
    segments: Segments,
    start: int,
    end: int,
    table: QueueTable,
    dispatcher: Dispatcher,
    *,
    finds_gaps: bool = False,
    records_max: int | None = None,
    repair: Repair | None = None,
) -> Redispatched:
    """Dispatch the records from log offset ``start`` to ``end`` again.

    What queues and index have already stays as it is; only the keys of the index's last record may
    be added twice, which queries do not show. It ends early after ``records_max`` records.
    If the disk has no space, it ends with the first record that lacks its unit or keys. Units need
    not wait for keys: call it again from `Redispatched.units_to` on, without keys.

    Raises:
        QueueGapError: a queue lacks units of records before ``start``; if ``finds_gaps`` is set.
        OSError: the disk is broken. A full disk ends the work without an error.
    """
    count = 0
    for segment in segments.items:
        if segment.end_offset <= start or segment.base_offset >= end:
            continue
        position = max(0, start - segment.base_offset)
        while position < segment.size_bytes and segment.base_offset + position < end:
            facts = read_facts(segment, position, False)
            if facts.problem is not None and finds_gaps:
                raise QueueGapError(f"no record begins at {segment.base_offset + position}")
            if facts.problem is not None or facts.total == 0:
                break
            at = facts.log_offset
            if count == records_max:
                return Redispatched(at, at, count)
            try:
                _dispatch(facts, table, dispatcher, finds_gaps=finds_gaps, repair=repair)
            except OSError as problem:
                if not is_disk_full(problem):
                    raise
                return Redispatched(at, at, count, problem)
            position += facts.total
            count += 1
            try:
                dispatcher.add_keys()
            except OSError as problem:
                if not is_disk_full(problem):
                    raise
                return Redispatched(at, at + facts.total, count, problem)
    return Redispatched(end, end, count)


def _dispatch(
    facts: RecordFacts,
    table: QueueTable,
    dispatcher: Dispatcher,
    *,
    finds_gaps: bool,
    is_alone: bool = False,
    repair: Repair | None = None,
) -> None:
    """Dispatch one record, without its keys until `Dispatcher.add_keys`.

    ``is_alone`` if others of its queue may be missing before it.
    """
    try:
        topic = table.topic(facts.topic.decode())
        queue = table.queue_for(topic, facts.queue_id, facts.sys_flag)
    except (CometError, UnicodeDecodeError) as problem:
        logger.error("record not dispatched physical_offset=%d error=%s", facts.log_offset, problem)
        return
    queue_offset = facts.queue_offset
    is_next = queue_offset == queue.max_offset or facts.log_offset < queue.max_physical
    if not is_next and repair is not None and not queue.holds_batches:
        if repair.restore_offset(queue, facts):
            queue_offset = queue.max_offset
        elif queue_offset == queue.max_offset + 1 and queue.segments.count:
            missing = repair.restore_missing(queue, facts.log_offset)
            if missing is not None:
                _dispatch(missing, table, dispatcher, finds_gaps=finds_gaps)
    may_lack = finds_gaps and (is_alone or queue.segments.count > 0)
    if may_lack and queue_offset > queue.max_offset:
        raise QueueGapError(
            f"topic={queue.topic} queue={queue.queue_id}"
            f" next={queue.max_offset} record={facts.queue_offset}"
        )
    dispatcher.dispatch(
        topic,
        queue,
        facts.log_offset,
        facts.total,
        queue_offset,
        facts.sys_flag,
        facts.store_ms,
        facts.properties,
    )
