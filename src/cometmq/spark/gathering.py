# cython: annotation_typing=False, boundscheck=False, wraparound=False, cdivision=True
"""Gathers the buffers of Arrow columns from known positions, each in one step.

``memory`` is an address once compiled, any buffer otherwise; nothing checks that the places are in
it. A text begins at a place in it, or at ``-1 - place`` in the texts that were made up besides; its
size is below 0 where there is none.

    numbers := value * rows       texts := offsets:i32[rows + 1] bytes       bits := lowest first

The layouts are those of Arrow's columnar format.
"""

from __future__ import annotations

from array import array
from itertools import accumulate
from struct import Struct
from typing import Any

from cometmq.protocol.record import LOG_OFFSET_AT

try:
    import cython  # type: ignore[import-untyped]
except ImportError:  # interpreted, without Cython at hand
    from cometmq.system.uncompiled import cython

if cython.compiled:
    from cython.cimports.libc.string import memcpy  # type: ignore

TIME_MS_MAX = (2**63 - 1) // 1000
"""Times further away, which only damage brings about, count as this one."""
_HEX = bytes(range(256)).hex().upper().encode()
_TIME_MS_MAX, _LOG_OFFSET_AT = TIME_MS_MAX, LOG_OFFSET_AT

_i32 = Struct(">i").unpack_from
_i64 = Struct(">q").unpack_from


def i32s(memory: Any, places: Any, count: int, delta: int) -> bytearray:
    """Return the 4-byte numbers that lie ``delta`` behind so many places."""
    if cython.compiled:
        made = bytearray(4 * count)
        out = cython.cast(cython.p_int, cython.cast(cython.p_char, made))
        for row in range(count):
            out[row] = _i32_at(memory + places[row] + delta)
        return made
    return _packed("i", [_i32(memory, place + delta)[0] for place in places[:count]])


def i64s(memory: Any, places: Any, count: int, delta: int) -> bytearray:
    """Return the 8-byte numbers that lie ``delta`` behind so many places."""
    if cython.compiled:
        made = bytearray(8 * count)
        out = cython.cast(cython.p_longlong, cython.cast(cython.p_char, made))
        for row in range(count):
            out[row] = _i64_at(memory + places[row] + delta)
        return made
    return _packed("q", [_i64(memory, place + delta)[0] for place in places[:count]])


def times(memory: Any, places: Any, count: int, delta: int) -> bytearray:
    """Return the times in ms that lie ``delta`` behind so many places, as microseconds."""
    if cython.compiled:
        made = bytearray(8 * count)
        out = cython.cast(cython.p_longlong, cython.cast(cython.p_char, made))
        for row in range(count):
            time_ms = _i64_at(memory + places[row] + delta)
            out[row] = max(-_TIME_MS_MAX, min(time_ms, _TIME_MS_MAX)) * 1000
        return made
    found = [_i64(memory, place + delta)[0] for place in places[:count]]
    if max(map(abs, found), default=0) > TIME_MS_MAX:
        found = [max(-TIME_MS_MAX, min(time_ms, TIME_MS_MAX)) for time_ms in found]
    return _packed("q", [time_ms * 1000 for time_ms in found])


def numbers(values: Any, count: int) -> bytearray:
    """Return so many 4-byte numbers as they are."""
    if cython.compiled:
        made = bytearray(4 * count)
        out = cython.cast(cython.p_int, cython.cast(cython.p_char, made))
        for row in range(count):
            out[row] = values[row]
        return made
    return _packed("i", values[:count])


def bits(values: Any, count: int, kind: int, kinds: int) -> bytearray:
    """Return, for every ``kinds``-th value from the one at ``kind`` on, whether it is 0 or more."""
    if cython.compiled:
        made = bytearray((count + 7) >> 3)
        for row in range(count):
            if values[row * kinds + kind] >= 0:
                made[row >> 3] |= 1 << (row & 7)
        return made
    chosen = values[kind : count * kinds : kinds]
    digits = "".join(["1" if value >= 0 else "0" for value in reversed(chosen)])
    return bytearray(int(digits or "0", 2).to_bytes((count + 7) // 8, "little"))


def offsets(sizes: Any, count: int, kind: int, kinds: int) -> bytearray:
    """Return where texts of these sizes begin and end that stand back to back."""
    if cython.compiled:
        made = bytearray(4 * (count + 1))
        out = cython.cast(cython.p_int, cython.cast(cython.p_char, made))
        end = 0
        for row in range(count):
            end += max(sizes[row * kinds + kind], 0)
            out[row + 1] = end
        return made
    chosen = sizes[kind : count * kinds : kinds]
    return _packed("i", accumulate([max(size, 0) for size in chosen], initial=0))


def texts(
    memory: Any, extra: bytearray, starts: Any, sizes: Any, count: int, kind: int, kinds: int
) -> bytearray:
    """Return the texts of one kind, back to back."""
    if cython.compiled:
        total = 0
        for row in range(count):
            total += max(sizes[row * kinds + kind], 0)
        made = bytearray(total)
        out: Any = made
        made_up: Any = extra
        total = 0
        for row in range(count):
            size = sizes[row * kinds + kind]
            if size > 0:
                start = starts[row * kinds + kind]
                if start >= 0:
                    memcpy(out + total, memory + start, size)
                else:
                    memcpy(out + total, made_up - 1 - start, size)
                total += size
        return made
    made_up_view = memoryview(extra)
    where = zip(
        starts[kind : count * kinds : kinds], sizes[kind : count * kinds : kinds], strict=True
    )
    found = [
        memory[start : start + size] if start >= 0 else made_up_view[-1 - start : size - 1 - start]
        for start, size in where
        if size > 0
    ]
    return bytearray().join(found)


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
    if cython.compiled:
        ends = bytearray(4 * (count + 1))
        end_of = cython.cast(cython.p_int, cython.cast(cython.p_char, ends))
        total = 0
        for row in range(count):
            total += 2 * (host_sizes[row] + 8)
            end_of[row + 1] = total
        made = bytearray(total)
        out = cython.cast(cython.p_uchar, cython.cast(cython.p_char, made))
        for row in range(count):
            size = host_sizes[row]
            _put_hex(out + end_of[row], memory + stores[row] + 8, size)
            _put_hex(out + end_of[row] + 2 * size, memory + records[row] + _LOG_OFFSET_AT, 8)
        return ends, made
    found = [
        memory[store + 8 : store + 8 + size].hex() + memory[at : at + 8].hex()
        for store, size, at in zip(
            stores[:count],
            host_sizes[:count],
            [record + LOG_OFFSET_AT for record in records[:count]],
            strict=True,
        )
    ]
    ends = _packed("i", accumulate(map(len, found), initial=0))
    return ends, bytearray("".join(found).upper().encode())


def _put_hex(out: Any, memory: Any, size: int) -> None:
    digits = _HEX
    for at in range(size):
        out[2 * at] = digits[2 * memory[at]]
        out[2 * at + 1] = digits[2 * memory[at] + 1]


def _i32_at(place: Any) -> int:
    # Those of `octets` would be called through a pointer, for every number of every row.
    high = cython.cast(cython.uint, place[0] << 24 | place[1] << 16)
    return high | place[2] << 8 | place[3]  # type: ignore[no-any-return]


def _i64_at(place: Any) -> int:
    high = cython.cast(cython.ulonglong, cython.cast(cython.uint, _i32_at(place)))
    return high << 32 | cython.cast(cython.uint, _i32_at(place + 4))  # type: ignore[no-any-return]


def _packed(kind: str, values: Any) -> bytearray:
    return bytearray(array(kind, values))
