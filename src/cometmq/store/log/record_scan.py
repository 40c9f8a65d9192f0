# cython: annotation_typing=False, cdivision=True
"""Checks whether a stored record is whole, and reads the fields that queues and index need.

Source: CommitLog.checkMessageAndReturnSize, RocketMQ 5.3.
"""

from __future__ import annotations

from typing import Any
from zlib import crc32

from cometmq.protocol import checksum, octets
from cometmq.protocol.record import (
    BODY_CRC_AT,
    BODY_LENGTH_BEFORE_BODY,
    CRC_MASK,
    LOG_OFFSET_AT,
    MAGIC_AT,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    QUEUE_ID_AT,
    QUEUE_OFFSET_AT,
    RECORD_BYTES_MIN,
    SYS_FLAG_AT,
    TOPIC_BYTES_MAX_V1,
    body_at,
    store_time_at,
)
from cometmq.store.log import record_layout
from cometmq.store.log.segments import Segment

_SECTOR_BYTES = 512
_NEVER_MS = 2**63 - 1
# C numbers once compiled.
_V1, _V2, _BYTES_MIN = MAGIC_V1, MAGIC_V2, RECORD_BYTES_MIN
_MAGIC_AT, _BODY_CRC_AT, _SYS_FLAG_AT = MAGIC_AT, BODY_CRC_AT, SYS_FLAG_AT
_LOG_OFFSET_AT, _QUEUE_ID_AT, _QUEUE_OFFSET_AT = LOG_OFFSET_AT, QUEUE_ID_AT, QUEUE_OFFSET_AT
_TOPIC_FIELD_V1_MAX = TOPIC_BYTES_MAX_V1 + 1
_LENGTH_BYTES = BODY_LENGTH_BEFORE_BODY
_CRC_BITS = CRC_MASK


class RecordFacts:
    """The fields of one record that the store needs; ``problem`` is set if it is not whole.

    A blank has ``total`` 0 and no problem.
    """

    def __init__(self) -> None:
        self.total = 0
        self.problem: str | None = None
        self.queue_id = 0
        self.queue_offset = 0
        self.log_offset = 0
        self.sys_flag = 0
        self.store_ms = 0
        self.body_at = 0
        self.body_bytes = 0
        self.topic = b""
        self.properties = b""


def read_facts(segment: Segment, position: int, check_crc: bool) -> RecordFacts:
    """Return the fields of the record at ``position`` of a segment.

    Args:
        segment: the file.
        position: where the record begins.
        check_crc: whether the body's checksum must match.
    """
    facts = RecordFacts()
    _fill(facts, segment, position, check_crc)
    return facts


def walk(
    segment: Segment,
    check_crc: bool,
    synced_ms: int | None,
    start: int = 0,
    synced_to: int = 0,
) -> tuple[int, int, str | None]:
    """Walk over the records of a segment until none begins.

    Args:
        segment: the file.
        check_crc: whether the checksum of each body must match.
        synced_ms: a record that was not stored before may have lost the end of its properties,
            which no checksum covers; None where none can have.
        start: where the first record begins.
        synced_to: the position before which no record can have.

    Returns:
        Where the walk ended, when the last record was stored (0 for none), and what was met there
        instead of a record; None if a blank ends the segment.
    """
    facts = RecordFacts()
    position = start
    last_store_ms = 0
    doubtful_ms = _NEVER_MS if synced_ms is None else synced_ms
    while position < segment.size_bytes:
        facts.total = 0
        _fill(facts, segment, position, check_crc)
        problem = facts.problem
        if (
            problem is None
            and facts.total
            and facts.store_ms >= doubtful_ms
            and position >= synced_to
        ):
            problem = _torn_properties(facts, position)
        if problem is not None:
            return position, last_store_ms, problem
        if facts.total == 0:
            break
        position += facts.total
        last_store_ms = facts.store_ms
    return position, last_store_ms, None


def _fill(facts: RecordFacts, segment: Segment, position: int, check_crc: bool) -> None:
    problem = _read(segment.memory, segment.view, position, segment.size_bytes, facts)
    if problem is None and facts.total:
        if facts.log_offset != segment.base_offset + position:
            problem = f"a record that says it is at {facts.log_offset}"
        elif check_crc:
            problem = _crc_problem(facts, segment, position)
    facts.problem = problem


def _torn_properties(facts: RecordFacts, position: int) -> str | None:
    """Return whether zeros reach the end of the properties or a sector boundary in them."""
    properties = facts.properties
    if properties.find(b"\0") < 0:
        return None
    end = position + facts.total
    border = end - end % _SECTOR_BYTES - (end - len(properties))
    while border >= 0:
        if b"\0" in properties[max(0, border - 1) : border + 1]:
            return "properties with zeros at a sector's border"
        border -= _SECTOR_BYTES
    return "properties that end in zeros" if properties.endswith(b"\0") else None


