"""Repairs what a disk has changed: units of consume queues, and heads of records.

Neither has a checksum, so a reader finds damage when a unit leads to a record that is not its own.

    unit      damaged if its record is elsewhere in the log: the unit is written again
    record    damaged if it is nowhere else: its head is written again, from what its unit knows
    body      cannot be repaired: pulls get an error

The head is what the unit and its queue know of a record: size, magic, queue, offsets and topic.
RocketMQ skips messages with damaged units, and serves damaged records.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from pathlib import Path
from struct import Struct

from cometmq.protocol.record import (
    LOG_OFFSET_AT,
    MAGIC_AT,
    MAGIC_V1,
    MAGIC_V2,
    PREFIX,
    QUEUE_ID_AT,
    QUEUE_OFFSET_AT,
    RECORD_BYTES_MIN,
    TOPIC_BYTES_MAX_V1,
    RecordError,
    body_at,
    body_crc,
    split_record,
)
from cometmq.store.errors import StoreCorruptError
from cometmq.store.log.commit_log import CommitLog
from cometmq.store.log.record_scan import RecordFacts, read_facts
from cometmq.store.log.segments import Segment, Segments
from cometmq.store.queues.consume_queue import FILLER_SIZE, ConsumeQueue
from cometmq.store.queues.dispatch import Dispatcher, QueueTable

logger = logging.getLogger(__name__)

_SEARCHED_BYTES_MAX = 16 * 1024 * 1024
"""How far the log is searched for one record: some ten milliseconds."""
_WALKED_BYTES_MAX = 1024 * 1024 * 1024
"""How far all walks of a start may go that look for records without units: some seconds."""
_NEIGHBOURS_MAX = 64
"""The limit of damaged units side by side: a sector has 25."""
_KNOWN_MAX = 10_000
"""The limit of damages that are remembered, so that each is logged once."""
_CHANGED_BITS_MAX = 8
"""A record that differs in more bits is another one."""
_I32, _I64 = Struct(">i"), Struct(">q")
_I64_MASK = 2**64 - 1
_HAS_NO_UNIT = (0x4, 0xC)
"""Transaction bits of records without a unit: prepared, rolled back."""


class Repair:
    """Repairs the units of one store.

    Args:
        log, table, dispatcher: its parts.
    """

    def __init__(self, log: CommitLog, table: QueueTable, dispatcher: Dispatcher) -> None:
        self._log = log
        self._table = table
        self._dispatcher = dispatcher
        self._known: set[tuple[str, int, int]] = set()
        """Units without a record; with -1 - offset, units whose record is damaged."""
        self._left_bytes = _WALKED_BYTES_MAX
        self.searches = 0
        """How often the record of a unit was searched for reads."""

    def repair(self, queue: ConsumeQueue, number: int) -> bool:
        """Repair a unit whose message cannot be read; return whether it can be read now.

        It cannot if the record is deleted, if there never was one, or if it is not found.

        Args:
            queue: its queue.
            number: of the unit, between the bounds of the queue.
        """
        met = queue.unit(number)
        key = queue.topic, queue.queue_id, number
        where = queue.topic, queue.queue_id, queue.offset_of(number)
        if met[1] == FILLER_SIZE or key in self._known or self._is_expired(queue, number):
            return False
        self.searches += 1
        facts = self.find(queue, number)
        if facts is not None and (facts.log_offset, facts.total) == met[:2]:
            return False  # it is not readable yet
        if facts is None:
            if self._restore(queue, number):
                return True
            if self._is_new(key):
                logger.error(
                    "damaged unit of a queue, its message is skipped topic=%s queue=%d offset=%d"
                    " path=%s position=%d met=%s, expected a record of the log",
                    *(*where, *_location(queue, number), met),
                )
            return False
        self._write(queue, number, met, facts)
        return True

    def repair_around(self, queue: ConsumeQueue, number: int) -> bool:
        """Repair the unit with a number or the one before, which contradict each other.

        Returns:
            Whether any was repaired.
        """
        changed = False
        for each in (number - 1, number):
            if each >= queue.first_unit and not self._is_sound(queue, each):
                changed |= self.repair(queue, each)
        return changed

    def repair_records(
        self, queue: ConsumeQueue, first: int, stop: int, read: Mapping[int, int]
    ) -> None:
        """Repair units, or the heads of their records, so that both agree.

        Args:
            queue: the queue.
            first, stop: the units, from one number up to another.
            read: the parts of the log that were read: where each starts, and where it ends. Other
                units are skipped: a filter has skipped them, or they lead nowhere.

        Raises:
            StoreCorruptError: a record cannot be repaired.
        """
        starts = sorted(read)
        for number in range(max(first, queue.first_unit), min(stop, queue.end_unit)):
            met = queue.unit(number)
            part = bisect_right(starts, met[0]) - 1
            if met[1] == FILLER_SIZE or part < 0 or met[0] >= read[starts[part]]:
                continue
            problem = self._problem(queue, number, check_crc=True)
            if problem is None:
                continue
            if self.fill_if_expired(queue, number):
                continue
            key, damage = ((queue.topic, queue.queue_id, n) for n in (number, -1 - number))
            is_searched = key in self._known or damage in self._known
            facts = None if is_searched else self.find(queue, number)
            if facts is not None and (facts.log_offset, facts.total) != met[:2]:
                self._write(queue, number, met, facts)
            elif not self._restore(queue, number):
                path, position = _file_at(self._log.segments, met[0])
                where = f"offset {queue.offset_of(number)} of {queue.topic}-{queue.queue_id}"
                error = StoreCorruptError(path, position, problem, f"the message at {where}")
                if self._is_new(damage):
                    logger.error("damaged message, pulls are refused error=%s", error)
                raise error

    def _is_new(self, key: tuple[str, int, int]) -> bool:
        """Return whether a damage is met for the first time, as far as that is known."""
        if key in self._known:
            return False
        if len(self._known) >= _KNOWN_MAX:
            self._known.clear()
        self._known.add(key)
        return True

    def has_damaged_record(self, queue: ConsumeQueue, number: int) -> bool:
        """Return whether a unit is right, but its record is damaged."""
        record = self._record_of(queue, number)
        if record is None:
            return False
        log_offset, size, _ = queue.unit(number)
        total, magic, _, queue_id, _, queue_offset, met_offset, _ = PREFIX.unpack_from(record)
        met = total, queue_id, queue_offset, met_offset
        expected = size, queue.queue_id, queue.offset_of(number), log_offset
        if magic in (MAGIC_V1, MAGIC_V2) and met == expected:
            return True
        return self._restored(queue, number, record) is not None

    def _restore(self, queue: ConsumeQueue, number: int) -> bool:
        """Write what is known of a record into its head again; return whether it is whole then."""
        record = self._record_of(queue, number)
        restored = None if record is None else self._restored(queue, number, record)
        if restored is None:
            return False
        log_offset = queue.unit(number)[0]
        segment = self._log.segments.find(log_offset)
        assert segment is not None
        position = log_offset - segment.base_offset
        self._write_record(queue, queue.offset_of(number), segment, position, restored)
        return True

    def restore_offset(self, queue: ConsumeQueue, facts: RecordFacts) -> bool:
        """Write the right queue offset into the first record behind the end of its queue.

        Its offset is damaged if the next record of the queue continues behind the right one.

        Returns:
            Whether it has the next offset of the queue now.
        """
        expected, met = queue.max_offset, facts.queue_offset
        changed = ((expected ^ met) & _I64_MASK).bit_count()
        if met == 0 or queue.segments.count == 0 or changed > _CHANGED_BITS_MAX:
            return False
        if facts.sys_flag & 0xC in _HAS_NO_UNIT:
            return False
        segment = self._log.segments.find(facts.log_offset)
        assert segment is not None
        position = facts.log_offset - segment.base_offset
        if read_facts(segment, position, True).problem is not None:
            return False
        if not self._has_none_between(queue, facts.log_offset):
            return False  # units are missing
        start = facts.log_offset + facts.total
        for other in self._records(start, start + _SEARCHED_BYTES_MAX):
            if self._is_of(queue, other):
                if other.queue_offset != expected + 1:
                    return False
                break
        else:
            if changed > 1 or met == expected + 1:  # the one before may be missing
                return False
        head = bytearray(segment.view[position : position + facts.total])
        _I64.pack_into(head, QUEUE_OFFSET_AT, expected)
        self._write_record(queue, expected, segment, position, bytes(head))
        return True

    def restore_missing(self, queue: ConsumeQueue, log_offset: int) -> RecordFacts | None:
        """Return the next record of a queue if its head names another queue; its head is repaired.

        Args:
            queue: the queue, whose end is before the record.
            log_offset: where the record after it begins.
        """
        expected = queue.max_offset
        if not self._has_none_between(queue, log_offset):
            return None  # its unit is missing
        for facts in self._records(max(queue.max_physical, self._log.min_offset()), log_offset):
            if facts.queue_offset != expected or self._is_of(queue, facts):
                continue
            other = self._table.find(facts.topic.decode(errors="replace"), facts.queue_id)
            if other is not None and self._leads_to(other, facts) and other.min_offset < expected:
                continue
            segment = self._log.segments.find(facts.log_offset)
            assert segment is not None
            position = facts.log_offset - segment.base_offset
            met = bytes(segment.view[position : position + facts.total])
            restored = _with_head(met, queue, expected, facts.log_offset)
            if restored is not None:
                self._write_record(queue, expected, segment, position, restored)
                return read_facts(segment, position, True)
        return None

    def _has_none_between(self, queue: ConsumeQueue, log_offset: int) -> bool:
        """Return whether no record of a queue is between its last unit's and another record."""
        start = max(queue.max_physical, self._log.min_offset())
        self._left_bytes -= log_offset - start
        if self._left_bytes < 0:
            return False
        end = start
        for facts in self._records(start, log_offset):
            if self._is_of(queue, facts):
                return False
            end = facts.log_offset + facts.total
        segment = self._log.segments.find(end)
        if end == log_offset or segment is None:
            return end == log_offset
        blank = read_facts(segment, end - segment.base_offset, False)
        return blank.problem is None and blank.total == 0 and segment.end_offset == log_offset

    @staticmethod
    def _leads_to(queue: ConsumeQueue, facts: RecordFacts) -> bool:
        """Return whether a unit of a queue leads to a record."""
        if not queue.min_offset <= facts.queue_offset < queue.max_offset:
            return False
        number = queue.number_of(facts.queue_offset)
        return queue.unit(number)[:2] == (facts.log_offset, facts.total)

    @staticmethod
    def _write_record(
        queue: ConsumeQueue, offset: int, segment: Segment, position: int, record: bytes
    ) -> None:
        segment.file.write(position, record)
        logger.error(
            "damaged record of a message repaired topic=%s queue=%d offset=%d path=%s position=%d",
            *(queue.topic, queue.queue_id, offset, segment.file.path, position),
        )

    def _record_of(self, queue: ConsumeQueue, number: int) -> bytes | None:
        """Return the bytes of a record, as its unit says where they are; None if they cannot be."""
        log_offset, size, _ = queue.unit(number)
        segment = self._log.segments.find(log_offset)
        if segment is None or not RECORD_BYTES_MIN <= size <= segment.end_offset - log_offset:
            return None
        if log_offset + size > self._log.written_to:
            return None
        position = log_offset - segment.base_offset
        return bytes(segment.view[position : position + size])

    def _restored(self, queue: ConsumeQueue, number: int, met: bytes) -> bytes | None:
        """Return a record with what the queue knows of it; None if it is damaged elsewhere.

        A whole record to which another unit leads is not damaged: the unit is.
        """
        log_offset = queue.unit(number)[0]
        segment = self._log.segments.find(log_offset)
        assert segment is not None
        facts = read_facts(segment, log_offset - segment.base_offset, True)
        if facts.problem is None:
            other = self._table.find(facts.topic.decode(errors="replace"), facts.queue_id)
            if other is not None and self._leads_to(other, facts):
                return None
        return _with_head(met, queue, queue.offset_of(number), log_offset)

    def _write(
        self, queue: ConsumeQueue, number: int, met: tuple[int, int, int], facts: RecordFacts
    ) -> None:
        code = met[2]
        if queue.ext is None:
            topic = self._table.topic(queue.topic)
            code = self._dispatcher.tags_code(topic, facts.store_ms, facts.properties)
        queue.replace(number, facts.log_offset, facts.total, code)
        logger.error(
            "damaged unit of a queue repaired topic=%s queue=%d offset=%d path=%s position=%d"
            " met=%s written=%s",
            *(queue.topic, queue.queue_id, facts.queue_offset, *_location(queue, number), met),
            (facts.log_offset, facts.total, code),
        )

    def _is_expired(self, queue: ConsumeQueue, number: int) -> bool:
        """Return whether the record of a damaged unit is deleted, as its neighbours show.

        The lower bound of a queue follows a little later.
        """
        log_min = self._log.min_offset()
        if number + 1 < queue.end_unit:
            log_offset, size, _ = queue.unit(number + 1)
            # A filler, or a neighbour that is damaged too, shows nothing.
            if 0 <= log_offset < log_min and 0 < size <= log_min - log_offset:
                return True
        log_offset, size, _ = queue.unit(number)
        if not 0 <= log_offset < log_min or size <= 0:
            return False
        return number == queue.first_unit or queue.unit(number - 1)[0] < log_min

    def follows(self, queue: ConsumeQueue, number: int) -> bool:
        """Return whether a unit is behind the one before, as far as that one is sound."""
        base = queue.segments.first_base() // queue.unit_bytes
        if number <= base or queue.unit(number - 1)[0] < queue.unit(number)[0]:
            return True
        return not self._is_sound(queue, number - 1)

    def fill_if_expired(self, queue: ConsumeQueue, number: int) -> bool:
        """Replace a damaged unit by a filler if its record is deleted; return whether it was."""
        if not self._is_expired(queue, number):
            base = queue.segments.first_base() // queue.unit_bytes
            if number <= base or self.has_damaged_record(queue, number):
                return False
            before, size, _ = queue.unit(number - 1)
            is_behind_deleted = 0 <= before < self._log.min_offset() and size > 0
            if not is_behind_deleted or self.find(queue, number) is not None:
                return False
        queue.replace(number, 0, FILLER_SIZE, 0)
        return True

    def _span(self, queue: ConsumeQueue, number: int) -> tuple[int, int]:
        """Return where the record of a unit may be: between the records of its sound neighbours."""
        start = self._end_before(queue, number)
        if start is None:
            return 0, 0
        return start, min(self._start_behind(queue, number), start + _SEARCHED_BYTES_MAX)

    def searched_bytes(self, queue: ConsumeQueue, number: int) -> int:
        """Return how much of the log `find` searches at most."""
        start, stop = self._span(queue, number)
        return stop - start

    def find(self, queue: ConsumeQueue, number: int) -> RecordFacts | None:
        """Return the record of a damaged unit; None if it is not found.

        If one bit was changed, the unit shows where it is. Else it is searched between the records
        of the sound units around it.
        """
        log_offset, offset = queue.unit(number)[0] & (2**63 - 1), queue.offset_of(number)
        for changed in (0, *(1 << bit for bit in range(63))):
            met = self._facts_at(log_offset ^ changed)
            if met is not None and met.queue_offset == offset and self._is_of(queue, met):
                return met
        start, stop = self._span(queue, number)
        for facts in self._records(start, stop):
            if facts.queue_offset == offset and self._is_of(queue, facts):
                return facts
        return None

    def _facts_at(self, log_offset: int) -> RecordFacts | None:
        """Return the fields of the record that begins at a log offset, or None if none does."""
        if not self._log.min_offset() <= log_offset < self._log.written_to:
            return None
        segment = self._log.segments.find(log_offset)
        assert segment is not None
        facts = read_facts(segment, log_offset - segment.base_offset, False)
        return facts if facts.problem is None and facts.total else None

    @staticmethod
    def _is_of(queue: ConsumeQueue, facts: RecordFacts) -> bool:
        """Return whether a record has a unit in a queue."""
        return (
            facts.queue_id == queue.queue_id
            and facts.topic == queue.topic.encode()
            and facts.sys_flag & 0xC not in _HAS_NO_UNIT
        )

    def _records(self, start: int, stop: int) -> Iterator[RecordFacts]:
        """Yield the records from one that begins at a log offset, up to another log offset."""
        segment = self._log.segments.find(start)
        while segment is not None and start < stop:
            facts = read_facts(segment, start - segment.base_offset, False)
            if facts.problem is not None:
                return
            if facts.total == 0:  # the blank at the end of a file
                start = segment.end_offset
            else:
                yield facts
                start += facts.total
            if start >= segment.end_offset:
                segment = self._log.segments.find(start)

    def _end_before(self, queue: ConsumeQueue, number: int) -> int | None:
        """Return a log offset before the record where another one begins; None if unknown."""
        log_min = self._log.min_offset()
        near = number - 1
        while near >= queue.first_unit:
            if number - near > _NEIGHBOURS_MAX:
                return None
            log_offset, size, _ = queue.unit(near)
            if self._is_sound(queue, near):
                return log_offset + size
            near -= 1
        return log_min

    def _start_behind(self, queue: ConsumeQueue, number: int) -> int:
        """Return a log offset behind the record."""
        for near in range(number + 1, min(number + _NEIGHBOURS_MAX, queue.end_unit)):
            if self._is_sound(queue, near):
                return queue.unit(near)[0]
        return self._log.written_to

    def _is_sound(self, queue: ConsumeQueue, number: int) -> bool:
        """Return whether the record of a unit is where the unit says."""
        return self._problem(queue, number, check_crc=False) is None

    def _problem(self, queue: ConsumeQueue, number: int, *, check_crc: bool) -> str | None:
        """Return what contradicts a unit where its record should be; None if nothing does."""
        log_offset, size, _ = queue.unit(number)
        segment = self._log.segments.find(log_offset)
        if segment is None:
            return f"a unit for log offset {log_offset}"
        facts = read_facts(segment, log_offset - segment.base_offset, check_crc)
        if facts.problem is not None:
            return facts.problem
        if facts.total != size:
            return f"a record of {facts.total} bytes"
        if (facts.topic, facts.queue_id) != (queue.topic.encode(), queue.queue_id):
            return f"a record of {facts.topic!r}-{facts.queue_id}"
        if facts.queue_offset != queue.offset_of(number):
            return f"the record of offset {facts.queue_offset}"
        return None


