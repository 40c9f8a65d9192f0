cimport cython

from cometmq.protocol.frame cimport checked_size
from cometmq.protocol.octets cimport copy_of, two_u32


cdef class Command:
    cdef public object code
    cdef public object flag
    cdef public object opaque
    cdef public object version
    cdef public object language
    cdef public object remark
    cdef public object serialization
    cdef public object body
    cdef public Py_ssize_t frame_bytes
    cdef public object _fields
    cdef public object _raw_fields
    cdef public object _typed

    cpdef object header(self, object kind)


@cython.locals(
    length=cython.uint,
    word=cython.uint,
    size=cython.Py_ssize_t,
    command=Command,
    header_start=cython.Py_ssize_t,
    header_end=cython.Py_ssize_t,
    header=bytes,
    body=bytes,
)
cpdef Command command_at(
    object data, Py_ssize_t start, Py_ssize_t end, Py_ssize_t frame_bytes_max
)

@cython.locals(command=Command)
cdef Command _decode_json(bytes data, bytes body)
