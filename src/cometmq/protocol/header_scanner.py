# cython: annotation_typing=False, boundscheck=False, wraparound=False
"""Reads headers in the receive buffer, without objects in between.

A header may be JSON, with its members in any order, or binary; `Command` says how both look. What
is scanned here is only what every reader understands in the same way: texts of printable ASCII,
whole numbers of no more than 18 digits, no member twice. The general reader takes all else.

Compiled, ``memory`` is an address, and nothing but the code here checks its bounds.
"""

from __future__ import annotations

from cometmq.protocol import octets
from cometmq.protocol.codes import FORWARDED
from cometmq.protocol.octets import Memory

try:
    import cython  # type: ignore[import-untyped]
except ImportError:  # interpreted, without Cython at hand
    from cometmq.system.uncompiled import cython

if cython.compiled:
    from cython.cimports.libc.string import memcmp, memcpy  # type: ignore

DIGITS_MAX = 18
_DIGITS_MAX = DIGITS_MAX
NOT_PLAIN = -(2**62)
"""Stands for a number where there is none."""
_NOT_PLAIN = NOT_PLAIN
_SPACE_BYTES = 32 * 1024 + 8
_ESCAPE = b"\\u000"
_ONES, _HIGH_BITS = 0x0101010101010101, 0x8080808080808080
_QUOTES, _BACKSLASHES, _BLANKS = 34 * _ONES, 92 * _ONES, 32 * _ONES
_INT32_MAX = 2**31 - 1
_BINARY_FIXED_BYTES = 21
"""Up to the fields, where there is no remark."""
_CODE, _FLAG, _OPAQUE, _VERSION = 1, 2, 4, 8
_LANGUAGE, _FIELDS, _REMARK, _SERIALIZATION = 16, 32, 64, 128
_FORWARDED_BYTES = len(FORWARDED)
_SERIALIZATION_NAME = b"serializeTypeCurrentRPC"
_REQUIRED = _CODE | _FLAG | _OPAQUE | _VERSION | _FIELDS

# Kinds of values, as `note` gets them.
TEXT, ESCAPED, BARE = 0, 1, 2
_TEXT, _ESCAPED, _BARE = TEXT, ESCAPED, BARE