def _with_head(met: bytes, queue: ConsumeQueue, offset: int, log_offset: int) -> bytes | None:
    """Return a record with what the queue knows of it, if only a few bits of that are changed."""
    record = bytearray(met)
    topic = queue.topic.encode()
    magic = MAGIC_V1 if len(topic) <= TOPIC_BYTES_MAX_V1 else MAGIC_V2
    _I32.pack_into(record, 0, len(met))
    _I32.pack_into(record, MAGIC_AT, magic)
    _I32.pack_into(record, QUEUE_ID_AT, queue.queue_id)
    _I64.pack_into(record, QUEUE_OFFSET_AT, offset)
    _I64.pack_into(record, LOG_OFFSET_AT, log_offset)
    try:
        parts = split_record(memoryview(record))
        if parts.topic.encode() != topic:
            behind = len(met) - 2 - len(parts.properties)
            record[behind - len(topic) : behind] = topic
            parts = split_record(memoryview(record))
    except RecordError:
        return None
    lengths = len(topic) + (1 if magic == MAGIC_V1 else 2) + 2
    size = body_at(parts.sys_flag) + len(parts.body) + lengths + len(parts.properties)
    if size != len(met) or parts.topic.encode() != topic:
        return None
    changed = (int.from_bytes(met) ^ int.from_bytes(record)).bit_count()
    is_repaired = 0 < changed <= _CHANGED_BITS_MAX and parts.body_crc == body_crc(parts.body)
    return bytes(record) if is_repaired else None


def _file_at(segments: Segments, log_offset: int) -> tuple[Path, int]:
    """Return the file of a log offset, and the byte in it."""
    segment = segments.find(log_offset)
    return (Path(), 0) if segment is None else (segment.file.path, log_offset - segment.base_offset)


def _location(queue: ConsumeQueue, number: int) -> tuple[Path, int]:
    """Return the file of a unit, and the byte in it."""
    at = number * queue.unit_bytes
    segment = queue.segments.find(at)
    assert segment is not None
    return segment.file.path, at - segment.base_offset
