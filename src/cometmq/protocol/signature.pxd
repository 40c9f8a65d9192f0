cimport cython

cdef class SigningKey:
    cdef bytes _inner
    cdef bytes _outer

    @cython.locals(inner=bytes)
    cpdef bytes sign(self, bytes content)
    cpdef bint accepts(self, bytes content, bytes signature) except -1
