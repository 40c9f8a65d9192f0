cimport cython

from cometmq.protocol cimport octets
from cometmq.spark cimport gathering
from cometmq.spark.record_rows cimport RecordRows


cdef int _KINDS


cdef class RecordColumns:
    cdef readonly frozenset wanted
    cdef readonly dict buffers
    cdef readonly object problem
    cdef RecordRows _rows

    @cython.locals(taken=tuple)
    cpdef tuple take(
        self, object data, Py_ssize_t position, Py_ssize_t stop,
        object topics=*, long long first_offset=*, long long end_offset=*,
        long long log_base=*)

    @cython.locals(rows=RecordRows, name=str, base=cython.int, delta=cython.int)
    cdef dict _gathered(self, const unsigned char* memory, Py_ssize_t count)
    @cython.locals(rows=RecordRows)
    cdef tuple _text(
        self, const unsigned char* memory, Py_ssize_t count, int kind, bint nullable)
    @cython.locals(rows=RecordRows, every=cython.Py_ssize_t)
    cdef tuple _map(self, const unsigned char* memory, Py_ssize_t count)
