# cython: annotation_typing=False
"""Commands: requests and responses, in either of the two header encodings.

    JSON header   := {"code", "flag", "opaque", "version", "language", "remark"?, "extFields"?}
    binary header := code:i16 | language:u8 | version:i16 | opaque:i32 | flag:i32
                     | remark:text32 | fields:bytes32      fields := (key:text16 | value:text32)*

A command is a request, or with flag bit 0 a response; bit 1 marks a one-way request.
The fields of its typed header are decoded at their first use.

Source: RemotingCommand and RocketMQSerializable, RocketMQ 4.9 and 5.3.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from struct import Struct, error
from typing import Any, Final, TypeVar

import msgspec

from cometmq.model.errors import ProtocolError
from cometmq.protocol import fastjson
from cometmq.protocol.codes import FORWARDED, LanguageCode, RequestCode
from cometmq.protocol.frame import (
    BINARY_HEADER,
    JSON_HEADER,
    PREFIX_BYTES,
    checked_size,
    frame_prefix,
)
from cometmq.protocol.headers.base import Header, boolean_fields, decode_fields, encode_fields
from cometmq.protocol.headers.pull import PullMessageRequest
from cometmq.protocol.headers.send import SendMessageV2Request
from cometmq.protocol.octets import copy_of, two_u32

RESPONSE_FLAG: Final = 1
ONEWAY_FLAG: Final = 2
OUR_LANGUAGE: Final = LanguageCode.PYTHON
OUR_VERSION: Final = 479
"""RocketMQ's number of the release whose protocol we speak: 5.3.3."""

ACCESS_KEY: Final = "AccessKey"
"""The header field that names the account of a request."""

INT32_MIN, INT32_MAX = -(2**31), 2**31 - 1
INT16_MAX = 2**15 - 1
BINARY_FIELDS_MAX, JSON_FIELDS_MAX = 2_000, 10_000
"""Limits of a header. No request has a hundred fields."""

_FIXED = Struct(">hBhii")
_KEY_BYTES = Struct(">H")
_VALUE_BYTES = Struct(">i")
_NO_FIELDS = msgspec.Raw(b"")
_NULL = msgspec.Raw(b"null")

H = TypeVar("H", bound=Header)


class HeaderError(ProtocolError):
    """A frame was whole but its header cannot be read."""


class _JsonHeader(msgspec.Struct, gc=False):
    code: int | None = None
    flag: int | None = None
    opaque: int | None = None
    version: int | None = None
    language: str | int | None = "JAVA"
    remark: str | None = None
    extFields: msgspec.Raw = _NO_FIELDS  # noqa: N815 (the wire's own name)


class _TypedHeader(msgspec.Struct, gc=False):
    """A JSON header whose fields are read as a typed header at once."""

    code: int
    flag: int
    opaque: int
    version: int
    language: str | int | None = "JAVA"
    remark: str | None = None


_decode_json_header = msgspec.json.Decoder(_JsonHeader).decode
_decode_at_once: dict[bytes, Any] = {}
"""Most headers begin with their code; those of the busiest ones are read in one pass."""
_decode_raw_fields = msgspec.json.Decoder(dict[str, str]).decode
_encode_text = msgspec.json.Encoder().encode
_typed_decoders: dict[type[Header], Any] = {}
_truths: dict[type[Header], tuple[tuple[str, bytes], ...]] = {}
"""The boolean fields of each kind of header, and how they mostly say that they are true."""
_LANGUAGES = frozenset(LanguageCode.__members__)
_SENDS_V2 = (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE)


