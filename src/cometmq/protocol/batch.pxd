cimport cython

from cometmq.protocol.octets cimport i16_at, i32_at

@cython.locals(
    position=cython.Py_ssize_t, flag=cython.int, body_at=cython.Py_ssize_t,
    body_end=cython.Py_ssize_t, properties_at=cython.Py_ssize_t, items=list)
cpdef list decode_batch(bytes data)

@cython.locals(
    total=cython.Py_ssize_t, end=cython.Py_ssize_t, body_at=cython.Py_ssize_t,
    body_bytes=cython.Py_ssize_t, body_end=cython.Py_ssize_t)
cpdef (int, Py_ssize_t, Py_ssize_t, Py_ssize_t, Py_ssize_t) item_at(
    bytes data, Py_ssize_t position) except *
