# cython: annotation_typing=False
"""The two ids of a message, both upper-case hexadecimal.

    offset id := store host (4 or 16 bytes) | port:i32 | offset in the commit log:i64
    unique id := client ip (4 or 16 bytes) | pid:u16 | number of the process:i32
                 | ms since the beginning of the month:u32 | counter:u16

The offset id is given by the broker and says where the message is. The unique id is given by
the client; only that it is unique matters. Both may have 32 characters, so the text does not show
which it is.

Source: MessageDecoder.createMessageId and MessageClientIDSetter, RocketMQ 5.3.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from ipaddress import ip_address
from struct import Struct
from time import time_ns as _time_ns
from typing import NamedTuple
from weakref import WeakSet

from cometmq.model.address import host_and_port
from cometmq.model.errors import InvalidMessageIdError
from cometmq.model.offsets import LogOffset
from cometmq.system.platforms import SYSTEM

_OFFSET_TAIL = Struct(">iq")
_IPV4_CHARS, _IPV6_CHARS = 32, 56
_IPV4_BYTES, _IPV6_BYTES = 4, 16
_COUNTER_MASK = 0xFFFF
CLOCK_STEP_MS_MAX = 1_000_000
"""A clock that was put back by less than this counts as standing still."""


class OffsetId(NamedTuple):
    """The position of a message: store host and physical offset."""

    host: str
    port: int
    log_offset: LogOffset

    @property
    def address(self) -> str:
        """Return ``host:port``; an IPv6 host is in brackets."""
        return host_and_port(self.host, self.port)


def encode_offset_id(store_host: bytes, log_offset: int) -> str:
    """Make the id of the record at an offset.

    Args:
        store_host: address and port as in records, 8 or 20 bytes.
        log_offset: where the record begins.
    """
    return (store_host + log_offset.to_bytes(8, "big", signed=True)).hex().upper()


def decode_offset_id(text: str) -> OffsetId:
    """Read an offset id.

    Raises:
        InvalidMessageIdError: the text is not 32 or 56 hexadecimal digits.
    """
    data = _octets(text)
    ip_bytes = len(data) - _OFFSET_TAIL.size
    port, log_offset = _OFFSET_TAIL.unpack_from(data, ip_bytes)
    return OffsetId(str(ip_address(data[:ip_bytes])), port, LogOffset(log_offset))


def unique_id_for(origin: str) -> str:
    """Return the unique id of a message that is made of another one: equal for an equal origin.

    Where an id has the milliseconds since the beginning of the month it has 0, so tools that search
    from that time on find the message.
    """
    from hashlib import sha256  # few messages are made of others

    digest = sha256(origin.encode()).hexdigest().upper()
    return f"{digest[:20]}{0:08}{digest[20:24]}"


def _octets(text: str) -> bytes:
    if len(text) not in (_IPV4_CHARS, _IPV6_CHARS):
        raise InvalidMessageIdError(
            f"a message id of {len(text)} characters: {_IPV4_CHARS} or {_IPV6_CHARS} are expected"
        )
    try:
        data = bytes.fromhex(text)
    except ValueError:
        data = b""
    if len(data) * 2 != len(text):  # bytes.fromhex passes over blanks
        raise InvalidMessageIdError(f"a message id {text!r}: only hexadecimal digits are expected")
    return data


class UniqueIds:
    """Makes unique ids for one process; after a fork the child's ids are its own.

    Args:
        ip: the client's address, 4 or 16 bytes; made up if not given.
        pid: the process; its lower 16 bits are used.
        now_ms: the wall clock; None for the clock of the machine.
    """

    def __init__(
        self,
        ip: bytes | None = None,
        *,
        pid: int | None = None,
        now_ms: Callable[[], int] | None = None,
    ) -> None:
        ip = os.urandom(_IPV4_BYTES) if ip is None else ip
        if len(ip) not in (_IPV4_BYTES, _IPV6_BYTES):
            raise ValueError(f"an address of {len(ip)} bytes, expected 4 or 16")
        self._ip = ip
        self._now_ms = now_ms
        self._month_start_ms = self._month_end_ms = 0
        self._belong_to(os.getpid() if pid is None else pid)
        _sources.add(self)

    def _belong_to(self, pid: int) -> None:
        """Start again, with ids that no other process makes."""
        prefix = self._ip + (pid & 0xFFFF).to_bytes(2, "big") + os.urandom(4)
        self._prefix = prefix.hex().upper()
        self._counter = 0

    def next(self) -> str:
        """Return an id that was never returned before."""
        if self._now_ms is None:
            now_ns = _time_ns()
            now_ms = now_ns // 1_000_000
        else:
            now_ms = self._now_ms()
        passed_ms = now_ms - self._month_start_ms
        if not 0 <= passed_ms < self._month_end_ms - self._month_start_ms:
            passed_ms = self._passed_anew(passed_ms)
        counter = self._counter
        self._counter = (counter + 1) & _COUNTER_MASK
        return f"{self._prefix}{passed_ms << 16 | counter:012X}"

    def _passed_anew(self, passed_ms: int) -> int:
        """Find the month again, unless the clock was only put back a little at its beginning."""
        if -CLOCK_STEP_MS_MAX < passed_ms < 0:
            return 0
        now_ms = passed_ms + self._month_start_ms
        self._month_start_ms, self._month_end_ms = month_around(now_ms)
        return now_ms - self._month_start_ms


_sources: WeakSet[UniqueIds] = WeakSet()
"""Every source of ids in this process."""


def _begin_anew_after_fork() -> None:
    for source in list(_sources):
        source._belong_to(os.getpid())


SYSTEM.after_fork(_begin_anew_after_fork)


def month_around(now_ms: int) -> tuple[int, int]:
    """Return when the local month of a moment begins and when the next one does."""
    local = time.localtime(now_ms / 1000)
    year, month = local.tm_year, local.tm_mon
    begin = time.mktime((year, month, 1, 0, 0, 0, 0, 0, -1))
    end = time.mktime((year, month + 1, 1, 0, 0, 0, 0, 0, -1))
    return int(begin) * 1000, int(end) * 1000