class Command:
    """One request or response."""

    __slots__ = (
        "_fields",
        "_raw_fields",
        "_typed",
        "body",
        "code",
        "flag",
        "frame_bytes",
        "language",
        "opaque",
        "remark",
        "serialization",
        "version",
    )

    def __init__(
        self,
        code: int,
        *,
        opaque: int = 0,
        flag: int = 0,
        version: int = OUR_VERSION,
        language: str | None = OUR_LANGUAGE.name,
        remark: str | None = None,
        fields: dict[str, str] | None = None,
        body: bytes = b"",
        serialization: int = JSON_HEADER,
    ) -> None:
        self.code = code
        self.flag = flag
        self.opaque = opaque
        self.version = version
        self.language = language
        self.remark = remark
        self.body = body
        self.serialization = serialization
        self.frame_bytes = 0
        """The size of its received frame; 0 for a command made here."""
        self._fields = fields
        self._raw_fields: bytes | msgspec.Raw = b""
        """The fields as received; the whole header if it was read as a typed one."""
        self._typed: Header | None = None

    @property
    def is_response(self) -> bool:
        """Whether this is a response; bit 0 decides even if the one-way bit is set too."""
        return bool(self.flag & RESPONSE_FLAG)

    @property
    def is_oneway(self) -> bool:
        """Whether the sender waits for no response."""
        return bool(self.flag & ONEWAY_FLAG)

    @property
    def has_fields(self) -> bool:
        """Whether the header carried a map of fields at all, be it empty."""
        return self._typed is not None or self._fields is not None or bool(self._raw_fields)

    @property
    def fields(self) -> dict[str, str]:
        """All header fields as text, whatever JSON type they travelled as; nulls are left out."""
        if self._fields is None:
            raw = self._raw_fields
            if self._typed is not None:
                raw = _read_json_header(bytes(raw)).extFields
            if not raw:
                return {}  # not kept: that there was no map at all stays known
            self._fields = _read_raw_fields(raw)
        return self._fields

    @property
    def access_key(self) -> str:
        """The access key of the account that it names; empty for none."""
        return self.fields.get(ACCESS_KEY, "")

    def header(self, kind: type[H]) -> H:
        """The fields as the typed header ``kind``.

        Raises:
            ResponseError: a required field is missing or a number cannot be read (code 1).
        """
        typed = self._typed
        if typed is not None and type(typed) is kind:
            return typed
        raw = self._raw_fields
        if raw and typed is None:
            decoder = _typed_decoders.get(kind)
            if decoder is None:
                decoder = _typed_decoders[kind] = msgspec.json.Decoder(kind, strict=False).decode
            try:
                header: H = decoder(raw)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                pass
            else:
                if not _is_misread(header, raw):
                    return header
        return decode_fields(kind, self.fields)

    def __repr__(self) -> str:
        kind = "response" if self.is_response else "request"
        return f"<{kind} code={self.code} opaque={self.opaque} remark={self.remark!r}>"


def command_at(
    data: bytes | bytearray, start: int, end: int, frame_bytes_max: int
) -> Command | None:
    """Read the command whose frame begins at ``start``; None until all of it has arrived.

    Args:
        data: received bytes.
        start: where the frame begins.
        end: where the received bytes end.
        frame_bytes_max: the largest frame to take.

    Raises:
        FrameError: no frame begins like this; the connection cannot go on.
        HeaderError: its header cannot be read; the connection cannot go on.
    """
    if end - start < PREFIX_BYTES:
        return None
    length, word = two_u32(data, start)
    size = checked_size(length, word, frame_bytes_max)
    if end - start < size:
        return None
    header_start = start + PREFIX_BYTES
    header_end = header_start + (word & 0xFFFFFF)
    header, body = copy_of(data, header_start, header_end), copy_of(data, header_end, start + size)
    if word >> 24 == JSON_HEADER:
        command = _decode_json(header, body)
    else:
        command = _decode_binary(header, body)
    command.frame_bytes = size
    return command


def command_of(head: bytes, body: bytes) -> Command:
    """Read the command of a frame whose body was received apart.

    Args:
        head: its lengths and its header.
        body: its body.

    Raises:
        HeaderError: the header cannot be read; the connection cannot go on.
    """
    encoding = two_u32(head, 0)[1] >> 24
    decode = _decode_json if encoding == JSON_HEADER else _decode_binary
    command = decode(head[PREFIX_BYTES:], body)
    command.frame_bytes = len(head) + len(body)
    return command


