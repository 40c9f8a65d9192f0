# cython: annotation_typing=False
"""The message record: the same bytes in the commit log and on the wire.

    record := size:i32 magic:i32 body_crc:i32 queue_id:i32 flag:i32 queue_offset:i64
              log_offset:i64 sys_flag:i32 born_ms:i64 born_host:8|20 store_ms:i64
              store_host:8|20 reconsume_times:i32 prepared_offset:i64
              body:bytes32 topic:bytes8|16 properties:bytes16

Big-endian; ``size`` counts itself. A host is an address of 4 or 16 bytes, which two bits of
``sys_flag`` select, and its port:i32. With the second magic number the length of the topic has 16
bits. This module owns the layout: all others take positions and sizes from here.

Source: MessageDecoder and CommitLog, RocketMQ 4.9 and 5.3.
"""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import ip_address
from struct import Struct
from typing import NamedTuple
from zlib import crc32

from cometmq.model.errors import InvalidMessageError, ProtocolError
from cometmq.model.flags import SysFlag
from cometmq.model.message import StoredMessage
from cometmq.model.offsets import LogOffset, QueueOffset
from cometmq.protocol.compression import CompressionError, decompress_body
from cometmq.protocol.message_id import encode_offset_id
from cometmq.protocol.properties import PROPERTIES_BYTES_MAX, decode_properties

MAGIC_V1 = -626843481
MAGIC_V2 = -626843477
MAGIC_BLANK = -875286124
"""The magic number of the blank at the end of a commit-log file; never on the wire."""

TOPIC_BYTES_MAX_V1 = 127
TOPIC_BYTES_MAX_V2 = 32767
CRC_MASK = 0x7FFFFFFF

MAGIC_AT, BODY_CRC_AT, QUEUE_ID_AT, FLAG_AT = 4, 8, 12, 16
QUEUE_OFFSET_AT, LOG_OFFSET_AT, SYS_FLAG_AT = 20, 28, 36
BORN_TIME_AT, BORN_HOST_AT = 40, 48
"""Positions of fields; `store_time_at` and `body_at` return those behind the first host."""
RETRIES_BEFORE_BODY, PREPARED_BEFORE_BODY, BODY_LENGTH_BEFORE_BODY = 16, 12, 4
"""Bytes from ``reconsume_times``, ``prepared_offset`` and the body's length to the body."""
HOST_V4_BYTES, HOST_V6_BYTES = 8, 20

PREFIX = Struct(">iiiiiqqi")
"""Everything up to ``sys_flag``."""
HEADS = {
    (born, store): Struct(f"{PREFIX.format}q{born}sq{store}siqi")
    for born in (HOST_V4_BYTES, HOST_V6_BYTES)
    for store in (HOST_V4_BYTES, HOST_V6_BYTES)
}
"""Everything up to the body, by the sizes of the two hosts."""
STORE_TIME_V4_AT = BORN_HOST_AT + HOST_V4_BYTES
"""The position of the store time behind an IPv4 host."""
HEAD_BYTES = HEADS[HOST_V4_BYTES, HOST_V4_BYTES].size
"""Bytes before the body of a record between IPv4 hosts."""
HOST_V6_BITS = SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6
FIXED_BYTES = HEAD_BYTES + 2
"""Bytes of a record between IPv4 hosts, without body, topic, its length and property string."""
RECORD_BYTES_MIN = FIXED_BYTES + 1

_START = Struct(">ii")
_I16, _I32 = Struct(">h"), Struct(">i")
# C numbers once compiled.
_HEAD_BYTES = HEAD_BYTES
_STORE_TIME_AT = STORE_TIME_V4_AT
_V6_EXTRA_BYTES = HOST_V6_BYTES - HOST_V4_BYTES
_BORN_V6, _STORE_V6 = int(SysFlag.BORN_HOST_V6), int(SysFlag.STORE_HOST_V6)


class RecordError(ProtocolError):
    """Bytes are not a message record."""


def store_time_at(sys_flag: int) -> int:
    """Return the position of the store time in a record with these flags."""
    return _STORE_TIME_AT + _V6_EXTRA_BYTES if sys_flag & _BORN_V6 else _STORE_TIME_AT


def body_at(sys_flag: int) -> int:
    """Return the position of the body in a record with these flags."""
    at = _HEAD_BYTES
    if sys_flag & _BORN_V6:
        at += _V6_EXTRA_BYTES
    if sys_flag & _STORE_V6:
        at += _V6_EXTRA_BYTES
    return at


def body_crc(body: bytes) -> int:
    """Return the checksum of a body as records contain it: CRC-32 without its top bit."""
    return crc32(body) & CRC_MASK


