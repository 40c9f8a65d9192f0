cimport cython

cpdef (unsigned int, unsigned int) two_u32(object data, Py_ssize_t position)

cpdef int i32_at(object data, Py_ssize_t position)

@cython.locals(memory=cython.p_uchar)
cpdef short i16_at(object data, Py_ssize_t position)

@cython.locals(memory=cython.p_char)
cpdef bytes copy_of(object data, Py_ssize_t start, Py_ssize_t end)

@cython.locals(memory=cython.p_uchar)
cdef inline unsigned int _u32(object data, Py_ssize_t position)
