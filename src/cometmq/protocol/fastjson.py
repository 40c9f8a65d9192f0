"""The JSON of RocketMQ's bodies: ordinary JSON, and the dialect of the library that writes it.

Beyond JSON the dialect has names without quotes or in single quotes, maps whose keys are numbers
(``{0:"a"}``) or whole objects (``{{"queueId":0}:1}``), ``{"$ref":"$.a[0]"}`` for an object that
was written before, comments, spare commas, and numbers that end in a letter for their type.

Reading accepts all of it: a map with numbers for keys gets them as text, and one with objects for
keys becomes :class:`Pairs`. Writing is strict, unless bare keys are requested. Members that are
None are left out.

Source: JSON and DefaultJSONParser of fastjson 1.2.83, as RocketMQ 5.3 uses it.
"""

import base64
import re
from collections.abc import Iterator
from enum import Enum
from heapq import merge
from operator import itemgetter
from typing import Any, get_args, get_origin

import msgspec

from cometmq.model.errors import ProtocolError

DEPTH_MAX = 100
"""The limit of nested objects and lists."""
REFERENCED_NODES_MAX = 200_000
"""How many values all references of one text together may repeat."""
NUMBER_CHARS_MAX = 400
HEADER_BYTES_MAX, HEADER_VALUES_MAX = 128 * 1024, 2_000
VALUES_MAX = 500_000
"""How many values a text may have that is not plain JSON."""
SMALL_VALUES_MAX = 1_000
"""Number of values that are written as one part."""


class FastJsonError(ProtocolError, ValueError):
    """A text is not even JSON of the dialect."""


class Pairs(list[tuple[Any, Any]]):
    """A map some of whose keys are objects, as a list of its keys and values."""


def loads(data: bytes | str) -> Any:
    """Read a text of the dialect.

    Raises:
        FastJsonError: it is malformed, nested too deeply, or its references cannot be followed.
    """
    try:
        value = msgspec.json.decode(data)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        value = _Parser(_as_text(data)).document()
    if not has_references(data):
        return value
    try:
        return _Resolver(value).resolve()
    except RecursionError:
        raise FastJsonError("a JSON text with references nests too deeply") from None


def loads_header(data: bytes) -> Any:
    """Read a short text of the dialect without references: at most 128 KiB, 2,000 values.

    Raises:
        FastJsonError: it is malformed, nested too deeply, or too long.
    """
    if len(data) > HEADER_BYTES_MAX:
        raise FastJsonError(
            f"{len(data)} bytes that are not a plain header, expected at most {HEADER_BYTES_MAX}"
        )
    try:
        return msgspec.json.decode(data)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return _Parser(_as_text(data), HEADER_VALUES_MAX).document()


def has_references(data: bytes | str) -> bool:
    """Whether a text may hold ``$ref``; it may also be a part of something else."""
    return b"$ref" in data if isinstance(data, bytes) else "$ref" in data


def _as_text(data: bytes | str) -> str:
    if isinstance(data, str):
        return data
    try:
        return str(data, "utf-8")
    except UnicodeDecodeError as error:
        raise FastJsonError(f"byte {error.start} of a JSON text is not UTF-8") from None


_BLANK = re.compile(r"(?:[ \t\r\n\f\b\ufeff]++|//[^\n]*+\n?|/\*.*?\*/)*+", re.DOTALL)
_SPARE = re.compile(r"(?:[ \t\r\n\f\b\ufeff,]++|//[^\n]*+\n?|/\*.*?\*/)*+", re.DOTALL)
_NAME = re.compile(r"[^\W\d][\w$.\-]*+|\$[\w$.\-]*+")
_NUMBER = re.compile(r"([+-]?(?:\d++(\.\d*+)?|(\.\d++))([eE][+-]?\d++)?)([LSBFD]?)")
_STRINGS = {
    '"': re.compile(r'"([^"\\]*+(?:\\.[^"\\]*+)*+)"', re.DOTALL),
    "'": re.compile(r"'([^'\\]*+(?:\\.[^'\\]*+)*+)'", re.DOTALL),
}
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|x[0-9a-fA-F]{2}|.)", re.DOTALL)
_ESCAPED = {
    "b": "\b",
    "f": "\f",
    "F": "\f",
    "n": "\n",
    "r": "\r",
    "t": "\t",
    "v": "\v",
    **{str(digit): chr(digit) for digit in range(8)},
    **{char: char for char in "\"'\\/"},
}
_WORDS = {"true": True, "false": False, "null": None, "undefined": None, "NaN": None}


