cimport cython

@cython.locals(size=cython.Py_ssize_t)
cpdef Py_ssize_t checked_size(
    unsigned int length, unsigned int word, Py_ssize_t frame_bytes_max
) except -1
