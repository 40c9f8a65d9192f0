"""Parses Protocol Buffers, through protobuf, and gives a message type as an Arrow type.

The schema is a ``FileDescriptorSet`` (``protoc --include_imports --descriptor_set_out=FILE``), or
the registry's. Unknown fields are passed over. A field without presence has its default if the
sender left it out; one with presence is null.

    message → STRUCT      enum → STRING, its name     google.protobuf.Timestamp → TIMESTAMP
    repeated → ARRAY      bytes → BINARY              google.protobuf.StringValue … → STRING …
    map → MAP             uint64, fixed64 → DECIMAL(20)  uint32, fixed32 → BIGINT
"""

from __future__ import annotations

import datetime
from typing import Any

import pyarrow as pa

from cometmq.spark.errors import OptionError
from cometmq.spark.payloads.decoder import Getter, PayloadError
from cometmq.spark.payloads.registry import divided

try:
    from google.protobuf import (
        descriptor_pb2,
        descriptor_pool,
        duration_pb2,
        message_factory,
        timestamp_pb2,
        wrappers_pb2,
    )
    from google.protobuf.descriptor import Descriptor, FieldDescriptor
    from google.protobuf.message import DecodeError
except ImportError as missing:  # the extra is chosen by those who read Protobuf
    raise OptionError(
        "payload.format=protobuf needs protobuf: install CometMQ with the extra 'payloads'"
    ) from missing

PROTOBUF = "PROTOBUF"
_NEST_MAX = 32
_INDEXES_MAX = 64
_TIMESTAMP = "google.protobuf.Timestamp"
_DURATION = "google.protobuf.Duration"
_WRAPPERS = frozenset(wrappers_pb2.DESCRIPTOR.message_types_by_name)


class Protobuf:
    """Parses one body into a message.

    Args:
        message: descriptor of the message type.
        registered: whether bodies begin with the id of a schema, which has to have this type.
    """

    def __init__(self, message: Descriptor, *, registered: bool = False) -> None:
        self._message = message
        self._class = message_factory.GetMessageClass(message)
        self._path = _path_of(message) if registered else None

    def parse(self, body: bytes) -> Any:
        """Return the message of a body."""
        data = body if self._path is None else _behind_path(divided(body)[1], self._path)
        found = self._class()
        try:
            found.ParseFromString(data)
        except DecodeError as problem:
            raise PayloadError(f"no {self._message.full_name}: {problem}") from None
        return found

    def getter(self, kind: pa.StructType, index: int) -> Getter:
        """Return a function that reads a field; fields of nested messages are found by name."""
        name = kind.field(index).name
        return lambda message: _value(message, message.DESCRIPTOR.fields_by_name[name])


def descriptor_of(document: bytes, name: str = "", registered: bool = False) -> Descriptor:
    """Return the descriptor of a message type.

    Args:
        document: a serialized FileDescriptorSet, or one file of a registry.
        name: full name of the message type; may be left out if the last file has only one.
        registered: whether the document is a registry's.

    Raises:
        OptionError: the document is damaged, or has no such type.
    """
    files = descriptor_pb2.FileDescriptorSet()
    try:
        if registered:
            files.file.add().ParseFromString(document)
        else:
            files.ParseFromString(document)
    except DecodeError as problem:
        raise OptionError(f"payload.schema: no descriptor of Protobuf: {problem}") from None
    return _found_in(list(files.file), name)


def _found_in(files: list[Any], name: str) -> Descriptor:
    pool = descriptor_pool.DescriptorPool()
    for known in (timestamp_pb2, duration_pb2, wrappers_pb2):
        pool.AddSerializedFile(known.DESCRIPTOR.serialized_pb)
    try:
        for file in files:
            if not file.name.startswith("google/protobuf/"):
                pool.Add(file)
        if name:
            return pool.FindMessageTypeByName(name)
    except (KeyError, TypeError, ValueError) as problem:
        raise OptionError(f"payload.schema: message type {name!r}: {problem}") from None
    last = files[-1] if files else descriptor_pb2.FileDescriptorProto()
    if len(last.message_type) != 1:
        names = ", ".join(each.name for each in last.message_type) or "none"
        raise OptionError(f"payload.message is required: the schema has the types {names}")
    package = f"{last.package}." if last.package else ""
    return pool.FindMessageTypeByName(package + last.message_type[0].name)


def arrow_type(message: Descriptor) -> pa.StructType:
    """Return the Arrow type of a message type.

    Raises:
        OptionError: the type contains itself.
    """
    return _struct(message, 0)


