cimport cython

from cometmq.protocol cimport octets

cdef int _HEAD_BYTES, _LENGTH_BYTES, _ITEM_BYTES_MIN

@cython.locals(
    position=cython.Py_ssize_t, flag=cython.int, body_at=cython.Py_ssize_t,
    body_end=cython.Py_ssize_t, properties_at=cython.Py_ssize_t, items=list)
cpdef list decode_batch(bytes data)

@cython.locals(count=cython.Py_ssize_t)
cdef Py_ssize_t count_items(
    const unsigned char* memory, Py_ssize_t position, Py_ssize_t stop) except -1
@cython.locals(
    end=cython.Py_ssize_t, body_at=cython.Py_ssize_t, body_bytes=cython.Py_ssize_t,
    body_end=cython.Py_ssize_t)
cdef (int, Py_ssize_t, Py_ssize_t, Py_ssize_t, Py_ssize_t) item_at(
    const unsigned char* memory, Py_ssize_t position, Py_ssize_t stop) except *
