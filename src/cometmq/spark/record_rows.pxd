cimport cython

from cometmq.protocol cimport checksum, lazy_record, octets, properties
from cometmq.protocol.record cimport body_at, store_time_at


cdef int _COMPRESSED, _BORN_V6, _STORE_V6, _WRAPPED, _CRC_BITS, _V2
cdef int _TOPIC, _BODY, _TAGS, _KEYS, _ID, _BORN, _STORE, _KINDS
cdef int _QUEUE_OFFSET_AT, _LOG_OFFSET_AT, _SYS_FLAG_AT, _MAGIC_AT, _CRC_AT, _BORN_HOST_AT
cdef int _COMPARED_MAX


cdef class RecordRows:
    cdef readonly object problem
    cdef readonly bytearray extra
    cdef long long[::1] records
    cdef long long[::1] stores
    cdef long long[::1] heads
    cdef int[::1] flags
    cdef int[::1] host_sizes
    cdef int[::1] faults
    cdef int[::1] entries
    cdef long long[::1] starts
    cdef int[::1] sizes
    cdef long long[::1] name_starts
    cdef int[::1] name_sizes
    cdef long long[::1] value_starts
    cdef int[::1] value_sizes
    cdef Py_ssize_t entry_count
    cdef bint _decompress, _crc, _permissive, _wants_properties, _wants_map, _wants_offset_id
    cdef bint _wants_body, _wants_topic, _wants_id, _wants_born, _wants_store
    cdef int[::1] _counted
    cdef int _counted_kinds
    cdef int _row_bytes
    cdef Py_ssize_t _max_rows
    cdef long long _max_bytes
    cdef Py_ssize_t _room, _entry_room, _text_at
    cdef int _text_bytes
    cdef dict _hosts
    cdef long long[::1] _host_at
    cdef int[::1] _host_bytes

    @cython.locals(
        limit=cython.Py_ssize_t, rows=cython.Py_ssize_t, size=cython.Py_ssize_t,
        chosen=tuple, used=cython.longlong, cost=cython.longlong, log_offset=cython.longlong,
        max_rows=cython.Py_ssize_t, max_bytes=cython.longlong, chooses=cython.bint)
    cpdef tuple walk(
        self, object data, Py_ssize_t position, Py_ssize_t stop, object topics, long long first_offset, long long end_offset,
        long long log_base)
    cdef int _make_room(self) except -1
    @cython.locals(room=cython.Py_ssize_t)
    cdef int _make_entry_room(self, Py_ssize_t needed) except -1

    @cython.locals(
        flag=cython.int, at=cython.Py_ssize_t, head=cython.Py_ssize_t, body_bytes=cython.int,
        topic_bytes=cython.int)
    cdef void _measure(
        self, const unsigned char* memory, Py_ssize_t row, Py_ssize_t record) noexcept
    @cython.locals(at=cython.Py_ssize_t, size=cython.int, topic=bytes)
    cdef bint _has_topic(
        self, const unsigned char* memory, Py_ssize_t row, tuple topics) except -1
    @cython.locals(is_compressed=cython.int, at=cython.Py_ssize_t, size=cython.int)
    cdef bint _open(self, const unsigned char* memory, Py_ssize_t row) except -1
    @cython.locals(
        met=cython.int, stored=cython.int, head=cython.Py_ssize_t, body_bytes=cython.int)
    cdef bint _check_crc(self, const unsigned char* memory, Py_ssize_t row) except -1
    @cython.locals(stored=bytes, body=bytes)
    cdef bint _inflate(self, const unsigned char* memory, Py_ssize_t row) except -1
    cdef int _keep(self, Py_ssize_t row, int kind, bytes text) except -1
    @cython.locals(number=cython.Py_ssize_t, host=bytes)
    cdef int _find_host(
        self, const unsigned char* memory, Py_ssize_t row, int kind, Py_ssize_t at,
        int size) except -1

    @cython.locals(
        size=cython.Py_ssize_t, base=cython.longlong, text=bytes, host=bytes,
        log_offset=cython.longlong)
    cdef int _find_properties(self, const unsigned char* memory, Py_ssize_t row) except -1
    @cython.locals(place=cython.longlong)
    cdef long long _add(self, bytes text) except 1
    @cython.locals(
        first=cython.Py_ssize_t, count=cython.Py_ssize_t, at=cython.Py_ssize_t,
        stop=cython.Py_ssize_t, middle=cython.Py_ssize_t, known=cython.Py_ssize_t)
    cdef bint _list(
        self, const unsigned char* source, Py_ssize_t size, Py_ssize_t row,
        long long base) except -1
    @cython.locals(entry=cython.Py_ssize_t, size=cython.int, at=cython.Py_ssize_t)
    cdef Py_ssize_t _known_name(
        self, const unsigned char* source, Py_ssize_t first, Py_ssize_t last,
        long long base) noexcept
    @cython.locals(
        number=cython.Py_ssize_t, entry=cython.Py_ssize_t, at=cython.Py_ssize_t,
        size=cython.int, kind=cython.int)
    cdef void _find_in_list(
        self, const unsigned char* source, Py_ssize_t row, long long base) noexcept
    @cython.locals(
        tags=cython.Py_ssize_t, tags_end=cython.Py_ssize_t, keys=cython.Py_ssize_t,
        keys_end=cython.Py_ssize_t, id_at=cython.Py_ssize_t, id_end=cython.Py_ssize_t)
    cdef void _find_in_text(
        self, const unsigned char* source, Py_ssize_t size, Py_ssize_t row,
        long long base) noexcept
    cdef void _put_span(
        self, Py_ssize_t number, Py_ssize_t start, Py_ssize_t end, long long base) noexcept
    @cython.locals(cost=cython.longlong, number=cython.int, entry=cython.Py_ssize_t)
    cdef long long _cost(self, Py_ssize_t row) noexcept


cdef long long _placed(long long at, long long base) noexcept
cdef long long _found(long long place, long long base) noexcept
cdef bytes _mended(bytes text)

@cython.locals(queue_offset=cython.longlong)
cdef bint _is_chosen(
    const unsigned char* memory, Py_ssize_t record, long long first_offset,
    long long end_offset) noexcept
