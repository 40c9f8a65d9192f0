"""Converts JSON of any shape to typed structs, as leniently as RocketMQ's JSON library.

Names match in any letter case and without ``_`` and ``-``; unknown ones are skipped; texts become
numbers and numbers texts; an enum may come as its name or its number, and an unknown one is None.
Null for a plain member leaves the default, for a collection it is refused.

Source: ParserConfig and TypeUtils.cast of fastjson 1.2.83, as RocketMQ 5.3 uses it.
"""

import base64
import binascii
from collections.abc import Callable
from enum import Enum
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin

import msgspec

from cometmq.protocol.fastjson import FastJsonError, Pairs, dumps, loads

S = TypeVar("S", bound=msgspec.Struct)

_Reader = Callable[[Any], Any]
_READERS: dict[Any, _Reader] = {}


def read_struct(value: Any, cls: type[S]) -> S:
    """Convert the result of :func:`fastjson.loads` to a struct.

    Raises:
        FastJsonError: something does not fit and cannot be made to.
    """
    made: S = _reader(cls)(value)
    return made


def _reader(kind: Any) -> _Reader:
    """Return what reads a value of a type; each type's reader is made once."""
    reader = _READERS.get(kind)
    if reader is None:
        reader = _READERS[kind] = _make_reader(kind)
    return reader


def _make_reader(kind: Any) -> _Reader:
    origin = get_origin(kind)
    if origin in (Union, UnionType):
        return _optional(next(part for part in get_args(kind) if part is not type(None)))
    if origin is list:
        return _list_of(get_args(kind)[0])
    if origin is dict:
        return _dict_of(*get_args(kind))
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return _struct_of(kind)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return _enum_of(kind)
    return _SCALARS[kind]


def _optional(kind: Any) -> _Reader:
    def read(value: Any) -> Any:
        return None if value is None else _reader(kind)(value)

    return read


def _list_of(kind: Any) -> _Reader:
    def read(value: Any) -> list[Any]:
        if not isinstance(value, list) or isinstance(value, Pairs):
            raise _misfit(value, "a list")
        item = _reader(kind)
        return [item(each) for each in value]

    return read


def _dict_of(key_kind: Any, value_kind: Any) -> _Reader:
    def read(value: Any) -> dict[Any, Any]:
        if not isinstance(value, dict | Pairs):
            raise _misfit(value, "an object")
        key, item = _reader(key_kind), _reader(value_kind)
        pairs = value.items() if isinstance(value, dict) else value
        return {key(name): item(each) for name, each in pairs}

    return read


def _fold(name: str) -> str:
    return name.replace("_", "").replace("-", "").lower()


def _struct_of(cls: type[msgspec.Struct]) -> _Reader:
    fields = msgspec.structs.fields(cls)
    by_name = {_fold(info.encode_name): info for info in fields}

    def read(value: Any) -> msgspec.Struct:
        if isinstance(value, str) and value.lstrip().startswith("{"):
            value = loads(value)  # a key that was written as a separate text
        if not isinstance(value, dict):
            raise _misfit(value, f"an object of {cls.__name__}")
        members = {}
        for name, item in value.items():
            info = by_name.get(_fold(name))
            if info is not None and not (item is None and _keeps_default(info)):
                members[info.name] = _reader(info.type)(item)
        return _built(cls, members)

    return read


def _keeps_default(info: msgspec.structs.FieldInfo) -> bool:
    """Whether null for a member means as much as leaving it out: not so for a collection."""
    return get_origin(info.type) not in (list, dict)


def _built(cls: type[msgspec.Struct], members: dict[str, Any]) -> msgspec.Struct:
    try:
        return cls(**members)
    except TypeError as error:
        raise FastJsonError(f"{cls.__name__}: {error}") from None


def _enum_of(kind: type[Enum]) -> _Reader:
    members = list(kind)

    def read(value: Any) -> Enum | None:
        if isinstance(value, int) and not isinstance(value, bool):
            if not 0 <= value < len(members):
                raise _misfit(value, f"0 to {len(members) - 1} for {kind.__name__}")
            return members[value]
        return kind.__members__.get(str(value))

    return read


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None or isinstance(value, dict | list):
        return dumps(value).decode()
    return str(value)


def _number(value: Any) -> int:
    if isinstance(value, int):
        return int(value)
    if value in ("", "null"):
        return 0
    try:
        return int(str(value)[:40]) if isinstance(value, str) else int(float(value))
    except (TypeError, ValueError, OverflowError):
        raise _misfit(value, "a number") from None


def _fraction(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise _misfit(value, "a number") from None


def _truth(value: Any) -> bool:
    if isinstance(value, str):
        return value.lower() in ("true", "1", "y", "yes")
    if isinstance(value, int | float):
        return value == 1
    raise _misfit(value, "true or false")


def _octets(value: Any) -> bytes:
    try:
        return base64.b64decode(value, validate=True)
    except (TypeError, ValueError, binascii.Error):
        raise _misfit(value, "a text in Base64") from None


_SCALARS: dict[Any, _Reader] = {
    str: _text,
    int: _number,
    float: _fraction,
    bool: _truth,
    bytes: _octets,
    Any: lambda value: value,
}


def _misfit(value: Any, expected: str) -> FastJsonError:
    return FastJsonError(f"met {_text(value)[:40]} in a JSON text, expected {expected}")
