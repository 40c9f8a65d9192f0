cimport cython

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

    cpdef bytes head(self, tuple values)
