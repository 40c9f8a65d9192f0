# cython: annotation_typing=False, boundscheck=False, wraparound=False, cdivision=True
"""Reads a queue: units from an offset on, and slices of the log with their records.

Adjacent records form one slice; nothing is copied.
Source: DefaultMessageStore.getMessage and isTheBatchFull, RocketMQ 5.3. Unlike there, one read
continues in the next queue file.
"""

from __future__ import annotations

import enum
from time import thread_time
from typing import Any, NamedTuple, Protocol

from cometmq.store.errors import StoreCorruptError
from cometmq.store.log import record_layout, record_scan
from cometmq.store.log.commit_log import CommitLog
from cometmq.store.log.segments import Segment
from cometmq.store.queues.consume_queue import UNIT_BYTES, ConsumeQueue
from cometmq.store.queues.consume_queue_ext import ADDRESS_MAX
from cometmq.store.queues.dispatch import QueueTable
from cometmq.store.queues.repair import Repair
from cometmq.system.files import MappedFile

_UNIT_BYTES, _ADDRESS_MAX = UNIT_BYTES, ADDRESS_MAX  # C numbers once compiled
_RESPONSE_BYTES_MIN = 100
RESPONSE_BYTES_MAX = 128 * 1024 * 1024
_BYTES_MAX = RESPONSE_BYTES_MAX
_UNITS_MAX = 8192
"""The limit of units that one read scans, for any requested count: about 2 ms."""
_EVALUATION_S_MAX = 0.002
"""How long one read evaluates expressions; the next one continues."""
_EVALUATIONS_PER_LOOK = 4
"""Records whose properties are evaluated between two looks at the clock."""
_LONG_RECORD_BYTES = 4096
"""Longer ones may take milliseconds each."""
_CANDIDATES_MAX = 64
"""Records to evaluate that are read from the disk together."""
_SPAN_BYTES_MAX = 4 * 1024 * 1024
_GAP_BYTES_MAX = 64 * 1024
"""Records with such gaps share one check whether they are in memory, and are read together."""
_SCANS_MAX = 4
"""How often a read begins again because units were damaged."""
_SEARCHES_MAX = 8
"""Damaged units whose records one read searches in vain: each may take ten milliseconds."""
_UNITS_AHEAD_BYTES = 256 * 1024
"""Bytes of a queue file that are read ahead: 13,000 units."""


class GetStatus(enum.Enum):
    """The status of a read, by RocketMQ's names."""

    FOUND = 0
    NO_MATCHED_MESSAGE = 1
    MESSAGE_WAS_REMOVING = 2
    OFFSET_FOUND_NULL = 3
    OFFSET_OVERFLOW_BADLY = 4
    OFFSET_OVERFLOW_ONE = 5
    OFFSET_TOO_SMALL = 6
    NO_MATCHED_LOGIC_QUEUE = 7
    NO_MESSAGE_IN_QUEUE = 8


# An enumeration's members take long to find by their names.
_FOUND = GetStatus.FOUND
_MESSAGE_WAS_REMOVING = GetStatus.MESSAGE_WAS_REMOVING
_NO_MATCHED_MESSAGE = GetStatus.NO_MATCHED_MESSAGE
_NO_MESSAGE_IN_QUEUE = GetStatus.NO_MESSAGE_IN_QUEUE
_OFFSET_FOUND_NULL = GetStatus.OFFSET_FOUND_NULL
_OFFSET_OVERFLOW_BADLY = GetStatus.OFFSET_OVERFLOW_BADLY
_OFFSET_OVERFLOW_ONE = GetStatus.OFFSET_OVERFLOW_ONE
_OFFSET_TOO_SMALL = GetStatus.OFFSET_TOO_SMALL


class Matcher(Protocol):
    """Filters messages for a consumer."""

    needs_properties: bool
    """Whether `matches_properties` is needed; else the tags code decides."""

    def matches_tags(self, tags_code: int) -> bool:
        """Return whether a message with this tags code may match."""

    def matches_bitmap(self, store_ms: int, bitmap: bytes) -> bool:
        """Return whether a message may match by its extension unit, if it has one.

        Asked only if `needs_properties`.
        """

    def matches_properties(self, properties: bytes) -> bool:
        """Return whether a message with this property string matches."""


