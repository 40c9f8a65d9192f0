# cython: annotation_typing=False, cdivision=True
"""Records as the store sees them: is this one whole, and what must the queues know of it?

The layout is that of ``raw.write_record``; hosts have 8 bytes, or 20 where ``sys_flag`` says so.
Source: CommitLog.checkMessageAndReturnSize, RocketMQ 5.3.
"""

from __future__ import annotations

import zlib
from typing import Any

from cometmq.protocol.record import CRC_MASK, MAGIC_BLANK, MAGIC_V1, MAGIC_V2, RECORD_BYTES_MIN
from cometmq.store import raw
from cometmq.store.segments import Segment

_BORN_V6, _STORE_V6 = 0x10, 0x20


class RecordFacts:
    """What the store needs to know of one record; ``problem`` says why it is none.

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
        self.topic = b""
        self.properties = b""


def read_facts(segment: Segment, position: int, check_crc: bool) -> RecordFacts:
    """Return the facts of the record at ``position`` of a segment.

    Args:
        segment: the file.
        position: where the record begins.
        check_crc: whether the body's checksum must match.
    """
    facts = RecordFacts()
    facts.problem = _read(segment.memory, segment.view, position, segment.size_bytes, facts)
    if facts.problem is not None or facts.total == 0:
        return facts
    if facts.log_offset != segment.base_offset + position:
        facts.problem = f"a record that says it is at {facts.log_offset}"
    elif check_crc:
        facts.problem = _crc_problem(segment, position)
    return facts


def _read(memory: Any, view: memoryview, start: int, limit: int, facts: RecordFacts) -> str | None:
    if start + RECORD_BYTES_MIN > limit:
        return _short_problem(memory, start, limit)
    total, magic, _, queue_id, _, queue_offset, log_offset, sys_flag = raw.read_prefix(
        memory, start
    )
    if magic != MAGIC_V1 and magic != MAGIC_V2:
        return _other_problem(total, magic, limit - start)
    if total < RECORD_BYTES_MIN or start + total > limit:
        return f"a record of {total} bytes"
    at = start + 48 + (20 if sys_flag & _BORN_V6 else 8)
    facts.store_ms = raw.get_i64(memory, at)
    at += 8 + (20 if sys_flag & _STORE_V6 else 8) + 12
    end = start + total
    body_length = raw.get_i32(memory, at)
    at += 4
    if body_length < 0 or at + body_length + 3 > end:
        return f"a body of {body_length} bytes in a record of {total}"
    at += body_length
    if magic == MAGIC_V1:
        topic_length = raw.get_i16(memory, at - 1) & 0xFF
        at += 1
    else:
        topic_length = raw.get_i16(memory, at)
        at += 2
    if topic_length < 0 or at + topic_length + 2 > end:
        return f"a topic of {topic_length} bytes in a record of {total}"
    facts.topic = bytes(view[at : at + topic_length])
    if b"\0" in facts.topic or not facts.topic:
        return f"a topic named {facts.topic!r}"
    at += topic_length
    properties_length = raw.get_i16(memory, at)
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
    return _other_problem(raw.get_i32(memory, start), raw.get_i32(memory, start + 4), limit - start)


def _other_problem(total: int, magic: int, left: int) -> str | None:
    """What stands where no record begins; None for a blank."""
    if magic == MAGIC_BLANK:
        return None if total == left else f"a blank of {total} bytes where {left} are left"
    if magic == 0 and total == 0:
        return "zeros"
    return f"magic number {magic & 0xFFFFFFFF:#010x}"


def _crc_problem(segment: Segment, position: int) -> str | None:
    start, stop = body_bounds(segment, position)
    expected = raw.get_i32(segment.memory, position + 8)
    met = zlib.crc32(segment.view[start:stop]) & CRC_MASK if stop > start else 0
    # An empty body has the checksum 0, as RocketMQ writes it.
    return None if met == expected else f"a body with checksum {met:#x} instead of {expected:#x}"


def body_bounds(segment: Segment, position: int) -> tuple[int, int]:
    """Return where in the segment the body of a whole record begins and ends."""
    sys_flag = raw.get_i32(segment.memory, position + 36)
    at = position + 48 + (20 if sys_flag & _BORN_V6 else 8) + 8
    at += (20 if sys_flag & _STORE_V6 else 8) + 12
    return at + 4, at + 4 + raw.get_i32(segment.memory, at)


def store_time(segment: Segment, position: int) -> int:
    """Return when the record at ``position`` was stored, in ms."""
    sys_flag = raw.get_i32(segment.memory, position + 36)
    return raw.get_i64(segment.memory, position + 48 + (20 if sys_flag & _BORN_V6 else 8))


def record_size(segment: Segment, position: int) -> int:
    """Return the size of the record that begins at ``position``, or 0 where none does."""
    if position + RECORD_BYTES_MIN > segment.size_bytes:
        return 0
    total = raw.get_i32(segment.memory, position)
    magic = raw.get_i32(segment.memory, position + 4)
    if magic not in (MAGIC_V1, MAGIC_V2) or total < RECORD_BYTES_MIN:
        return 0
    return total if position + total <= segment.size_bytes else 0