class _Parser:
    """Reads one text by recursive descent."""

    __slots__ = ("_depth", "_left", "_pos", "_text", "_values_max")

    def __init__(self, text: str, values_max: int = VALUES_MAX) -> None:
        self._text = text
        self._left = self._values_max = values_max
        self._pos = 0
        self._depth = 0

    def document(self) -> Any:
        value = self._value()
        self._skip(_BLANK)
        if self._pos != len(self._text):
            raise self._error("the end of the text")
        return value

    def _skip(self, pattern: re.Pattern[str]) -> str:
        """Skip what has no meaning; return the character that follows, or nothing at the end."""
        match = pattern.match(self._text, self._pos)
        if match is not None:
            self._pos = match.end()
        return self._text[self._pos : self._pos + 1]

    def _error(self, expected: str) -> FastJsonError:
        met = self._text[self._pos : self._pos + 20]
        return FastJsonError(
            f"character {self._pos} of a JSON text: met {met!r}, expected {expected}"
        )

    def _count(self, values: int) -> None:
        self._left -= values
        if self._left < 0:
            raise FastJsonError(f"a JSON text has more than {self._values_max} values")

    def _value(self) -> Any:
        self._count(1)
        char = self._skip(_BLANK)
        if char == "{":
            return self._nested(self._object)
        if char == "[":
            return self._nested(self._list)
        if char in _STRINGS:
            return self._string(char)
        return self._word() if _NAME.match(self._text, self._pos) else self._number()

    def _nested(self, read: Any) -> Any:
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise FastJsonError(f"a JSON text nests more than {DEPTH_MAX} deep")
        self._pos += 1
        value = read()
        self._pos += 1
        self._depth -= 1
        return value

    def _object(self) -> Any:
        pairs = []
        has_object_keys = False
        while (char := self._skip(_SPARE)) != "}":
            key = self._key(char)
            has_object_keys |= not isinstance(key, str)
            if self._skip(_BLANK) != ":":
                raise self._error("a colon")
            self._pos += 1
            pairs.append((key, self._value()))
            self._end_of_item("}")
        return Pairs(pairs) if has_object_keys else dict(pairs)

    def _key(self, char: str) -> Any:
        if char in ("{", "["):
            return self._value()
        if char in _STRINGS:
            return self._string(char)
        match = _NAME.match(self._text, self._pos)
        if match is None:
            return str(self._number())
        self._pos = match.end()
        return match[0]

    def _list(self) -> list[Any]:
        values = []
        while self._skip(_SPARE) != "]":
            values.append(self._value())
            self._end_of_item("]")
        return values

    def _end_of_item(self, end: str) -> None:
        if self._skip(_BLANK) not in (",", end) or self._pos == len(self._text):
            raise self._error(f"a comma or {end}")

    def _string(self, quote: str) -> str:
        match = _STRINGS[quote].match(self._text, self._pos)
        if match is None:
            raise self._error(f"a text that ends with {quote}")
        self._pos = match.end()
        text = match[1]
        if "\\" not in text:
            return text
        try:
            plain: str = msgspec.json.decode(f'"{text}"')
        except (msgspec.MsgspecError, UnicodeError):
            self._count(text.count("\\"))
            return _unescape(text)
        return plain

    def _word(self) -> Any:
        match = _NAME.match(self._text, self._pos)
        if match is None or match[0] not in _WORDS:
            raise self._error("a value")
        self._pos = match.end()
        return _WORDS[match[0]]

    def _number(self) -> int | float:
        match = _NUMBER.match(self._text, self._pos)
        if match is None or match.end() - self._pos > NUMBER_CHARS_MAX:
            raise self._error("a value")
        self._pos = match.end()
        text, fraction, bare_fraction, exponent, kind = match.groups()
        is_float = fraction or bare_fraction or exponent or kind in ("F", "D")
        return float(text) if is_float else int(text)


