"""The base of request and response headers: fields that are sent as text in ``extFields``.

A header is a struct of required and optional fields. A field is required if RocketMQ's handler of
the request fails without it, whatever its annotation there says; the others have a default. Python
names are snake_case and wire names camelCase; a field whose wire name is spelled otherwise says so
itself. Fields that are None are not sent.

Source: CommandCustomHeader and RemotingCommand.decodeCommandCustomHeader, RocketMQ 5.3.
"""

from collections.abc import Mapping
from types import UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

import msgspec

from cometmq.model.errors import ResponseError

I32_MIN, I32_MAX = -(2**31), 2**31 - 1
I64_MIN, I64_MAX = -(2**63), 2**63 - 1

Int32 = Annotated[int, msgspec.Meta(ge=I32_MIN, le=I32_MAX)]
"""A header field of 32 bits."""
Int64 = Annotated[int, msgspec.Meta(ge=I64_MIN, le=I64_MAX)]
"""A header field of 64 bits."""

SYSTEM_ERROR = 1


class Header(msgspec.Struct, kw_only=True, rename="camel", gc=False):
    """The base of every header."""


class RpcHeader(Header, kw_only=True):
    """Fields that 5.x clients and proxies add to most requests; older ones leave them out."""

    bname: str | None = None
    """Name of the broker the request is meant for."""
    ns: str | None = None
    """Namespace of the client."""
    nsd: bool | None = None
    """Whether names in the request already carry the namespace."""
    oway: bool | None = None
    """Whether the sender waits for no response."""


class TopicHeader(RpcHeader, kw_only=True):
    """The further field of requests that name a topic."""

    lo: bool | None = None
    """False: queue ids and offsets are physical ones, not to be mapped for a static topic."""


H = TypeVar("H", bound=Header)


class _Field:
    """How one field of a header is read and written."""

    __slots__ = ("attribute", "highest", "kind", "lowest", "required", "wire_name")

    def __init__(self, info: msgspec.structs.FieldInfo) -> None:
        self.attribute = info.name
        self.wire_name = info.encode_name
        self.required = info.required
        self.kind, self.lowest, self.highest = _kind_of(info.type)


def _kind_of(annotation: Any) -> tuple[type, int, int]:
    """Return the plain type behind an annotation and the range of its numbers."""
    if get_origin(annotation) in (Union, UnionType):
        annotation = next(part for part in get_args(annotation) if part is not type(None))
    if get_origin(annotation) is Annotated:
        kind, limits = get_args(annotation)
        return kind, limits.ge, limits.le
    return annotation, I64_MIN, I64_MAX


_PLANS: dict[type[Header], tuple[_Field, ...]] = {}


def _plan(cls: type[Header]) -> tuple[_Field, ...]:
    plan = _PLANS.get(cls)
    if plan is None:
        plan = _PLANS[cls] = tuple(_Field(info) for info in msgspec.structs.fields(cls))
    return plan


def decode_fields(cls: type[H], fields: Mapping[str, Any]) -> H:
    """Read a typed header from ``extFields``, as forgivingly as RocketMQ does.

    Values may be text, numbers, booleans or None; unknown ones are ignored. A boolean is true if
    its text is ``true`` in any case, else false.

    Raises:
        ResponseError: code 1; a required field is missing or a number cannot be read.
    """
    values: dict[str, Any] = {}
    for field in _plan(cls):
        value = fields.get(field.wire_name)
        if value is not None and not (field.kind is not str and _says_null(value)):
            values[field.attribute] = _read(cls, field, value)
        elif field.required:
            raise ResponseError(
                SYSTEM_ERROR, f"{cls.__name__}: required field {field.wire_name} is missing"
            )
    return cls(**values)


def _read(cls: type[Header], field: _Field, value: Any) -> str | int | bool:
    if field.kind is str:
        return value if isinstance(value, str) else _text(value)
    if field.kind is bool:
        return value if isinstance(value, bool) else str(value).lower() == "true"
    return _read_number(cls, field, value)


def _read_number(cls: type[Header], field: _Field, value: Any) -> int:
    number = _parse(value)
    if number is None or not field.lowest <= number <= field.highest:
        raise ResponseError(
            SYSTEM_ERROR,
            f"{cls.__name__}: field {field.wire_name} is {str(value)[:40]!r},"
            f" expected a number of {32 if field.highest == I32_MAX else 64} bits",
        )
    return number


def _says_null(value: Any) -> bool:
    return isinstance(value, str) and value.lower() == "null"


def boolean_fields(cls: type[Header]) -> list[tuple[str, str]]:
    """The attributes of a header's boolean fields, each with its wire name."""
    return [(field.attribute, field.wire_name) for field in _plan(cls) if field.kind is bool]


def _parse(value: Any) -> int | None:
    """Read a number by Java's rules, a sign and digits; or one that JSON takes for whole: 5.0."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    text = str(value)
    try:
        if len(text) <= 20 and text.lstrip("+-").isdecimal():
            return int(text)
        return msgspec.convert(text, int, strict=False)
    except (ValueError, msgspec.MsgspecError):
        return None


def encode_fields(header: Header) -> dict[str, str]:
    """Write a header as the text values of ``extFields``; fields that are None are left out."""
    fields = {}
    wire_names = type(header).__struct_encode_fields__
    for name, value in zip(wire_names, msgspec.structs.astuple(header), strict=True):
        if value is not None:
            kind = type(value)
            fields[name] = value if kind is str else str(value) if kind is int else _text(value)
    return fields


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return str.__str__(value)
    return str(value)
