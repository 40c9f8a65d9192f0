# cython: annotation_typing=False, boundscheck=False, wraparound=False, cdivision=True
"""The checksum of a body: CRC-32, of any part of a buffer.

Compiled, short runs go eight bytes at a step through tables, which is quicker than a call of zlib;
long ones go to zlib, which is quicker there.

Source: CRC-32 of ISO 3309 as java.util.zip.CRC32 computes it; slicing by eight after Kounavis and
Berry, 2005.
"""

from __future__ import annotations

from array import array
from typing import Any
from zlib import crc32

try:
    import cython  # type: ignore[import-untyped]
except ImportError:  # interpreted, without Cython at hand
    from cometmq.system.uncompiled import cython

_POLYNOMIAL = 0xEDB88320
_SHORT_BYTES_MAX = 640


def crc_of(data: Any, start: int, stop: int) -> int:
    """Return the CRC-32 of the bytes from ``start`` up to ``stop``; unsigned."""
    if cython.compiled:
        if stop - start > _SHORT_BYTES_MAX:
            return crc32(data[start:stop])
        return _sliced(data, start, stop)
    return crc32(memoryview(data)[start:stop])


def _tables() -> bytes:
    """Eight tables of 256 numbers: what a byte does to the rest, 0 to 7 bytes further on."""
    first = []
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = value >> 1 ^ (_POLYNOMIAL if value & 1 else 0)
        first.append(value)
    table = first
    tables = array("I", first)
    for _ in range(7):
        table = [value >> 8 ^ first[value & 0xFF] for value in table]
        tables.extend(table)
    return tables.tobytes()


_TABLES = _tables()


def _sliced(data: Any, at: int, stop: int) -> int:
    if cython.compiled:
        table = cython.cast(cython.p_uint, cython.cast(cython.p_char, _TABLES))
        crc = ~cython.cast(cython.uint, 0)
        place = cython.cast(cython.p_uchar, data + at)
        # Each byte has the table of its distance to the end of the eight: no lookup waits for
        # another one, as it does byte by byte.
        while at + 8 <= stop:
            low = crc ^ (place[0] | place[1] << 8 | place[2] << 16 | place[3] << 24)
            high = place[4] | place[5] << 8 | place[6] << 16 | place[7] << 24
            crc = (
                table[1792 + (low & 0xFF)]
                ^ table[1536 + (low >> 8 & 0xFF)]
                ^ table[1280 + (low >> 16 & 0xFF)]
                ^ table[1024 + (low >> 24)]
                ^ table[768 + (high & 0xFF)]
                ^ table[512 + (high >> 8 & 0xFF)]
                ^ table[256 + (high >> 16 & 0xFF)]
                ^ table[high >> 24]
            )
            place += 8
            at += 8
        while at < stop:
            crc = crc >> 8 ^ table[(crc ^ data[at]) & 0xFF]
            at += 1
        return ~crc  # type: ignore[no-any-return]
    raise NotImplementedError
