# cython: annotation_typing=False
"""The body of a batch: messages back to back, to be stored one by one.

    item := size:i32 magic:i32 crc:i32 flag:i32 body:bytes32 properties:bytes16

Big-endian; ``size`` counts itself; magic and crc are written as 0 and not looked at.

Source: MessageDecoder.encodeMessage and decodeMessage, RocketMQ 5.3.
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct
from typing import NamedTuple

from cometmq.model.errors import InvalidMessageError
from cometmq.protocol.octets import i16_at, i32_at
from cometmq.protocol.properties import PROPERTIES_BYTES_MAX

_HEAD = Struct(">iiiii")
_I16 = Struct(">h")
_HEAD_BYTES = 20
_LENGTH_BYTES = 2
ITEM_BYTES_MIN = _HEAD_BYTES + _LENGTH_BYTES


class BatchItem(NamedTuple):
    """One message of a batch."""

    flag: int
    body: bytes
    properties: bytes
    """A property string."""


def encode_batch(items: Iterable[BatchItem]) -> bytes:
    """Write the body of a batch.

    Raises:
        InvalidMessageError: the properties of an item are too long.
    """
    parts = []
    for flag, body, properties in items:
        if len(properties) > PROPERTIES_BYTES_MAX:
            raise InvalidMessageError(
                f"properties of {len(properties)} bytes: at most {PROPERTIES_BYTES_MAX}"
            )
        size = ITEM_BYTES_MIN + len(body) + len(properties)
        parts.append(_HEAD.pack(size, 0, 0, flag, len(body)))
        parts.append(body)
        parts.append(_I16.pack(len(properties)))
        parts.append(properties)
    return b"".join(parts)


def decode_batch(data: bytes) -> list[BatchItem]:
    """Read the body of a batch.

    Raises:
        InvalidMessageError: the lengths in it do not fit each other.
    """
    items = []
    position = 0
    while position < len(data):
        flag, body_at, body_end, properties_at, position = item_at(data, position)
        items.append(BatchItem(flag, data[body_at:body_end], data[properties_at:position]))
    return items


def item_at(data: bytes, position: int) -> tuple[int, int, int, int, int]:
    """Return flag, start and end of the body, start and end of the properties of an item.

    Args:
        data: the body of a batch.
        position: where the item begins, before the end of ``data``.

    Raises:
        InvalidMessageError: the lengths in it do not fit each other.
    """
    total = len(data)
    if position + ITEM_BYTES_MIN > total:
        raise _broken(position, total)
    end = position + i32_at(data, position)
    body_at = position + _HEAD_BYTES
    body_bytes = i32_at(data, body_at - 4)
    body_end = body_at + body_bytes
    if body_bytes < 0 or not body_end + _LENGTH_BYTES <= end <= total:
        raise _broken(position, total)
    if body_end + _LENGTH_BYTES + i16_at(data, body_end) != end:
        raise _broken(position, total)
    return i32_at(data, position + 12), body_at, body_end, body_end + _LENGTH_BYTES, end


def _broken(position: int, total: int) -> InvalidMessageError:
    return InvalidMessageError(
        f"the item at {position} of a batch of {total} bytes: its lengths do not fit each other"
    )
