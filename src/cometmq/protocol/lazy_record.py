# cython: annotation_typing=False
"""Messages whose fields are decoded on first access.

Most fields of a record are never read: a consumer counts a message, filters it by its tag and
passes it to a handler that needs the body. So on arrival a record is only checked for completeness,
field by field, and copied out of the response that contains it.

The format is that of `cometmq.protocol.record`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import fields
from struct import Struct
from typing import Any

from cometmq.model import property_names as names
from cometmq.model.flags import SysFlag
from cometmq.model.message import StoredMessage
from cometmq.model.offsets import QueueOffset
from cometmq.protocol import octets
from cometmq.protocol.compression import CompressionError, decompress_body
from cometmq.protocol.message_id import encode_offset_id
from cometmq.protocol.properties import (
    KEYS_MARKER,
    TAGS_MARKER,
    UNIQ_KEY_MARKER,
    decode_properties,
    value_of,
)
from cometmq.protocol.record import (
    BODY_CRC_AT,
    BODY_LENGTH_BEFORE_BODY,
    BORN_HOST_AT,
    BORN_TIME_AT,
    FLAG_AT,
    HEAD_BYTES,
    HOST_V4_BYTES,
    HOST_V6_BITS,
    HOST_V6_BYTES,
    LOG_OFFSET_AT,
    MAGIC_AT,
    MAGIC_V1,
    MAGIC_V2,
    PREPARED_BEFORE_BODY,
    QUEUE_ID_AT,
    QUEUE_OFFSET_AT,
    RECORD_BYTES_MIN,
    RETRIES_BEFORE_BODY,
    SYS_FLAG_AT,
    RecordError,
    body_at,
    host_text,
    split_record,
    store_time_at,
)

log = logging.getLogger(__name__)

_new = object.__new__
_i32 = Struct(">i").unpack_from
_i64 = Struct(">q").unpack_from
# C numbers once compiled.
_STORE_V6 = int(SysFlag.STORE_HOST_V6)
_V1, _V2, _SIZE_MIN = MAGIC_V1, MAGIC_V2, RECORD_BYTES_MIN
_MAGIC_AT, _QUEUE_OFFSET_AT, _SYS_FLAG_AT = MAGIC_AT, QUEUE_OFFSET_AT, SYS_FLAG_AT
_HEAD_BYTES, _V6_BITS, _LENGTH_BYTES = HEAD_BYTES, HOST_V6_BITS, BODY_LENGTH_BEFORE_BODY


class LazyMessage(StoredMessage):
    """A stored message whose fields are decoded on first access.

    A body that cannot be decompressed stays as it is, and its COMPRESSED bit stays set, so that one
    damaged message does not block its queue.
    """

    __slots__ = ("_added", "_properties", "_record")

    _record: bytes
    """The whole record."""
    _added: Mapping[str, str] | None
    """Properties that the receiver adds to those of the record."""
    _properties: dict[str, str] | None
    """None until more than one of them is read."""

    def __getattr__(self, name: str) -> Any:
        # Python calls this only for attributes that are not set yet.
        read = _READERS.get(name)
        if read is None:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        value = read(self)
        setattr(self, name, value)
        return value

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, StoredMessage):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in _FIELDS)

    __hash__ = None  # type: ignore[assignment]

    @property
    def properties(self) -> dict[str, str]:
        """All properties, system ones included."""
        if self._properties is None:
            self._properties = _read_properties(self)
        return self._properties

    @properties.setter
    def properties(self, properties: dict[str, str]) -> None:
        self._properties = properties

    @property
    def tags(self) -> str | None:
        """The tag of the message, or None."""
        return _property(self, names.TAGS, TAGS_MARKER)

    @property
    def keys(self) -> list[str]:
        """The keys of the message."""
        return (_property(self, names.KEYS, KEYS_MARKER) or "").split()

    @property
    def unique_id(self) -> str | None:
        """The unique id, made by the sender."""
        return _property(self, names.UNIQ_KEY, UNIQ_KEY_MARKER)


def decode_lazily(
    data: bytes | bytearray | memoryview,
    *,
    broker_name: str = "",
    added: Mapping[str, str] | None = None,
) -> list[LazyMessage]:
    """Return the messages of consecutive records; their fields are decoded on first access.

    Every record is checked first, so access never fails.

    Args:
        data: the body of a broker's response.
        broker_name: the broker of the response.
        added: properties that every message gets besides those of its record.

    Raises:
        RecordError: one of them is not whole.
    """
    content = data if type(data) is bytes else bytes(data)
    end = len(content)
    messages = []
    position = 0
    while position < end:
        size = whole_size(content, position, end)
        if not size:
            raise _reason(content, position)
        record = content if size == end else octets.copy_of(content, position, position + size)
        message = _new(LazyMessage)
        message._record = record
        message._added = added
        message._properties = None
        message.broker_name = broker_name
        message.size_bytes = size
        message.queue_offset = QueueOffset(_i64(record, _QUEUE_OFFSET_AT)[0])
        messages.append(message)
        position += size
    return messages


def _reason(data: bytes, position: int) -> RecordError:
    """Return why there is no whole record."""
    try:
        split_record(data, position)
    except RecordError as error:
        return error
    return RecordError(f"no whole record at {position}")


def whole_size(memory: Any, at: int, end: int) -> int:
    """Return the size of the record that begins at ``at``; 0 if it is incomplete."""
    if end - at < _SIZE_MIN:
        return 0
    size = octets.i32_in(memory, at)
    magic = octets.i32_in(memory, at + _MAGIC_AT)
    if (magic != _V1 and magic != _V2) or size < _SIZE_MIN or size > end - at:
        return 0
    wide = 2 if magic == _V2 else 1
    flag = octets.i32_in(memory, at + _SYS_FLAG_AT)
    body = body_at(flag) if flag & _V6_BITS else _HEAD_BYTES  # without a call to another module
    if size < body:
        return 0
    topic_at = body + octets.i32_in(memory, at + body - _LENGTH_BYTES)
    if topic_at < body or topic_at + wide > size:
        return 0
    topic_bytes = memory[at + topic_at] if wide == 1 else octets.i16_in(memory, at + topic_at)
    properties_at = topic_at + wide + topic_bytes + 2
    if topic_bytes < 0 or properties_at > size:
        return 0
    properties_bytes = octets.i16_in(memory, at + properties_at - 2)
    if properties_bytes < 0 or properties_at + properties_bytes > size:
        return 0
    return size


def _flag_of(record: bytes) -> int:
    return octets.i32_in(record, _SYS_FLAG_AT)


def _born_host(message: LazyMessage) -> str:
    record = message._record
    return host_text(record[BORN_HOST_AT : store_time_at(_flag_of(record))])


def _store_time(message: LazyMessage) -> int:
    record = message._record
    return int(_i64(record, store_time_at(_flag_of(record)))[0])


def _store_host(record: bytes) -> bytes:
    flag = _flag_of(record)
    at = store_time_at(flag) + 8
    return record[at : at + (HOST_V6_BYTES if flag & _STORE_V6 else HOST_V4_BYTES)]


def _topic_at(record: bytes) -> int:
    """Return the position of the topic's length, behind the body."""
    at = body_at(_flag_of(record))
    return at + octets.i32_in(record, at - _LENGTH_BYTES)