def encode_host(host: str, port: int) -> bytes:
    """Return an address and port as records contain them: 8 bytes, or 20 for IPv6."""
    return ip_address(host).packed + _I32.pack(port)


def host_text(host: bytes) -> str:
    """Return a record's host as ``ip:port``; an IPv6 address is in brackets."""
    (port,) = _I32.unpack(host[-4:])
    if len(host) == HOST_V4_BYTES:
        return f"{host[0]}.{host[1]}.{host[2]}.{host[3]}:{port}"
    return f"[{ip_address(host[:-4])}]:{port}"


def encode_record(
    topic: bytes,
    body: bytes,
    properties: bytes,
    *,
    queue_id: int,
    queue_offset: int,
    log_offset: int,
    born_time_ms: int,
    born_host: bytes,
    store_time_ms: int,
    store_host: bytes,
    flag: int = 0,
    sys_flag: int = 0,
    reconsume_times: int = 0,
    prepared_offset: int = 0,
    crc: int | None = None,
) -> bytes:
    """Write one record; the form follows from the length of the topic.

    Args:
        topic: UTF-8, at most 32767 bytes.
        body: as it is to be stored, perhaps compressed.
        properties: a property string of at most 32767 bytes.
        queue_id: the queue within the topic.
        queue_offset: the queue offset.
        log_offset: the physical offset in the commit log.
        born_time_ms: when the client sent it.
        born_host: the sender, 8 or 20 bytes; sets the bit of ``sys_flag`` for IPv6.
        store_time_ms: when the broker stored it.
        store_host: the broker, 8 or 20 bytes; sets the bit of ``sys_flag`` for IPv6.
        flag: a number of the application.
        sys_flag: bits of :class:`cometmq.model.flags.SysFlag`.
        reconsume_times: the number of its retries.
        prepared_offset: the offset of its half message.
        crc: checksum of the body if it is known already.

    Raises:
        InvalidMessageError: topic or properties are too long.
    """
    head = HEADS[len(born_host), len(store_host)]
    tail = _tail(topic, properties)
    if len(born_host) > HOST_V4_BYTES:
        sys_flag |= SysFlag.BORN_HOST_V6
    if len(store_host) > HOST_V4_BYTES:
        sys_flag |= SysFlag.STORE_HOST_V6
    start = head.pack(
        head.size + len(body) + len(tail),
        MAGIC_V1 if len(topic) <= TOPIC_BYTES_MAX_V1 else MAGIC_V2,
        body_crc(body) if crc is None else crc,
        queue_id,
        flag,
        queue_offset,
        log_offset,
        sys_flag,
        born_time_ms,
        born_host,
        store_time_ms,
        store_host,
        reconsume_times,
        prepared_offset,
        len(body),
    )
    return b"".join((start, body, tail))


def _tail(topic: bytes, properties: bytes) -> bytes:
    if len(topic) > TOPIC_BYTES_MAX_V2:
        raise InvalidMessageError(f"a topic of {len(topic)} bytes: at most {TOPIC_BYTES_MAX_V2}")
    if len(properties) > PROPERTIES_BYTES_MAX:
        raise InvalidMessageError(
            f"properties of {len(properties)} bytes: at most {PROPERTIES_BYTES_MAX}"
        )
    topic_size = bytes((len(topic),)) if len(topic) <= TOPIC_BYTES_MAX_V1 else _I16.pack(len(topic))
    return b"".join((topic_size, topic, _I16.pack(len(properties)), properties))


def decode_record(
    data: bytes | memoryview, position: int = 0, *, decompress: bool = True
) -> StoredMessage:
    """Read the record at ``position``.

    Args:
        data: contains the whole record, perhaps among others.
        position: where it begins.
        decompress: decompress the body and clear its COMPRESSED bit.

    Raises:
        RecordError: there is no whole record, or its body cannot be decompressed.
    """
    parts = split_record(data, position)
    body, sys_flag = parts.body, parts.sys_flag
    if decompress and sys_flag & SysFlag.COMPRESSED:
        body, sys_flag = _inflated(body, sys_flag), sys_flag & ~SysFlag.COMPRESSED
    return StoredMessage(
        topic=parts.topic,
        body=body,
        properties=decode_properties(parts.properties),
        queue_id=parts.queue_id,
        queue_offset=QueueOffset(parts.queue_offset),
        log_offset=LogOffset(parts.log_offset),
        flag=parts.flag,
        sys_flag=sys_flag,
        born_time_ms=parts.born_time_ms,
        born_host=host_text(parts.born_host),
        store_time_ms=parts.store_time_ms,
        store_host=host_text(parts.store_host),
        reconsume_times=parts.reconsume_times,
        prepared_offset=parts.prepared_offset,
        body_crc=parts.body_crc,
        size_bytes=parts.size_bytes,
        offset_message_id=encode_offset_id(parts.store_host, parts.log_offset),
    )


