# cython: annotation_typing=False, boundscheck=False, wraparound=False, cdivision=True
"""Reads and writes records, queue units and index entries in mapped memory.

    record      = see `cometmq.protocol.record`
    queue unit  = log_offset:i64 size:i32 tags_code:i64
    index entry = key_hash:i32 log_offset:i64 seconds:i32 previous:i32

``memory`` is a mapping; compiled, it is the address of the mapping, and the caller must have
checked the bounds. Compiled and interpreted code differ where one number or one run of bytes is
read or written, where recovery reads much, and in a few loops of `consume_queue.py` and
`key_index.py`.
Source: CommitLog, ConsumeQueue and IndexFile, RocketMQ 5.3.
"""

from __future__ import annotations

from struct import Struct
from typing import Any

from cometmq.protocol.record import (
    BODY_CRC_AT,
    BORN_HOST_AT,
    BORN_TIME_AT,
    FLAG_AT,
    LOG_OFFSET_AT,
    MAGIC_AT,
    PREFIX,
    QUEUE_ID_AT,
    QUEUE_OFFSET_AT,
    SYS_FLAG_AT,
)
from cometmq.store.log.new_record import NewRecord

try:
    import cython  # type: ignore[import-untyped]
except ImportError:  # interpreted, without Cython at hand
    from cometmq.system.uncompiled import cython

if cython.compiled:
    from cython.cimports.libc.string import memcpy  # type: ignore

_UNIT = Struct(">qiq")
_I16, _I32, _I64 = Struct(">h"), Struct(">i"), Struct(">q")
# C numbers once compiled.
_MAGIC_AT, _BODY_CRC_AT, _QUEUE_ID_AT, _FLAG_AT = MAGIC_AT, BODY_CRC_AT, QUEUE_ID_AT, FLAG_AT
_QUEUE_OFFSET_AT, _LOG_OFFSET_AT, _SYS_FLAG_AT = QUEUE_OFFSET_AT, LOG_OFFSET_AT, SYS_FLAG_AT
_BORN_TIME_AT, _BORN_HOST_AT = BORN_TIME_AT, BORN_HOST_AT


def address_of(mapping: Any) -> Any:
    """Return the memory argument of the functions below; ``mapping`` must outlive it."""
    if cython.compiled:
        return cython.cast(cython.p_uchar, cython.address(mapping[0]))
    return mapping


def prefetch_at(memory: Any, position: int) -> None:
    """Prefetch the cache line at ``position``, which is written soon."""
    if cython.compiled:
        # A builtin of the C compiler, declared in the .pxd.
        prefetch(memory + position, 1)  # type: ignore[name-defined]  # noqa: F821


def get_i16(memory: Any, position: int) -> int:
    """Return the 2-byte integer at ``position``."""
    if cython.compiled:
        return cython.cast(cython.short, memory[position] << 8 | memory[position + 1])  # type: ignore[no-any-return]
    return int(_I16.unpack_from(memory, position)[0])


def get_i32(memory: Any, position: int) -> int:
    """Return the 4-byte integer at ``position``."""
    if cython.compiled:
        word = cython.cast(cython.uint, 0)
        memcpy(cython.address(word), memory + position, 4)
        return cython.cast(cython.int, ntohl(word))  # type: ignore  # noqa: F821
    return int(_I32.unpack_from(memory, position)[0])


def get_i64(memory: Any, position: int) -> int:
    """Return the 8-byte integer at ``position``."""
    if cython.compiled:
        high = cython.cast(cython.ulonglong, cython.cast(cython.uint, get_i32(memory, position)))
        low = cython.cast(cython.uint, get_i32(memory, position + 4))
        return cython.cast(cython.longlong, high << 32 | low)  # type: ignore[no-any-return]
    return int(_I64.unpack_from(memory, position)[0])


def put_i16(memory: Any, position: int, value: int) -> None:
    """Write a 2-byte integer."""
    if cython.compiled:
        memory[position] = (value >> 8) & 0xFF
        memory[position + 1] = value & 0xFF
    else:
        _I16.pack_into(memory, position, value)


def put_i32(memory: Any, position: int, value: int) -> None:
    """Write a 4-byte integer."""
    if cython.compiled:
        word = htonl(cython.cast(cython.uint, value))  # type: ignore  # noqa: F821
        memcpy(memory + position, cython.address(word), 4)
    else:
        _I32.pack_into(memory, position, value)


def put_i64(memory: Any, position: int, value: int) -> None:
    """Write an 8-byte integer."""
    if cython.compiled:
        put_i32(memory, position, value >> 32)
        put_i32(memory, position + 4, value)
    else:
        _I64.pack_into(memory, position, value)


def put_bytes(memory: Any, position: int, data: bytes) -> None:
    """Write bytes as they are."""
    if cython.compiled:
        memcpy(memory + position, cython.cast(cython.p_uchar, data), len(data))
    else:
        memory[position : position + len(data)] = data


def put_memory(memory: Any, position: int, source: Any, start: int, size: int) -> None:
    """Copy ``size`` bytes from ``start`` of other memory."""
    if cython.compiled:
        memcpy(memory + position, source + start, size)
    else:
        memory[position : position + size] = source[start : start + size]


