cimport cython

from cometmq.protocol.octets cimport htonl, ntohl, prefetch
from cometmq.store.log.new_record cimport NewRecord


cdef int _MAGIC_AT, _BODY_CRC_AT, _QUEUE_ID_AT, _FLAG_AT, _QUEUE_OFFSET_AT, _LOG_OFFSET_AT
cdef int _SYS_FLAG_AT, _BORN_TIME_AT, _BORN_HOST_AT

cdef unsigned char* address_of(const unsigned char[::1] mapping)
cdef void prefetch_at(const unsigned char* memory, Py_ssize_t position) noexcept
cdef short get_i16(const unsigned char* memory, Py_ssize_t position) noexcept

@cython.locals(word=cython.uint)
cdef int get_i32(const unsigned char* memory, Py_ssize_t position) noexcept

@cython.locals(high=cython.ulonglong, low=cython.uint)
cdef long long get_i64(const unsigned char* memory, Py_ssize_t position) noexcept
cdef void put_i16(unsigned char* memory, Py_ssize_t position, int value) noexcept

@cython.locals(word=cython.uint)
cdef void put_i32(unsigned char* memory, Py_ssize_t position, int value) noexcept

cdef void put_i64(unsigned char* memory, Py_ssize_t position, long long value) noexcept

cdef void put_bytes(unsigned char* memory, Py_ssize_t position, bytes data) noexcept
cdef void put_memory(
    unsigned char* memory, Py_ssize_t position, const unsigned char* source, Py_ssize_t start,
    Py_ssize_t size) noexcept

@cython.locals(
    text_bytes=cython.Py_ssize_t, body_bytes=cython.Py_ssize_t, has_separator=cython.bint)
cdef void write_record(
    unsigned char* memory, Py_ssize_t position, NewRecord record, const unsigned char* source,
    const unsigned char* text) noexcept

cdef (int, int, int, int, int, long long, long long, int) read_prefix(
    const unsigned char* memory, Py_ssize_t position) noexcept

cdef void write_unit(
    unsigned char* memory, Py_ssize_t position, long long log_offset, int size,
    long long code) noexcept
cdef (long long, int, long long) read_unit(
    const unsigned char* memory, Py_ssize_t position) noexcept

@cython.locals(count=cython.Py_ssize_t)
cdef Py_ssize_t count_valid_units(
    const unsigned char* memory, Py_ssize_t start, Py_ssize_t stop, int unit_bytes) noexcept

@cython.locals(previous=cython.int)
cdef int add_entry(
    unsigned char* memory, Py_ssize_t slot, Py_ssize_t position, int number, int key_hash,
    long long log_offset, int seconds) noexcept
cdef (int, long long, int, int) read_entry(
    const unsigned char* memory, Py_ssize_t position) noexcept

@cython.locals(
    used=cython.int, number=cython.int, key_hash=cython.int, slot=cython.Py_ssize_t)
cdef int rebuild_slots(
    unsigned char* memory, Py_ssize_t slots_at, long long slots, Py_ssize_t entries_at,
    int stop) noexcept
cdef void write_index_header(
    unsigned char* memory, long long begin_ms, long long end_ms, long long begin_log,
    long long end_log, int slots_used, int next_entry) noexcept