class HeaderScanner:
    """Finds the fields of headers; subclasses choose in `note` the fields that they need."""

    def __init__(self) -> None:
        self.code = 0
        self.flag = 0
        self.opaque = 0
        self._unescaped = 0
        self.space = bytearray()
        """Takes a text whose escapes are resolved; empty before the first one."""

    def note(self, memory: Memory, name: int, name_end: int, at: int, end: int, kind: int) -> bool:
        """Take one field; False if it is not as it should be.

        Args:
            memory: the buffer.
            name, name_end: where the name is.
            at, end: where the value is: of an ESCAPED one, in ``space``.
            kind: TEXT, or in JSON also ESCAPED, a text with the two escapes of properties, and
                BARE, a number or a boolean without quotes.
        """
        raise NotImplementedError

    def scan_json(self, memory: Memory, at: int, end: int) -> bool:
        """Read the JSON header from ``at`` to ``end``; False if the general reader must."""
        seen = 0
        at = _skip_blanks(memory, at, end)
        if at >= end or memory[at] != 123:
            return False
        while True:
            name = _skip_blanks(memory, at + 1, end) + 1
            if name > end or memory[name - 1] != 34:
                return False
            name_end = end_of_text(memory, name, end)
            at = _value_at(memory, name_end + 1, end)
            if name_end == 0 or at < 0:
                return False
            member = _member_of(memory, name, name_end)
            if seen & member:
                return False
            seen |= member
            if member == _FIELDS:
                at = self._scan_fields(memory, at, end)
            else:
                at = self._scan_member(memory, at, end, member)
            if at < 0:
                return False
            at = _skip_blanks(memory, at, end)
            if at >= end:
                return False
            if memory[at] == 125:
                return _skip_blanks(memory, at + 1, end) == end and seen & _REQUIRED == _REQUIRED
            if memory[at] != 44:
                return False

    def _scan_member(self, memory: Memory, at: int, end: int, member: int) -> int:
        """Read the value of a member; return the position behind it, -1 if it is not plain."""
        if memory[at] == 34:
            if member & (_CODE | _FLAG | _OPAQUE | _VERSION):
                return -1
            stop = end_of_text(memory, at + 1, end)
            if member == _REMARK and stop - at - 1 == _FORWARDED_BYTES:
                return -1  # it may say that a slave forwards this
            return stop + 1 if stop > 0 else -1
        stop = end_of_bare(memory, at, end)
        if stop == 0 or member & (_LANGUAGE | _SERIALIZATION):
            return -1
        if member & (_CODE | _FLAG | _OPAQUE | _VERSION):
            value = plain_number(memory, at, stop)
            if not -_INT32_MAX <= value <= _INT32_MAX:
                return -1
            if member == _CODE:
                self.code = value
            elif member == _FLAG:
                self.flag = value
            elif member == _OPAQUE:
                self.opaque = value
        elif member == _REMARK:
            return -1
        return stop

    def _scan_fields(self, memory: Memory, at: int, end: int) -> int:
        """Read the fields; return the position behind them, -1 if they are not plain."""
        if memory[at] != 123:
            return -1
        while True:
            at += 1
            if at < end and memory[at] != 34:
                at = _skip_blanks(memory, at, end)
            if at >= end or memory[at] != 34:
                return -1
            name = at + 1
            name_end = end_of_text(memory, name, end)
            at = _value_at(memory, name_end + 1, end)
            if name_end == 0 or at < 0:
                return -1
            if memory[at] == 34:
                at += 1
                stop = end_of_text(memory, at, end)
                if stop > 0:
                    kept = self.note(memory, name, name_end, at, stop, _TEXT)
                else:
                    stop = self._unescape(memory, at, end)
                    kept = stop > 0 and self.note(
                        memory, name, name_end, 0, self._unescaped, _ESCAPED
                    )
                rest = stop + 1
            else:
                rest = stop = end_of_bare(memory, at, end)
                kept = stop > 0 and self.note(memory, name, name_end, at, stop, _BARE)
            if not kept:
                return -1
            at = rest
            if at < end and memory[at] <= 32:
                at = _skip_blanks(memory, at, end)
            if at >= end:
                return -1
            if memory[at] == 125:
                return at + 1
            if memory[at] != 44:
                return -1

    def _unescape(self, memory: Memory, at: int, end: int) -> int:
        """Resolve the escapes of a text into ``space``; return its end, 0 if not plain.

        Plain is a text that fits, with no escapes but the two that separate properties.
        """
        if not self.space:
            self.space = bytearray(_SPACE_BYTES)
        space = octets.start_of(self.space)
        filled = 0
        while at < end and filled < _SPACE_BYTES - 8:
            if cython.compiled and at + 8 <= end and not _has_special(memory + at):
                memcpy(space + filled, memory + at, 8)
                at += 8
                filled += 8
                continue
            unit = memory[at]
            if unit == 34:
                self._unescaped = filled
                return at
            if unit < 32 or unit > 126:
                return 0
            if unit == 92:
                if at + 6 > end or not octets.equals(memory, at, 5, _ESCAPE):
                    return 0
                unit = memory[at + 5] - 48
                if unit != 1 and unit != 2:
                    return 0
                at += 5
            space[filled] = unit
            filled += 1
            at += 1
        return 0

    def scan_binary(self, memory: Memory, at: int, end: int) -> bool:
        """Read the binary header from ``at`` to ``end``; False if the general reader must."""
        if at + _BINARY_FIXED_BYTES > end:
            return False
        self.code = octets.i16_in(memory, at)
        self.opaque = octets.i32_in(memory, at + 5)
        self.flag = octets.i32_in(memory, at + 9)
        if octets.i32_in(memory, at + 13) or octets.i32_in(memory, at + 17) != end - at - 21:
            return False
        at += _BINARY_FIXED_BYTES
        while at < end:
            if at + 2 > end:
                return False
            name, name_end = at + 2, at + 2 + (octets.i16_in(memory, at) & 0xFFFF)
            at = name_end + 4
            if at > end:
                return False
            size = octets.i32_in(memory, name_end)
            if not 0 <= size <= end - at or not octets.is_ascii(memory, name, name_end - name):
                return False
            if size:  # a value of no bytes is none
                if not octets.is_ascii(memory, at, size):
                    return False
                if not self.note(memory, name, name_end, at, at + size, _TEXT):
                    return False
            at += size
        return True


def find_name(memory: Memory, at: int, end: int, names: tuple[bytes, ...]) -> int:
    """The number of the name from ``at`` to ``end`` among ``names``; -1 if it is none of them."""
    size = end - at
    if size == 0:
        return -1
    first = memory[at]
    for found in range(len(names)):
        name = names[found]
        if size == len(name) and first == name[0] and _is(memory, at, name):
            return found
    return -1


