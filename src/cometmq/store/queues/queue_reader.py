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
from cometmq.store.queues.consume_queue import ConsumeQueue
from cometmq.store.queues.consume_queue_ext import ADDRESS_MAX
from cometmq.store.queues.dispatch import QueueTable
from cometmq.store.queues.repair import Repair
from cometmq.system.files import MappedFile

_ADDRESS_MAX = ADDRESS_MAX  # a C number once compiled
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
        self._scan = _Scan(log, limits, repair)

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
        return self._scan.read(queue, offset, max_count, matcher, limit)

    def bounds(self, topic: str, queue_id: int) -> tuple[int, int]:
        """Return the bounds of a queue; see `MessageStore.bounds`."""
        queue = self._table.find(topic, queue_id)
        if queue is None:
            return 0, 0
        return queue.min_offset, queue.end_at(self._log.readable_to())

    def cold_units(
        self, topic: str, queue_id: int, offset: int, max_count: int, matcher: Matcher | None
    ) -> list[ColdPart]:
        """Return the units of `get` that are not in memory."""
        queue = self._table.find(topic, queue_id)
        if queue is None or not queue.min_offset <= offset < queue.max_offset:
            return []
        recent = queue.recent_from()
        if recent < queue.end_unit and queue.offset_of(recent) <= offset:
            return []
        if queue.holds_batches and (searched := cold_search(queue, offset)):
            return searched
        number = queue.number_of(offset)
        count = min(max_count, _UNITS_MAX)
        if matcher is not None:
            count = max(count, self._limits.units)
        unit_bytes = queue.unit_bytes
        at = number * unit_bytes
        end = min(number + count, recent) * unit_bytes
        parts: list[ColdPart] = []
        while at < end:
            segment = queue.segments.find(at)
            if segment is None:  # deleted meanwhile
                break
            start = at - segment.base_offset
            stop = min(end - segment.base_offset, segment.size_bytes)
            if not segment.is_resident(start, stop):
                written = queue.end_unit * unit_bytes - segment.base_offset
                ahead = min(written, segment.size_bytes, stop + _UNITS_AHEAD_BYTES)
                parts.append(_cold_part(segment, start, stop, ahead))
            at = segment.end_offset
        if queue.ext is not None and matcher is not None and not parts:
            return _cold_ext_units(queue, number, end // unit_bytes - 1)
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
                queue = self._table.find(topic, queue_id)
                assert queue is not None
                self._repair.repair_records(
                    queue,
                    queue.number_of(offset),
                    queue.number_of(found.next_begin_offset - 1) + 1,
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
        queue = self._table.find(topic, queue_id)
        if queue is not None and queue.holds_batches:  # it may begin inside a batch
            expected = queue.offset_of(queue.number_of(offset))
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
            matcher: the matcher of the read.
        """
        queue = self._table.find(topic, queue_id)
        if queue is None:
            return []
        starts: list[int] = []
        slices: list[memoryview] = []
        log_min = self._log.min_offset()
        start = queue.number_of(offset)
        for number in range(start, min(start + self._limits.units, queue.end_unit)):
            log_offset, size, code = queue.unit(number)
            if log_offset < log_min or size <= 0:
                continue
            if self._log.is_recent(log_offset) or len(starts) >= _CANDIDATES_MAX:
                break
            tags_code = queue.tags_code_of(code)
            has_tags = (
                tags_code <= _ADDRESS_MAX
                or (queue.holds_batches and tags_code == 0)
                or matcher.matches_tags(tags_code)
            )
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


def cold_search(queue: ConsumeQueue, offset: int) -> list[ColdPart]:
    """Return what the search for the unit of a queue offset reads and is not in memory.

    That is all of a file if a part of it is not there: the search goes to and fro in it.
    """
    if not queue.holds_batches:
        return []
    low, high = queue.first_unit, queue.recent_from()
    while low < high:
        middle = (low + high) // 2
        at = middle * queue.unit_bytes
        segment = queue.segments.find(at)
        if segment is None:  # deleted meanwhile
            return []
        at -= segment.base_offset
        if not segment.is_resident(at, at + queue.unit_bytes):
            written = queue.end_unit * queue.unit_bytes - segment.base_offset
            end = min(written, segment.size_bytes)
            return [ColdPart(segment.file, 0, end, end)]
        if queue.offset_of(middle) <= offset:
            low = middle + 1
        else:
            high = middle
    return []


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


class _Scan:
    """A walk over units of a queue, which collects runs of adjacent records.

    One object serves all reads, one after the other: each of them begins with its own values.

    Args:
        log: the commit log.
        limits: how much a read may return.
        repair: makes damaged units again.
    """

    queue: ConsumeQueue
    matcher: Any
    number: int
    count: int
    size_sum: int
    last_end: int
    last_log_offset: int
    run_start: int
    run_end: int

    def __init__(self, log: CommitLog, limits: ReadLimits, repair: Any) -> None:
        self.log = log
        self.limits = limits
        self.repair = repair

    def read(
        self, queue: ConsumeQueue, offset: int, max_count: int, matcher: Any, max_bytes: int
    ) -> GetResult:
        """Return the messages of a queue from ``offset`` on; see `MessageStore.get`."""
        low = queue.min_offset
        high = queue.end_at(self.log.readable_to())
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
        self.queue, self.matcher = queue, matcher
        self.max_count, self.max_bytes = max_count, max_bytes
        for _ in range(_SCANS_MAX):
            result = GetResult(_NO_MATCHED_MESSAGE, offset, low, high)
            if self._fill(result):
                break
        return result

    def _fill(self, result: GetResult) -> bool:
        """Fill a result; return False if a unit was repaired that was read before."""
        queue, matcher = self.queue, self.matcher
        self._begin(result)
        while self.number < self.stop:
            if self.number >= self.units_end and not self._find_units():
                result.status = _OFFSET_FOUND_NULL
                break
            log_offset, size, code = record_layout.read_unit(
                self.memory, self.number * self.unit_bytes + self.shift
            )
            self.last_log_offset = log_offset
            if log_offset < self.log_min:
                if self._skip_damaged():
                    continue
                break
            messages = 1
            if self.holds_batches:
                messages = queue.offset_behind(self.number) - queue.offset_of(self.number)
            if self.count > 0 and self._is_full(log_offset, size, messages):
                break
            if matcher is not None:
                tags_code = queue.tags_code_of(code)
                # A code up to the limit has lost its extension unit, and a batch without tags may
                # have messages with tags: the client compares them.
                if (
                    tags_code > _ADDRESS_MAX
                    and not (self.holds_batches and tags_code == 0)
                    and not (
                        tags_code == self.wanted_code
                        if self.is_one_tag
                        else matcher.matches_tags(tags_code)
                    )
                ):
                    self.number += 1
                    continue
            if self.evaluates:
                if self.uses_bitmaps and not _may_match(queue, code, matcher):
                    self.number += 1
                    continue
                if not self._may_evaluate(result, log_offset, size):
                    break
            if not (self.run_end == log_offset and 0 < size <= self.run_limit - log_offset):
                if log_offset < self.last_end and self.repair.repair_around(queue, self.number):
                    return False
                self._close_run(result)
                if not self._begin_run(log_offset, size):
                    if self._skip_damaged():
                        continue
                    break
            if self.evaluates and not self._matches_properties(log_offset, size):
                self._close_run(result)
                self.number += 1
                continue
            self.run_end += size
            self.last_end = self.run_end
            self.size_sum += size
            self.count += messages
            self.number += 1
        self._close_run(result)
        self._finish(result)
        return True

    def _begin(self, result: GetResult) -> None:
        limits, matcher = self.limits, self.matcher
        self.start = self.number = self.queue.number_of(result.next_begin_offset)
        self.log_end = self.log.readable_to()
        self.log_min = self.log.min_offset()
        units = max(limits.units, min(self.max_count, _UNITS_MAX))
        end = self.queue.number_of(result.max_offset - 1) + 1
        self.stop = min(end, self.number + units)
        self.unit_bytes = self.queue.unit_bytes
        self.holds_batches = self.queue.holds_batches
        self.units_end = 0
        self.run_start = self.run_end = self.run_limit = self.last_end = 0
        self.count = self.size_sum = 0
        self.last_log_offset = -1
        self.is_removing = False
        self.searches_max = self.repair.searches + _SEARCHES_MAX
        self.is_one_tag = type(matcher) is TagMatcher and len(matcher.codes) == 1
        if self.is_one_tag:  # compared without an object for each unit
            (self.wanted_code,) = matcher.codes
        self.evaluates = matcher is not None and not self.is_one_tag and matcher.needs_properties
        self.uses_bitmaps = self.evaluates and self.queue.ext is not None
        self.evaluated = 0
        self.end_s = thread_time() + _EVALUATION_S_MAX if self.evaluates else 0.0

    def _find_units(self) -> bool:
        """Find the memory of the next units; return False if it does not exist."""
        queue = self.queue
        if queue.is_buffered(self.number):
            self.memory = queue.buffer_memory()
            self.shift = queue.buffer_position(self.number) - self.number * self.unit_bytes
            self.units_end = self.stop
            return True
        units: Any = queue.segments.find(self.number * self.unit_bytes)
        if units is None:
            return False
        self.memory = units.memory
        self.shift = -units.base_offset
        self.units_end = queue.end_in_file(units)
        return True

    def _skip_damaged(self) -> bool:
        """Repair or skip a unit without a record; return whether the scan goes on.

        A unit that was repaired is read again.
        """
        if self.repair.repair(self.queue, self.number):
            return True
        self.is_removing = True
        self.number += 1
        return bool(self.repair.searches < self.searches_max)

    def _is_full(self, log_offset: int, size: int, messages: int) -> bool:
        """Return whether a result with messages has no room for another record."""
        limits = self.limits
        size_sum = self.size_sum + size
        if self.count + messages > self.max_count or size_sum > self.max_bytes:
            return True
        if self.log_end - log_offset > limits.memory_bytes:
            return size_sum > limits.bytes_on_disk or self.count >= limits.count_on_disk
        return size_sum > limits.bytes_in_memory or self.count >= limits.count_in_memory

    def _may_evaluate(self, result: GetResult, log_offset: int, size: int) -> bool:
        """Return whether this read evaluates another record: it has time, and is in memory."""
        is_look_due = self.evaluated % _EVALUATIONS_PER_LOOK == 0 or size > _LONG_RECORD_BYTES
        if self.evaluated and is_look_due and thread_time() >= self.end_s:
            return False
        if not self.log.is_recent(log_offset) and _is_cold(self.log, log_offset, size):
            result.stopped_at_cold = True
            return False
        self.evaluated += 1
        return True

    def _matches_properties(self, log_offset: int, size: int) -> bool:
        properties = self.log.properties_at(log_offset, size)
        return bool(self.matcher.matches_properties(properties))

    def _begin_run(self, log_offset: int, size: int) -> bool:
        """Begin a run with a record; return False if the log does not have all of it."""
        segment = self.log.segments.find(log_offset)
        limit = log_offset if segment is None else min(segment.end_offset, self.log_end)
        if size > limit - log_offset or size <= 0:
            return False
        self.run_start = self.run_end = log_offset
        self.run_limit = limit
        return True

    def _close_run(self, result: GetResult) -> None:
        """Add the run to the result; the next record begins another one."""
        if self.run_end > self.run_start:
            result.slices.append(self.log.slice(self.run_start, self.run_end))
            result.starts.append(self.run_start)
        self.run_start = self.run_end = self.run_limit = 0

    def _finish(self, result: GetResult) -> None:
        result.count = self.count
        result.size_bytes = self.size_sum
        if self.number > self.start:  # it goes on, and not beyond the end, if units are damaged
            behind = self.queue.offset_behind(self.number - 1)
            least = result.next_begin_offset + 1
            result.next_begin_offset = min(max(behind, least), result.max_offset)
        if self.count > 0:
            result.status = _FOUND
        elif self.is_removing and result.status is _NO_MATCHED_MESSAGE:
            result.status = _MESSAGE_WAS_REMOVING
        result.suggest_slave = self.log_end - self.last_log_offset > self.limits.memory_bytes


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
