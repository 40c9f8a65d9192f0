cimport cython

from cometmq.protocol.octets cimport copy_of, put_bytes, put_decimal, put_hex, put_u32
from cometmq.protocol.command cimport Command
from cometmq.remoting.wire cimport Wire


cdef class Request:
    cdef public Command command
    cdef public Wire connection
    cdef public object code
    cdef public object body
    cdef public bint oneway
    cdef public bint answered

    cpdef object header(self, object kind)
    cpdef object reply(self, object response)
    cpdef object reply_head(self, bytes head, object slices=*)


cdef class Response:
    cdef public object code
    cdef public object remark
    cdef public object header
    cdef public object body
    cdef public object fields


cdef class SuccessFormat:
    cdef str _format

    cdef list _pieces
    cdef list _in_hex
    cdef bytearray _space

    cpdef bytes head(self, tuple values)

    @cython.locals(
        space=bytearray, pieces=list, in_hex=list, end=cython.Py_ssize_t, at=cython.Py_ssize_t)
    cpdef bytes numbers_head(self, tuple values, Py_ssize_t body_bytes=*)