class TagMatcher:
    """Matches the messages whose tags have one of some hashes.

    Args:
        codes: the hashes; an empty set matches no message.
    """

    needs_properties = False

    def __init__(self, codes: frozenset[int]) -> None:
        self.codes = codes

    def matches_tags(self, tags_code: int) -> bool:
        """Return whether the hash is among the codes."""
        return tags_code in self.codes

    def matches_bitmap(self, store_ms: int, bitmap: bytes) -> bool:
        """Return True: only tags are compared."""
        return True

    def matches_properties(self, properties: bytes) -> bool:
        """Return True: only tags are compared."""
        return True


class ColdPart(NamedTuple):
    """Bytes of a file that are not in memory."""

    file: MappedFile
    start: int
    stop: int
    useful_to: int
    """The end of reading ahead; ``stop`` unless the file is read in order."""


class GetResult:
    """The result of a read."""

    __slots__ = (
        "count",
        "max_offset",
        "min_offset",
        "next_begin_offset",
        "size_bytes",
        "slices",
        "starts",
        "status",
        "stopped_at_cold",
        "suggest_slave",
    )

    def __init__(
        self, status: GetStatus, next_begin_offset: int, min_offset: int, max_offset: int
    ) -> None:
        self.status = status
        self.next_begin_offset = next_begin_offset
        self.min_offset = min_offset
        self.max_offset = max_offset
        self.slices: list[memoryview] = []
        self.starts: list[int] = []
        """The log offset of each slice."""
        self.count = 0
        self.size_bytes = 0
        self.suggest_slave = False
        self.stopped_at_cold = False
        """Whether the read ended at a record that must be read from the disk to be evaluated."""


class ReadLimits:
    """The limits of one read.

    Args:
        memory_bytes: how far back from the log's end messages count as being in memory.
        bytes_in_memory, count_in_memory: the limits of a result from memory.
        bytes_on_disk, count_on_disk: the limits of a result from disk.
        units: the units that are scanned if the client requests fewer messages.
    """

    def __init__(
        self,
        memory_bytes: int,
        bytes_in_memory: int,
        count_in_memory: int,
        bytes_on_disk: int,
        count_on_disk: int,
        units: int,
    ) -> None:
        self.memory_bytes = memory_bytes
        self.bytes_in_memory = bytes_in_memory
        self.count_in_memory = count_in_memory
        self.bytes_on_disk = bytes_on_disk
        self.count_on_disk = count_on_disk
        self.units = units