def _unescape(text: str) -> str:
    plain = _ESCAPE.sub(_unescape_one, text)
    if not any("\ud800" <= char <= "\udfff" for char in plain):
        return plain
    return plain.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _unescape_one(match: re.Match[str]) -> str:
    code = match[1]
    if code[0] in "ux" and len(code) > 1:
        return chr(int(code[1:], 16))
    if code not in _ESCAPED:
        raise FastJsonError(f"a text in JSON has the unknown escape \\{code}")
    return _ESCAPED[code]


_STEP = re.compile(r"\.((?:[^.\[\\]|\\.)+)|\[(\d+)\]|\[\"([^\"]*)\"\]")


class _Resolver:
    """Replaces references to earlier values by copies."""

    def __init__(self, root: Any) -> None:
        self._root = root
        self._nodes_left = REFERENCED_NODES_MAX
        self._above: list[Any] = []

    def resolve(self) -> Any:
        return self._resolved(self._root)

    def _resolved(self, value: Any) -> Any:
        if not isinstance(value, dict | list):
            return value
        if isinstance(value, dict) and value.keys() == {"$ref"}:
            return self._copy(self._target(value["$ref"]))
        self._above.append(value)
        if isinstance(value, Pairs):
            value[:] = [(self._resolved(key), self._resolved(item)) for key, item in value]
        else:
            for key, item in value.items() if isinstance(value, dict) else enumerate(value):
                value[key] = self._resolved(item)
        self._above.pop()
        return value

    def _target(self, path: Any) -> Any:
        """Follow a path from the root; an object around the reference cannot be meant."""
        if not isinstance(path, str) or not path.startswith("$"):
            raise FastJsonError(f"a JSON text refers to {path!r}, expected a path from $")
        target, position = self._root, 1
        while position < len(path):
            step = _STEP.match(path, position)
            if step is None:
                raise FastJsonError(f"a JSON text refers to {path[:80]!r}, which is no path")
            target = _step_into(target, step, path)
            position = step.end()
        if any(target is outer for outer in self._above):
            raise FastJsonError(f"a JSON text refers to {path[:80]!r}, which surrounds it")
        return target

    def _copy(self, value: Any) -> Any:
        self._nodes_left -= 1
        if self._nodes_left < 0:
            raise FastJsonError(f"references repeat more than {REFERENCED_NODES_MAX} values")
        if isinstance(value, Pairs):
            return Pairs((self._copy(key), self._copy(item)) for key, item in value)
        if isinstance(value, dict):
            return {key: self._copy(item) for key, item in value.items()}
        return [self._copy(item) for item in value] if isinstance(value, list) else value


def _step_into(value: Any, step: re.Match[str], path: str) -> Any:
    name, index, quoted = step.groups()
    try:
        if index is not None and isinstance(value, list) and not isinstance(value, Pairs):
            return value[int(index)]
        return value[index or quoted or re.sub(r"\\(.)", r"\1", name)]
    except (KeyError, IndexError, TypeError):
        raise FastJsonError(f"a JSON text refers to {path[:80]!r}, which is not there") from None


def dumps(value: Any) -> bytes:
    """Write strict JSON: members in the order of their names, keys in quotes."""
    try:
        data = msgspec.json.encode(value, order="sorted")
    except TypeError:  # a map with keys that are not texts
        return _written(value, bare_keys=False)
    # None hides nowhere but behind this word, which a text may hold too: look closer only then.
    return data if b"null" not in data else _written(value, bare_keys=False)


