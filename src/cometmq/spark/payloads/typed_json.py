"""Parses JSON and MessagePack into the types of a schema, through msgspec.

Types are strict, because a guess is a wrong row: a number is not read from a text, an integer has
to fit its width, a ``TIMESTAMP`` has a time zone and a ``TIMESTAMP_NTZ`` has none. Unknown fields
are passed over. A missing field is null, or an error if the schema says NOT NULL.

    STRING BOOLEAN DOUBLE BIGINT …   what JSON calls them
    DECIMAL                          a number or a text
    TIMESTAMP, DATE                  a text in ISO 8601; MessagePack also has timestamps of its own
    BINARY                           a text in Base64; bytes in MessagePack
    STRUCT, MAP<STRING, …>           an object
    ARRAY                            an array
"""

from __future__ import annotations

import datetime
import decimal
from operator import attrgetter
from typing import Annotated, Any

import msgspec
import pyarrow as pa

from cometmq.spark.errors import OptionError
from cometmq.spark.payloads.decoder import Getter, PayloadError

JSON, MSGPACK = "json", "msgpack"


class TypedJson:
    """Parses one body into an object whose fields are those of an Arrow struct.

    Args:
        kind: the type of the decoded body.
        encoding: ``json`` or ``msgpack``.

    Raises:
        OptionError: a field has a type that the encoding cannot have.
    """

    def __init__(self, kind: pa.StructType, encoding: str = JSON) -> None:
        decoders: dict[str, Any] = {JSON: msgspec.json.Decoder, MSGPACK: msgspec.msgpack.Decoder}
        self._decode = decoders[encoding](_class_of(kind, "value")).decode

    def parse(self, body: bytes) -> Any:
        """Return the object of a body."""
        try:
            return self._decode(body)
        except msgspec.MsgspecError as problem:
            raise PayloadError(str(problem)) from None
        except (RecursionError, UnicodeDecodeError) as problem:
            raise PayloadError(f"damaged: {problem}") from None

    def getter(self, kind: pa.StructType, index: int) -> Getter:
        """Return a function that reads a field."""
        return attrgetter(_attribute(index))


def _attribute(index: int) -> str:
    """Return the Python name of a field: names of a schema need not be Python's."""
    return f"f{index}"


def _class_of(kind: pa.StructType, path: str) -> type:
    fields: list[Any] = []
    names: dict[str, str] = {}
    for index, field in enumerate(kind):
        python = _attribute(index)
        names[python] = field.name
        wanted = _type_of(field.type, f"{path}.{field.name}")
        fields.append((python, wanted | None, None) if field.nullable else (python, wanted))
    # Without gc=True the objects of a batch would be walked by each collection.
    return msgspec.defstruct("Payload", fields, rename=names, gc=False, kw_only=True, frozen=False)


def _type_of(kind: pa.DataType, path: str) -> Any:
    """Return the Python type that msgspec is to expect for an Arrow type."""
    if pa.types.is_struct(kind):
        return _class_of(kind, path)
    if pa.types.is_list(kind):
        return list[_nullable(kind.value_field, f"{path}[]")]  # type: ignore[misc]
    if pa.types.is_map(kind):
        if not pa.types.is_string(kind.key_type):
            raise OptionError(f"payload: {path} is a map of {kind.key_type}, expected STRING keys")
        return dict[str, _nullable(kind.item_field, f"{path}{{}}")]  # type: ignore[misc]
    if pa.types.is_integer(kind):
        limit = 1 << (kind.bit_width - 1)
        return Annotated[int, msgspec.Meta(ge=-limit, le=limit - 1)]
    if pa.types.is_timestamp(kind):
        return Annotated[datetime.datetime, msgspec.Meta(tz=kind.tz is not None)]
    if pa.types.is_decimal(kind):
        return decimal.Decimal
    for matches, python in _PLAIN:
        if matches(kind):
            return python
    raise OptionError(f"payload: {path} has the type {kind}, which JSON and MessagePack lack")


def _nullable(field: pa.Field, path: str) -> Any:
    wanted = _type_of(field.type, path)
    return wanted | None if field.nullable else wanted


_PLAIN: tuple[tuple[Any, type], ...] = (
    (pa.types.is_string, str),
    (pa.types.is_boolean, bool),
    (pa.types.is_floating, float),
    (pa.types.is_date, datetime.date),
    (pa.types.is_binary, bytes),
)
