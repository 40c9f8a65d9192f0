"""Finds the next record from any byte of a log.

Every record carries its own log offset, so four bytes of magic and eight of the right offset are
found only where a record begins, unless a body was made to look like one on purpose; who knows a
store's consume queues begins where a unit says instead. The layout is that of
`cometmq.protocol.record`.
"""

from __future__ import annotations

from struct import Struct

from cometmq.protocol.record import (
    BODY_LENGTH_BEFORE_BODY,
    LOG_OFFSET_AT,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    RECORD_BYTES_MIN,
    SYS_FLAG_AT,
    body_at,
)
from cometmq.spark.logs.windows import Window

_START = Struct(">ii")
_I16, _I32, _I64 = Struct(">h"), Struct(">i"), Struct(">q")
_MAGIC_COMMON = (MAGIC_V1 & 0xFFFFFFFF).to_bytes(4, "big")[:3]
_BLANK = (MAGIC_BLANK & 0xFFFFFFFF).to_bytes(4, "big")
_MAGIC_AT = 4


def next_record(window: Window, base_offset: int, file_bytes: int, start: int, stop: int) -> int:
    """Return where the next record or blank of a file begins.

    Args:
        window: moved as far as the search goes.
        base_offset: the log offset of the file's first byte.
        file_bytes: the file's size.
        start: the first position in the file that may be meant.
        stop: the position before which it must begin.

    Returns:
        Its position in the file; ``stop`` if none begins there.
    """
    position = start
    while position < stop:
        if not window.holds(position, _MAGIC_AT + 4):
            window.move(position)
            if not window.holds(position, _MAGIC_AT + 4):
                return stop
        at = _next_magic(window, position)
        if at < 0 or at >= stop:
            position = window.end - (_MAGIC_AT + 3)
            if window.reaches_file_end() or at >= stop:
                return stop
            window.move(position)
        elif _begins(window, at, base_offset, file_bytes):
            return at
        else:
            position = at + 1
    return stop


def record_size(window: Window, position: int) -> int:
    """Return the size that stands at a position; 0 if the window does not hold it."""
    if not window.holds(position, 4):
        return 0
    return int(_I32.unpack_from(window.data, position - window.start)[0])


def blank_size(window: Window, position: int) -> int:
    """Return the size of the blank at a position, 0 if there is none."""
    if not window.holds(position, 8):
        return 0
    size, magic = _START.unpack_from(window.data, position - window.start)
    return int(size) if magic == MAGIC_BLANK else 0


def _next_magic(window: Window, position: int) -> int:
    """Where something begins that has a magic number, -1 for nowhere in the window."""
    found = (window.find(each, position + _MAGIC_AT) for each in (_MAGIC_COMMON, _BLANK))
    return min((at - _MAGIC_AT for at in found if at >= 0), default=-1)


def _begins(window: Window, position: int, base_offset: int, file_bytes: int) -> bool:
    """Whether a whole record or the blank at the file's end begins at a position."""
    if not window.holds(position, 8):
        window.move(position)
    if not window.holds(position, 8):
        return False
    size, magic = _START.unpack_from(window.data, position - window.start)
    if magic == MAGIC_BLANK:
        return bool(size == file_bytes - position)
    if magic not in (MAGIC_V1, MAGIC_V2) or size < RECORD_BYTES_MIN:
        return False
    if position + size > file_bytes:
        return False
    if not window.holds(position, RECORD_BYTES_MIN):
        window.move(position)
    at = position - window.start
    (log_offset,) = _I64.unpack_from(window.data, at + LOG_OFFSET_AT)
    if log_offset != base_offset + position:
        return False
    if not window.holds(position, size):
        window.move(position, size)
    return window.holds(position, size) and is_whole(window.data, position - window.start)


def start_of(record: memoryview) -> tuple[int, int]:
    """Return the log offset and the size that a record says it has."""
    return int(_I64.unpack_from(record, LOG_OFFSET_AT)[0]), int(_I32.unpack_from(record)[0])


def is_whole(data: memoryview, at: int) -> bool:
    """Return whether the lengths in a record add up to its size, all of which is in ``data``."""
    size, magic = _START.unpack_from(data, at)
    if magic not in (MAGIC_V1, MAGIC_V2):
        return False
    (sys_flag,) = _I32.unpack_from(data, at + SYS_FLAG_AT)
    place = at + body_at(sys_flag)
    end = at + size
    if place > end:
        return False
    (body_bytes,) = _I32.unpack_from(data, place - BODY_LENGTH_BEFORE_BODY)
    place += body_bytes
    width = 1 if magic == MAGIC_V1 else 2
    if body_bytes < 0 or place + width > end:
        return False
    topic_bytes = data[place] if width == 1 else _I16.unpack_from(data, place)[0]
    place += width + topic_bytes
    if topic_bytes <= 0 or place + 2 > end:
        return False
    return bool(place + 2 + _I16.unpack_from(data, place)[0] == end)
