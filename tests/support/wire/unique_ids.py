"""Reads unique ids."""

from __future__ import annotations

from ipaddress import ip_address
from struct import Struct
from typing import NamedTuple

from cometmq.protocol.message_id import month_around

TAIL = Struct(">HiIH")


class UniqueId(NamedTuple):
    """The parts of a unique id."""

    host: str
    pid: int
    process_number: int
    month_ms: int
    """Milliseconds since the beginning of the client's month."""
    counter: int


def decode_unique_id(text: str) -> UniqueId:
    """Return the parts of a unique id."""
    data = bytes.fromhex(text)
    address = str(ip_address(data[: -TAIL.size]))
    return UniqueId(address, *TAIL.unpack_from(data, len(data) - TAIL.size))


def unique_id_time_ms(text: str, *, now_ms: int) -> int:
    """Return when a unique id was made, by the local time zone, which must be its client's.

    The id contains the time since the beginning of a month: of this month, or of the last one if
    that would be in the future. Ids older than about a month cannot be distinguished from younger
    ones.
    """
    month_ms = decode_unique_id(text).month_ms
    month_start_ms, _ = month_around(now_ms)
    if month_start_ms + month_ms >= now_ms:
        month_start_ms, _ = month_around(month_start_ms - 1)
    return month_start_ms + month_ms
