cdef object _update, _digest


cdef class SigningKey:
    cdef object _new_inner
    cdef object _new_outer

    cpdef bytes sign(self, bytes content)
    cpdef bint accepts(self, bytes content, bytes signature) except -1
