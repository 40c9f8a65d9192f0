# cython: annotation_typing=False, boundscheck=False, wraparound=False, cdivision=True
"""Numbers and slices taken out of buffers of received bytes, each in one step.

Compiled, a buffer is an address and nothing checks the bounds: the caller has. What is called
``memory`` may be any buffer, a mapping too.
"""

from __future__ import annotations

import re
from struct import Struct
from typing import Any

try:
    import cython  # type: ignore[import-untyped]
except ImportError:  # interpreted, without Cython at hand
    from cometmq.system.uncompiled import cython

if cython.compiled:
    from cython.cimports.libc.string import memchr, memcmp, memcpy  # type: ignore

Memory = Any
"""A buffer: compiled its address, interpreted any object with bytes. No type fits both."""

# Numbers this large are C numbers only by a name, once compiled.
_HIGH_BITS = 0x8080808080808080
_PAIRS, _SINGLES, _HALVES = 0x0000FFFF0000FFFF, 0x00FF00FF00FF00FF, 0x0F0F0F0F0F0F0F0F
_ONES = 0x0101010101010101
_SIXES, _ZERO_DIGITS = 6 * _ONES, ord("0") * _ONES
_BLANKS, _QUOTES, _BACKSLASHES = ord(" ") * _ONES, ord('"') * _ONES, ord("\\") * _ONES
_ESCAPED = re.compile(rb'[\x00-\x1f"\\]')
_unpack_two = Struct(">II").unpack_from
_unpack_i32 = Struct(">i").unpack_from
_unpack_i64 = Struct(">q").unpack_from
_unpack_i16 = Struct(">h").unpack_from


def is_compiled() -> bool:
    """Return whether this build runs as machine code."""
    return bool(cython.compiled)


def two_u32(data: bytes | bytearray, position: int) -> tuple[int, int]:
    """Return the two unsigned 4-byte numbers at ``position``, big-endian."""
    if cython.compiled:
        memory = cython.cast(cython.p_uchar, data) + position
        return _u32_at(memory), _u32_at(memory + 4)
    return _unpack_two(data, position)


def i32_in(memory: Memory, position: int) -> int:
    """Return the signed 4-byte number at ``position``, big-endian."""
    if cython.compiled:
        return cython.cast(cython.int, _u32_at(memory + position))  # type: ignore[no-any-return]
    return int(_unpack_i32(memory, position)[0])


def i64_in(memory: Memory, position: int) -> int:
    """Return the signed 8-byte number at ``position``, big-endian."""
    if cython.compiled:
        high = cython.cast(cython.uint, i32_in(memory, position))
        low = cython.cast(cython.uint, i32_in(memory, position + 4))
        return cython.cast(cython.ulonglong, high) << 32 | low  # type: ignore[no-any-return]
    return int(_unpack_i64(memory, position)[0])


def i16_in(memory: Memory, position: int) -> int:
    """Return the signed 2-byte number at ``position``, big-endian."""
    if cython.compiled:
        place = cython.cast(cython.p_uchar, memory + position)
        return place[0] << 8 | place[1]  # type: ignore[no-any-return]
    return int(_unpack_i16(memory, position)[0])


def end_of_run(memory: Memory, at: int, end: int, unit: int) -> int:
    """Return where the first byte equal to ``unit`` is from ``at`` on; ``end`` if there is none."""
    if cython.compiled:
        found = memchr(memory + at, unit, end - at)
        return end if found == cython.NULL else cython.cast(cython.p_uchar, found) - memory
    place = memory.find(unit.to_bytes(1, "big"), at, end)
    return end if place < 0 else int(place)


def memory_of(data: Any) -> Memory:
    """Return what the functions here call ``memory`` of any buffer that is not empty."""
    if cython.compiled:
        return cython.address(data[0])
    return data if isinstance(data, bytes) else memoryview(data)


def start_of(data: Any) -> Memory:
    """Return what the functions here call ``memory`` of bytes, which may be none."""
    if cython.compiled:
        return cython.cast(cython.p_uchar, data)
    return data


def window(memory: Memory, at: int, size: int) -> Memory:
    """Return the ``memory`` that begins at ``at``, for ``size`` bytes."""
    if cython.compiled:
        return memory + at
    return bytes(memory[at : at + size])


def bytes_in(memory: Memory, at: int, size: int) -> bytes:
    """Return a copy of ``size`` bytes."""
    if cython.compiled:
        return cython.cast(cython.p_char, memory + at)[:size]  # type: ignore[no-any-return]
    return bytes(memory[at : at + size])


def equals(memory: Memory, at: int, size: int, text: bytes) -> bool:
    """Return whether exactly ``text`` is in the ``size`` bytes at ``at``."""
    if size != len(text):
        return False
    if cython.compiled:
        wanted: cython.p_char = text
        return bool(memcmp(memory + at, wanted, size) == 0)
    return bool(memory[at : at + size] == text)


def last_of(memory: Memory, at: int, end: int, text: bytes) -> int:
    """Return where ``text`` is for the last time from ``at`` up to ``end``; -1 if nowhere."""
    if cython.compiled:
        size, first = len(text), text[0]
        place = end - size
        while place >= at:
            if memory[place] == first and equals(memory, place, size, text):
                return place
            place -= 1
        return -1
    return int(memory.rfind(text, at, end))


def are_same(memory: Memory, at: int, other: int, size: int) -> bool:
    """Return whether ``size`` bytes are equal at two positions."""
    if cython.compiled:
        return bool(memcmp(memory + at, memory + other, size) == 0)
    return bool(memory[at : at + size] == memory[other : other + size])


