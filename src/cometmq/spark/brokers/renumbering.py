"""Gives the records of a static topic the queue and offsets of the topic.

The queues of a static topic move between brokers, and records keep the numbers of the broker that
stored them. Brokers say with each answer how far the two lie apart.

Source: MQClientAPIImpl.processPullResponse and PullResult of RocketMQ 5.3; the layout is that of
`cometmq.protocol.record`.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from cometmq.model.errors import ProtocolError
from cometmq.protocol.record import QUEUE_ID_AT, QUEUE_OFFSET_AT

_SIZE: Final = Struct(">i")
_QUEUE_ID: Final = Struct(">i")
_QUEUE_OFFSET: Final = Struct(">q")
_LEAST_BYTES: Final = QUEUE_OFFSET_AT + _QUEUE_OFFSET.size


def renumbered(records: bytes, queue_id: int, offset_delta: int) -> bytes:
    """Return records with this queue, and with offsets that are larger by ``offset_delta``.

    Raises:
        ProtocolError: the bytes are no records that stand back to back.
    """
    changed = bytearray(records)
    position = 0
    while position < len(changed):
        size = _SIZE.unpack_from(changed, position)[0] if position + 4 <= len(changed) else 0
        if size < _LEAST_BYTES or position + size > len(changed):
            raise ProtocolError(f"at byte {position} of {len(changed)}: no whole record begins")
        _QUEUE_ID.pack_into(changed, position + QUEUE_ID_AT, queue_id)
        place = position + QUEUE_OFFSET_AT
        offset = _QUEUE_OFFSET.unpack_from(changed, place)[0]
        _QUEUE_OFFSET.pack_into(changed, place, offset + offset_delta)
        position += size
    return bytes(changed)
