cimport cython

from cometmq.protocol cimport checksum, octets
from cometmq.protocol.record cimport body_at, store_time_at
from cometmq.store.log cimport record_layout
from cometmq.store.log.segments cimport Segment


cdef int _SECTOR_BYTES, _V1, _V2, _BYTES_MIN, _CRC_BITS
cdef int _MAGIC_AT, _BODY_CRC_AT, _SYS_FLAG_AT, _LENGTH_BYTES, _LOG_OFFSET_AT
cdef int _QUEUE_ID_AT, _QUEUE_OFFSET_AT, _TOPIC_FIELD_V1_MAX


cdef class RecordFacts:
    cdef readonly int total
    cdef readonly object problem
    cdef readonly int queue_id
    cdef readonly long long queue_offset
    cdef readonly long long log_offset
    cdef readonly int sys_flag
    cdef readonly long long store_ms
    cdef readonly Py_ssize_t body_at
    cdef readonly int body_bytes
    cdef readonly bytes topic
    cdef readonly bytes properties


cpdef RecordFacts read_facts(Segment segment, Py_ssize_t position, bint check_crc)

@cython.locals(
    facts=RecordFacts, position=cython.longlong, last_store_ms=cython.longlong,
    doubtful_ms=cython.longlong)
cpdef tuple walk(
    Segment segment, bint check_crc, object synced_ms, Py_ssize_t start=*,
    Py_ssize_t synced_to=*)

cdef _fill(RecordFacts facts, Segment segment, Py_ssize_t position, bint check_crc)
@cython.locals(properties=bytes)
cdef object _torn_properties(RecordFacts facts, Py_ssize_t position)

@cython.locals(
    total=cython.int, magic=cython.int, queue_id=cython.int, queue_offset=cython.longlong,
    log_offset=cython.longlong, sys_flag=cython.int, at=cython.Py_ssize_t, end=cython.Py_ssize_t,
    body_length=cython.int, topic_length=cython.int,
    properties_length=cython.int)
cdef object _read(
    unsigned char* memory, object view, Py_ssize_t start, Py_ssize_t limit, RecordFacts facts)

cdef object _short_problem(unsigned char* memory, Py_ssize_t start, Py_ssize_t limit)
@cython.locals(expected=cython.uint, met=cython.uint)
cdef object _crc_problem(RecordFacts facts, Segment segment, Py_ssize_t position)
@cython.locals(
    memory=cython.p_uchar, total=cython.int, magic=cython.int, stop=cython.longlong,
    at=cython.longlong, size=cython.longlong, topic_at=cython.longlong, text_at=cython.longlong, crc=cython.int)
cdef int checked_record(
    Segment segment, long long position, long long end, long long queue_id, bytes topic_field
) except -1
cdef long long queue_offset_of(Segment segment, long long position) noexcept
@cython.locals(sys_flag=cython.int, at=cython.longlong)
cpdef long long body_end(Segment segment, Py_ssize_t position)
cpdef long long store_time(Segment segment, Py_ssize_t position)

@cython.locals(total=cython.int, magic=cython.int, log_offset=cython.longlong)
cpdef int record_size(Segment segment, Py_ssize_t position)
