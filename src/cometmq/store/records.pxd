cimport cython

from cometmq.store cimport raw
from cometmq.store.segments cimport Segment


cdef class RecordFacts:
    cdef readonly int total
    cdef readonly object problem
    cdef readonly int queue_id
    cdef readonly long long queue_offset
    cdef readonly long long log_offset
    cdef readonly int sys_flag
    cdef readonly long long store_ms
    cdef readonly bytes topic
    cdef readonly bytes properties


cpdef RecordFacts read_facts(Segment segment, Py_ssize_t position, bint check_crc)

@cython.locals(
    total=cython.int, magic=cython.int, queue_id=cython.int, queue_offset=cython.longlong,
    log_offset=cython.longlong, sys_flag=cython.int, at=cython.Py_ssize_t, end=cython.Py_ssize_t,
    body_length=cython.int, topic_length=cython.int, properties_length=cython.int)
cdef object _read(
    unsigned char* memory, object view, Py_ssize_t start, Py_ssize_t limit, RecordFacts facts)

cdef object _short_problem(unsigned char* memory, Py_ssize_t start, Py_ssize_t limit)
cdef object _crc_problem(Segment segment, Py_ssize_t position)
cpdef tuple body_bounds(Segment segment, Py_ssize_t position)
cpdef long long store_time(Segment segment, Py_ssize_t position)

@cython.locals(total=cython.int, magic=cython.int)
cpdef int record_size(Segment segment, Py_ssize_t position)
