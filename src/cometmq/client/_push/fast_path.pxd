cimport cython

from cometmq.protocol cimport header_scanner, octets
from cometmq.protocol.command cimport Command
from cometmq.protocol.header_scanner cimport HeaderScanner
from cometmq.protocol.lazy_record cimport check_rising, decode_between
from cometmq.protocol.octets cimport copy_of, put_bytes, put_decimal, put_u32
from cometmq.remoting.inflight cimport Call, Inflight
from cometmq.remoting.wire cimport Wire

cdef int _NUMBERS_BYTES_MAX, _PREFIX_BYTES, _TEXT, _REQUIRED, _WRAPPED
cdef int _SUGGESTED, _NEXT, _MIN, _MAX
cdef long long _NOT_PLAIN, _INT32_MIN, _INT32_MAX
cdef tuple _NAMES, _CHECKED, _OTHERS
cdef dict _STATUS
cdef object _FOUND


cdef class QueuePulls:
    cdef readonly object pull
    cdef readonly int flags, commit_flags
    cdef readonly tuple pieces
    cdef readonly Py_ssize_t fixed_bytes


cdef class ResponseScanner(HeaderScanner):
    cdef int seen
    cdef long long suggested, next_offset, min_offset, max_offset

    cdef bint read(self, const unsigned char* memory, Py_ssize_t at, Py_ssize_t end) except -1
    @cython.locals(field=cython.int, value=cython.longlong)
    cdef bint note(
        self, const unsigned char* memory, Py_ssize_t name, Py_ssize_t name_end, Py_ssize_t at,
        Py_ssize_t end, int kind) except -1


cdef class FastPull(Call):
    cdef PullFastPath path
    cdef object pull
    cdef readonly Wire connection
    cdef readonly Inflight inflight
    cdef readonly object future
    cdef public object offset
    cdef public object on_read
    cdef readonly double began_s
    cdef readonly long long opaque

    cpdef bint done(self) except -1
    cpdef set_result(self, response)
    cpdef set_exception(self, error)
    @cython.locals(
        scanner=ResponseScanner, memory=cython.p_uchar, found=list)
    cdef bint read_response(
        self, bytearray data, Py_ssize_t header_at, Py_ssize_t body_at, Py_ssize_t end,
        long long opaque) except -1


cdef class PullFastPath:
    cdef object _remoting
    cdef object _brokers
    cdef object _language
    cdef ResponseScanner scanner
    cdef bytearray _space
    cdef dict _added
    cdef long long _added_min, _added_max

    @cython.locals(
        connection=Wire, inflight=Inflight, call=FastPull, flags=cython.int,
        commits=cython.longlong)
    cdef FastPull _start(
        self, address, QueuePulls pulls, offset, commit_offset, double timeout)
    @cython.locals(
        size_max=cython.Py_ssize_t, space=bytearray, pieces=tuple, end=cython.Py_ssize_t)
    cdef bytes _encoded(
        self, QueuePulls pulls, long long offset, int flags, long long commit_offset,
        long long opaque)
    cdef dict added(self, long long min_offset, long long max_offset)