def is_ascii(memory: Memory, at: int, size: int) -> bool:
    """Return whether ``size`` bytes are all below 128."""
    if cython.compiled:
        seen = cython.cast(cython.ulonglong, 0)
        word = cython.cast(cython.ulonglong, 0)
        end = at + size
        while at + 8 <= end:
            memcpy(cython.address(word), memory + at, 8)
            seen |= word
            at += 8
        if at < end and size >= 8:
            # The last eight bytes overlap those before: one more read, not up to seven.
            memcpy(cython.address(word), memory + end - 8, 8)
            seen |= word
            at = end
        while at < end:
            seen |= memory[at]
            at += 1
        return seen & _HIGH_BITS == 0  # type: ignore[no-any-return]
    return bytes(memory[at : at + size]).isascii()


def is_plain_text(memory: Any, at: int, size: int) -> bool:
    """Return whether JSON contains ``size`` bytes as they are: ASCII, and nothing to escape."""
    if cython.compiled:
        seen = cython.cast(cython.ulonglong, 0)
        word = cython.cast(cython.ulonglong, 0)
        end = at + size
        while at < end:
            word = _BLANKS
            if at + 8 <= end:
                memcpy(cython.address(word), memory + at, 8)
            else:
                memcpy(cython.address(word), memory + at, end - at)
            quotes, slashes = word ^ _QUOTES, word ^ _BACKSLASHES
            # Subtracting borrows into the highest bit of a byte that is smaller.
            below = word - _BLANKS & ~word | quotes - _ONES & ~quotes | slashes - _ONES & ~slashes
            seen |= word | below
            at += 8
        return seen & _HIGH_BITS == 0  # type: ignore[no-any-return]
    text = bytes(memory[at : at + size])
    return text.isascii() and _ESCAPED.search(text) is None


def copy_of(data: bytes | bytearray, start: int, end: int) -> bytes:
    """Return a copy of the bytes from ``start`` up to ``end``."""
    if cython.compiled:
        memory: cython.p_char = data
        return memory[start:end]  # type: ignore[no-any-return]
    return bytes(data[start:end])


def matches(data: bytes | bytearray, position: int, end: int, text: bytes) -> bool:
    """Return whether ``text`` is at ``position`` and ends before ``end``."""
    if position + len(text) > end:
        return False
    if cython.compiled:
        memory: cython.p_char = data
        wanted: cython.p_char = text
        return bool(memcmp(memory + position, wanted, len(text)) == 0)
    return data[position : position + len(text)] == text


def put_u32(space: bytearray, position: int, value: int) -> None:
    """Write an unsigned 4-byte number, big-endian."""
    if cython.compiled:
        _put_u32(cython.cast(cython.p_uchar, space) + position, value)
    else:
        space[position : position + 4] = value.to_bytes(4, "big")


def put_bytes(space: bytearray, position: int, data: bytes) -> int:
    """Write bytes for which there is room; return the position behind them."""
    if cython.compiled:
        memory: cython.p_char = space
        source: cython.p_char = data
        memcpy(memory + position, source, len(data))
    else:
        space[position : position + len(data)] = data
    return position + len(data)


def put_memory(space: bytearray, position: int, memory: Any, size: int) -> int:
    """Write ``size`` bytes for which there is room; return the position behind them."""
    if cython.compiled:
        place: cython.p_uchar = space
        memcpy(place + position, memory, size)
    else:
        space[position : position + size] = memory[:size]
    return position + size


def put_hex(space: bytearray, position: int, value: int) -> int:
    """Write a number in 16 upper-case hexadecimal digits; return the position behind them."""
    if cython.compiled:
        memory: cython.p_uchar = space
        for half in range(2):
            digits = _hex_digits(cython.cast(cython.uint, value >> (32 - 32 * half)))
            _put_u32(memory + position, cython.cast(cython.uint, digits >> 32))
            _put_u32(memory + position + 4, cython.cast(cython.uint, digits))
            position += 8
        return position
    return put_bytes(space, position, b"%016X" % value)


def put_decimal(space: bytearray, position: int, value: int) -> int:
    """Write a number in decimal digits, at most 20 of them; return the position behind them."""
    if cython.compiled and value >= 0:
        memory: cython.p_uchar = space
        # Written from the last digit on, so their number is needed first.
        digits = 1
        rest = value
        while rest >= 10:
            rest //= 10
            digits += 1
        for at in range(digits):
            memory[position + digits - 1 - at] = 48 + value % 10
            value //= 10
        return position + digits
    return put_bytes(space, position, b"%d" % value)


def _put_u32(memory: Memory, value: int) -> None:
    """Only compiled."""
    word = htonl(value)  # type: ignore[name-defined]  # noqa: F821
    memcpy(memory, cython.address(word), 4)


def _hex_digits(value: int) -> int:
    """The eight upper-case hexadecimal digits of a 32-bit number, as a number of eight bytes.

    All at once: one byte for each half byte, and 7 more for those that are letters.
    """
    spread = value
    # 16 bits to each half of the result, then 8 to each quarter, then 4 to each byte.
    spread = (spread << 16 | spread) & _PAIRS
    spread = (spread << 8 | spread) & _SINGLES
    spread = (spread << 4 | spread) & _HALVES
    # 10 and more plus 6 carries into bit 4. "A" is 7 characters behind "9" + 1.
    letters = (spread + _SIXES) >> 4 & _ONES
    return spread + _ZERO_DIGITS + letters * 7


def _u32_at(memory: Memory) -> int:
    """Only compiled."""
    word = cython.cast(cython.uint, 0)
    memcpy(cython.address(word), memory, 4)
    return ntohl(word)  # type: ignore  # noqa: F821
