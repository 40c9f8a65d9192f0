"""Java properties text: how RocketMQ writes its configuration files.

    line    := blank | ('#' | '!') comment | key separator value
    key     := characters up to the first unescaped '=', ':' or blank
    escapes := \\t \\n \\r \\f \\uXXXX; any other escaped character is itself

A backslash before the end of a line joins the next one to it, without that line's leading blanks.
Source: java.util.Properties, as RocketMQ 4.9 and 5.3 use it; text is UTF-8 where Java reads one
byte as one character.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

_BLANKS = " \t\f"
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_NAMES_OF_ESCAPED = {character: letter for letter, character in _ESCAPES.items()}
_FOUR_HEX = re.compile(r"[0-9a-fA-F]{4}")
_NEEDS_ESCAPE_IN_KEY = "=:#! "


class Entry(NamedTuple):
    """One key with its value, and the number of the line on which it begins (from 1)."""

    key: str
    value: str
    line: int


class _LogicalLine(NamedTuple):
    text: str
    first: int
    end: int


def decode(data: bytes) -> str:
    """Return the text of ``data``: UTF-8, or ISO 8859-1 when it is not UTF-8."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return data.decode("latin-1")


def parse(text: str) -> list[Entry]:
    """Return the entries of ``text`` in their order; a key may occur more than once.

    Raises:
        ValueError: a ``\\u`` is not followed by four hexadecimal digits; names the line.
    """
    return [_entry(line) for line in _logical_lines(text)]


def render(values: Mapping[str, str]) -> str:
    """Return ``key=value`` lines that `parse` reads back as ``values``."""
    return "".join(f"{_line(key, value)}\n" for key, value in values.items())


def with_changes(text: str, changes: Mapping[str, str]) -> str:
    """Return ``text`` with the values of ``changes``, comments and other lines untouched.

    The last line that sets a key gets its new value, a key that has no line gets one at the end.
    """
    lines = text.splitlines()
    lines_by_key = {_entry(line).key: line for line in _logical_lines(text)}
    replaced = sorted(
        (key for key in changes if key in lines_by_key), key=lambda key: lines_by_key[key].first
    )
    for key in reversed(replaced):
        line = lines_by_key[key]
        lines[line.first - 1 : line.end] = [_line(key, changes[key])]
    lines += [_line(key, value) for key, value in changes.items() if key not in lines_by_key]
    return "".join(f"{line}\n" for line in lines)


def _logical_lines(text: str) -> Iterator[_LogicalLine]:
    """Join continued lines; leave out blank ones and comments."""
    pending, first = "", 0
    for number, raw in enumerate(text.splitlines(), start=1):
        line = raw.lstrip(_BLANKS)
        if not first:
            if not line or line[0] in "#!":
                continue
            first = number
        pending += line
        if _ends_in_open_backslash(line):
            pending = pending[:-1]
            continue
        yield _LogicalLine(pending, first, number)
        pending, first = "", 0
    if first:
        yield _LogicalLine(pending, first, len(text.splitlines()))


def _ends_in_open_backslash(line: str) -> bool:
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


def _entry(line: _LogicalLine) -> Entry:
    text = line.text
    key_end = _end_of_key(text)
    start = _skip_blanks(text, key_end)
    if start < len(text) and text[start] in "=:":
        start = _skip_blanks(text, start + 1)
    try:
        return Entry(_unescape(text[:key_end]), _unescape(text[start:]), line.first)
    except ValueError as error:
        raise ValueError(f"line {line.first}: {error}") from None


def _end_of_key(text: str) -> int:
    position = 0
    while position < len(text) and text[position] not in "=: \t\f":
        position += 2 if text[position] == "\\" else 1
    return min(position, len(text))


def _skip_blanks(text: str, position: int) -> int:
    while position < len(text) and text[position] in _BLANKS:
        position += 1
    return position


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text
    parts: list[str] = []
    position = 0
    while position < len(text):
        character = text[position]
        if character != "\\":
            parts.append(character)
            position += 1
            continue
        letter = text[position + 1 : position + 2]
        position += 2
        if letter == "u":
            parts.append(_unicode_escape(text, position))
            position += 4
        else:
            parts.append(_ESCAPES.get(letter, letter))
    return _joined_surrogates("".join(parts))


def _unicode_escape(text: str, position: int) -> str:
    digits = text[position : position + 4]
    if not _FOUR_HEX.fullmatch(digits):
        raise ValueError(f"\\u{digits} has no four hexadecimal digits")
    return chr(int(digits, 16))


def _joined_surrogates(text: str) -> str:
    """Java writes a character beyond U+FFFF as two escapes; make it one character again."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _line(key: str, value: str) -> str:
    return f"{_escaped(key, _NEEDS_ESCAPE_IN_KEY)}={_escaped_value(value)}"


def _escaped_value(value: str) -> str:
    escaped = _escaped(value, "")
    return f"\\{escaped}" if escaped[:1] == " " else escaped


def _escaped(text: str, special: str) -> str:
    return "".join(_escaped_character(character, special) for character in text)


def _escaped_character(character: str, special: str) -> str:
    if character in _NAMES_OF_ESCAPED:
        return "\\" + _NAMES_OF_ESCAPED[character]
    if character == "\\" or character in special:
        return "\\" + character
    if " " <= character <= "~":
        return character
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[i] << 8 | units[i + 1]:04X}" for i in range(0, len(units), 2))
