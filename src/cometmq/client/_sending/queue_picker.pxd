cdef class RoundRobin:
    cdef public long long _next

    cpdef Py_ssize_t step(self, Py_ssize_t count) except -1
    cpdef Py_ssize_t peek(self, Py_ssize_t count) except -1
