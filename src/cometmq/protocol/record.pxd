cimport cython

@cython.locals(topic_at=cython.Py_ssize_t, topic_start=cython.Py_ssize_t, topic_end=cython.Py_ssize_t, properties_end=cython.Py_ssize_t, topic_bytes=cython.Py_ssize_t)
cdef tuple _variable_parts(bytes record, Py_ssize_t position, Py_ssize_t body_bytes, long long magic)

cdef bytes _tail(bytes topic, bytes properties)
