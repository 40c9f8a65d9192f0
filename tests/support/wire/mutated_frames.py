"""Frames that official clients sent, changed at random: what fuzzing sends to servers.

Most changed frames keep their lengths, so that handlers read what was changed: a value of the
header, the body, the request code. The others have changes anywhere.
"""

from __future__ import annotations

import json
import random
import re
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import acl_kit
import wire
from codes import Request

from cometmq.model.errors import CometError, ProtocolError
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.command import ACCESS_KEY, command_at
from cometmq.protocol.frame import FRAME_BYTES_MAX
from cometmq.protocol.signature import SIGNATURE, SigningKey, signed_content

T = TypeVar("T")

VECTORS = Path(__file__).resolve().parent.parent.parent / "vectors"
RECORDED = {
    "broker": ("frames/*/*.jsonl", "broker"),
    "namesrv": ("frames/*/*.jsonl", "namesrv"),
    "controller": ("ha/*/frames.jsonl", "controller0"),
}
"""For each kind of server the files of its recordings, and its name there."""
CHANGES_THE_SERVER = (
    Request.UPDATE_BROKER_CONFIG,
    Request.WIPE_WRITE_PERM_OF_BROKER,
    RequestCode.UPDATE_NAMESRV_CONFIG,
    RequestCode.UPDATE_CONTROLLER_CONFIG,
)
"""Requests left out: a sound one of them would be obeyed, and the probe would meet its effect."""
CODES = tuple(int(code) for code in RequestCode if code not in CHANGES_THE_SERVER)
TRIES = 50
TEXT_BYTES_MAX = 70_000
"""Longer than what 16 bits count."""

INTERESTING_NUMBERS = (
    0,
    1,
    3,
    4,
    7,
    8,
    0x7F,
    0x80,
    0xFF,
    0x7FFF,
    0x7FFFFFFF,
    0x80000000,
    2**32 - 1,
)
INTERESTING_TEXT = (
    b"-1", b"0", b"99999999999999999999", b"1e308", b"NaN", b"null", b"true", b'"', b"{}", b"[",
    b"[[[[[[[[", b"{{", b"\\u0000", b"\\ud800", b"\xff\xfe", b"\x00", b"../../etc", b"%RETRY%", b"",
    b"2147483648", b"-9223372036854775808", b"$(id)", b"%s%n", b"a|b&&c", b"\x01\x02", b"9" * 400,
)  # fmt: skip
BARE_VALUES = (b"-1", b"0", b"7", b"2147483647", b"-2147483648", b"null", b"true", b"{}", b"[]")
_VALUE = re.compile(rb'"(\w+)":("(?:[^"\\]|\\.)*"|-?\d+|null|true|false)')
_SIGNED = re.compile(SIGNATURE.encode() + rb'(?:":"|\x00\x00\x00\x1c)([\w+/=]{28})')
_OF_THE_COMMAND = (b"code", b"flag", b"opaque", b"version", b"language", b"serializeTypeCurrentRPC")


@dataclass(frozen=True)
class Recorded:
    """A recorded frame and where its values are."""

    frame: bytes
    header: bytes
    body: bytes
    values: tuple[tuple[int, int], ...]
    """Where the values of its fields are in the header; without any if they are not JSON."""
    codes: tuple[tuple[int, int], ...]
    """Where the request code is."""
    body_values: tuple[tuple[int, int], ...]


def recorded_frames(role: str) -> list[Recorded]:
    """Every recorded request to this kind of server."""
    files, name = RECORDED[role]
    found = []
    for path in sorted(VECTORS.glob(files)):
        for line in path.read_text().splitlines():
            entry = json.loads(line)
            is_request = not entry["flag"] & 1
            if entry["to"] == name and is_request and entry["code"] not in CHANGES_THE_SERVER:
                found.append(_parsed(bytes.fromhex(entry["hex"])))
    assert len(found) > 50, f"only {len(found)} recorded frames to a {role}"
    return found


def _parsed(frame: bytes) -> Recorded:
    size = int.from_bytes(frame[5:8])
    header, body = frame[8 : 8 + size], frame[8 + size :]
    if frame[4]:
        return Recorded(frame, header, body, (), ((0, 2),), _values(body))
    found = list(_VALUE.finditer(header))
    codes = tuple(match.span(2) for match in found if match[1] == b"code")
    fields = tuple(match.span(2) for match in found if match[1] not in _OF_THE_COMMAND)
    return Recorded(frame, header, body, fields, codes, _values(body))


