cimport cython

from cometmq.protocol cimport octets
from cometmq.protocol.octets cimport copy_of, put_bytes, put_decimal, put_hex, put_u32
from cometmq.protocol.command cimport Command
from cometmq.remoting.latencies cimport Latencies
from cometmq.remoting.wire cimport Wire

cdef int _HEX, _TEXT, _HEADER_AT, _OPAQUE_AT
cdef SuccessFormat _done_json, _done_binary


cdef class Request:
    cdef public Command command
    cdef public Wire connection
    cdef public object code
    cdef public object body
    cdef public bint oneway
    cdef public bint responded
    cdef public bint is_exclusive
    cdef public bint is_held
    cdef public Latencies latencies
    cdef public double began_s

    cpdef object header(self, object kind)
    @cython.locals(success=SuccessFormat)
    cpdef object reply(self, Response response)
    cpdef object reply_head(self, bytes head, object slices=*)
    @cython.locals(latencies=Latencies)
    cpdef count_latency(self, int response_code)


cdef class Response:
    cdef public object code
    cdef public object remark
    cdef public object header
    cdef public object body
    cdef public object fields

    cdef bint is_plain(self) except -1


cdef class SuccessFormat:
    cdef long long numbers[8]
    cdef readonly Py_ssize_t size_max
    cdef bint _is_binary
    cdef unsigned int _word
    cdef Py_ssize_t _fields_at
    cdef list _pieces
    cdef list _kinds
    cdef list _leads
    cdef bytearray _space
    cdef bytes _percent_format

    @cython.locals(at=cython.Py_ssize_t, space=bytearray)
    cpdef bytes head(self, object values, Py_ssize_t body_bytes=*, bytes text=*, bytes second=*)

    @cython.locals(
        kinds=list, kind=cython.int, numbers=cython.p_longlong, number=cython.int,
        end=cython.Py_ssize_t, length_at=cython.Py_ssize_t, fields_at=cython.Py_ssize_t,
        at=cython.Py_ssize_t)
    cdef Py_ssize_t put(
        self, bytearray space, Py_ssize_t start, Py_ssize_t body_bytes,
        const unsigned char* text, Py_ssize_t text_bytes,
        const unsigned char* second, Py_ssize_t second_bytes) except -1
