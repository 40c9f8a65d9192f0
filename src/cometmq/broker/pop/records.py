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
from typing import Final

import msgspec

from cometmq.broker.pop.check_points import CheckPoint
from cometmq.model import property_names as names
from cometmq.model.errors import ProtocolError
from cometmq.protocol.properties import TAGS_MARKER, UNIQ_KEY_MARKER, value_of
from cometmq.protocol.record import RecordParts, body_crc

CHECK_POINT, ACK, ACKS = b"ck", b"ack", b"bAck"
MESSAGES_MAX: Final = 64
"""More messages than a check point of any broker has."""
SPREAD_MAX: Final = 2**31 - 1


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
    return b"TAGS\x01%b\x02%b\x01%d\x02" % (tag, names.TIMER_DELIVER_MS.encode(), now_ms)


def check_point_body(point: CheckPoint, broker: bytes) -> bytes:
    """Return the body of the record of a check point.

    Args:
        point: the check point.
        broker: the name of this broker as JSON.
    """
    offsets = point.offsets
    distances = b""
    if not isinstance(offsets, range) or offsets.start != point.start:
        start = point.start
        text = ",".join([str(offset - start) for offset in offsets])
        distances = b'"d":[%b],' % text.encode()
    return b'{"bm":%d,"bn":%b,"c":"%b",%b"it":%d,"n":%d,"pt":%d,"q":%d,"so":%d,"t":"%b"}' % (
        point.acked if point.acked < 2**31 else point.acked - 2**32,
        broker,
        point.group.encode(),
        distances,
        point.invisible_ms,
        len(offsets),
        point.pop_ms,
        point.queue_id,
        point.start,
        point.topic.encode(),
    )


def acks_body(ack: AckOf) -> bytes:
    """Return the body of the record of acknowledgements."""
    return b'{"aol":[%b],"bn":%b,"c":"%b",%b%b"pt":%d,"q":%d,"so":%d,"t":"%b"}' % (
        ",".join(map(str, ack.offsets)).encode(),
        msgspec.json.encode(ack.broker_name),
        ack.group.encode(),
        b'"it":%d,' % ack.invisible_ms if ack.invisible_ms else b"",
        b'"no":%d,' % ack.next_offset if ack.next_offset else b"",
        ack.pop_ms,
        ack.queue_id,
        ack.start,
        ack.topic.encode(),
    )


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