def dumps_odd(value: Any) -> bytes:
    """Write the dialect: keys that are numbers or objects have no quotes."""
    return _written(value, bare_keys=True)


def parts(value: Any, *, bare_keys: bool) -> Iterator[bytes]:
    """Write as `dumps` or `dumps_odd` does, in parts to be joined; none takes a millisecond."""
    if _weight(value, SMALL_VALUES_MAX) <= SMALL_VALUES_MAX or isinstance(value, Pairs):
        yield _written(value, bare_keys=bare_keys)
    elif isinstance(value, msgspec.Struct):
        separator = "{"
        for attribute, name in _members(type(value)):
            member = getattr(value, attribute)
            if member is not None:
                yield (separator + name).encode()
                yield from parts(member, bare_keys=bare_keys)
                separator = ","
        yield b"}" if separator == "," else b"{}"
    else:
        yield from _container_parts(value, bare_keys)


def is_long(value: Any) -> bool:
    """Whether a value contains too many others to be written in one part."""
    return _weight(value, SMALL_VALUES_MAX) > SMALL_VALUES_MAX


def _container_parts(value: Any, bare_keys: bool) -> Iterator[bytes]:
    """Write a large map or list; small entries that follow each other are one part."""
    begin, end = "{}" if isinstance(value, dict) else "[]"
    out: list[str] = []
    writer = _Writer(out, bare_keys)
    separator, weight = begin, 0
    entries = _entries(value, bare_keys)
    if isinstance(value, dict) and not bare_keys and len(value) > SMALL_VALUES_MAX:
        runs = []  # to sort all entries at once would take long
        pairs = [pair for pair in value.items() if pair[1] is not None]
        for at in range(0, len(pairs), SMALL_VALUES_MAX):
            runs.append(sorted(pairs[at : at + SMALL_VALUES_MAX], key=itemgetter(0)))
            yield b""
        entries = merge(*runs, key=itemgetter(0))
    for key, item in entries:
        out.append(separator)
        separator = ","
        if key is not None:
            writer.write_key(key)
            out.append(":")
        added = _weight(item, SMALL_VALUES_MAX)
        if added <= SMALL_VALUES_MAX:
            writer.write(item)
            weight += added
        if added > SMALL_VALUES_MAX or weight > SMALL_VALUES_MAX:
            yield "".join(out).encode()
            out.clear()
            weight = 0
        if added > SMALL_VALUES_MAX:
            yield from parts(item, bare_keys=bare_keys)
    out.append(end if separator == "," else begin + end)
    yield "".join(out).encode()


def _entries(value: Any, bare_keys: bool) -> Iterator[tuple[Any, Any]]:
    """Yield the entries of a list, or the entries of a map that are not None."""
    if not isinstance(value, dict):
        yield from ((None, item) for item in value)
        return
    pairs = value.items() if bare_keys else sorted(value.items(), key=itemgetter(0))
    yield from ((key, item) for key, item in pairs if item is not None)


def _weight(value: Any, limit: int) -> int:
    """Return how many values there are in a value, itself included; just more than the limit."""
    if isinstance(value, msgspec.Struct):
        within: Any = [getattr(value, attribute) for attribute, _ in _members(type(value))]
    elif isinstance(value, dict):
        within = value.values()
    elif isinstance(value, list | tuple | set | frozenset):
        within = value
    else:
        return 1
    weight = 1 + len(within)
    for item in within if weight <= limit else ():
        if isinstance(item, msgspec.Struct | dict | list | tuple | set | frozenset):
            weight += _weight(item, limit - weight)
        if weight > limit:
            break
    return weight


_NON_ASCII = re.compile("[^\x00-\x7f]")


def dumps_ascii(value: Any) -> bytes:
    r"""Write strict JSON in ASCII alone, with ``\/`` for a slash, as browsers once needed it."""
    return _in_ascii(dumps(value))


def ascii_parts(value: Any) -> Iterator[bytes]:
    """Write as `dumps_ascii` does, in parts to be joined; none takes a millisecond."""
    return map(_in_ascii, parts(value, bare_keys=False))


