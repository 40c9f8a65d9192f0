# cython: annotation_typing=False
"""Requests and responses as handlers see them.

The codes of refused and failed requests are RocketMQ's.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from cometmq.protocol import octets
from cometmq.protocol.command import RESPONSE_FLAG, Command, encode_head
from cometmq.protocol.frame import BINARY_HEADER, JSON_HEADER, PREFIX_BYTES, TWO_U32
from cometmq.protocol.headers.base import Header, encode_fields
from cometmq.protocol.octets import copy_of, put_bytes, put_decimal, put_hex, put_u32
from cometmq.remoting.wire import Slice, Wire

try:
    import cython  # type: ignore[import-untyped]
except ImportError:  # interpreted, without Cython at hand
    from cometmq.system.uncompiled import cython

if TYPE_CHECKING:
    from cometmq.remoting.latencies import Latencies
    from cometmq.remoting.peer import Peer

DECIMAL, HEX, TEXT = "\0d", "\0x", "\0s"
_CONVERSIONS = [DECIMAL, HEX, TEXT]
_CONVERSION = re.compile("\0[dxs]")
_HEX, _TEXT = 1, 2
_DIGITS_MAX = 20
_NUMBERS_MAX = 8
_HEADER_AT = PREFIX_BYTES
_OPAQUE_AT = PREFIX_BYTES + 5
"""In a frame with a binary header."""

H = TypeVar("H", bound=Header)


class Response:
    """A response that is not encoded yet.

    Args:
        code: 0 for success.
        remark: a text for people, or None.
        header: the typed header; its fields are sent as text.
        body: bytes, or slices that follow each other on the wire.
        fields: further header fields beside the fields of ``header``.
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

    def is_plain(self) -> bool:
        """Return whether it says success and nothing else."""
        is_success = self.code == 0 and self.remark is None and len(self.body) == 0
        return is_success and self.header is None and self.fields is None

    def all_fields(self) -> Mapping[str, str] | None:
        """Return the header's fields and the further ones; None when there is no header at all."""
        if self.header is None:
            return self.fields
        fields = encode_fields(self.header)
        if self.fields:
            fields.update(self.fields)
        return fields

    def __repr__(self) -> str:
        return f"<Response code={int(self.code)} remark={self.remark!r}>"


class Request:
    """One request, and the connection of its response."""

    __slots__ = (
        "began_s",
        "body",
        "code",
        "command",
        "connection",
        "is_exclusive",
        "is_held",
        "latencies",
        "oneway",
        "responded",
    )

    def __init__(self, command: Command, connection: Wire) -> None:
        self.command = command
        self.code = command.code
        self.body = command.body
        self.connection: Peer = connection  # type: ignore[assignment] # every wire is one
        self.oneway = command.is_oneway
        self.responded = False
        self.is_exclusive = False
        """Whether the frames behind this one wait until it is handled."""
        self.is_held = False
        """Whether it was held until a message arrived."""
        self.latencies: Latencies | None = None
        """Counts how long its response takes; None in a server without metrics."""
        self.began_s = 0.0

    def header(self, kind: type[H]) -> H:
        """Return the typed header.

        Raises:
            ResponseError: a required field is missing or unreadable.
        """
        return self.command.header(kind)

    def reply(self, response: Response) -> None:
        """Send the response, in the serialization of the request; a one-way request gets none."""
        if self.responded:
            raise AssertionError(f"a second response to {self.command!r}: {response!r}")
        if self.latencies is not None:
            self.count_latency(int(response.code))
        if self.oneway:
            self.responded = True
            return
        if response.is_plain():
            success = _done_binary if self.command.serialization == BINARY_HEADER else _done_json
            self.responded = True
            self.connection.write(success.head((self.command.opaque,)))
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
        self.responded = True
        self.connection.write(head, slices if body_bytes else ())

    def reply_head(self, head: bytes, slices: Sequence[Slice] = ()) -> None:
        """Send a response whose head is encoded already; see :class:`SuccessFormat`."""
        if self.responded:
            raise AssertionError(f"a second response to {self.command!r}")
        self.responded = True
        if self.latencies is not None:
            self.count_latency(0)
        if not self.oneway:
            self.connection.write(head, slices)

    def count_latency(self, response_code: int) -> None:
        """Count how long the response has taken that is sent now."""
        latencies = self.latencies
        if latencies is not None:
            latencies.add(
                self.code,
                response_code,
                self.began_s,
                1,
                self.is_held,
                self.oneway,
                self.connection.closed,
            )


