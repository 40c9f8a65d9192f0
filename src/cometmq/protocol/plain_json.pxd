cimport cython

from cometmq.protocol.octets cimport matches

cdef int _DIGITS_MAX
cdef long long _NOT_PLAIN, _INT32_MAX

@cython.locals(memory=cython.p_uchar, unit=cython.uint)
cpdef Py_ssize_t end_of_text(bytearray data, Py_ssize_t at, Py_ssize_t end) except -1

@cython.locals(memory=cython.p_uchar, start=cython.Py_ssize_t)
cpdef Py_ssize_t end_of_number(bytearray data, Py_ssize_t at, Py_ssize_t end) except -1

@cython.locals(memory=cython.p_uchar, is_negative=cython.bint, value=cython.longlong)
cpdef long long number(bytearray data, Py_ssize_t at, Py_ssize_t end) except? -1

@cython.locals(start=cython.Py_ssize_t, opaque=cython.longlong)
cpdef long long opaque_in(bytearray data, Py_ssize_t at, Py_ssize_t end) except? -1