def _struct(message: Descriptor, depth: int) -> pa.StructType:
    if depth > _NEST_MAX:
        raise OptionError(f"{message.full_name} contains itself, which a table cannot be")
    return pa.struct([pa.field(each.name, _field_type(each, depth)) for each in message.fields])


def _field_type(field: FieldDescriptor, depth: int) -> pa.DataType:
    if _is_map(field):
        key, item = field.message_type.fields
        return pa.map_(_field_type(key, depth), _field_type(item, depth))
    kind = _single_type(field, depth)
    return pa.list_(kind) if field.is_repeated else kind


def _single_type(field: FieldDescriptor, depth: int) -> pa.DataType:
    if (message := field.message_type) is not None:
        if message.full_name == _TIMESTAMP:
            return pa.timestamp("us", tz="UTC")
        if message.full_name == _DURATION:
            return pa.duration("us")
        if _is_wrapper(message):
            return _single_type(message.fields_by_name["value"], depth)
        return _struct(message, depth + 1)
    if field.enum_type is not None:
        return pa.string()
    return _SCALARS[field.type]


def _is_map(field: FieldDescriptor) -> bool:
    message = field.message_type
    return field.is_repeated and message is not None and message.GetOptions().map_entry


def _is_wrapper(message: Descriptor) -> bool:
    return message.file.package == "google.protobuf" and message.name in _WRAPPERS


def _value(message: Any, field: FieldDescriptor) -> Any:
    if _is_map(field):
        item = field.message_type.fields_by_name["value"]
        return {key: _single(each, item) for key, each in getattr(message, field.name).items()}
    if field.is_repeated:
        return [_single(each, field) for each in getattr(message, field.name)]
    if field.has_presence and not message.HasField(field.name):
        return None
    return _single(getattr(message, field.name), field)


def _single(value: Any, field: FieldDescriptor) -> Any:
    if (message := field.message_type) is not None:
        if message.full_name in (_TIMESTAMP, _DURATION):
            span = datetime.timedelta(seconds=value.seconds, microseconds=value.nanos // 1000)
            return span if message.full_name == _DURATION else _EPOCH + span
        return value.value if _is_wrapper(message) else value
    if field.enum_type is not None:
        known = field.enum_type.values_by_number.get(value)
        return known.name if known is not None else str(value)
    return value


_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


def _behind_path(data: bytes, expected: list[int]) -> bytes:
    """Return a body behind the path of its message type, which has to be the expected one.

    The path is a count and that many indexes as zigzag varints; a single zero stands for the first
    type of the file. Source: the wire format of Confluent's documentation.
    """
    count, position = _varint(data, 0)
    if not 0 <= count <= _INDEXES_MAX:
        raise PayloadError(f"met a path of {count} indexes to a message type")
    path = []
    for _ in range(count):
        index, position = _varint(data, position)
        path.append(index)
    if (path or [0]) != expected:
        raise PayloadError(f"met the message type at {path or [0]}, expected {expected}")
    return data[position:]


def _path_of(message: Descriptor) -> list[int]:
    outer = message.containing_type
    if outer is not None:
        return [*_path_of(outer), [each.name for each in outer.nested_types].index(message.name)]
    return [list(message.file.message_types_by_name).index(message.name)]


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while position < len(data) and shift < 64:
        byte = data[position]
        value |= (byte & 0x7F) << shift
        position += 1
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), position
        shift += 7
    raise PayloadError("the path of the message type is cut short")


_SCALARS: dict[int, pa.DataType] = {
    FieldDescriptor.TYPE_DOUBLE: pa.float64(),
    FieldDescriptor.TYPE_FLOAT: pa.float32(),
    FieldDescriptor.TYPE_INT64: pa.int64(),
    FieldDescriptor.TYPE_SINT64: pa.int64(),
    FieldDescriptor.TYPE_SFIXED64: pa.int64(),
    FieldDescriptor.TYPE_UINT64: pa.decimal128(20),
    FieldDescriptor.TYPE_FIXED64: pa.decimal128(20),
    FieldDescriptor.TYPE_INT32: pa.int32(),
    FieldDescriptor.TYPE_SINT32: pa.int32(),
    FieldDescriptor.TYPE_SFIXED32: pa.int32(),
    FieldDescriptor.TYPE_UINT32: pa.int64(),
    FieldDescriptor.TYPE_FIXED32: pa.int64(),
    FieldDescriptor.TYPE_BOOL: pa.bool_(),
    FieldDescriptor.TYPE_STRING: pa.string(),
    FieldDescriptor.TYPE_BYTES: pa.binary(),
}
