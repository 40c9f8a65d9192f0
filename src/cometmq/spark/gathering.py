# cython: annotation_typing=False, boundscheck=False, wraparound=False, cdivision=True
"""Gathers the buffers of Arrow columns from known positions, each in one step.

``memory`` is an address once compiled, any buffer otherwise; nothing checks that the places are in
it. A text begins at a place in it, or at ``-1 - place`` in the texts that were made up besides; its
size is below 0 where there is none.

    numbers := value * rows       texts := offsets:i32[rows + 1] bytes       bits := lowest first

The layouts are those of Arrow's columnar format.
"""

from __future__ import annotations

from struct import Struct
from typing import Any

from cometmq.protocol.record import LOG_OFFSET_AT

try:
    import cython  # type: ignore[import-untyped]
except ImportError:  # interpreted, without Cython at hand
    from cometmq.system.uncompiled import cython

if cython.compiled:
    from cython.cimports.cpython.bytearray import (  # type: ignore
        PyByteArray_FromStringAndSize as bytearray_of,
    )
    from cython.cimports.libc.string import memcpy  # type: ignore

TIME_MS_MAX = (2**63 - 1) // 1000
"""Times further away, which only damage brings about, count as this one."""
_HEX = bytes(range(256)).hex().upper().encode()
_TIME_MS_MAX, _LOG_OFFSET_AT = TIME_MS_MAX, LOG_OFFSET_AT

_i32 = Struct(">i").unpack_from
_i64 = Struct(">q").unpack_from


def i32s(memory: Any, places: Any, count: int, delta: int) -> bytearray:
    """Return the 4-byte numbers that lie ``delta`` behind so many places."""
    made = _space(4 * count)
    out = memoryview(made).cast("i")
    for row in range(count):
        out[row] = _i32_at(memory, places[row] + delta)
    return made


def i64s(memory: Any, places: Any, count: int, delta: int) -> bytearray:
    """Return the 8-byte numbers that lie ``delta`` behind so many places."""
    made = _space(8 * count)
    out = memoryview(made).cast("q")
    for row in range(count):
        out[row] = _i64_at(memory, places[row] + delta)
    return made


def times(memory: Any, places: Any, count: int, delta: int) -> bytearray:
    """Return the times in ms that lie ``delta`` behind so many places, as microseconds."""
    made = _space(8 * count)
    out = memoryview(made).cast("q")
    for row in range(count):
        time_ms = _i64_at(memory, places[row] + delta)
        out[row] = max(-_TIME_MS_MAX, min(time_ms, _TIME_MS_MAX)) * 1000
    return made


def numbers(values: Any, count: int) -> bytearray:
    """Return so many 4-byte numbers as they are."""
    return bytearray(values[:count])


def bits(values: Any, count: int, kind: int, kinds: int) -> bytearray:
    """Return, for every ``kinds``-th value from the one at ``kind`` on, whether it is 0 or more."""
    made = bytearray((count + 7) >> 3)
    for row in range(count):
        if values[row * kinds + kind] >= 0:
            made[row >> 3] |= 1 << (row & 7)
    return made


def offsets(sizes: Any, count: int, kind: int, kinds: int) -> bytearray:
    """Return where texts of these sizes begin and end that stand back to back."""
    made = _space(4 * (count + 1))
    out = memoryview(made).cast("i")
    out[0] = end = 0
    for row in range(count):
        end += max(sizes[row * kinds + kind], 0)
        out[row + 1] = end
    return made


def texts(
    memory: Any, extra: bytearray, starts: Any, sizes: Any, count: int, kind: int, kinds: int
) -> bytearray:
    """Return the texts of one kind, back to back."""
    total = 0
    for row in range(count):
        total += max(sizes[row * kinds + kind], 0)
    made = _space(total)
    out: Any = made
    made_up: Any = extra
    total = 0
    for row in range(count):
        size = sizes[row * kinds + kind]
        if size > 0:
            start = starts[row * kinds + kind]
            if start >= 0:
                _copy(out, total, memory, start, size)
            else:
                _copy(out, total, made_up, -1 - start, size)
            total += size
    return made


def offset_ids(
    memory: Any, stores: Any, records: Any, host_sizes: Any, count: int
) -> tuple[bytearray, bytearray]:
    """Return the ids made of the broker's address and the log offset, and where they begin.

    Args:
        memory: where the records are.
        stores: where the store time of each is; the address follows it.
        records: where each begins.
        host_sizes: how long each address is.
        count: how many there are.
    """
    ends = _space(4 * (count + 1))
    end_of = memoryview(ends).cast("i")
    end_of[0] = total = 0
    for row in range(count):
        total += 2 * (host_sizes[row] + 8)
        end_of[row + 1] = total
    made = _space(total)
    out: Any = made
    for row in range(count):
        size = host_sizes[row]
        _put_hex(out, end_of[row], memory, stores[row] + 8, size)
        _put_hex(out, end_of[row] + 2 * size, memory, records[row] + _LOG_OFFSET_AT, 8)
    return ends, made


def _space(size: int) -> bytearray:
    """Return bytes to write to, which compiled are not made zeros first."""
    if cython.compiled:
        return bytearray_of(cython.NULL, size)  # type: ignore[no-any-return]
    return bytearray(size)


def _put_hex(out: Any, at: int, memory: Any, start: int, size: int) -> None:
    if cython.compiled:
        digits = _HEX
        for index in range(size):
            memcpy(out + at + 2 * index, digits + 2 * memory[start + index], 2)
    else:
        out[at : at + 2 * size] = memory[start : start + size].hex().upper().encode()


def _copy(out: Any, at: int, memory: Any, start: int, size: int) -> None:
    if cython.compiled:
        memcpy(out + at, memory + start, size)
    else:
        out[at : at + size] = memory[start : start + size]


def _i32_at(memory: Any, at: int) -> int:
    if cython.compiled:  # `octets` would be called through a pointer, for every number of every row
        place = memory + at
        high = cython.cast(cython.uint, place[0] << 24 | place[1] << 16)
        return high | place[2] << 8 | place[3]  # type: ignore[no-any-return]
    return int(_i32(memory, at)[0])


def _i64_at(memory: Any, at: int) -> int:
    if cython.compiled:
        high = cython.cast(cython.ulonglong, cython.cast(cython.uint, _i32_at(memory, at)))
        low = cython.cast(cython.uint, _i32_at(memory, at + 4))
        return high << 32 | low  # type: ignore[no-any-return]
    return int(_i64(memory, at)[0])