class QueueReader:
    """Reads queues by their names.

    Args:
        table: the queues.
        log: the commit log.
        limits: how much a read may return.
        repair: makes damaged units again.
    """

    def __init__(
        self, table: QueueTable, log: CommitLog, limits: ReadLimits, repair: Repair
    ) -> None:
        self._table = table
        self._log = log
        self._limits = limits
        self._repair: Any = repair

    def get(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_count: int,
        matcher: Matcher | None,
        max_bytes: int,
    ) -> GetResult:
        """Return messages of a queue; see `MessageStore.get`."""
        queue = self._table.find(topic, queue_id)
        if queue is None:
            return GetResult(_NO_MESSAGE_IN_QUEUE, 0, 0, 0)
        limit = max(_RESPONSE_BYTES_MIN, min(max_bytes, _BYTES_MAX))
        return read_queue(
            queue, self._log, self._limits, self._repair, offset, max_count, matcher, limit
        )

    def cold_units(
        self, topic: str, queue_id: int, offset: int, max_count: int, matcher: Matcher | None
    ) -> list[ColdPart]:
        """Return the units of `get` that are not in memory."""
        queue = self._table.find(topic, queue_id)
        if queue is None or not queue.min_offset <= offset < queue.recent_from():
            return []
        count = min(max_count, _UNITS_MAX)
        if matcher is not None:
            count = max(count, self._limits.units)
        at = offset * _UNIT_BYTES
        end = min(offset + count, queue.recent_from()) * _UNIT_BYTES
        parts: list[ColdPart] = []
        while at < end:
            segment = queue.segments.find(at)
            if segment is None:  # deleted meanwhile
                break
            start = at - segment.base_offset
            stop = min(end - segment.base_offset, segment.size_bytes)
            if not segment.is_resident(start, stop):
                written = queue.max_offset * _UNIT_BYTES - segment.base_offset
                ahead = min(written, segment.size_bytes, stop + _UNITS_AHEAD_BYTES)
                parts.append(_cold_part(segment, start, stop, ahead))
            at = segment.end_offset
        if queue.ext is not None and matcher is not None and not parts:
            return _cold_ext_units(queue, offset, end // _UNIT_BYTES - 1)
        return parts

    def cold_records(self, found: GetResult) -> list[ColdPart]:
        """Return the parts of the messages found that are not in memory."""
        if not found.starts or self._log.is_recent(found.starts[0]):
            return []
        return self._cold_parts(found.starts, found.slices)

    def verified(
        self,
        found: GetResult,
        topic: str,
        queue_id: int,
        offset: int,
        max_count: int,
        matcher: Matcher | None,
        max_bytes: int,
    ) -> GetResult:
        """Return messages found if they are what was stored; else repair them and read again.

        The disk may have changed bits of records that were read from it. They must be in memory.

        Args:
            found: the result of `get`.
            topic, queue_id, offset, max_count, matcher, max_bytes: its arguments.

        Raises:
            StoreCorruptError: the first record cannot be repaired.
        """
        if not found.starts or self._log.is_recent(found.starts[0]):
            return found
        if not (
            self._log.may_be_damaged(found.starts[0])
            or self._log.may_be_damaged(found.starts[len(found.starts) - 1])
        ):
            return found
        for _ in range(_SCANS_MAX):
            if self._is_whole(found, topic, queue_id, offset):
                return found
            try:
                self._repair.repair_records(
                    self._table.find(topic, queue_id),
                    offset,
                    found.next_begin_offset,
                    {
                        start: start + len(part)
                        for start, part in zip(found.starts, found.slices, strict=True)
                    },
                )
            except StoreCorruptError:
                if max_count <= 1:
                    raise
                max_count = 1  # perhaps those before it can be read
            found = self.get(topic, queue_id, offset, max_count, matcher, max_bytes)
        return found

    def _is_whole(self, found: GetResult, topic: str, queue_id: int, offset: int) -> bool:
        """Return whether each record is one of the queue, and has the checksum of its body."""
        field = self._table.topic(topic).field
        expected = offset
        for index in range(len(found.starts)):
            start = found.starts[index]
            segment = self._log.segments.find(start)
            if segment is None:  # deleted meanwhile
                return True
            position = start - segment.base_offset
            end = position + len(found.slices[index])
            while position < end:
                size = record_scan.checked_record(segment, position, end, queue_id, field)
                if size == 0:
                    return False
                number = record_scan.queue_offset_of(segment, position)
                if not expected <= number < found.next_begin_offset:
                    return False
                expected = number + 1
                position += size
        return True

    def cold_candidates(
        self, topic: str, queue_id: int, offset: int, matcher: Matcher
    ) -> list[ColdPart]:
        """Return the parts of the next records to evaluate that are not in memory.

        Args:
            topic, queue_id: the queue.
            offset: where a read has stopped (`GetResult.stopped_at_cold`).
            matcher: that of the read.
        """
        queue = self._table.find(topic, queue_id)
        if queue is None:
            return []
        starts: list[int] = []
        slices: list[memoryview] = []
        log_min = self._log.min_offset()
        for number in range(offset, min(offset + self._limits.units, queue.max_offset)):
            log_offset, size, code = queue.unit(number)
            if log_offset < log_min or size <= 0:
                continue
            if self._log.is_recent(log_offset) or len(starts) >= _CANDIDATES_MAX:
                break
            tags_code = queue.tags_code_of(code)
            has_tags = tags_code <= _ADDRESS_MAX or matcher.matches_tags(tags_code)
            if has_tags and _may_match(queue, code, matcher):
                record = self._log.record(log_offset, size)
                if record is not None:
                    starts.append(log_offset)
                    slices.append(record)
        return self._cold_parts(starts, slices)

    def _cold_parts(self, starts: list[int], slices: list[memoryview]) -> list[ColdPart]:
        """Return the parts of some records, in the order of the log, that are not in memory."""
        parts: list[ColdPart] = []
        newest = len(starts) - 1
        index = 0
        while index <= newest:  # each time the records that are close to each other
            first = starts[index]
            segment = self._log.segments.find(first)
            last = first
            end = first if segment is None else min(segment.end_offset, first + _SPAN_BYTES_MAX)
            while index <= newest:
                start = starts[index]
                stop = start + len(slices[index])
                if last > first and (stop > end or start - last > _GAP_BYTES_MAX):
                    break
                last = max(last, stop)
                index += 1
            if segment is None:  # deleted meanwhile
                continue
            start, stop = first - segment.base_offset, last - segment.base_offset
            if not segment.is_resident(start, stop):
                written = min(self._log.written_to, segment.end_offset) - segment.base_offset
                parts.append(_cold_part(segment, start, stop, written))
        return parts


def _cold_ext_units(queue: ConsumeQueue, first: int, last: int) -> list[ColdPart]:
    """Return the extension units of some units that are not in memory."""
    assert queue.ext is not None
    try:
        ends = queue.unit(first)[2], queue.unit(last)[2]
    except IndexError:  # deleted meanwhile
        return []
    return [
        ColdPart(segment.file, start, stop, stop)
        for segment, start, stop in queue.ext.files_between(*ends)
        if not segment.is_resident(start, stop)
    ]


def _cold_part(segment: Segment, start: int, stop: int, useful_to: int) -> ColdPart:
    """Return the part of a file, which is read in order if what is before it is in memory."""
    in_order = start == 0 or segment.file.is_resident(start - 1, start)
    return ColdPart(segment.file, start, stop, max(stop, useful_to) if in_order else stop)


def read_queue(
    queue: ConsumeQueue,
    log: CommitLog,
    limits: ReadLimits,
    repair: Any,
    offset: int,
    max_count: int,
    matcher: Any,
    max_bytes: int,
) -> GetResult:
    """Return the messages of a queue from ``offset`` on; see `MessageStore.get`."""
    low = queue.min_offset
    high = queue.end_at(log.readable_to())
    if high < offset <= queue.max_offset:  # behind messages that are not on disk yet
        return GetResult(_OFFSET_OVERFLOW_ONE, offset, low, high)
    if high == 0:
        return GetResult(_NO_MESSAGE_IN_QUEUE, 0, low, high)
    if offset < low:
        return GetResult(_OFFSET_TOO_SMALL, low, low, high)
    if offset == high:
        return GetResult(_OFFSET_OVERFLOW_ONE, offset, low, high)
    if offset > high:
        return GetResult(_OFFSET_OVERFLOW_BADLY, high, low, high)
    for _ in range(_SCANS_MAX):
        result = GetResult(_NO_MATCHED_MESSAGE, offset, low, high)
        if _scan(result, queue, log, limits, repair, offset, max_count, matcher, max_bytes):
            break
    return result


def _scan(
    result: GetResult,
    queue: ConsumeQueue,
    log: CommitLog,
    limits: ReadLimits,
    repair: Any,
    offset: int,
    max_count: int,
    matcher: Any,
    max_bytes: int,
) -> bool:
    """Fill the result; return False if a unit was repaired that was read before."""
    log_end = log.readable_to()
    log_min = log.min_offset()
    stop = min(result.max_offset, offset + max(limits.units, min(max_count, _UNITS_MAX)))
    wanted_code = 0
    is_one_tag = type(matcher) is TagMatcher and len(matcher.codes) == 1
    if is_one_tag:  # compared without an object for each unit
        (wanted_code,) = matcher.codes
    units: Any = None
    memory: Any
    shift = units_end = 0
    run_start = run_end = run_limit = 0
    last_end = 0
    count = 0
    size_sum = 0
    last_log_offset = -1
    removing = False
    evaluates = matcher is not None and not is_one_tag and matcher.needs_properties
    uses_bitmaps = evaluates and queue.ext is not None
    evaluated = 0
    end_s = thread_time() + _EVALUATION_S_MAX if evaluates else 0.0
    searches_max = repair.searches + _SEARCHES_MAX
    while offset < stop:
        if offset >= units_end:
            if queue.is_buffered(offset):
                memory = queue.buffer_memory()
                shift = queue.buffer_position(offset) - offset * _UNIT_BYTES
                units_end = stop
            else:
                units = queue.segments.find(offset * _UNIT_BYTES)
                if units is None:
                    result.status = _OFFSET_FOUND_NULL
                    break
                memory = units.memory
                shift = -units.base_offset
                units_end = queue.end_in_file(units)
        log_offset, size, code = record_layout.read_unit(memory, offset * _UNIT_BYTES + shift)
        last_log_offset = log_offset
        if log_offset < log_min:
            if repair.repair(queue, offset):
                continue
            removing = True
            offset += 1
            if repair.searches >= searches_max:
                break
            continue
        if count > 0:
            if count >= max_count or size_sum + size > max_bytes:
                break
            if log_end - log_offset > limits.memory_bytes:
                if size_sum + size > limits.bytes_on_disk or count >= limits.count_on_disk:
                    break
            elif size_sum + size > limits.bytes_in_memory or count >= limits.count_in_memory:
                break
        if matcher is not None:
            tags_code = queue.tags_code_of(code)
            if tags_code <= _ADDRESS_MAX:
                pass  # its extension unit is lost; the client compares the tags, too
            elif tags_code != wanted_code if is_one_tag else not matcher.matches_tags(tags_code):
                offset += 1
                continue
        if evaluates:
            if uses_bitmaps and not _may_match(queue, code, matcher):
                offset += 1
                continue
            is_look_due = evaluated % _EVALUATIONS_PER_LOOK == 0 or size > _LONG_RECORD_BYTES
            if evaluated and is_look_due and thread_time() >= end_s:
                break
            if not log.is_recent(log_offset) and _is_cold(log, log_offset, size):
                result.stopped_at_cold = True
                break
            evaluated += 1
        if not (run_end > run_start and log_offset == run_end and 0 < size <= run_limit - run_end):
            if log_offset < last_end and repair.repair_around(queue, offset):
                return False
            if run_end > run_start:
                result.slices.append(log.slice(run_start, run_end))
                result.starts.append(run_start)
            run_start = run_end = 0
            segment = log.segments.find(log_offset)
            run_limit = log_offset if segment is None else min(segment.end_offset, log_end)
            if size > run_limit - log_offset or size <= 0:
                if repair.repair(queue, offset):
                    continue
                removing = True
                offset += 1
                if repair.searches >= searches_max:
                    break
                continue
            run_start = run_end = log_offset
        if evaluates and not matcher.matches_properties(log.properties_at(log_offset, size)):
            if run_end > run_start:
                result.slices.append(log.slice(run_start, run_end))
                result.starts.append(run_start)
            run_start = run_end = 0
            offset += 1
            continue
        run_end += size
        last_end = run_end
        size_sum += size
        count += 1
        offset += 1
    if run_end > run_start:
        result.slices.append(log.slice(run_start, run_end))
        result.starts.append(run_start)
    result.count = count
    result.size_bytes = size_sum
    result.next_begin_offset = offset
    if count > 0:
        result.status = _FOUND
    elif removing and result.status is _NO_MATCHED_MESSAGE:
        result.status = _MESSAGE_WAS_REMOVING
    result.suggest_slave = log_end - last_log_offset > limits.memory_bytes
    return True


def _may_match(queue: ConsumeQueue, code: int, matcher: Any) -> bool:
    """Return whether a message may match by the extension unit of its unit, if it has one."""
    unit = None if queue.ext is None else queue.ext.get(code)
    return unit is None or bool(matcher.matches_bitmap(unit.store_ms, unit.bitmap))


def _is_cold(log: CommitLog, log_offset: int, size: int) -> bool:
    """Return whether a record is on the disk only."""
    segment = log.segments.find(log_offset)
    if segment is None or size <= 0 or log_offset + size > segment.end_offset:
        return False
    start = log_offset - segment.base_offset
    return not segment.is_resident(start, start + size)
