"""Bloom filters: a bit map per message shows which SQL92 subscriptions it may match.

Each subscription has a few bits. The bit map of a message has the bits of all subscriptions that
it matches. If one of a subscription's bits is not set, the message does not match, and its
properties are not read. The bits are RocketMQ's, so that its brokers read our bit maps and ours
read theirs:

    key       := group "#" topic
    a, b      := low and high 32 bits, signed, of the first word of MurmurHash3 x64 128 (seed 0)
    position  := a + i * b for i = 1, 2, …; its complement if it is negative; modulo the bits
    bit p     is the bit 1 << (p % 8) of byte p // 8

Source: BloomFilter and BitsArray, RocketMQ 5.3.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

_MASK: Final = 2**64 - 1
_C1: Final = 0x87C37B91114253D5
_C2: Final = 0x4CF5AD432745937F

Bits = tuple[tuple[int, int], ...]
"""Bits of a bit map: the number of the byte and the value of the bit, for each."""


class BloomFilter:
    """The size of all bit maps, and the bits of a key.

    Args:
        error_percent: the share of wrong hits, from 1 to 99.
        keys: the number of keys for which that holds.
    """

    def __init__(self, error_percent: int, keys: int) -> None:
        rate = error_percent / 100.0
        self.count = math.ceil(math.log(rate) / math.log(0.5))
        """The bits of one key."""
        bits = math.ceil(
            keys * (math.log(1 / rate) / math.log(2)) * (math.log(math.e) / math.log(2))
        )
        self.size_bytes = -(-bits // 8)

    @property
    def size_bits(self) -> int:
        """The bits of a bit map."""
        return self.size_bytes * 8

    def positions(self, key: str) -> tuple[int, ...]:
        """Return the positions of the bits of a key."""
        word = _first_word(key.encode())
        first, step = _signed32(word), _signed32(word >> 32)
        positions = []
        for number in range(1, self.count + 1):
            combined = _signed32(first + number * step)
            positions.append((~combined if combined < 0 else combined) % self.size_bits)
        return tuple(positions)


def bits_of(positions: Iterable[int]) -> Bits:
    """Return the byte and the value of the bit at each position."""
    return tuple((position // 8, 1 << position % 8) for position in positions)


def has_all(bitmap: bytes, bits: Bits) -> bool:
    """Return whether all of some bits are set."""
    return all(bitmap[number] & bit for number, bit in bits)


def set_all(bitmap: bytearray, bits: Bits) -> None:
    """Set some bits."""
    for number, bit in bits:
        bitmap[number] |= bit


def _signed32(number: int) -> int:
    return (number + 2**31) % 2**32 - 2**31


def _first_word(data: bytes) -> int:
    """Return the first 64 bits of MurmurHash3 x64 128 with seed 0."""
    h1 = h2 = 0
    whole = len(data) // 16 * 16
    for at in range(0, whole, 16):
        h1 ^= _mix_first(int.from_bytes(data[at : at + 8], "little"))
        h1 = (_rotated(h1, 27) + h2) * 5 + 0x52DCE729 & _MASK
        h2 ^= _mix_second(int.from_bytes(data[at + 8 : at + 16], "little"))
        h2 = (_rotated(h2, 31) + h1) * 5 + 0x38495AB5 & _MASK
    h2 ^= _mix_second(int.from_bytes(data[whole + 8 :], "little"))
    h1 ^= _mix_first(int.from_bytes(data[whole : whole + 8], "little"))
    h1 ^= len(data)
    h2 ^= len(data)
    h1 = h1 + h2 & _MASK
    h2 = h2 + h1 & _MASK
    return _finished(h1) + _finished(h2) & _MASK


def _mix_first(word: int) -> int:
    return _rotated(word * _C1 & _MASK, 31) * _C2 & _MASK


def _mix_second(word: int) -> int:
    return _rotated(word * _C2 & _MASK, 33) * _C1 & _MASK


def _rotated(word: int, count: int) -> int:
    return (word << count | word >> 64 - count) & _MASK


def _finished(word: int) -> int:
    word = (word ^ word >> 33) * 0xFF51AFD7ED558CCD & _MASK
    word = (word ^ word >> 33) * 0xC4CEB9FE1A85EC53 & _MASK
    return word ^ word >> 33
