cimport cython

from cometmq.broker.pulling.handler cimport Pull, PullHandler
from cometmq.protocol cimport header_scanner, octets
from cometmq.protocol.header_scanner cimport HeaderScanner
from cometmq.protocol.octets cimport two_u32
from cometmq.protocol.signed_fields cimport RequestCheck, SignedFields
from cometmq.remoting.wire cimport FastPath, Wire


cdef int _NAME_BYTES_MAX, _EXPRESSION_BYTES_MAX
cdef int _PREFIX_BYTES, _FRAMES_MAX, _TEXT, _ESCAPED, _TEXTS, _WIDE, _REQUIRED, _KNOWN
cdef int _GROUP, _TOPIC, _EXPRESSION, _KIND
cdef int _QUEUE, _OFFSET, _COUNT, _FLAGS, _COMMIT, _SUSPEND, _VERSION, _BYTES
cdef double _WORK_S_MAX
cdef long long _INT32_MAX, _NOT_PLAIN
cdef tuple _NAMES
cdef bytes _CODE_MEMBER, _PULL_MEMBER


cdef class PullHeaderReader(HeaderScanner):
    cdef Pull pull
    cdef readonly SignedFields signed
    cdef int _seen
    cdef dict _texts

    cdef bint read(
        self, Pull pull, const unsigned char* memory, Py_ssize_t at, Py_ssize_t end) except -1
    @cython.locals(field=cython.int)
    cdef bint note(
        self, const unsigned char* memory, Py_ssize_t name, Py_ssize_t name_end, Py_ssize_t at,
        Py_ssize_t end, int kind) except -1
    @cython.locals(raw=bytes, text=str, pull=Pull)
    cdef bint _note_text(
        self, int field, const unsigned char* memory, Py_ssize_t at, Py_ssize_t end) except -1
    @cython.locals(value=cython.longlong, pull=Pull)
    cdef bint _note_number(
        self, int field, const unsigned char* memory, Py_ssize_t at, Py_ssize_t end) except -1


cdef class PullFastPath(FastPath):
    cdef PullHandler _pulls
    cdef RequestCheck _check
    cdef PullHeaderReader _reader

    @cython.locals(
        at=cython.Py_ssize_t, left=cython.int, memory=cython.p_uchar, length=cython.uint,
        check=RequestCheck, signed=SignedFields,
        word=cython.uint, frame_end=cython.Py_ssize_t, header_end=cython.Py_ssize_t, pull=Pull,
        began_s=cython.double)
    cpdef Py_ssize_t take(
        self, bytearray data, Py_ssize_t start, Py_ssize_t end, Wire wire) except -1

    cdef bint _handle(self, Pull pull) except -1


@cython.locals(header_at=cython.Py_ssize_t, found=cython.bint)
cdef bint _may_begin(const unsigned char* memory, Py_ssize_t at, Py_ssize_t end) noexcept
