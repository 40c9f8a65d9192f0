cimport cython

from cometmq.protocol.hashing cimport extend_hash
from cometmq.protocol.octets cimport copy_of

cdef int _END

cpdef bytes join_properties(bytes properties, bytes more)

@cython.locals(span=cython.longlong, end=cython.Py_ssize_t, at=cython.Py_ssize_t, start=cython.Py_ssize_t, stop=cython.Py_ssize_t)
cpdef bytes value_of(bytes properties, bytes name_marker)

@cython.locals(
    found=cython.longlong, start=cython.Py_ssize_t, stop=cython.Py_ssize_t,
    value=cython.Py_ssize_t, end=cython.p_void)
cdef long long _find(
    const unsigned char* text, Py_ssize_t length, const unsigned char* name_marker,
    Py_ssize_t marker_length) noexcept

@cython.locals(tags=bytes)
cpdef int tags_code_of(bytes properties)

@cython.locals(found=list, unique_id=bytes, keys=bytes)
cpdef list index_keys_of(bytes properties)
