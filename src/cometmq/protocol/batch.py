# cython: annotation_typing=False
"""The body of a batch: consecutive messages, which are stored one by one or as one record.

    item := size:i32 magic:i32 crc:i32 flag:i32 body:bytes32 properties:bytes16

Big-endian; ``size`` counts itself; magic and crc are written as 0 and not read.

Source: MessageDecoder.encodeMessage and decodeMessage, RocketMQ 5.3.
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct
from typing import NamedTuple

from cometmq.model.errors import InvalidMessageError
from cometmq.protocol import octets
from cometmq.protocol.octets import Memory
from cometmq.protocol.properties import PROPERTIES_BYTES_MAX

MESSAGES_MAX = 2**15 - 1
"""The limit of messages of a batch that is one record, whose number has 16 bits."""
_HEAD = Struct(">iiiii")
_I16 = Struct(">h")
_HEAD_BYTES = 20
_LENGTH_BYTES = 2
ITEM_BYTES_MIN = _HEAD_BYTES + _LENGTH_BYTES
_ITEM_BYTES_MIN = ITEM_BYTES_MIN  # a C number once compiled


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
        flag, body_at, body_end, properties_at, position = item_at(data, position, len(data))
        items.append(BatchItem(flag, data[body_at:body_end], data[properties_at:position]))
    return items


def count_items(memory: Memory, position: int, stop: int) -> int:
    """Return how many messages the body of a batch between two positions has.

    Raises:
        InvalidMessageError: the lengths in it do not fit each other.
    """
    count = 0
    while position < stop:
        position = item_at(memory, position, stop)[4]
        count += 1
    return count


def item_at(memory: Memory, position: int, stop: int) -> tuple[int, int, int, int, int]:
    """Return flag, start and end of the body, start and end of the properties of an item.

    Args:
        memory: a buffer that holds the body of a batch.
        position: where the item begins, before ``stop``.
        stop: where the body of the batch ends.

    Raises:
        InvalidMessageError: the lengths in it do not fit each other.
    """
    if position + _ITEM_BYTES_MIN > stop:
        raise _broken(stop - position)
    end = position + octets.i32_in(memory, position)
    body_at = position + _HEAD_BYTES
    body_bytes = octets.i32_in(memory, body_at - 4)
    body_end = body_at + body_bytes
    if body_bytes < 0 or not body_end + _LENGTH_BYTES <= end <= stop:
        raise _broken(stop - position)
    if body_end + _LENGTH_BYTES + octets.i16_in(memory, body_end) != end:
        raise _broken(stop - position)
    return octets.i32_in(memory, position + 12), body_at, body_end, body_end + _LENGTH_BYTES, end


def _broken(left: int) -> InvalidMessageError:
    return InvalidMessageError(
        f"the item {left} bytes before the end of a batch: its lengths do not fit each other"
    )
