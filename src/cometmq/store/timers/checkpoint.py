"""The checkpoint of the timers: up to where wheel and log are complete, and which slots are passed.

    read_ms:i64 log_end:i64 queue_offset:i64 master_queue_offset:i64
    version state:i64 time:i64 counter:i64 zeros, 4096 bytes in all
    at byte 512, if CometMQ wrote the file last:
    mark:8 the first four again, log_offset:i64 passed_offset:i64 latest_ms:i64 precision_ms:i64
    crc:u32

The first part is RocketMQ's, which leaves the second one as it is: that counts only while both say
the same. Each part is inside one sector, which a disk writes as a whole.

Source: TimerCheckpoint, RocketMQ 5.3.
"""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple
from zlib import crc32

NUMBERS: Final = Struct(">7q")
"""What a master responds to GET_TIMER_CHECK_POINT."""
_OURS: Final = Struct(">8s8q")
_CRC: Final = Struct(">I")
_OURS_AT: Final = 512
READ_MS_MAX: Final = 2**43
"""A later time is that of a damaged file: with it nothing would ever be delivered."""
_MARK: Final = b"COMETMQT"
_FILE_BYTES: Final = 4096


class Passed(NamedTuple):
    """Which slots are passed: everything in them was delivered, stored again, or recalled.

    It is true of each copy of the log that has the log offset.
    """

    read_ms: int = 0
    """The first slot that is not passed."""
    log_offset: int = 0
    """What was delivered of this slot and later ones is behind it in the log, all else before."""
    queue_offset: int = 0
    """Messages of the queue before it whose slots are passed wait no more; later ones do."""


class TimerCheckpoint(NamedTuple):
    """The content of the file."""

    passed: Passed = Passed()
    log_end: int = 0
    """The timer log is complete up to this position."""
    queue_offset: int = 0
    """The messages of the queue before it are in the timer log, or passed."""
    master_queue_offset: int = 0
    version: tuple[int, int, int] = (0, 0, 0)
    """State, time and counter."""
    latest_ms: int = 0
    """The last slot with a unit."""
    precision_ms: int = 0
    """The length of a slot; 0 if RocketMQ wrote the file last."""

    @property
    def numbers(self) -> bytes:
        """The part that RocketMQ has."""
        return NUMBERS.pack(
            self.passed.read_ms,
            self.log_end,
            self.queue_offset,
            self.master_queue_offset,
            *self.version,
        )

    def encode(self) -> bytes:
        """Return the content of the file."""
        passed = self.passed
        ours = _OURS.pack(
            *(_MARK, passed.read_ms, self.log_end, self.queue_offset, self.master_queue_offset),
            *(passed.log_offset, passed.queue_offset, self.latest_ms, self.precision_ms),
        )
        ours += _CRC.pack(crc32(ours))
        return (self.numbers.ljust(_OURS_AT, b"\0") + ours).ljust(_FILE_BYTES, b"\0")


def decode_checkpoint(data: bytes) -> TimerCheckpoint:
    """Return the content of a file; all zero for none, and for a damaged one."""
    if len(data) < NUMBERS.size:
        return TimerCheckpoint()
    numbers = NUMBERS.unpack_from(data)
    read_ms, log_end, queue_offset, master_offset, *version = numbers
    if min(read_ms, log_end, queue_offset) < 0 or read_ms > READ_MS_MAX:
        return TimerCheckpoint()
    checkpoint = TimerCheckpoint(
        Passed(read_ms, 0, queue_offset),
        *(log_end, queue_offset, master_offset, (version[0], version[1], version[2])),
    )
    part = data[_OURS_AT : _OURS_AT + _OURS.size + _CRC.size]
    if len(part) < _OURS.size + _CRC.size:
        return checkpoint
    mark, *fields = _OURS.unpack_from(part)
    (crc,) = _CRC.unpack_from(part, _OURS.size)
    is_ours = mark == _MARK and crc == crc32(part[: _OURS.size])
    if not is_ours or tuple(fields[:4]) != numbers[:4]:
        return checkpoint
    log_offset, passed_offset, latest_ms, precision_ms = fields[4:]
    return checkpoint._replace(
        passed=Passed(read_ms, log_offset, passed_offset),
        latest_ms=latest_ms,
        precision_ms=precision_ms,
    )
