cimport cython

from cometmq.protocol cimport checksum, lazy_record, octets, properties


cdef extern from *:
    """
    static inline int cometmq_i32(const unsigned char *p) {
        return (int)((unsigned int)p[0] << 24 | (unsigned int)p[1] << 16
            | (unsigned int)p[2] << 8 | (unsigned int)p[3]);
    }
    static inline long long cometmq_i64(const unsigned char *p) {
        return (long long)((unsigned long long)(unsigned int)cometmq_i32(p) << 32
            | (unsigned int)cometmq_i32(p + 4));
    }
    """
    int i32_at "cometmq_i32"(const unsigned char* place) noexcept
    long long i64_at "cometmq_i64"(const unsigned char* place) noexcept


cdef int _COMPRESSED, _BORN_V6, _STORE_V6, _CRC_BITS, _V2
cdef int _TOPIC, _BODY, _TAGS, _KEYS, _ID, _BORN, _STORE, _KINDS
cdef int _QUEUE_OFFSET_AT, _LOG_OFFSET_AT, _SYS_FLAG_AT, _MAGIC_AT, _CRC_AT, _BORN_HOST_AT
cdef int _COMPARED_MAX
cdef long long _BATCH_BYTES_MAX


cdef struct Row:
    const unsigned char* record
    const unsigned char* properties
    const unsigned char* texts[7]
    int text_bytes[7]  # below 0 where there is none
    int properties_bytes
    int entries  # how many properties there are, if anybody wants them
    int size
    int store_at  # where the store time begins
    int head  # where the body begins
    int sys_flag
    int valid


cdef struct Entry:
    const unsigned char* name
    const unsigned char* value
    int name_bytes
    int value_bytes


cdef class RecordRows:
    cdef Row* rows
    cdef Entry* entries
    cdef Py_ssize_t entry_count
    cdef readonly object problem
    cdef bint _decompress, _crc, _permissive, _wants_properties, _wants_map, _wants_offset_id
    cdef bint _wants[7]
    cdef int _row_bytes
    cdef bytearray _row_space, _entry_space
    cdef list _kept
    cdef dict _hosts

    @cython.locals(
        limit=cython.Py_ssize_t, rows=cython.Py_ssize_t, size=cython.Py_ssize_t,
        wanted=tuple, used=cython.longlong, cost=cython.longlong, log_offset=cython.longlong,
        queue_offset=cython.longlong)
    cdef tuple walk(
        self, object source, const unsigned char[::1] data, Py_ssize_t position, Py_ssize_t stop,
        Py_ssize_t max_rows, long long max_bytes, object topics, long long first_offset,
        long long end_offset, long long log_base)
    cdef Row* _row(self, Py_ssize_t number) except NULL
    @cython.locals(is_compressed=cython.int)
    cdef int _open(self, Row* row, Py_ssize_t number) except -1

    @cython.locals(met=cython.int, stored=cython.int)
    cdef int _check_crc(self, Row* row) except -1

    @cython.locals(body=bytes)
    cdef int _inflate(self, Row* row) except -1
    cdef int _keep(self, Row* row, int kind, bytes text) except -1

    @cython.locals(met=bytes)
    cdef int _replace_text(self, Row* row, int kind) except -1

    @cython.locals(met=bytes, store_host=bytes)
    cdef int _find_properties(self, Row* row) except -1
    cdef int _rewrite_properties(self, Row* row, bytes text) except -1

    @cython.locals(needed=cython.Py_ssize_t)
    cdef int _list_properties(self, Row* row, bint unique) except -1

    @cython.locals(number=cython.int, kind=cython.int)
    cdef void _find_in_list(self, Row* row) noexcept

    @cython.locals(length=cython.int, key=bytes, text=bytes)
    cdef object _find_host(self, Row* row, Py_ssize_t number, int kind)

    @cython.locals(cost=cython.longlong, kind=cython.int, number=cython.int)
    cdef long long _cost(self, Row* row) noexcept
    cdef forget(self)


@cython.locals(flag=cython.int, at=cython.Py_ssize_t)
cdef void _measure(Row* row, const unsigned char* record, Py_ssize_t size) noexcept
cdef int store_host_bytes(Row* row) noexcept
cdef int _host_bytes(Row* row, int kind) noexcept
cdef int _host_at(Row* row, int kind) noexcept
@cython.locals(
    tags=cython.Py_ssize_t, tags_end=cython.Py_ssize_t, keys=cython.Py_ssize_t,
    keys_end=cython.Py_ssize_t, id_at=cython.Py_ssize_t, id_end=cython.Py_ssize_t)
cdef void _find_in_text(Row* row) noexcept
cdef void _put_span(Row* row, int kind, Py_ssize_t start, Py_ssize_t end) noexcept
@cython.locals(length=cython.int, number=cython.Py_ssize_t, topic=bytes)
cdef bint _has_topic(Row* row, tuple topics) except -1
cdef bytes _copy(const unsigned char* memory, Py_ssize_t length)
@cython.locals(
    at=cython.Py_ssize_t, seen=cython.ulonglong, word=cython.ulonglong, tail=cython.uint)
cdef bint _is_ascii(const unsigned char* memory, Py_ssize_t length) noexcept
@cython.locals(count=cython.int, found=cython.p_void)
cdef int _list_entries(Entry* entry, const unsigned char* memory, Py_ssize_t length) noexcept
@cython.locals(later=cython.int, earlier=cython.int)
cdef bint _are_unique(Entry* entry, int count) noexcept
cdef int _enlarge(bytearray space, Py_ssize_t needed) except -1
