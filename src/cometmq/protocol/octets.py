# cython: annotation_typing=False, boundscheck=False, wraparound=False
"""Numbers and slices taken out of buffers of received bytes, each in one step.

Compiled, a buffer is an address and nothing checks the bounds: the caller has. This is the one
module of the protocol that knows whether it is compiled.

Source: ours.
"""

from __future__ import annotations

from struct import Struct

try:
    import cython  # type: ignore[import-untyped]
except ImportError:  # interpreted, without Cython at hand
    from cometmq.system.uncompiled import cython

_unpack_two = Struct(">II").unpack_from
_unpack_i32 = Struct(">i").unpack_from
_unpack_i16 = Struct(">h").unpack_from


def two_u32(data: bytes | bytearray, position: int) -> tuple[int, int]:
    """Return the two unsigned 4-byte numbers at ``position``, big-endian."""
    if cython.compiled:
        return _u32(data, position), _u32(data, position + 4)
    return _unpack_two(data, position)


def i32_at(data: bytes | bytearray, position: int) -> int:
    """Return the signed 4-byte number at ``position``, big-endian."""
    if cython.compiled:
        return _u32(data, position)
    return int(_unpack_i32(data, position)[0])


def i16_at(data: bytes | bytearray, position: int) -> int:
    """Return the signed 2-byte number at ``position``, big-endian."""
    if cython.compiled:
        memory: cython.p_uchar = data
        return memory[position] << 8 | memory[position + 1]  # type: ignore[no-any-return]
    return int(_unpack_i16(data, position)[0])


def copy_of(data: bytes | bytearray, start: int, end: int) -> bytes:
    """Return a copy of the bytes from ``start`` up to ``end``."""
    if cython.compiled:
        memory: cython.p_char = data
        return memory[start:end]  # type: ignore[no-any-return]
    return bytes(data[start:end])


def _u32(data: bytes | bytearray, position: int) -> int:
    memory: cython.p_uchar = data
    value = memory[position] << 24 | memory[position + 1] << 16
    return value | memory[position + 2] << 8 | memory[position + 3]  # type: ignore[no-any-return]