def _read(memory: Any, view: memoryview, start: int, limit: int, facts: RecordFacts) -> str | None:
    if start + _BYTES_MIN > limit:
        return _short_problem(memory, start, limit)
    total, magic, _, queue_id, _, queue_offset, log_offset, sys_flag = record_layout.read_prefix(
        memory, start
    )
    if magic != _V1 and magic != _V2:
        return _other_problem(total, magic, limit - start)
    if total < _BYTES_MIN or start + total > limit:
        return f"a record of {total} bytes"
    end = start + total
    at = start + body_at(sys_flag)
    if at > end:
        return f"a record of {total} bytes with long hosts"
    facts.store_ms = record_layout.get_i64(memory, start + store_time_at(sys_flag))
    body_length = record_layout.get_i32(memory, at - _LENGTH_BYTES)
    if body_length < 0 or at + body_length + 3 > end:
        return f"a body of {body_length} bytes in a record of {total}"
    facts.body_at = at
    facts.body_bytes = body_length
    at += body_length
    if magic == _V1:
        topic_length = record_layout.get_i16(memory, at - 1) & 0xFF
        at += 1
    else:
        topic_length = record_layout.get_i16(memory, at)
        at += 2
    if topic_length < 0 or at + topic_length + 2 > end:
        return f"a topic of {topic_length} bytes in a record of {total}"
    facts.topic = bytes(view[at : at + topic_length])
    if b"\0" in facts.topic or not facts.topic:
        return f"a topic named {facts.topic!r}"
    at += topic_length
    properties_length = record_layout.get_i16(memory, at)
    at += 2
    if properties_length < 0 or at + properties_length != end:
        return f"properties of {properties_length} bytes in a record of {total}"
    facts.properties = bytes(view[at:end])
    facts.queue_id = queue_id
    facts.queue_offset = queue_offset
    facts.log_offset = log_offset
    facts.sys_flag = sys_flag
    facts.total = total
    return None


def _short_problem(memory: Any, start: int, limit: int) -> str | None:
    if start + 8 > limit:
        return "less than 8 bytes"
    return _other_problem(
        record_layout.get_i32(memory, start),
        record_layout.get_i32(memory, start + _MAGIC_AT),
        limit - start,
    )


def _other_problem(total: int, magic: int, left: int) -> str | None:
    """Return what was met instead of a record; None for a blank."""
    if magic == MAGIC_BLANK:
        return None if total == left else f"a blank of {total} bytes where {left} are left"
    if magic == 0 and total == 0:
        return "zeros"
    return f"magic number {magic & 0xFFFFFFFF:#010x}"


def _crc_problem(facts: RecordFacts, segment: Segment, position: int) -> str | None:
    body = segment.view[facts.body_at : facts.body_at + facts.body_bytes]
    expected = record_layout.get_i32(segment.memory, position + _BODY_CRC_AT)
    # An empty body has the checksum 0, as RocketMQ writes it, and as CRC-32 defines it.
    met = crc32(body) & _CRC_BITS
    return None if met == expected else f"a body with checksum {met:#x} instead of {expected:#x}"


def checked_record(
    segment: Segment, position: int, end: int, queue_id: int, topic_field: bytes
) -> int:
    """Return the size of the record at a position, or 0 if it is not what it should be.

    Args:
        segment: the file.
        position: where the record begins.
        end: where it ends at the latest.
        queue_id: the number of its queue.
        topic_field: its topic with the length before it.
    """
    memory: Any = segment.memory
    if position + _BYTES_MIN > end:
        return 0
    total = record_layout.get_i32(memory, position)
    if total < _BYTES_MIN or total > end - position:
        return 0
    magic = record_layout.get_i32(memory, position + _MAGIC_AT)
    if magic != (_V1 if len(topic_field) <= _TOPIC_FIELD_V1_MAX else _V2):
        return 0
    if record_layout.get_i32(memory, position + _QUEUE_ID_AT) != queue_id:
        return 0
    if record_layout.get_i64(memory, position + _LOG_OFFSET_AT) != segment.base_offset + position:
        return 0
    stop = position + total
    at = position + body_at(record_layout.get_i32(memory, position + _SYS_FLAG_AT))
    if at > stop:
        return 0
    size = record_layout.get_i32(memory, at - _LENGTH_BYTES)
    topic_at = at + size
    text_at = topic_at + len(topic_field)
    if size < 0 or text_at + 2 > stop:
        return 0
    if not octets.equals(memory, topic_at, len(topic_field), topic_field):
        return 0
    if record_layout.get_i16(memory, text_at) != stop - text_at - 2:
        return 0
    crc = checksum.crc_of(memory, at, at + size) & _CRC_BITS
    return total if record_layout.get_i32(memory, position + _BODY_CRC_AT) == crc else 0


def queue_offset_of(segment: Segment, position: int) -> int:
    """Return the queue offset of the record at ``position``."""
    return record_layout.get_i64(segment.memory, position + _QUEUE_OFFSET_AT)


def body_end(segment: Segment, position: int) -> int:
    """Return where the body of the record at ``position`` says that it ends."""
    sys_flag = record_layout.get_i32(segment.memory, position + _SYS_FLAG_AT)
    at = position + body_at(sys_flag)
    if at > segment.size_bytes:
        return position
    return at + record_layout.get_i32(segment.memory, at - _LENGTH_BYTES)


def store_time(segment: Segment, position: int) -> int:
    """Return when the record at ``position`` was stored, in ms."""
    sys_flag = record_layout.get_i32(segment.memory, position + _SYS_FLAG_AT)
    return record_layout.get_i64(segment.memory, position + store_time_at(sys_flag))


def record_size(segment: Segment, position: int) -> int:
    """Return the size of the record that begins at ``position``, or 0 where none does."""
    if position + _BYTES_MIN > segment.size_bytes:
        return 0
    total = record_layout.get_i32(segment.memory, position)
    magic = record_layout.get_i32(segment.memory, position + _MAGIC_AT)
    if magic not in (_V1, _V2) or total < _BYTES_MIN:
        return 0
    log_offset = record_layout.get_i64(segment.memory, position + _LOG_OFFSET_AT)
    if log_offset != segment.base_offset + position:
        return 0
    return total if position + total <= segment.size_bytes else 0