class RecordParts(NamedTuple):
    """The parts of a record as they are stored, for example to append it again."""

    topic: str
    body: bytes
    properties: bytes
    queue_id: int
    queue_offset: int
    log_offset: int
    flag: int
    sys_flag: int
    born_time_ms: int
    born_host: bytes
    store_time_ms: int
    store_host: bytes
    reconsume_times: int
    prepared_offset: int
    body_crc: int
    size_bytes: int


def split_record(data: bytes | memoryview, position: int = 0) -> RecordParts:
    """Return the parts of the record at ``position``.

    Raises:
        RecordError: there is no whole record.
    """
    size = record_size(data, position)
    record = bytes(data[position : position + size])
    sys_flag = _I32.unpack_from(record, SYS_FLAG_AT)[0]
    head = HEADS[
        HOST_V6_BYTES if sys_flag & _BORN_V6 else HOST_V4_BYTES,
        HOST_V6_BYTES if sys_flag & _STORE_V6 else HOST_V4_BYTES,
    ]
    if size < head.size:
        raise RecordError(f"a record of {size} bytes, expected at least {head.size}")
    fields = head.unpack_from(record)
    body, topic, properties = _variable_parts(record, head.size, fields[14], fields[1])
    return RecordParts(
        topic,
        body,
        properties,
        fields[3],
        fields[5],
        fields[6],
        fields[4],
        sys_flag,
        fields[8],
        fields[9],
        fields[10],
        fields[11],
        fields[12],
        fields[13],
        fields[2],
        size,
    )


def record_size(data: bytes | memoryview, position: int = 0) -> int:
    """Return the size of the record at ``position``, all of which is in ``data``.

    Raises:
        RecordError: no record begins there, or it is truncated.
    """
    left = len(data) - position
    if left < RECORD_BYTES_MIN:
        raise RecordError(f"{left} bytes at {position}, expected a record of {RECORD_BYTES_MIN}")
    size, magic = _START.unpack_from(data, position)
    if magic not in (MAGIC_V1, MAGIC_V2):
        raise RecordError(f"magic {magic & 0xFFFFFFFF:08x} at {position}, expected a record")
    if not RECORD_BYTES_MIN <= size <= left:
        raise RecordError(f"a record at {position} of {size} bytes with {left} there")
    return int(size)


def _variable_parts(
    record: bytes, position: int, body_bytes: int, magic: int
) -> tuple[bytes, str, bytes]:
    """Return body, topic and property string, each with its length checked."""
    topic_at = position + body_bytes
    long_topic = magic == MAGIC_V2
    if body_bytes < 0 or topic_at + (2 if long_topic else 1) > len(record):
        raise RecordError(f"a body of {body_bytes} bytes in a record of {len(record)}")
    topic_bytes = _I16.unpack_from(record, topic_at)[0] if long_topic else record[topic_at]
    topic_start = topic_at + (2 if long_topic else 1)
    topic_end = topic_start + topic_bytes
    if topic_bytes < 0 or topic_end + 2 > len(record):
        raise RecordError(f"a topic of {topic_bytes} bytes in a record of {len(record)}")
    properties_end = topic_end + 2 + _I16.unpack_from(record, topic_end)[0]
    if not topic_end + 2 <= properties_end <= len(record):
        raise RecordError(f"properties end at {properties_end} in a record of {len(record)} bytes")
    return (
        record[position:topic_at],
        str(record[topic_start:topic_end], "utf-8", "replace"),
        record[topic_end + 2 : properties_end],
    )


def _inflated(body: bytes, sys_flag: int) -> bytes:
    try:
        return decompress_body(body, sys_flag)
    except CompressionError as error:
        raise RecordError(str(error)) from None


def iter_records(data: bytes | memoryview, *, decompress: bool = True) -> Iterator[StoredMessage]:
    """Yield the messages of consecutive records.

    Raises:
        RecordError: at the first one that is not whole; those before it were yielded.
    """
    position = 0
    while position < len(data):
        message = decode_record(data, position, decompress=decompress)
        yield message
        position += message.size_bytes


def decode_messages(data: bytes | memoryview, *, decompress: bool = True) -> list[StoredMessage]:
    """Return the messages of consecutive records.

    Raises:
        RecordError: one of them is not whole.
    """
    return list(iter_records(data, decompress=decompress))