def write_record(memory: Any, position: int, record: NewRecord, source: Any, text: Any) -> None:
    """Write a whole record.

    Args:
        memory: where it goes.
        position: where it begins there.
        record: its fields.
        source, text: the memory of `NewRecord.source` and `NewRecord.text`.
    """
    text_bytes = record.text_end - record.text_at
    has_separator = text_bytes + len(record.more) < record.properties_bytes
    body_bytes = record.body_end - record.body_at
    put_i32(memory, position, record.size_bytes)
    put_i32(memory, position + _MAGIC_AT, record.magic)
    put_i32(memory, position + _BODY_CRC_AT, record.body_crc)
    put_i32(memory, position + _QUEUE_ID_AT, record.queue_id)
    put_i32(memory, position + _FLAG_AT, record.flag)
    put_i64(memory, position + _QUEUE_OFFSET_AT, record.queue_offset)
    put_i64(memory, position + _LOG_OFFSET_AT, record.log_offset)
    put_i32(memory, position + _SYS_FLAG_AT, record.sys_flag)
    put_i64(memory, position + _BORN_TIME_AT, record.born_time_ms)
    put_bytes(memory, position + _BORN_HOST_AT, record.born_host)
    position += _BORN_HOST_AT + len(record.born_host)
    put_i64(memory, position, record.store_time_ms)
    put_bytes(memory, position + 8, record.store_host)
    position += 8 + len(record.store_host)
    put_i32(memory, position, record.reconsume_times)
    put_i64(memory, position + 4, record.prepared_offset)
    put_i32(memory, position + 12, body_bytes)
    put_memory(memory, position + 16, source, record.body_at, body_bytes)
    position += 16 + body_bytes
    put_bytes(memory, position, record.topic_field)
    position += len(record.topic_field)
    put_i16(memory, position, record.properties_bytes)
    put_memory(memory, position + 2, text, record.text_at, text_bytes)
    position += 2 + record.properties_bytes - len(record.more)
    if has_separator:
        memory[position - 1] = 2
    put_bytes(memory, position, record.more)


def read_prefix(memory: Any, position: int) -> tuple[int, int, int, int, int, int, int, int]:
    """Return the first fields of a record, up to ``sys_flag``."""
    if cython.compiled:
        return (
            get_i32(memory, position),
            get_i32(memory, position + _MAGIC_AT),
            get_i32(memory, position + _BODY_CRC_AT),
            get_i32(memory, position + _QUEUE_ID_AT),
            get_i32(memory, position + _FLAG_AT),
            get_i64(memory, position + _QUEUE_OFFSET_AT),
            get_i64(memory, position + _LOG_OFFSET_AT),
            get_i32(memory, position + _SYS_FLAG_AT),
        )
    return PREFIX.unpack_from(memory, position)


def write_unit(memory: Any, position: int, log_offset: int, size: int, code: int) -> None:
    """Write a unit of a consume queue."""
    put_i64(memory, position, log_offset)
    put_i32(memory, position + 8, size)
    put_i64(memory, position + 12, code)


def read_unit(memory: Any, position: int) -> tuple[int, int, int]:
    """Return log offset, size and tags code of a unit of a consume queue."""
    if cython.compiled:
        return (
            get_i64(memory, position),
            get_i32(memory, position + 8),
            get_i64(memory, position + 12),
        )
    return _UNIT.unpack_from(memory, position)


def add_entry(
    memory: Any,
    slot: int,
    position: int,
    number: int,
    key_hash: int,
    log_offset: int,
    seconds: int,
) -> int:
    """Write entry ``number`` of an index file at ``position`` and make it its slot's newest.

    Returns:
        The number of the entry that was the newest before, 0 for none.
    """
    previous = get_i32(memory, slot)
    if previous <= 0 or previous > number:
        previous = 0
    put_i32(memory, position, key_hash)
    put_i64(memory, position + 4, log_offset)
    put_i32(memory, position + 12, seconds)
    put_i32(memory, position + 16, previous)
    put_i32(memory, slot, number)
    return previous


def rebuild_slots(memory: Any, slots_at: int, slots: int, entries_at: int, stop: int) -> int:
    """Write the hash slots of an index file, all zero now, from its entries 1 to ``stop``.

    Returns:
        How many slots are used.
    """
    used = 0
    for number in range(1, stop):
        key_hash = get_i32(memory, entries_at + number * 20)
        if key_hash < 0:
            continue
        slot = slots_at + key_hash % slots * 4
        if get_i32(memory, slot) == 0:
            used += 1
        put_i32(memory, slot, number)
    return used


def write_index_header(
    memory: Any,
    begin_ms: int,
    end_ms: int,
    begin_log: int,
    end_log: int,
    slots_used: int,
    next_entry: int,
) -> None:
    """Write the header of an index file."""
    put_i64(memory, 0, begin_ms)
    put_i64(memory, 8, end_ms)
    put_i64(memory, 16, begin_log)
    put_i64(memory, 24, end_log)
    put_i32(memory, 32, slots_used)
    put_i32(memory, 36, next_entry)


def read_entry(memory: Any, position: int) -> tuple[int, int, int, int]:
    """Return key hash, log offset, seconds and previous entry of an entry of an index file."""
    return (
        get_i32(memory, position),
        get_i64(memory, position + 4),
        get_i32(memory, position + 12),
        get_i32(memory, position + 16),
    )


def count_valid_units(memory: Any, start: int, stop: int, unit_bytes: int) -> int:
    """Return how many units from ``start`` on have a log offset and a size, up to ``stop``."""
    count = 0
    while (
        start + unit_bytes <= stop
        and get_i64(memory, start) >= 0
        and get_i32(memory, start + 8) > 0
    ):
        count += 1
        start += unit_bytes
    return count
