cdef class SigningKey:
    cdef object _inner
    cdef object _outer

    cpdef bytes sign(self, bytes content)
    cpdef bint accepts(self, bytes content, bytes signature) except -1
