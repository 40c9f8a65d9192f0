cimport cython


cdef int _HEAD_BYTES, _STORE_TIME_AT, _V6_EXTRA_BYTES, _BORN_V6, _STORE_V6

cpdef Py_ssize_t store_time_at(int sys_flag) noexcept

@cython.locals(at=cython.Py_ssize_t)
cpdef Py_ssize_t body_at(int sys_flag) noexcept

@cython.locals(topic_at=cython.Py_ssize_t, topic_start=cython.Py_ssize_t, topic_end=cython.Py_ssize_t, properties_end=cython.Py_ssize_t, topic_bytes=cython.Py_ssize_t)
cdef tuple _variable_parts(bytes record, Py_ssize_t position, Py_ssize_t body_bytes, long long magic)

cdef bytes _tail(bytes topic, bytes properties)
