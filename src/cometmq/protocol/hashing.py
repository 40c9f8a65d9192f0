# cython: annotation_typing=False
"""Java's hash of a text, by which brokers compare tags and find keys.

    hash := 0 for the empty text, else 31 * hash(all but the last unit) + last unit, in 32 bits

A unit is one of UTF-16; an ASCII character is one unit and one byte. So the hash of a text goes on
from the hash of any beginning of it.

Source: String.hashCode and IndexFile.indexKeyHashMethod, RocketMQ 5.3.
"""

from __future__ import annotations

import sys
from array import array
from functools import lru_cache
from operator import mul
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cometmq.protocol.octets import Memory

try:
    import cython  # type: ignore[import-untyped]
except ImportError:  # interpreted, without Cython at hand
    from cometmq.system.uncompiled import cython

_REPEATED_BYTES_MAX = 32
_ID_BEGINNING_BYTES, _ID_BYTES_MAX = 24, 64
_MASK = 0xFFFFFFFF
_SIGN = 0x80000000
_UTF16 = f"utf-16-{'le' if sys.byteorder == 'little' else 'be'}"
_POWERS = [pow(31, exponent, 2**32) for exponent in range(1024)]


def java_hash(text: str) -> int:
    """Return the signed 32-bit hash of a text."""
    if text.isascii():
        return _extend_ascii(0, text.encode())
    return _extend_text(0, text)


def extend_hash(hash_of_prefix: int, data: bytes) -> int:
    """Return the hash of a text whose beginning has the given hash and whose rest is ``data``.

    Args:
        hash_of_prefix: 0 if ``data`` is the whole text.
        data: UTF-8; broken sequences count as replacement characters.
    """
    return extend_hash_in(hash_of_prefix, data, 0, len(data))


def extend_hash_in(hash_of_prefix: int, memory: Memory, at: int, end: int) -> int:
    """Return the hash as `extend_hash`, for data that is from ``at`` to ``end`` in a buffer."""
    if cython.compiled:
        hashed = hash_of_prefix
        place = cython.cast(cython.p_uchar, memory + at)
        left = end - at
        seen = 0
        while left >= 4:  # four at a step, or each would wait for the one before
            seen |= place[0] | place[1] | place[2] | place[3]
            hashed = hashed * 923521 + place[0] * 29791 + place[1] * 961 + place[2] * 31 + place[3]
            place += 4
            left -= 4
        while left > 0:
            seen |= place[0]
            hashed = hashed * 31 + place[0]
            place += 1
            left -= 1
        if seen >= 128:  # not ASCII, so units are not bytes: what was computed is void
            return _extend_text(hash_of_prefix, memory[at:end].decode("utf-8", "replace"))
        return hashed
    data = bytes(memory[at:end])
    if hash_of_prefix == 0 and len(data) <= _REPEATED_BYTES_MAX:
        return _hash_again(data)
    if data.isascii():
        return _extend_ascii(hash_of_prefix, data)
    return _extend_text(hash_of_prefix, data.decode("utf-8", "replace"))


@lru_cache(1024)
def _hash_again(data: bytes) -> int:
    """Return the hash of bytes that occur often, such as tags; interpreted, from a cache."""
    return _extend_text(0, data.decode("utf-8", "replace"))


def index_hash(key_hash: int) -> int:
    """Return the hash under which the index files keep a key: never negative."""
    if key_hash >= 0:
        return key_hash
    # One number has no positive counterpart in 32 bits.
    return 0 if key_hash == -0x80000000 else -key_hash


def _extend_ascii(hash_of_prefix: int, data: bytes) -> int:
    if cython.compiled:
        hashed = hash_of_prefix
        for unit in data:
            hashed = hashed * 31 + unit
        return hashed
    size = len(data)
    if size >= len(_POWERS):
        return _extend_text(hash_of_prefix, data.decode())
    if _ID_BEGINNING_BYTES < size <= _ID_BYTES_MAX:
        hash_of_prefix = _extend_again(hash_of_prefix, data[:_ID_BEGINNING_BYTES])
        data = data[_ID_BEGINNING_BYTES:]
    return _extend_by_powers(hash_of_prefix, data)


def _extend_by_powers(hash_of_prefix: int, data: bytes) -> int:
    """Interpreted, the hash of ASCII that is not long."""
    total: int = hash_of_prefix * _POWERS[len(data)] + sum(map(mul, reversed(data), _POWERS))
    return ((total + _SIGN) & _MASK) - _SIGN


_extend_again = lru_cache(4096)(_extend_by_powers)
"""Caches hashes of frequent prefixes, such as the prefixes of the unique ids of a producer."""


def _extend_text(hash_of_prefix: int, text: str) -> int:
    total = hash_of_prefix
    for code in array("H", text.encode(_UTF16, "surrogatepass")):
        total = (total * 31 + code) & _MASK
    return ((total + _SIGN) & _MASK) - _SIGN
