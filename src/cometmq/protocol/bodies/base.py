"""Reads and writes JSON bodies: the base of all of them.

A body that is plain JSON of the expected shape is read in one step, also if keys that are numbers
have no quotes; other JSON takes the general path through the dialect of
:mod:`cometmq.protocol.fastjson`.

Source: RemotingSerializable, RocketMQ 5.3.
"""

import re
from collections.abc import Iterator
from typing import Any, ClassVar, Self, TypeVar

import msgspec

from cometmq.model.errors import ResponseError
from cometmq.protocol import fastjson
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.lenient import read_struct


class InvalidBodyError(ResponseError):
    """A body does not fit its command; the response has code 1."""

    def __init__(self, text: str) -> None:
        super().__init__(ResponseCode.SYSTEM_ERROR, text)


class Part(msgspec.Struct, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """The base of what bodies consist of."""


class Body(Part, kw_only=True, forbid_unknown_fields=True):
    """The base of every JSON body."""

    bare_keys: ClassVar[bool] = False
    """Whether RocketMQ writes this body with keys that are numbers or objects without quotes."""

    def encode(self) -> bytes:
        """Write the body as RocketMQ does."""
        return fastjson.dumps_odd(self) if self.bare_keys else fastjson.dumps(self)

    def parts(self) -> Iterator[bytes]:
        """Write the body in parts, each of which takes less than a millisecond."""
        return fastjson.parts(self, bare_keys=self.bare_keys)

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Read a body from strict JSON or from the dialect.

        Raises:
            InvalidBodyError: the body is empty, malformed or of another shape.
        """
        return decode_body(cls, data)


S = TypeVar("S", bound=msgspec.Struct)
_BARE_KEY = re.compile(rb"([{,])(-?[0-9]{1,19}):")
_DECODERS: dict[type[msgspec.Struct], msgspec.json.Decoder[Any] | None] = {}


def decode_body(cls: type[S], data: bytes) -> S:
    """Read any struct, such as a struct of the model that is a body by itself.

    Raises:
        InvalidBodyError: the body is empty, malformed or of another shape.
    """
    decoded = decode_strictly(cls, data)
    return _decode_leniently(cls, data) if decoded is None else decoded


def decode_strictly(cls: type[S], data: bytes) -> S | None:
    """Read a struct from plain JSON of the expected shape; None for anything else.

    Keys that are numbers get quotes if they have none. In a text, something like such a key becomes
    a quote and a digit, which no JSON contains: that is read on the general path.
    """
    decoder = _decoder(cls)
    if decoder is None or fastjson.has_references(data):
        return None
    try:
        decoded: S = decoder.decode(data)
    except msgspec.ValidationError:
        return None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        quoted, count = _BARE_KEY.subn(rb'\1"\2":', data)
        return decode_strictly(cls, quoted) if count else None
    return decoded


def _decode_leniently(cls: type[S], data: bytes) -> S:
    if not data:
        raise InvalidBodyError(f"a {cls.__name__} is expected, but the body is empty")
    try:
        return read_struct(fastjson.loads(bytes(data)), cls)
    except fastjson.FastJsonError as error:
        raise InvalidBodyError(f"{cls.__name__}: {error}") from None


def _decoder(cls: type[msgspec.Struct]) -> msgspec.json.Decoder[Any] | None:
    """Return the fast decoder of a body; there is none if some map has objects for keys."""
    if cls not in _DECODERS:
        try:
            _DECODERS[cls] = msgspec.json.Decoder(cls, strict=False)
        except TypeError:
            _DECODERS[cls] = None
    return _DECODERS[cls]