RequestHandler = Callable[[Request], Response | Awaitable[Response | None] | None]
"""Handles a request: returns the response, an awaitable of it, or None if it replies later.

It raises ResponseError to refuse; any other exception becomes code 1 with its name and text.
"""

Guard = Callable[[Request, RequestHandler], Response | Awaitable[Response | None] | None]
"""Calls the handler of a request if its sender may make it.

It is called for every request of a server's connections but those of fast paths, of unknown codes,
too. It raises ResponseError to refuse.
"""


def exclusive(handler: RequestHandler) -> RequestHandler:
    """Return a handler that lets the frames behind a request wait until it is handled."""

    def handle(request: Request) -> Response | Awaitable[Response | None] | None:
        request.is_exclusive = True
        return handler(request)

    return handle


class SuccessFormat:
    """Encodes the heads of success responses that differ only in a few values.

    Args:
        fields: the header's fields; None for none. A value may contain one of `DECIMAL`, `HEX` (16
            upper-case digits) and `TEXT`, the placeholder of a value. Two of them may contain
            `TEXT`.
        remark: a text for people, or None.
        serialization: the serialization of the header.
    """

    def __init__(
        self,
        fields: Mapping[str, str] | None,
        remark: str | None = None,
        *,
        serialization: int = JSON_HEADER,
    ) -> None:
        self._is_binary = serialization == BINARY_HEADER
        self._word = serialization << 24
        self._kinds: list[int] = []
        self._leads: list[bytes] = []
        self._fields_at = 0
        if self._is_binary:
            self._pieces = self._binary_pieces(fields, remark)
        else:
            self._pieces = self._json_pieces(fields, remark)
        numbers = sum(kind != _TEXT for kind in self._kinds) + self._is_binary
        if numbers > _NUMBERS_MAX:
            raise ValueError(
                f"{numbers} numbers in a response, expected at most {_NUMBERS_MAX} with the opaque"
            )
        known_bytes = sum(map(len, self._pieces)) + sum(map(len, self._leads))
        self.size_max = PREFIX_BYTES + known_bytes + (4 + _DIGITS_MAX) * len(self._kinds)
        """Bytes that suffice for all but the text."""
        self._space = bytearray(self.size_max)
        self._percent_format = b""
        if not cython.compiled:
            self.numbers: Any = [0] * _NUMBERS_MAX
            """For `put`: the numbers in the order of the fields, and the opaque behind them."""

    def _json_pieces(self, fields: Mapping[str, str] | None, remark: str | None) -> list[bytes]:
        head = encode_head(0, opaque=0, flag=RESPONSE_FLAG, fields=fields, remark=remark)
        text = head[PREFIX_BYTES:].decode().replace('"opaque":0', f'"opaque":{_json_of(DECIMAL)}')
        for conversion in _CONVERSIONS:
            text = text.replace(_json_of(conversion), conversion)
        self._kinds = [_CONVERSIONS.index(found) for found in _CONVERSION.findall(text)]
        self._leads = [b""] * len(self._kinds)
        return [piece.encode() for piece in _CONVERSION.split(text)]

    def _binary_pieces(self, fields: Mapping[str, str] | None, remark: str | None) -> list[bytes]:
        """Return the bytes between the values, which begin with their length and their lead."""
        head = encode_head(
            0,
            opaque=0,
            flag=RESPONSE_FLAG,
            remark=remark,
            fields=fields,
            serialization=BINARY_HEADER,
        )
        pieces, rest = [], head[PREFIX_BYTES:]
        for value in (fields or {}).values():
            found = _CONVERSION.search(value)
            if found is None:
                continue
            if not value.endswith(found[0]):
                raise ValueError(f"the field {value!r} goes on behind its placeholder")
            known = value.encode()
            before, rest = rest.split(len(known).to_bytes(4, "big") + known, 1)
            pieces.append(before)
            self._kinds.append(_CONVERSIONS.index(found[0]))
            self._leads.append(value[: found.start()].encode())
        sample = encode_head(
            0, opaque=0, flag=RESPONSE_FLAG, remark=remark, serialization=BINARY_HEADER
        )
        self._fields_at = len(sample) - 4
        return [*pieces, rest]

    def head(
        self, values: Sequence[int], body_bytes: int = 0, *, text: bytes = b"", second: bytes = b""
    ) -> bytes:
        """Return the frame up to its body; the last of the numbers is the opaque."""
        for at in range(len(values)):
            self.numbers[at] = values[at]
        space = bytearray(self.size_max + len(text) + len(second)) if text else self._space
        return copy_of(
            space,
            0,
            self.put(
                space,
                0,
                body_bytes,
                octets.start_of(text),
                len(text),
                octets.start_of(second),
                len(second),
            ),
        )

    def put(
        self,
        space: bytearray,
        start: int,
        body_bytes: int,
        text: Any,
        text_bytes: int,
        second: Any,
        second_bytes: int,
    ) -> int:
        """Write the frame for `numbers` and the texts; return the position behind it.

        Args:
            space: has room for `size_max` bytes and the texts from ``start`` on.
            start: where the frame begins.
            body_bytes: how long the body is that follows.
            text: begins with the value of `TEXT`, in a JSON header escaped: ``text_bytes``.
            second: begins with the value of the second `TEXT`: ``second_bytes``.
        """
        if not cython.compiled and not self._is_binary:
            texts = [octets.bytes_in(text, 0, text_bytes), octets.bytes_in(second, 0, second_bytes)]
            return self._put_at_once(space, start, texts, body_bytes)
        kinds, numbers, number = self._kinds, self.numbers, 0
        end = put_bytes(space, start + _HEADER_AT, self._pieces[0])
        for at in range(len(kinds)):
            length_at = end
            if self._is_binary:
                end = put_bytes(space, end + 4, self._leads[at])
            kind = kinds[at]
            if kind == _TEXT:
                end = octets.put_memory(space, end, text, text_bytes)
                text, text_bytes = second, second_bytes
            else:
                if kind == _HEX:
                    end = put_hex(space, end, numbers[number])
                else:
                    end = put_decimal(space, end, numbers[number])
                number += 1
            if self._is_binary:
                put_u32(space, length_at, end - length_at - 4)
            end = put_bytes(space, end, self._pieces[at + 1])
        if self._is_binary:
            put_u32(space, start + _OPAQUE_AT, numbers[number] & 0xFFFFFFFF)
            fields_at = start + self._fields_at
            put_u32(space, fields_at, end - fields_at - 4)
        put_u32(space, start, end - start - 4 + body_bytes)
        put_u32(space, start + 4, self._word | (end - start - _HEADER_AT))
        return end

    def _put_at_once(
        self, space: bytearray, start: int, texts: list[bytes], body_bytes: int
    ) -> int:
        """Put a request as `put` does, in fewer steps: interpreted, with a JSON header."""
        if not self._percent_format:
            pieces = [piece.replace(b"%", b"%%") for piece in self._pieces]
            for at, kind in enumerate(self._kinds):
                pieces[at] += (b"%d", b"%016X", b"%s")[kind]
            self._percent_format = b"".join(pieces)
        numbers, wanted = iter(self.numbers), iter(texts)
        values = [next(wanted if kind == _TEXT else numbers) for kind in self._kinds]
        header = self._percent_format % tuple(values)
        size = len(header)
        end = start + PREFIX_BYTES + size
        space[start:end] = TWO_U32.pack(4 + size + body_bytes, size) + header
        return end


def _json_of(conversion: str) -> str:
    """Return the placeholder as JSON escapes it."""
    return f"\\u0000{conversion[1]}"


_done_json = SuccessFormat(None)
"""Encodes the response that says success and nothing else."""
_done_binary = SuccessFormat(None, serialization=BINARY_HEADER)
