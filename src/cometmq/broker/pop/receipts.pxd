cimport cython

from cometmq.protocol.octets cimport put_decimal


cdef int _OFFSET_CHARS_MAX, _COMMA


cdef class Receipt:
    cdef readonly long long start
    cdef readonly long long pop_ms
    cdef readonly long long invisible_ms
    cdef readonly long long revive_queue
    cdef readonly str broker_name


@cython.locals(parts=list)
cpdef Receipt read_receipt(str text)
cdef long long _number(str text) except? -1
@cython.locals(
    space=bytearray, at=cython.Py_ssize_t, first=cython.longlong, number=cython.Py_ssize_t)
cpdef str offsets_text(object offsets)
