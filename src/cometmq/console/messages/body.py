"""A body as text, as JSON or as hexadecimal digits; what is shown has a bound."""

from __future__ import annotations

import json
import re

import msgspec

SHOWN_BYTES_MAX = 64 * 1024
HEX_BYTES_MAX = 4 * 1024
DEPTH_MAX = 64
"""Of JSON that gets indents: a deeper one takes seconds, and is shown as it is."""
_STRINGS, _BRACKETS = re.compile(r'"(?:[^"\\]|\\.)*"'), re.compile(r"[\[\]{}]")
FORMATS = ("json", "text", "hex")


class Body(msgspec.Struct):
    """A body, or its beginning."""

    format: str
    text: str
    bytes: int
    """The length of the whole body."""
    shown_bytes: int
    formats: list[str]
    """How this body can be shown; the first one is best."""


def body_of(content: bytes, wanted: str = "") -> Body:
    """Return a body in a format, or in the best one if it cannot be shown in that format."""
    texts: dict[str, tuple[str, int]] = {}
    beginning = content[:SHOWN_BYTES_MAX]
    if (text := _text(beginning, is_cut=len(content) > len(beginning))) is not None:
        if len(content) <= SHOWN_BYTES_MAX and (pretty := _json(text)) is not None:
            texts["json"] = pretty, len(content)
        texts["text"] = text, len(beginning)
    digits = content[:HEX_BYTES_MAX]
    texts["hex"] = _hex(digits), len(digits)
    chosen = wanted if wanted in texts else next(iter(texts))
    return Body(chosen, texts[chosen][0], len(content), texts[chosen][1], list(texts))


def _text(content: bytes, *, is_cut: bool) -> str | None:
    """Return UTF-8 as text; None if it is none, or has characters that are no text."""
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        if not is_cut or error.end < len(content) or error.start < len(content) - 3:
            return None
        text = content[: error.start].decode()  # the cut is inside of a character
    is_text = all(each >= " " or each in "\n\r\t" for each in text)
    return text if is_text else None


def _json(text: str) -> str | None:
    """Return JSON with indents; None if it is none."""
    if text.lstrip()[:1] not in ("{", "[") or _depth(text) > DEPTH_MAX:
        return None
    try:
        pretty = json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        return None
    return pretty if len(pretty) <= 4 * SHOWN_BYTES_MAX else None


def _depth(text: str) -> int:
    """Return how many arrays and objects of JSON are in each other."""
    depth = deepest = 0
    for bracket in _BRACKETS.findall(_STRINGS.sub("", text)):
        depth += 1 if bracket in "[{" else -1
        deepest = max(deepest, depth)
    return deepest


def _hex(content: bytes) -> str:
    """Return 16 bytes a line, as hexadecimal digits and as ASCII."""
    lines = []
    for start in range(0, len(content), 16):
        part = content[start : start + 16]
        ascii_text = "".join(chr(each) if 32 <= each < 127 else "." for each in part)
        lines.append(f"{start:08x}  {part.hex(' '):<47}  {ascii_text}")
    return "\n".join(lines)
