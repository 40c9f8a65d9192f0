"""Reasons why a scan of log bytes stopped.

The format is that of `cometmq.protocol.record`.
"""

from __future__ import annotations

from enum import IntEnum
from struct import Struct
from typing import Any

from cometmq.protocol.record import (
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    RECORD_BYTES_MIN,
    RecordError,
    split_record,
)

_START = Struct(">ii")


class Ending(IntEnum):
    """Why no further record was taken."""

    END = 0
    """The stop was reached."""
    FULL = 1
    """The batch has as many rows or bytes as it may have."""
    BLANK = 2
    """The filler stands here that closes a file of the log."""
    ZERO = 3
    """Nothing was written here yet."""
    TORN = 4
    """A record begins here and goes on behind the end of the data."""
    BAD = 5
    """What stands here is no record, or a damaged one; ``problem`` says more."""
    WRAPPED = 6
    """A batch that is one record stands here."""


def explain(data: Any, position: int) -> tuple[Ending, str | None]:
    """Say what stands where there is no whole record."""
    try:
        split_record(data, position)
    except RecordError as error:
        return ending_at(data, position, error)
    return Ending.BAD, f"no whole record at {position}"


def ending_at(data: Any, position: int, error: RecordError) -> tuple[Ending, str | None]:
    """Say what stands where a record was refused."""
    left = len(data) - position
    if left < _START.size:
        return Ending.TORN, None
    size, magic = _START.unpack_from(data, position)
    if magic == MAGIC_BLANK:
        return Ending.BLANK, None
    if magic == 0 and size == 0:
        return Ending.ZERO, None
    if magic in (MAGIC_V1, MAGIC_V2) and size >= RECORD_BYTES_MIN and size > left:
        return Ending.TORN, None
    return Ending.BAD, str(error)


def crc_problem(met: int, stored: int) -> str:
    """Say that a body is not what its checksum was made of."""
    return f"a body with checksum {met:#x}, expected {stored & 0xFFFFFFFF:#x}"


def place_problem(position: int, log_offset: int, log_base: int) -> str:
    """Say that a record is not where it says it is."""
    expected = log_base + position
    return f"a record at {position} with log offset {log_offset}, expected {expected}"
