cimport cython

from cometmq.protocol.hashing cimport extend_hash
from cometmq.protocol cimport octets

cdef int _END

@cython.locals(gap=cython.Py_ssize_t)
cdef Py_ssize_t joined_bytes(
    const unsigned char* memory, Py_ssize_t at, Py_ssize_t end, bytes more)

@cython.locals(
    stop=cython.Py_ssize_t, first=cython.uchar, tags_at=cython.Py_ssize_t,
    tags_end=cython.Py_ssize_t, keys_at=cython.Py_ssize_t, keys_end=cython.Py_ssize_t,
    id_at=cython.Py_ssize_t, id_end=cython.Py_ssize_t)
cdef (Py_ssize_t, Py_ssize_t, Py_ssize_t, Py_ssize_t, Py_ssize_t, Py_ssize_t) spans_of(
    const unsigned char* memory, Py_ssize_t at, Py_ssize_t end) noexcept

@cython.locals(span=cython.longlong, start=cython.Py_ssize_t, stop=cython.Py_ssize_t)
cpdef bytes value_of(bytes properties, bytes name_marker)

@cython.locals(
    found=cython.longlong, start=cython.Py_ssize_t, stop=cython.Py_ssize_t,
    value=cython.Py_ssize_t, end=cython.p_void)
cdef long long _find(
    const unsigned char* text, Py_ssize_t length, const unsigned char* name_marker,
    Py_ssize_t marker_length) noexcept

@cython.locals(tags=bytes)
cpdef int tags_code_of(bytes properties)

@cython.locals(
    found=list, at=cython.Py_ssize_t, end=cython.Py_ssize_t, id_at=cython.Py_ssize_t,
    id_end=cython.Py_ssize_t, stop=cython.Py_ssize_t)
cpdef list index_keys_of(bytes properties)
