cimport cython

from cometmq.protocol.octets cimport copy_of, put_bytes, put_decimal, put_hex, put_u32
from cometmq.protocol.command cimport Command


cdef class Request:
    cdef public Command command
    cdef public object connection
    cdef public object code
    cdef public object body
    cdef public bint oneway
    cdef public bint answered

    cpdef object header(self, object kind)
    cpdef object reply(self, object response)
    cpdef object reply_head(self, bytes head)


cdef class Response:
    cdef public object code
    cdef public object remark
    cdef public object header
    cdef public object body
    cdef public object fields


cdef class SuccessFormat:
    cdef str _format

    cdef list _pieces
    cdef bytearray _space

    cpdef bytes head(self, tuple values)

    @cython.locals(
        space=bytearray, pieces=list, end=cython.Py_ssize_t, at=cython.Py_ssize_t)
    cpdef bytes numbers_head(self, tuple values)
