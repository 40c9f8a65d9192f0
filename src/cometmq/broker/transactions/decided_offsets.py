"""The set of decided queue offsets: one bit for each, from the first undecided one on."""

from __future__ import annotations

import re

_NOT_FULL = re.compile(rb"[^\xff]")
_TRIMMED_BYTES = 4096


class DecidedOffsets:
    """The decided offsets of the half queue; all before ``base`` are.

    Args:
        base: the first offset that may be undecided.
    """

    def __init__(self, base: int = 0) -> None:
        self._start = base & ~7
        self._bits = bytearray()
        self.base = base
        self.count = 0
        """How many offsets from the base on are decided."""
        for offset in range(self._start, base):
            self._set(offset)

    def __contains__(self, offset: int) -> bool:
        if offset < self.base:
            return True
        at = offset - self._start
        return at >> 3 < len(self._bits) and bool(self._bits[at >> 3] >> (at & 7) & 1)

    def add(self, offset: int) -> None:
        """Add an offset of the queue: one far beyond its end would take memory."""
        if offset >= self.base and self._set(offset):
            self.count += 1

    def _set(self, offset: int) -> bool:
        """Set the bit of an offset; return whether it was not set."""
        at = offset - self._start
        missing = (at >> 3) + 1 - len(self._bits)
        if missing > 0:
            self._bits.extend(bytes(max(missing, len(self._bits) // 8)))
        before = self._bits[at >> 3]
        after = before | 1 << (at & 7)
        self._bits[at >> 3] = after
        return after != before

    def first_open(self, offset: int) -> int:
        """Return the first undecided offset from ``offset`` on, perhaps one the queue lacks."""
        at = max(offset, self.base) - self._start
        byte = at >> 3
        if byte >= len(self._bits):
            return self._start + at
        bits = self._bits[byte] | (1 << (at & 7)) - 1
        if bits == 0xFF:
            found = _NOT_FULL.search(self._bits, byte + 1)
            byte = len(self._bits) if found is None else found.start()
            bits = 0 if found is None else self._bits[byte]
        return self._start + byte * 8 + (~bits & -~bits).bit_length() - 1

    def advance(self, base: int) -> None:
        """Move the base: all offsets before it are decided."""
        base = max(base, self.base)
        self.count -= self._count(self.base, base)
        self.base = base
        whole = (self.base - self._start) >> 3
        if whole >= _TRIMMED_BYTES:
            del self._bits[:whole]
            self._start += whole * 8

    def _count(self, begin: int, end: int) -> int:
        """Return how many bits of a range are set."""
        first = begin - self._start
        part = self._bits[first >> 3 : (end - self._start + 7) >> 3]
        bits = int.from_bytes(part, "little") >> (first & 7)
        return (bits & (1 << end - begin) - 1).bit_count()

    @property
    def size_bytes(self) -> int:
        """The memory of the bits."""
        return len(self._bits)
