cimport cython

cdef int _SHORT_BYTES_MAX
cdef bytes _TABLES

cdef unsigned int crc_of(
    const unsigned char* data, Py_ssize_t start, Py_ssize_t stop) except? 0

@cython.locals(
    table=cython.p_uint, crc=cython.uint, low=cython.uint, high=cython.uint, place=cython.p_uchar)
cdef unsigned int _sliced(const unsigned char* data, Py_ssize_t at, Py_ssize_t stop) noexcept