def _values(body: bytes) -> tuple[tuple[int, int], ...]:
    return tuple(match.span(2) for match in _VALUE.finditer(body[:4096]))


def made_frame(code: int, fields: Mapping[str, str], body: object = b"") -> Recorded:
    """A request that no client sent when frames were recorded."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return _parsed(wire.encode(wire.Command(code, dict(fields), content)))


class Signer:
    """Signs frames as accounts, and signs them again when they have changed.

    Args:
        secrets: the secret key of each account.
    """

    def __init__(self, secrets: Mapping[str, str]) -> None:
        self.accounts = [acl_kit.Account(key, secret) for key, secret in secrets.items()]
        self._keys = {key: SigningKey(secret) for key, secret in secrets.items()}

    def signed(self, recorded: Iterable[Recorded]) -> list[Recorded]:
        """Each frame once for each account, and signed by it."""
        return [_signed(one, account) for one in recorded for account in self.accounts]

    def signed_again(self, frame: bytes) -> bytes:
        """The frame with the signature of its content as it is now.

        A frame that names no account of these, or has no signature, stays as it is.
        """
        try:
            command = command_at(frame, 0, len(frame), FRAME_BYTES_MAX)
            assert command is not None
            fields = command.fields
        except CometError:
            return frame
        key = self._keys.get(fields.get(ACCESS_KEY, ""))
        header_end = 8 + int.from_bytes(frame[5:8])
        found = _SIGNED.search(frame, 8, header_end)
        if key is None or found is None:
            return frame
        start, end = found.span(1)
        content = signed_content(fields, command.body, version=command.version)
        return frame[:start] + key.sign(content) + frame[end:]


def _signed(one: Recorded, account: acl_kit.Account) -> Recorded:
    if one.frame[4]:
        command = wire.decode(one.frame[4:])
        command.fields = account(command.fields, one.body)
        return _parsed(wire.encode(command))
    header = json.loads(one.header)
    header["extFields"] = account(header.get("extFields") or {}, one.body)
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":"))
    return _parsed(wire.frame(text.encode(), one.body))


class Mutator:
    """Changes frames at random; the same seed makes the same frames.

    Args:
        chance: the source of randomness.
        recorded: the frames.
        accounts: names that no other field gets: requests with them could delete the accounts.
    """

    def __init__(
        self, chance: random.Random, recorded: Sequence[Recorded], accounts: Iterable[str] = ()
    ) -> None:
        self._chance = chance
        self._random = chance.random
        self._recorded = recorded
        self._frames = [one.frame for one in recorded]
        texts = {one.header[slice(*span)] for one in recorded for span in one.values}
        self._texts = sorted(texts - {b'"%s"' % name.encode() for name in accounts})

    def readable(self) -> bytes:
        """A changed frame whose lengths and header can be read: its content is for handlers."""
        if self._random() < 0.2:
            return self._changed_anywhere()
        one = self._pick(self._recorded)
        header, body = one.header, one.body
        for _ in range(1 + int(self._random() * 3)):
            choice = self._random()
            if choice < 0.55 and one.values and header is one.header:
                header = self._with_values(header, one.values)
            elif choice < 0.65 and header is one.header:
                header = self._with_code(one)
            else:
                body = self._with_changed_body(one, body)
        return struct.pack(">II", 4 + len(header) + len(body), one.frame[4] << 24 | len(header)) + (
            header + body
        )

    def broken(self) -> bytes:
        """A changed frame that may be cut short, or claim any length."""
        content = bytearray(self._pick(self._frames))
        for _ in range(1 + int(self._random() * 3)):
            self._change(content)
        if self._random() < 0.5:
            content[:4] = struct.pack(">I", self._pick(INTERESTING_NUMBERS))
        is_cut = self._random() < 0.3
        return bytes(content[: self._below(len(content) + 1)] if is_cut else content)

    def _below(self, end: int) -> int:
        return int(self._random() * end)

    def _pick(self, items: Sequence[T]) -> T:
        return items[int(self._random() * len(items))]

    def _with_values(self, header: bytes, spans: Sequence[tuple[int, int]]) -> bytes:
        """Replace one value of the header, or two."""
        chosen = {self._pick(spans) for _ in range(1 + self._below(2))}
        for start, end in sorted(chosen, reverse=True):
            header = header[:start] + self._value() + header[end:]
        return header

    def _value(self) -> bytes:
        choice = self._random()
        if choice < 0.25:
            return self._pick(BARE_VALUES)
        if choice < 0.5:
            return self._pick(self._texts)
        if choice < 0.503:
            return b'"' + b"A" * self._below(TEXT_BYTES_MAX) + b'"'
        if choice < 0.6:
            return b'"%d"' % (self._pick(INTERESTING_NUMBERS) * self._pick((1, -1, 2**31)))
        if choice < 0.7:
            text = self._chance.randbytes(1 + self._below(12)).hex().encode()
            return b'"' + text + b'"'
        return b'"' + self._pick(INTERESTING_TEXT).replace(b'"', b"'") + b'"'

    def _with_code(self, one: Recorded) -> bytes:
        """Send the same fields to another handler."""
        if not one.codes:
            return one.header
        start, end = one.codes[0]
        code = self._pick(CODES)
        if not one.frame[4]:
            return one.header[:start] + b"%d" % code + one.header[end:]
        return struct.pack(">H", code & 0xFFFF) + one.header[2:]

    def _with_changed_body(self, one: Recorded, body: bytes) -> bytes:
        choice = self._random()
        if choice < 0.4 and body is one.body and one.body_values:
            start, end = self._pick(one.body_values)
            return body[:start] + self._value() + body[end:]
        if choice < 0.45:
            return body[: self._below(len(body) + 1)]
        if choice < 0.5:
            return body * 2
        if choice < 0.55:
            return self._pick(self._recorded).body
        if choice < 0.57:
            return self._pick((b"[", b"{", b'{"a":', b"\x00", b"(")) * self._below(20_000)
        content = bytearray(body)
        self._change(content)
        return bytes(content)

    def _changed_anywhere(self) -> bytes:
        for _ in range(TRIES):
            content = bytearray(self._pick(self._frames)[4:])
            for _ in range(1 + self._below(3)):
                self._change(content)
            if is_readable(content):
                return struct.pack(">I", len(content)) + content
        return self._pick(self._frames)

    def _change(self, content: bytearray) -> None:
        """Make one change in place."""
        at = self._below(len(content) + 1)
        upto = min(len(content), at + 1 + self._below(8))
        changes: tuple[Callable[[bytearray, int, int], None], ...] = (
            self._flip,
            self._randomize,
            self._delete,
            self._insert,
            self._number,
            self._text,
            self._splice,
            self._replace_value,
        )
        self._pick(changes)(content, at, upto)

    def _flip(self, content: bytearray, at: int, _upto: int) -> None:
        if content:
            content[at % len(content)] ^= 1 << self._below(8)

    def _randomize(self, content: bytearray, at: int, upto: int) -> None:
        content[at:upto] = self._chance.randbytes(upto - at)

    def _delete(self, content: bytearray, at: int, _upto: int) -> None:
        del content[at : at + 1 + self._below(39)]

    def _insert(self, content: bytearray, at: int, _upto: int) -> None:
        content[at:at] = self._chance.randbytes(1 + self._below(39))

    def _number(self, content: bytearray, at: int, _upto: int) -> None:
        content[at : at + 4] = struct.pack(">I", self._pick(INTERESTING_NUMBERS))

    def _text(self, content: bytearray, at: int, upto: int) -> None:
        content[at:upto] = self._pick(INTERESTING_TEXT)

    def _splice(self, content: bytearray, at: int, _upto: int) -> None:
        other = self._pick(self._frames)
        content[at:] = other[self._below(len(other)) :]

    def _replace_value(self, content: bytearray, _at: int, _upto: int) -> None:
        """Put something odd in the place of a value of the header."""
        colon = content.find(b":", self._below(min(600, len(content) + 1)), 600)
        if colon < 0:
            return
        end = next((n for n in range(colon + 1, len(content)) if content[n] in b",}"), colon + 1)
        value = self._pick(INTERESTING_TEXT)
        if self._random() < 0.7:
            value = b'"' + value.replace(b'"', b"'") + b'"'
        length_change = len(value) - (end - colon - 1)
        content[colon + 1 : end] = value
        content[1:4] = ((int.from_bytes(content[1:4]) + length_change) & 0xFFFFFF).to_bytes(3)


def is_readable(content: bytearray) -> bool:
    """Whether a receiver can read the header, so that it goes on with the next frame."""
    if len(content) < 4 or content[0] > 1 or 4 + int.from_bytes(content[1:4]) > len(content):
        return False
    frame = struct.pack(">I", len(content)) + content
    try:
        return command_at(frame, 0, len(frame), FRAME_BYTES_MAX) is not None
    except ProtocolError:
        return False
