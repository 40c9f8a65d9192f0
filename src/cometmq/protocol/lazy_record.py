# cython: annotation_typing=False
"""Messages whose fields are decoded on first access.

Most fields of a record are never read: a consumer counts a message, filters it by its tag and
passes it to a handler that needs the body. So on arrival a record is only checked for completeness,
field by field, and copied out of the response that contains it; numbers are read at once, since
that is cheap.

The format is that of `cometmq.protocol.record`.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import fields
from typing import Any

from cometmq.model import property_names as names
from cometmq.model.flags import SysFlag
from cometmq.model.message import StoredMessage
from cometmq.protocol import octets
from cometmq.protocol.compression import CompressionError, check_package, decompress_body
from cometmq.protocol.message_id import encode_offset_id
from cometmq.protocol.octets import Memory
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
    STORE_TIME_V4_AT,
    SYS_FLAG_AT,
    RecordError,
    body_at,
    host_text,
    split_record,
    store_time_at,
)

RISING = "expected rising offsets"

# C numbers once compiled.
_STORE_V6, _COMPRESSED = int(SysFlag.STORE_HOST_V6), int(SysFlag.COMPRESSED)
_V1, _V2, _SIZE_MIN = MAGIC_V1, MAGIC_V2, RECORD_BYTES_MIN
_MAGIC_AT, _QUEUE_OFFSET_AT, _SYS_FLAG_AT = MAGIC_AT, QUEUE_OFFSET_AT, SYS_FLAG_AT
_BODY_CRC_AT, _QUEUE_ID_AT, _FLAG_AT = BODY_CRC_AT, QUEUE_ID_AT, FLAG_AT
_LOG_OFFSET_AT, _BORN_TIME_AT, _STORE_TIME_AT = LOG_OFFSET_AT, BORN_TIME_AT, STORE_TIME_V4_AT
_HEAD_BYTES, _V6_BITS, _LENGTH_BYTES = HEAD_BYTES, HOST_V6_BITS, BODY_LENGTH_BEFORE_BODY
_RETRIES_BYTES, _PREPARED_BYTES = RETRIES_BEFORE_BODY, PREPARED_BEFORE_BODY


class LazyMessage:
    """A stored message whose texts, body and properties are decoded on first access.

    It is a `StoredMessage` for `isinstance`, and so are its copies, pickles and replacements, which
    have all fields. A compiled class cannot inherit from one of Python.

    Access to a body that cannot be decompressed raises `CompressionError`, and the COMPRESSED bit
    stays set: a handler that reads the body fails, and no other message of the queue does.
    """

    __slots__ = (
        "_added",
        "_body",
        "_born_host",
        "_offset_message_id",
        "_properties",
        "_record",
        "_store_host",
        "_sys_flag",
        "_topic",
        "body_crc",
        "born_time_ms",
        "broker_name",
        "flag",
        "log_offset",
        "prepared_offset",
        "queue_id",
        "queue_offset",
        "reconsume_times",
        "size_bytes",
        "store_time_ms",
    )
    _record: bytes
    _added: Mapping[str, str] | None
    _topic: str | None
    _body: bytes | None
    _properties: dict[str, str] | None
    _born_host: str | None
    _store_host: str | None
    _offset_message_id: str | None
    _sys_flag: int
    body_crc: int
    born_time_ms: int
    broker_name: str
    flag: int
    log_offset: int
    prepared_offset: int
    queue_id: int
    queue_offset: int
    reconsume_times: int
    size_bytes: int
    store_time_ms: int

    __dataclass_fields__ = StoredMessage.__dataclass_fields__
    __match_args__ = StoredMessage.__match_args__

    message_id = StoredMessage.message_id
    delay_level = StoredMessage.delay_level
    queue = StoredMessage.queue
    real_topic = StoredMessage.real_topic

    @property  # type: ignore[misc]
    def __class__(self) -> type[StoredMessage]:  # type: ignore[override]
        return StoredMessage

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, StoredMessage):
            return NotImplemented
        return _shown_values(self) == _shown_values(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(StoredMessage(*_shown_values(self)))

    def __reduce__(self) -> tuple[Any, ...]:
        return StoredMessage, _values(self)

    @property
    def topic(self) -> str:
        """The topic of the record."""
        if self._topic is None:
            self._topic = _read_topic(self._record)
        return self._topic

    @topic.setter
    def topic(self, topic: str) -> None:
        self._topic = topic

    @property
    def body(self) -> bytes:
        """The body, decompressed.

        Raises:
            CompressionError: it is damaged, or its package is missing.
        """
        if self._body is None:
            if self._sys_flag & _COMPRESSED:
                self._body = decompress_body(_stored_body(self._record), self._sys_flag)
                self._sys_flag &= ~_COMPRESSED
            else:
                self._body = _stored_body(self._record)
        return self._body

    @body.setter
    def body(self, body: bytes) -> None:
        self._body = body

    @property
    def sys_flag(self) -> int:
        """The flags of the record, without COMPRESSED if the body could be decompressed."""
        if self._sys_flag & _COMPRESSED and self._body is None:
            with suppress(CompressionError):
                self.body  # noqa: B018 - decompresses it
        return self._sys_flag

    @sys_flag.setter
    def sys_flag(self, sys_flag: int) -> None:
        self._sys_flag = sys_flag

    @property
    def properties(self) -> dict[str, str]:
        """All properties, system ones included."""
        if self._properties is None:
            self._properties = decode_properties(_property_text(self._record))
            if self._added:
                self._properties.update(self._added)
        return self._properties

    @properties.setter
    def properties(self, properties: dict[str, str]) -> None:
        self._properties = properties

    @property
    def born_host(self) -> str:
        """``ip:port`` of the sender."""
        if self._born_host is None:
            record = self._record
            self._born_host = host_text(record[BORN_HOST_AT : store_time_at(_flag_of(record))])
        return self._born_host

    @born_host.setter
    def born_host(self, host: str) -> None:
        self._born_host = host

    @property
    def store_host(self) -> str:
        """``ip:port`` of the broker."""
        if self._store_host is None:
            self._store_host = host_text(_store_host(self._record))
        return self._store_host

    @store_host.setter
    def store_host(self, host: str) -> None:
        self._store_host = host

    @property
    def offset_message_id(self) -> str:
        """The broker's id, made of its address and the record's physical offset."""
        if self._offset_message_id is None:
            host, record = _store_host(self._record), self._record
            self._offset_message_id = encode_offset_id(host, octets.i64_in(record, _LOG_OFFSET_AT))
        return self._offset_message_id

    @offset_message_id.setter
    def offset_message_id(self, text: str) -> None:
        self._offset_message_id = text

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
) -> list[StoredMessage]:
    """Return the messages of consecutive records; most fields are decoded on first access.

    Every record is checked first, so access never fails, except to a damaged compressed body.

    Args:
        data: the body of a broker's response.
        broker_name: the broker of the response.
        added: properties that every message gets besides the properties of its record.

    Raises:
        RecordError: one of them is not whole.
    """
    content = data if type(data) is bytes else bytes(data)
    messages = decode_between(content, 0, len(content), broker_name, added)
    if messages is None:
        raise _reason(content)
    return messages


def decode_between(
    data: bytes | bytearray,
    position: int,
    end: int,
    broker_name: str,
    added: Mapping[str, str] | None,
) -> list[Any] | None:
    """Return the messages of the records between two positions; None if one is not whole."""
    memory = octets.start_of(data)
    messages = []
    while position < end:
        size = whole_size(memory, position, end)
        if not size:
            return None
        if size == end and type(data) is bytes:
            record = data
        else:
            record = octets.copy_of(data, position, position + size)
        messages.append(_message_of(record, size, broker_name, added))
        position += size
    return messages


def check_rising(messages: list[Any], flags: int) -> bool:
    """Check that offsets rise, and return whether a message of `decode_lazily` has these flags.

    Raises:
        RecordError: an offset does not rise.
    """
    last, found = -1, False
    for message in messages:
        if message.queue_offset <= last:
            raise RecordError(f"offset {message.queue_offset} follows {last}: {RISING}")
        last = message.queue_offset
        if message._sys_flag & flags == flags:
            found = True
    return found


def check_packages(messages: list[Any]) -> None:
    """Check that each compressed body can be decompressed, as far as that needs a package.

    Raises:
        MissingPackageError: the package of a body is not installed.
    """
    for message in messages:
        if message._sys_flag & _COMPRESSED:
            check_package(message._sys_flag)


def body_or_stored(message: StoredMessage) -> bytes:
    """Return the body; one that cannot be decompressed is returned as it is stored."""
    try:
        return message.body
    except CompressionError:
        return stored_body(message)


def stored_body(message: Any) -> bytes:
    """Return the body as it is stored, perhaps compressed."""
    if type(message) is LazyMessage:
        received = message
        body: bytes = _stored_body(received._record)
        return body
    body = message.body
    return body


def stored_sys_flag(message: Any) -> int:
    """Return the flags with which the body is stored."""
    if type(message) is LazyMessage:
        received = message
        flag: int = _flag_of(received._record)
        return flag
    flag = message.sys_flag
    return flag


def _message_of(record: bytes, size: int, broker_name: str, added: Mapping[str, str] | None) -> Any:
    """Return the message of a whole record, with the fields that are numbers."""
    message = LazyMessage.__new__(LazyMessage)
    message._record = record
    message._added = added
    message._topic = message._body = message._properties = None
    message._born_host = message._store_host = message._offset_message_id = None
    message.broker_name = broker_name
    message.size_bytes = size
    message.body_crc = octets.i32_in(record, _BODY_CRC_AT)
    message.queue_id = octets.i32_in(record, _QUEUE_ID_AT)
    message.flag = octets.i32_in(record, _FLAG_AT)
    message.queue_offset = octets.i64_in(record, _QUEUE_OFFSET_AT)
    message.log_offset = octets.i64_in(record, _LOG_OFFSET_AT)
    message.born_time_ms = octets.i64_in(record, _BORN_TIME_AT)
    flag = octets.i32_in(record, _SYS_FLAG_AT)
    message._sys_flag = flag
    body = body_at(flag) if flag & _V6_BITS else _HEAD_BYTES  # without a call to another module
    stored = store_time_at(flag) if flag & _V6_BITS else _STORE_TIME_AT
    message.store_time_ms = octets.i64_in(record, stored)
    message.reconsume_times = octets.i32_in(record, body - _RETRIES_BYTES)
    message.prepared_offset = octets.i64_in(record, body - _PREPARED_BYTES)
    return message


def as_received(message: Any) -> StoredMessage:
    """Return a copy with the fields of the record, without the changes of a handler.

    A message that was not decoded lazily has no record: it is returned itself.
    """
    copy: StoredMessage = message
    if type(message) is LazyMessage:
        received = message
        record = received._record
        copy = _message_of(record, len(record), received.broker_name, received._added)
    return copy


def restore(message: Any) -> None:
    """Undo what a handler has changed in the body and the properties of a message."""
    if type(message) is LazyMessage:
        received = message
        received._body = received._properties = None
        received._sys_flag = _flag_of(received._record)


def _values(message: Any) -> tuple[Any, ...]:
    """Return all fields of a message, in the order of `StoredMessage`."""
    return tuple([getattr(message, name) for name in _FIELDS])


def _shown_values(message: Any) -> tuple[Any, ...]:
    """Return all fields, the body as it is stored if it cannot be decompressed."""
    return tuple(
        [body_or_stored(message) if name == "body" else getattr(message, name) for name in _FIELDS]
    )


def _reason(data: bytes) -> RecordError:
    """Return why these are not whole records."""
    position = 0
    while size := whole_size(data, position, len(data)):
        position += size
    try:
        split_record(data, position)
    except RecordError as error:
        return error
    return RecordError(f"no whole record at {position}")


def whole_size(memory: Memory, at: int, end: int) -> int:
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


def _property(message: Any, name: str, name_marker: bytes) -> str | None:
    """Return one property, without decoding the others if none was read yet."""
    if message._properties is not None:
        found: str | None = message._properties.get(name)
        return found
    value = value_of(_property_text(message._record), name_marker)
    return None if value is None else str(value, "utf-8", "replace")


def _read_topic(record: bytes) -> str:
    start = _topic_at(record) + (1 if octets.i32_in(record, _MAGIC_AT) == _V1 else 2)
    return str(record[start : _topic_end(record)], "utf-8", "replace")


def _stored_body(record: bytes) -> bytes:
    flag = _flag_of(record)
    at = body_at(flag) if flag & _V6_BITS else _HEAD_BYTES
    return octets.copy_of(record, at, at + octets.i32_in(record, at - _LENGTH_BYTES))


_FIELDS = tuple(field.name for field in fields(StoredMessage))
