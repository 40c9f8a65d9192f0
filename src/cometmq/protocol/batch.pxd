cimport cython

@cython.locals(position=cython.Py_ssize_t, total=cython.Py_ssize_t, size=cython.Py_ssize_t, body_bytes=cython.Py_ssize_t, end=cython.Py_ssize_t, body_at=cython.Py_ssize_t, properties_at=cython.Py_ssize_t, items=list)
cpdef list decode_batch(bytes data)