def _in_ascii(data: bytes) -> bytes:
    return _NON_ASCII.sub(_escape_char, data.decode().replace("/", "\\/")).encode()


def _escape_char(match: re.Match[str]) -> str:
    units = match[0].encode("utf-16-be")
    return "".join(f"\\u{units[at : at + 2].hex().upper()}" for at in range(0, len(units), 2))


def _written(value: Any, *, bare_keys: bool) -> bytes:
    out: list[str] = []
    _Writer(out, bare_keys).write(value)
    return "".join(out).encode()


_MEMBERS: dict[type, tuple[tuple[str, str], ...]] = {}


def _members(cls: type[msgspec.Struct]) -> tuple[tuple[str, str], ...]:
    """Return each attribute of a struct with its name and colon, in the order they are written."""
    members = _MEMBERS.get(cls)
    if members is None:
        named = sorted((info.encode_name, info.name) for info in msgspec.structs.fields(cls))
        members = _MEMBERS[cls] = tuple((name, f'"{wire_name}":') for wire_name, name in named)
    return members


_PLAIN: dict[Any, bool] = {}


def _is_plain(kind: Any) -> bool:
    """Whether values of a type have no map with keys other than texts anywhere inside."""
    plain = _PLAIN.get(kind)
    if plain is None:
        _PLAIN[kind] = True  # a type inside itself adds nothing new
        plain = _PLAIN[kind] = _finds_plain(kind)
    return plain


def _finds_plain(kind: Any) -> bool:
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return all(_is_plain(info.type) for info in msgspec.structs.fields(kind))
    parts = get_args(kind)
    if get_origin(kind) is dict and parts[0] is not str:
        return False
    return kind is not Any and all(_is_plain(part) for part in parts)


class _Writer:
    """Writes one value, piece by piece."""

    __slots__ = ("_bare_keys", "_out")

    def __init__(self, out: list[str], bare_keys: bool) -> None:
        self._out = out
        self._bare_keys = bare_keys

    def write(self, value: Any) -> None:
        if isinstance(value, msgspec.Struct):
            self._struct(value)
        elif isinstance(value, Pairs):
            self._map(value)
        elif isinstance(value, dict):
            pairs = value.items() if self._bare_keys else sorted(value.items(), key=itemgetter(0))
            self._map(pairs)
        elif isinstance(value, list | tuple | set | frozenset):
            self._list(value)
        else:
            self._out.append(_scalar(value))

    def _struct(self, value: msgspec.Struct) -> None:
        if _is_plain(type(value)):
            data = msgspec.json.encode(value, order="sorted")
            if b"null" not in data:
                self._out.append(data.decode())
                return
        separator = "{"
        for attribute, name in _members(type(value)):
            member = getattr(value, attribute)
            if member is not None:
                self._out.append(separator + name)
                self.write(member)
                separator = ","
        self._out.append("}" if separator == "," else "{}")

    def _map(self, pairs: Any) -> None:
        separator = "{"
        for key, value in pairs:
            if value is not None:
                self._out.append(separator)
                self.write_key(key)
                self._out.append(":")
                self.write(value)
                separator = ","
        self._out.append("}" if separator == "," else "{}")

    def write_key(self, key: Any) -> None:
        """Write the key of a map."""
        if self._bare_keys and not isinstance(key, str):
            self.write(key)
        elif isinstance(key, str | int):
            self._out.append(_scalar(str(key)))
        else:
            self._out.append(_scalar(_written(key, bare_keys=False).decode()))

    def _list(self, values: Any) -> None:
        separator = "["
        for value in values:
            self._out.append(separator)
            self.write(value)
            separator = ","
        self._out.append("]" if separator == "," else "[]")


def _scalar(value: Any) -> str:
    if isinstance(value, Enum):
        value = value.value
    if isinstance(value, bytes):
        value = base64.b64encode(value).decode()
    return msgspec.json.encode(value).decode()
