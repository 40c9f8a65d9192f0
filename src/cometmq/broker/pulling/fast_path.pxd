cimport cython

from cometmq.broker.pulling.handler cimport Pull, PullHandler
from cometmq.protocol.octets cimport copy_of, matches, two_u32
from cometmq.protocol.plain_json cimport end_of_number, end_of_text, number, opaque_in
from cometmq.remoting.wire cimport FastPath, Wire


cdef int _PREFIX_BYTES, _HEAD_BYTES, _REQUIRED, _FRAMES_MAX
cdef int _GROUP, _TOPIC, _QUEUE, _OFFSET, _COUNT, _FLAGS, _COMMIT, _SUSPEND, _VERSION, _BYTES
cdef int _WIDE
cdef long long _INT32_MAX, _NOT_PLAIN


cdef class PullFastPath(FastPath):
    cdef PullHandler _pulls
    cdef dict _texts

    @cython.locals(
        at=cython.Py_ssize_t, left=cython.int, length=cython.uint, word=cython.uint,
        frame_end=cython.Py_ssize_t, pull=Pull)
    cpdef Py_ssize_t take(
        self, bytearray data, Py_ssize_t start, Py_ssize_t end, Wire wire) except -1

    cdef bint _answer(self, Pull pull) except -1

    @cython.locals(pull=Pull)
    cdef Pull _read(self, bytearray data, Py_ssize_t at, Py_ssize_t end, Wire wire)

    @cython.locals(
        seen=cython.int, memory=cython.p_uchar, name_end=cython.Py_ssize_t,
        start=cython.Py_ssize_t, stop=cython.Py_ssize_t, found=cython.int)
    cdef Py_ssize_t _read_fields(
        self, bytearray data, Py_ssize_t at, Py_ssize_t end, Pull pull) except -1

    @cython.locals(length=cython.Py_ssize_t, bit=cython.int, value=cython.longlong,
        is_small=cython.bint)
    cdef int _note(
        self, bytearray data, Py_ssize_t at, Py_ssize_t name_end, Py_ssize_t start,
        Py_ssize_t stop, Pull pull) except -2
    cdef _keep(self, int bit, long long value, Pull pull)

    @cython.locals(raw=bytes, text=str)
    cdef str _text(self, bytearray data, Py_ssize_t start, Py_ssize_t stop)


@cython.locals(length=cython.Py_ssize_t)
cdef int _bit_of(bytearray data, Py_ssize_t at, Py_ssize_t end) except -1

cdef bint _is_typed(bytearray data, Py_ssize_t at, Py_ssize_t end) except -1