def read_at_once(kind: type[Header], *codes: int) -> Callable[[bytes], Any]:
    """Let the JSON headers of some request codes be read in one pass, with their fields.

    Args:
        kind: the typed header of these requests.
        codes: their codes.

    Returns:
        The function that reads them.
    """
    fields = [("extFields", kind | None, None)]
    header = msgspec.defstruct("_Header", fields, bases=(_TypedHeader,), gc=False)
    decode = msgspec.json.Decoder(header, strict=False).decode
    for code in codes:
        _decode_at_once[b'{"code":%d' % code] = decode
    return decode


_decode_send_header = read_at_once(SendMessageV2Request, *_SENDS_V2)
read_at_once(PullMessageRequest, RequestCode.PULL_MESSAGE)


def send_header(data: bytes) -> tuple[SendMessageV2Request, int] | None:
    """Return fields and opaque number of a JSON header; None unless it is that of a common send.

    That is, the header of a SEND_MESSAGE_V2 or SEND_BATCH_MESSAGE that is not one-way, that no
    slave forwards, and that has all fields in their usual types.
    """
    try:
        header = _decode_send_header(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    fields, opaque = header.extFields, header.opaque
    if (
        fields is None
        or header.flag
        or header.code not in _SENDS_V2
        or header.remark == FORWARDED
        or header.language not in _LANGUAGES
        or not INT32_MIN <= opaque <= INT32_MAX
        or _is_misread(fields, data)
    ):
        return None
    return fields, opaque


def _decode_json(data: bytes, body: bytes) -> Command:
    command = Command.__new__(Command)
    command.body = body
    command.serialization = JSON_HEADER
    command.frame_bytes = 0
    command._fields = None
    decode = _decode_at_once.get(data[: data.find(b",")])
    header: Any = None
    if decode is not None:
        try:
            header = decode(data)
            typed = header.extFields
            command._typed = typed
            command._raw_fields = data
            if typed is None or _is_misread(typed, data):
                header = None
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            header = None
    if header is None:
        header = _read_json_header(data)
        command._typed = None
        command._raw_fields = header.extFields if header.extFields != _NULL else _NO_FIELDS
    command.code = code = header.code or 0
    command.flag = header.flag or 0
    command.opaque = opaque = header.opaque or 0
    command.version = header.version or 0
    language = header.language
    if type(language) is not str or language not in _LANGUAGES:
        language = _language_name(language)
    command.language = language
    command.remark = header.remark
    if not (INT32_MIN <= opaque <= INT32_MAX and INT32_MIN <= code <= INT32_MAX):
        raise HeaderError(f"code {code}, opaque {opaque}: not 32-bit numbers")
    return command


def _read_json_header(data: bytes) -> _JsonHeader:
    try:
        header = _decode_json_header(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return _decode_odd_json(data)
    if _lacks_members(header, data):
        with contextlib.suppress(HeaderError):
            return _decode_odd_json(data)
    return header


def _lacks_members(header: _JsonHeader, data: bytes) -> bool:
    """Whether something is missing that may be there in other letters."""
    if not header.extFields and b"extfields" in data.lower():
        return True
    return header.code is None or header.opaque is None or None in (header.flag, header.version)


def _decode_odd_json(data: bytes) -> _JsonHeader:
    """Read what fastjson reads and standard JSON parsers refuse."""
    try:
        found = fastjson.loads_header(data)
    except ValueError as problem:
        raise HeaderError(f"a header of {len(data)} bytes that is not JSON: {problem}") from None
    if not isinstance(found, dict):
        raise HeaderError(f"a header that is JSON but no object: {type(found).__name__}")
    known = {str(key).lower(): value for key, value in found.items()}
    try:
        fields = known.get("extfields")
        return _JsonHeader(
            code=int(known.get("code") or 0),
            flag=int(known.get("flag") or 0),
            opaque=int(known.get("opaque") or 0),
            version=int(known.get("version") or 0),
            language=known.get("language", "JAVA"),
            remark=None if known.get("remark") is None else str(known["remark"]),
            extFields=_NO_FIELDS if fields is None else msgspec.Raw(_encode_text(fields)),
        )
    except (TypeError, ValueError, OverflowError, msgspec.MsgspecError) as problem:
        raise HeaderError(f"a header with a member of the wrong type: {problem}") from None


def _is_misread(header: Header, raw: bytes | msgspec.Raw) -> bool:
    """Whether a boolean may have been read as true that says something else, such as 1."""
    kind = type(header)
    truths = _truths.get(kind)
    if truths is None:
        truths = _truths[kind] = _truths_of(kind)
    for name, said in truths:  # noqa: SIM110 (a generator here would cost every request)
        if getattr(header, name) and said not in bytes(raw):
            return True
    return False


def _truths_of(kind: type[Header]) -> tuple[tuple[str, bytes], ...]:
    fields = boolean_fields(kind)
    return tuple((name, f'"{wire_name}":"true"'.encode()) for name, wire_name in fields)


def _language_name(said: Any) -> str | None:
    """Return the name of a language, from its number or a name in any case; None if unknown."""
    if said is None:
        return None
    if isinstance(said, str):
        name = said.upper()
        return name if name in _LANGUAGES else None
    try:
        return LanguageCode(said).name
    except ValueError:
        raise HeaderError(f"language {said}: expected 0 to 13") from None


def _read_raw_fields(raw: bytes | msgspec.Raw) -> dict[str, str]:
    if bytes(raw).count(b'":') > JSON_FIELDS_MAX:
        raise HeaderError(f"a header of more than {JSON_FIELDS_MAX} fields")
    try:
        fields: dict[str, str] = _decode_raw_fields(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        found = fastjson.loads_header(bytes(raw))
        if not isinstance(found, dict):
            return {}
        fields = {str(key): _as_text(value) for key, value in found.items() if value is not None}
    return fields


def _as_text(value: Any) -> str:
    """A header value as the text Java would make of it."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(value)
    return str(_encode_text(value), "utf-8")


def _decode_binary(data: bytes, body: bytes) -> Command:
    try:
        code, language, version, opaque, flag = _FIXED.unpack_from(data)
        remark, at = _text32(data, _FIXED.size)
        fields_bytes, at = _checked_length(data, at)
        fields = _binary_fields(data, at, at + fields_bytes) if fields_bytes else None
    except (error, UnicodeDecodeError) as problem:
        raise HeaderError(f"a binary header of {len(data)} bytes: {problem}") from None
    try:
        name: str | None = LanguageCode(language).name
    except ValueError:
        name = None
    return Command(
        code,
        opaque=opaque,
        flag=flag,
        version=version,
        language=name,
        remark=remark or None,
        fields=fields,
        body=body,
        serialization=BINARY_HEADER,
    )


def _checked_length(data: bytes, at: int) -> tuple[int, int]:
    """A 32-bit length at ``at`` and the position after it; the length fits into what is there."""
    (size,) = _VALUE_BYTES.unpack_from(data, at)
    if not 0 <= size <= len(data) - at - 4:
        raise HeaderError(f"a length of {size} at byte {at} of a header of {len(data)} bytes")
    return size, at + 4


def _text32(data: bytes, at: int) -> tuple[str, int]:
    size, start = _checked_length(data, at)
    return data[start : start + size].decode(), start + size


def _binary_fields(data: bytes, at: int, end: int) -> dict[str, str]:
    """The map of fields; a value of no bytes is null in Java and left out here."""
    fields: dict[str, str] = {}
    count = 0
    while at < end:
        count += 1
        if count > BINARY_FIELDS_MAX:
            raise HeaderError(f"a header of more than {BINARY_FIELDS_MAX} fields")
        (key_bytes,) = _KEY_BYTES.unpack_from(data, at)
        key_end = at + 2 + key_bytes
        if key_end > end:
            raise HeaderError(f"a key of {key_bytes} bytes at byte {at} runs past byte {end}")
        value, value_end = _text32(data, key_end)
        if value_end > end:
            raise HeaderError(f"a value at byte {key_end} runs past the fields' end at {end}")
        if value:
            fields[data[at + 2 : key_end].decode()] = value
        at = value_end
    return fields


def encode_head(
    code: int,
    *,
    opaque: int,
    flag: int = 0,
    fields: Mapping[str, str] | None = None,
    remark: str | None = None,
    serialization: int = JSON_HEADER,
    version: int = OUR_VERSION,
    language: LanguageCode = OUR_LANGUAGE,
    body_bytes: int = 0,
) -> bytes:
    """Everything of a frame that goes before its body: lengths and header.

    A code that does not fit into the 16 bits of a binary header is sent as JSON.
    """
    if serialization == BINARY_HEADER and -INT16_MAX <= code <= INT16_MAX:
        header = _encode_binary(code, opaque, flag, fields, remark, version, language)
        return frame_prefix(BINARY_HEADER, len(header), body_bytes) + header
    known: dict[str, Any] = {"code": code}
    if fields is not None:
        known["extFields"] = fields
    known["flag"] = flag
    known["language"] = language.name
    known["opaque"] = opaque
    if remark is not None:
        known["remark"] = remark
    known["serializeTypeCurrentRPC"] = "JSON"
    known["version"] = version
    header = _encode_text(known)
    return frame_prefix(JSON_HEADER, len(header), body_bytes) + header


def cut_head(head: bytes, marks: Sequence[bytes]) -> tuple[bytes, ...] | None:
    """Return the pieces of a JSON header between these marks, in their order.

    Args:
        head: what `encode_head` has returned.
        marks: texts that stand for values that are not known yet.

    Returns:
        The pieces; None if a mark is not in the header exactly once.
    """
    text = head[PREFIX_BYTES:]
    if any(text.count(mark) != 1 for mark in marks):
        return None
    pieces = []
    for mark in marks:
        piece, found, text = text.partition(mark)
        assert found, f"{mark!r} is before an earlier mark"
        pieces.append(piece)
    return (*pieces, text)


def encode_command(command: Command) -> bytes:
    """One whole frame."""
    head = encode_head(
        command.code,
        opaque=command.opaque,
        flag=command.flag,
        fields=command.fields if command.has_fields else None,
        remark=command.remark,
        serialization=command.serialization,
        version=command.version,
        language=_language_code(command.language),
        body_bytes=len(command.body),
    )
    return head + command.body


def request(
    code: int,
    header: Header | None = None,
    body: bytes = b"",
    *,
    opaque: int = 0,
    oneway: bool = False,
    fields: Mapping[str, str] | None = None,
) -> Command:
    """Return a request with the fields of a typed header, and further ``fields``."""
    every = encode_fields(header) if header is not None else None
    if fields:
        every = {**(every or {}), **fields}
    flag = ONEWAY_FLAG if oneway else 0
    return Command(int(code), opaque=opaque, flag=flag, fields=every, body=body)


def _language_code(name: str | None) -> LanguageCode:
    return LanguageCode.__members__.get(name or "", LanguageCode.OTHER)


def _encode_binary(
    code: int,
    opaque: int,
    flag: int,
    fields: Mapping[str, str] | None,
    remark: str | None,
    version: int,
    language: LanguageCode,
) -> bytes:
    text = (remark or "").encode()
    pairs = b"".join(
        _KEY_BYTES.pack(len(key)) + key + _VALUE_BYTES.pack(len(value)) + value
        for key, value in ((k.encode(), v.encode()) for k, v in (fields or {}).items())
    )
    return b"".join(
        (
            _FIXED.pack(code, language, version, opaque, flag),
            _VALUE_BYTES.pack(len(text)),
            text,
            _VALUE_BYTES.pack(len(pairs)),
            pairs,
        )
    )
