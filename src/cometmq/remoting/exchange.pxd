cimport cython

from cometmq.protocol.octets cimport copy_of, put_bytes, put_decimal, put_hex, put_u32
from cometmq.protocol.command cimport Command
from cometmq.remoting.wire cimport Wire

cdef int _DECIMAL, _HEX


cdef class Request:
    cdef public Command command
    cdef public Wire connection
    cdef public object code
    cdef public object body
    cdef public bint oneway
    cdef public bint answered
    cdef public bint is_exclusive

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
    cdef bytes _format
    cdef list _pieces
    cdef list _conversions
    cdef bytearray _space

    cpdef bytes head(self, tuple values, Py_ssize_t body_bytes=*)

    @cython.locals(
        space=bytearray, pieces=list, conversions=list, conversion=cython.int,
        end=cython.Py_ssize_t, at=cython.Py_ssize_t)
    cdef bytes _put_together(self, tuple values, Py_ssize_t body_bytes)