def end_of_text(memory: Memory, at: int, end: int) -> int:
    """Position of the quote behind a text without escapes; 0 if there is none."""
    while at < end:
        unit = memory[at]
        if unit == 34:
            return at
        if unit == 92 or unit < 32 or unit > 126:
            return 0
        at += 1
    return 0


def end_of_bare(memory: Memory, at: int, end: int) -> int:
    """The position behind a number as JSON writes it or a boolean; 0 if there is none."""
    unit = memory[at]
    if unit == 116:
        return at + 4 if at + 4 <= end and octets.equals(memory, at, 4, b"true") else 0
    if unit == 102:
        return at + 5 if at + 5 <= end and octets.equals(memory, at, 5, b"false") else 0
    stop = end_of_number(memory, at, end)
    digits_at = at + 1 if unit == 45 else at
    if stop > digits_at + 1 and memory[digits_at] == 48:
        return 0
    return stop


def plain_number(memory: Memory, at: int, end: int) -> int:
    """The whole number from ``at`` to ``end``; NOT_PLAIN if it is none."""
    start = at
    is_negative = at < end and memory[at] == 45
    if is_negative:
        start += 1
    if not 0 < end - start <= _DIGITS_MAX:
        return _NOT_PLAIN
    value = 0
    while start < end:
        digit = memory[start] - 48
        if not 0 <= digit <= 9:
            return _NOT_PLAIN
        value = value * 10 + digit
        start += 1
    return -value if is_negative else value


def end_of_number(memory: Memory, at: int, end: int) -> int:
    """The position behind a whole number; 0 if there is none, or one of too many digits."""
    if at < end and memory[at] == 45:
        at += 1
    start = at
    while at < end and 48 <= memory[at] <= 57:
        at += 1
    return at if 0 < at - start <= _DIGITS_MAX else 0


def _has_special(memory: Memory) -> bool:
    """Whether one of eight bytes ends a text, begins an escape or is not printable; compiled."""
    word = cython.cast(cython.ulonglong, 0)
    memcpy(cython.address(word), memory, 8)
    # ``(x - 1) & ~x`` has a high bit only if a byte is 0: a borrow marks only bytes above that one.
    quotes = word ^ _QUOTES
    escapes = word ^ _BACKSLASHES
    found = (quotes - _ONES) & ~quotes
    found |= (escapes - _ONES) & ~escapes
    found |= (word - _BLANKS) & ~word  # below a blank
    found |= (word + _ONES) | word  # 127, or not ASCII
    return found & _HIGH_BITS != 0  # type: ignore[no-any-return]


def _is(memory: Memory, at: int, text: bytes) -> bool:
    """Whether ``text`` is at a position behind which there are as many bytes."""
    if cython.compiled:
        wanted: cython.p_char = text
        return bool(memcmp(memory + at, wanted, len(text)) == 0)
    return bool(memory[at : at + len(text)] == text)


def _skip_blanks(memory: Memory, at: int, end: int) -> int:
    while at < end and (memory[at] == 32 or 9 <= memory[at] <= 10 or memory[at] == 13):
        at += 1
    return at


def _value_at(memory: Memory, at: int, end: int) -> int:
    """Position of the value whose name ends before ``at``; -1 if there is none."""
    at = _skip_blanks(memory, at, end)
    if at >= end or memory[at] != 58:
        return -1
    at = _skip_blanks(memory, at + 1, end)
    return at if at < end else -1


def _member_of(memory: Memory, at: int, end: int) -> int:
    """The bit of the member with this name; 0 if there is none."""
    size = end - at
    if size == 4:
        if _is(memory, at, b"code"):
            return _CODE
        return _FLAG if _is(memory, at, b"flag") else 0
    if size == 6:
        if _is(memory, at, b"opaque"):
            return _OPAQUE
        return _REMARK if _is(memory, at, b"remark") else 0
    if size == 7:
        return _VERSION if _is(memory, at, b"version") else 0
    if size == 8:
        return _LANGUAGE if _is(memory, at, b"language") else 0
    if size == 9:
        return _FIELDS if _is(memory, at, b"extFields") else 0
    if size == 23:
        return _SERIALIZATION if _is(memory, at, _SERIALIZATION_NAME) else 0
    return 0
