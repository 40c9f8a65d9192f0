cimport cython

from cometmq.protocol cimport header_scanner, octets
from cometmq.protocol.command cimport Command
from cometmq.protocol.octets cimport two_u32
from cometmq.remoting.wire cimport FastPath, Wire

cdef int _PREFIX_BYTES
cdef long long _OPAQUE_MAX
cdef bytes _OPAQUE


cdef class Call:
    cdef public double deadline_s
    cdef public double timeout

    cpdef bint done(self) except -1
    cpdef set_result(self, response)
    cpdef set_exception(self, error)
    cdef bint read_response(
        self, bytearray data, Py_ssize_t header_at, Py_ssize_t body_at, Py_ssize_t end,
        long long opaque) except -1


cdef class _ReceiverCall(Call):
    cdef object receiver


cdef class Inflight:
    cdef object _loop
    cdef Py_ssize_t _calls_max
    cdef dict _waiting
    cdef public long long _last_opaque
    cdef readonly object _timer
    cdef public bint has_readers

    cpdef long long add(self, receiver, double timeout) except -1
    cpdef long long add_call(self, Call call, double timeout, double now_s) except -1
    cpdef long long next_opaque(self) except -1
    @cython.locals(call=Call)
    cpdef bint complete(self, Command response) except -1
    cpdef forget(self, opaque)
    @cython.locals(call=Call)
    cpdef fail_all(self, problem)
    @cython.locals(call=Call, now=cython.double)
    cpdef _sweep(self)


cdef class ResponseReader(FastPath):
    cdef Inflight _inflight
    cdef Py_ssize_t _frame_bytes_max

    @cython.locals(
        at=cython.Py_ssize_t, length=cython.uint, word=cython.uint, header_at=cython.Py_ssize_t,
        body_at=cython.Py_ssize_t, frame_end=cython.Py_ssize_t, opaque=cython.longlong, call=Call)
    cpdef Py_ssize_t take(
        self, bytearray data, Py_ssize_t start, Py_ssize_t end, Wire wire) except -1


@cython.locals(memory=cython.p_uchar, stop=cython.Py_ssize_t)
cdef long long _opaque_of(bytearray data, Py_ssize_t at, Py_ssize_t end) except? -1
