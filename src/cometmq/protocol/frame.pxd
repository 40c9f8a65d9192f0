cimport cython

from cometmq.protocol.octets cimport copy_of, two_u32

@cython.locals(length=cython.uint, word=cython.uint)
cpdef Py_ssize_t frame_size(object data, Py_ssize_t start, Py_ssize_t frame_bytes_max) except -1

@cython.locals(size=cython.Py_ssize_t)
cpdef Py_ssize_t checked_size(
    unsigned int length, unsigned int word, Py_ssize_t frame_bytes_max
) except -1
