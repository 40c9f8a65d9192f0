# cython: annotation_typing=False
"""What processors see of remoting: a request came in, a response goes out.

Source: ours; the codes of refused and failed requests are RocketMQ's.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from cometmq.protocol.command import RESPONSE_FLAG, Command, encode_command, encode_head
from cometmq.protocol.frame import PREFIX_BYTES, TWO_U32
from cometmq.protocol.headers.base import Header, encode_fields
from cometmq.protocol.octets import copy_of, put_bytes, put_decimal, put_hex, put_u32
from cometmq.remoting.wire import Slice, Wire

try:
    import cython  # type: ignore[import-untyped]
except ImportError:  # interpreted, without Cython at hand
    from cometmq.system.uncompiled import cython

if TYPE_CHECKING:
    from cometmq.remoting.connection import Connection

_pack_two = TWO_U32.pack
_CONVERSION = re.compile(r"(?<!%)%(?:016X|d|s)")
_CONVERSIONS = ["%d", "%016X", "%s"]
_DECIMAL, _HEX = 0, 1
_DIGITS_MAX = 20

H = TypeVar("H", bound=Header)


class Response:
    """An answer that has not been encoded yet.

    Args:
        code: 0 for success.
        remark: a text for people, or None.
        header: the typed header; its fields travel as text.
        body: bytes, or slices that follow each other on the wire.
        fields: further header fields beside those of ``header``.
    """

    __slots__ = ("body", "code", "fields", "header", "remark")

    def __init__(
        self,
        code: int = 0,
        remark: str | None = None,
        *,
        header: Header | None = None,
        body: bytes | Sequence[Slice] = b"",
        fields: Mapping[str, str] | None = None,
    ) -> None:
        self.code = code
        self.remark = remark
        self.header = header
        self.body = body
        self.fields = fields

    def all_fields(self) -> Mapping[str, str] | None:
        """The header's fields and the further ones; None when there is no header at all."""
        if self.header is None:
            return self.fields
        fields = encode_fields(self.header)
        if self.fields:
            fields.update(self.fields)
        return fields

    def __repr__(self) -> str:
        return f"<Response code={int(self.code)} remark={self.remark!r}>"


class Request:
    """One request and the way back to whoever sent it."""

    __slots__ = ("answered", "body", "code", "command", "connection", "is_exclusive", "oneway")

    def __init__(self, command: Command, connection: Wire) -> None:
        self.command = command
        self.code = command.code
        self.body = command.body
        self.connection: Connection = connection  # type: ignore[assignment] # every wire is one
        self.oneway = command.is_oneway
        self.answered = False
        self.is_exclusive = False
        """Whether the frames behind this one wait until it is handled."""

    def header(self, kind: type[H]) -> H:
        """The typed header.

        Raises:
            ResponseError: a required field is missing or unreadable.
        """
        return self.command.header(kind)

    def reply(self, response: Response) -> None:
        """Send the answer, in the request's own serialization, once; a oneway request gets none."""
        if self.answered:
            raise AssertionError(f"a second response to {self.command!r}: {response!r}")
        if self.oneway:
            self.answered = True
            return
        body = response.body
        slices: Sequence[Slice] = (body,) if isinstance(body, bytes) else body
        body_bytes = len(body) if isinstance(body, bytes) else sum(map(len, slices))
        head = encode_head(
            int(response.code),
            opaque=self.command.opaque,
            flag=RESPONSE_FLAG,
            fields=response.all_fields(),
            remark=response.remark,
            serialization=self.command.serialization,
            body_bytes=body_bytes,
        )
        self.answered = True
        self.connection.write(head, slices if body_bytes else ())

    def reply_head(self, head: bytes, slices: Sequence[Slice] = ()) -> None:
        """Send an answer whose head is encoded already; see :class:`SuccessFormat`."""
        if self.answered:
            raise AssertionError(f"a second response to {self.command!r}")
        self.answered = True
        if not self.oneway:
            self.connection.write(head, slices)


Processor = Callable[[Request], Response | Awaitable[Response | None] | None]
"""Answers a request: at once, as an awaitable, or with None when it replies later or never.

It raises ResponseError to refuse; any other exception becomes code 1 with its name and text.
"""


def exclusive(processor: Processor) -> Processor:
    """Let the frames behind a request wait until a processor has handled it."""

    def handle(request: Request) -> Response | Awaitable[Response | None] | None:
        request.is_exclusive = True
        return processor(request)

    return handle


class SuccessFormat:
    """Writes the head of one kind of success, in JSON, many times over.

    Args:
        fields: a percent format of the header's fields as a JSON object: ``%d`` and ``%016X`` for
            numbers, ``%s`` for ASCII bytes.
        remark: a text for people, or None.
    """

    def __init__(self, fields: str, remark: str | None = None) -> None:
        sample = Command(0, flag=RESPONSE_FLAG, fields={"": ""}, opaque=0, remark=remark)
        known = encode_command(sample)
        text = known[PREFIX_BYTES:].decode().replace("%", "%%")
        text = text.replace('{"":""}', fields).replace('"opaque":0', '"opaque":%d')
        self._format = text.encode()
        pieces = _CONVERSION.split(text)
        self._pieces = [piece.replace("%%", "%").encode() for piece in pieces]
        self._conversions = [_CONVERSIONS.index(found) for found in _CONVERSION.findall(text)]
        known_bytes = PREFIX_BYTES + sum(map(len, self._pieces))
        self._space = bytearray(known_bytes + _DIGITS_MAX * len(self._conversions))

    def head(self, values: tuple[int | bytes, ...], body_bytes: int = 0) -> bytes:
        """The frame for these values, the opaque being the last of them, up to its body."""
        if cython.compiled:
            return self._put_together(values, body_bytes)
        header = self._format % values
        size = len(header)
        return _pack_two(4 + size + body_bytes, size) + header

    def _put_together(self, values: tuple[Any, ...], body_bytes: int) -> bytes:
        space, pieces, conversions = self._space, self._pieces, self._conversions
        end = put_bytes(space, PREFIX_BYTES, pieces[0])
        for at in range(len(conversions)):
            conversion = conversions[at]
            if conversion == _DECIMAL:
                end = put_decimal(space, end, values[at])
            elif conversion == _HEX:
                end = put_hex(space, end, values[at])
            else:
                space = space + bytes(len(values[at]))
                end = put_bytes(space, end, values[at])
            end = put_bytes(space, end, pieces[at + 1])
        put_u32(space, 0, end - 4 + body_bytes)
        put_u32(space, 4, end - 8)
        return copy_of(space, 0, end)
