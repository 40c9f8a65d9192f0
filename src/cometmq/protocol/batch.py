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
from cometmq.protocol.properties import PROPERTIES_BYTES_MAX

_HEAD = Struct(">iiiii")
_I16 = Struct(">h")
ITEM_BYTES_MIN = _HEAD.size + _I16.size


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
    total = len(data)
    while position < total:
        if position + ITEM_BYTES_MIN > total:
            raise _broken(position, total)
        size, _, _, flag, body_bytes = _HEAD.unpack_from(data, position)
        end = position + size
        body_at = position + _HEAD.size
        properties_at = body_at + body_bytes + _I16.size
        if body_bytes < 0 or not properties_at <= end <= total:
            raise _broken(position, total)
        if properties_at + _I16.unpack_from(data, properties_at - _I16.size)[0] != end:
            raise _broken(position, total)
        body = data[body_at : properties_at - _I16.size]
        items.append(BatchItem(flag, body, data[properties_at:end]))
        position = end
    return items


def _broken(position: int, total: int) -> InvalidMessageError:
    return InvalidMessageError(
        f"the item at {position} of a batch of {total} bytes: its lengths do not fit each other"
    )
