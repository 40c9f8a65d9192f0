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
        for offset in range(self._start, base):
            self._set(offset)

    def __contains__(self, offset: int) -> bool:
        if offset < self.base:
            return True
        at = offset - self._start
        return at >> 3 < len(self._bits) and bool(self._bits[at >> 3] >> (at & 7) & 1)

    def add(self, offset: int) -> None:
        """Add an offset of the queue: one far beyond its end would take memory."""
        if offset >= self.base:
            self._set(offset)

    def _set(self, offset: int) -> None:
        at = offset - self._start
        missing = (at >> 3) + 1 - len(self._bits)
        if missing > 0:
            self._bits.extend(bytes(max(missing, len(self._bits) // 8)))
        self._bits[at >> 3] |= 1 << (at & 7)

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
        self.base = max(base, self.base)
        whole = (self.base - self._start) >> 3
        if whole >= _TRIMMED_BYTES:
            del self._bits[:whole]
            self._start += whole * 8

    @property
    def size_bytes(self) -> int:
        """The memory of the bits."""
        return len(self._bits)
