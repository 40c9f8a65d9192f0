# cython: annotation_typing=False
"""The records of the revive topic: check points and their acknowledgements.

    check point   tag ck     {so, n, d, bm, pt, it, t, c, q, bn, rp}
    ack           tag ack    {ao, so, pt, t, c, q, bn}
    acks          tag bAck   {aol, so, pt, t, c, q, bn}, and {it} if no check point is known here,
                             {no} with an ordered pop

    so start offset    n number of messages    d their distances from so; none if they are 0, 1, 2 …
    bm a bit for each message acknowledged before    pt pop time    it invisible time
    t topic    c group    q queue    bn broker    ao, aol offsets acknowledged
    no committed offset after it

A check point has as many messages as a pop delivers, at most 32. Records of this broker have no
unique key, and are not indexed; RocketMQ's have one. `TIMER_DELIVER_MS`, by which a broker of
RocketMQ takes the time, is the time of the record.

Source: PopCheckPoint, AckMsg, BatchAckMsg and PopReviveService, RocketMQ 5.3.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

import msgspec

from cometmq.broker.pop.check_points import CheckPoint
from cometmq.broker.pop.receipts import offsets_text
from cometmq.model import property_names as names
from cometmq.model.errors import ProtocolError
from cometmq.protocol.properties import TAGS_MARKER, UNIQ_KEY_MARKER, value_of
from cometmq.protocol.record import RecordParts, body_crc

CHECK_POINT, ACK, ACKS = b"ck", b"ack", b"bAck"
MESSAGES_MAX: Final = 64
"""More messages than a check point of any broker has."""
SPREAD_MAX: Final = 2**31 - 1
_DELIVER_MS = names.TIMER_DELIVER_MS.encode()


class _CheckPointBody(msgspec.Struct):
    so: int
    pt: int
    it: int
    t: str
    c: str
    q: int
    bn: str = ""
    n: int = 0
    bm: int = 0
    d: list[int] | None = None


class _AckBody(msgspec.Struct):
    so: int
    pt: int
    t: str
    c: str
    q: int
    bn: str = ""
    ao: int = -1
    aol: list[int] | None = None
    it: int = 0
    no: int = 0


class AckOf(msgspec.Struct, frozen=True):
    """An acknowledgement: the check point, and the offsets of its messages."""

    group: str
    topic: str
    queue_id: int
    start: int
    pop_ms: int
    broker_name: str
    offsets: Sequence[int]
    invisible_ms: int = 0
    """0 if the check point is stored before the record."""
    next_offset: int = 0
    """The committed offset of the group after an acknowledgement of an ordered pop; else 0."""


class StoredCheckPoint(msgspec.Struct, frozen=True):
    """A check point as it was stored."""

    point: CheckPoint
    broker_name: str
    is_foreign: bool
    """Whether a broker of RocketMQ has stored it."""


_check_point_of = msgspec.json.Decoder(_CheckPointBody, strict=False).decode
_ack_of = msgspec.json.Decoder(_AckBody, strict=False).decode


def properties_of(tag: bytes, now_ms: int) -> bytes:
    """Return the property string of a record."""
    return b"TAGS\x01%b\x02%b\x01%d\x02" % (tag, _DELIVER_MS, now_ms)


def check_point_body(point: CheckPoint, broker: str) -> bytes:
    """Return the body of the record of a check point.

    Args:
        point: the check point.
        broker: the name of this broker as JSON.
    """
    acked: int = point.acked
    if acked >= 2**31:
        acked -= 2**32
    distances = ""
    offsets = point.offsets
    if not isinstance(offsets, range) or offsets.start != point.start:
        distances = f'"d":[{offsets_text([offset - point.start for offset in offsets])}],'
    return (
        f'{{"bm":{acked},"bn":{broker},"c":"{point.group}",{distances}"it":{point.invisible_ms},'
        f'"n":{len(offsets)},"pt":{point.pop_ms},"q":{point.queue_id},"so":{point.start},'
        f'"t":"{point.topic}"}}'
    ).encode()


@lru_cache(maxsize=16)
def json_text(text: str) -> str:
    """Return a text as JSON."""
    return msgspec.json.encode(text).decode()


def acks_body(ack: AckOf) -> bytes:
    """Return the body of the record of acknowledgements."""
    broker = json_text(ack.broker_name)
    invisible = f'"it":{ack.invisible_ms},' if ack.invisible_ms else ""
    next_offset = f'"no":{ack.next_offset},' if ack.next_offset else ""
    return (
        f'{{"aol":[{offsets_text(ack.offsets)}],"bn":{broker},"c":"{ack.group}",{invisible}'
        f'{next_offset}"pt":{ack.pop_ms},"q":{ack.queue_id},"so":{ack.start},"t":"{ack.topic}"}}'
    ).encode()


def read_record(parts: RecordParts) -> StoredCheckPoint | AckOf | None:
    """Read a record of the revive topic; None for one of another tag.

    Raises:
        ProtocolError: it is damaged, or has numbers that no broker writes.
    """
    tag = value_of(parts.properties, TAGS_MARKER)
    if tag not in (CHECK_POINT, ACK, ACKS):
        return None
    if body_crc(parts.body) != parts.body_crc:
        raise ProtocolError(f"the body of {len(parts.body)} bytes has another checksum")
    try:
        if tag == CHECK_POINT:
            return _stored(parts, _check_point_of(parts.body))
        ack = _ack_of(parts.body)
    except msgspec.MsgspecError as problem:
        raise ProtocolError(str(problem)) from problem
    offsets = (ack.ao,) if ack.aol is None else tuple(ack.aol)
    if not 0 < len(offsets) <= MESSAGES_MAX:
        raise ProtocolError(f"{len(offsets)} acknowledgements, expected 1 to {MESSAGES_MAX}")
    return AckOf(ack.c, ack.t, ack.q, ack.so, ack.pt, ack.bn, offsets, ack.it, ack.no)


def _stored(parts: RecordParts, body: _CheckPointBody) -> StoredCheckPoint:
    count = len(body.d) if body.d else body.n
    if not 0 < count <= MESSAGES_MAX or body.so < 0 or not body.t or not body.c:
        raise ProtocolError(f"a check point of {count} messages from {body.so} on")
    offsets: range | tuple[int, ...] = range(body.so, body.so + count)
    if body.d:
        offsets = tuple(body.so + distance for distance in body.d)
        if any(not 0 <= distance <= SPREAD_MAX for distance in body.d):
            raise ProtocolError(f"a check point with the distances {str(body.d)[:80]}")
    point = CheckPoint(
        body.c,
        body.t,
        body.q,
        body.so,
        offsets,
        body.pt,
        body.it,
        parts.queue_id,
    )
    point.acked = body.bm & point.all_bits()
    point.record_offset = parts.queue_offset
    is_foreign = value_of(parts.properties, UNIQ_KEY_MARKER) is not None
    return StoredCheckPoint(point, body.bn, is_foreign)
