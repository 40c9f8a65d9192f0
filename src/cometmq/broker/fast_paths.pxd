cimport cython

from cometmq.remoting.wire cimport FastPath, Wire


cdef class FastPaths(FastPath):
    cdef FastPath _first
    cdef FastPath _second

    @cython.locals(taken=cython.Py_ssize_t)
    cpdef Py_ssize_t take(
        self, bytearray data, Py_ssize_t start, Py_ssize_t end, Wire wire) except -1
    cpdef finish_deferred(self)