def _topic_end(record: bytes) -> int:
    at = _topic_at(record)
    if octets.i32_in(record, _MAGIC_AT) == _V1:
        return at + 1 + record[at]
    return at + 2 + octets.i16_in(record, at)


def _property_text(record: bytes) -> bytes:
    at = _topic_end(record) + 2
    return octets.copy_of(record, at, at + octets.i16_in(record, at - 2))


def _property(message: LazyMessage, name: str, name_marker: bytes) -> str | None:
    """Return one property, without decoding the others if none was read yet."""
    if message._properties is not None:
        return message._properties.get(name)
    value = value_of(_property_text(message._record), name_marker)
    return None if value is None else str(value, "utf-8", "replace")


def _read_topic(message: LazyMessage) -> str:
    record = message._record
    start = _topic_at(record) + (1 if octets.i32_in(record, _MAGIC_AT) == _V1 else 2)
    return str(record[start : _topic_end(record)], "utf-8", "replace")


def _read_properties(message: LazyMessage) -> dict[str, str]:
    properties = decode_properties(_property_text(message._record))
    if message._added:
        properties.update(message._added)
    return properties


def _stored_body(record: bytes, sys_flag: int) -> bytes:
    at = body_at(sys_flag)
    return octets.copy_of(record, at, at + octets.i32_in(record, at - _LENGTH_BYTES))


def _read_body(message: LazyMessage) -> bytes:
    record = message._record
    flag = _flag_of(record)
    body = _stored_body(record, flag)
    return body if not flag & SysFlag.COMPRESSED else _inflate(message, body, flag)


def _inflate(message: LazyMessage, body: bytes, flag: int) -> bytes:
    """Decompress the body; clear the bit of the message's flag if that succeeds."""
    try:
        body = decompress_body(body, flag)
        flag &= ~SysFlag.COMPRESSED
    except CompressionError as error:
        queue, offset = message.queue, message.queue_offset
        log.warning("cannot decompress a body queue=%s offset=%d error=%s", queue, offset, error)
    message.body = body
    message.sys_flag = flag
    return body


def _read_sys_flag(message: LazyMessage) -> int:
    flag = _flag_of(message._record)
    if flag & SysFlag.COMPRESSED:
        _inflate(message, _stored_body(message._record, flag), flag)
        return message.sys_flag
    return flag


def _number(read: Callable[[bytes, int], tuple[int, ...]], at: int) -> Callable[[LazyMessage], int]:
    return lambda message: read(message._record, at)[0]


def _number_before_body(
    read: Callable[[bytes, int], tuple[int, ...]], distance: int
) -> Callable[[LazyMessage], int]:
    def of(message: LazyMessage) -> int:
        record = message._record
        return read(record, body_at(_flag_of(record)) - distance)[0]

    return of


_READERS: dict[str, Callable[[LazyMessage], object]] = {
    "topic": _read_topic,
    "body": _read_body,
    "queue_id": _number(_i32, QUEUE_ID_AT),
    "log_offset": _number(_i64, LOG_OFFSET_AT),
    "flag": _number(_i32, FLAG_AT),
    "sys_flag": _read_sys_flag,
    "born_time_ms": _number(_i64, BORN_TIME_AT),
    "born_host": _born_host,
    "store_time_ms": _store_time,
    "store_host": lambda m: host_text(_store_host(m._record)),
    "reconsume_times": _number_before_body(_i32, RETRIES_BEFORE_BODY),
    "prepared_offset": _number_before_body(_i64, PREPARED_BEFORE_BODY),
    "body_crc": _number(_i32, BODY_CRC_AT),
    "offset_message_id": lambda m: encode_offset_id(_store_host(m._record), m.log_offset),
}
"""Decodes each field on its first access."""

_FIELDS = tuple(field.name for field in fields(StoredMessage))
