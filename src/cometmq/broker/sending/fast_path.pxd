cimport cython

from cometmq.broker.sending.handler cimport SendHandler
from cometmq.broker.sending.send cimport Send
from cometmq.broker.sending.validation cimport SendValidation
from cometmq.protocol cimport header_scanner, octets
from cometmq.protocol.header_scanner cimport HeaderScanner
from cometmq.protocol.octets cimport copy_of, two_u32
from cometmq.protocol.signed_fields cimport RequestCheck, SignedFields
from cometmq.remoting.wire cimport FastPath, Wire


cdef int _PREFIX_BYTES, _TOPIC_BYTES_MAX, _FRAMES_MAX, _RUN_MAX, _ESCAPED, _BARE
cdef long long _INT32_MAX, _NOT_PLAIN
cdef int _GROUP, _TOPIC, _TEMPLATE, _TEMPLATE_QUEUES, _QUEUE, _SYS_FLAG, _BORN, _FLAG
cdef int _PROPERTIES, _RECONSUMED, _UNIT_MODE, _RETRIES_MAX, _BATCH, _BROKER
cdef int _REQUIRED, _NUMBERS, _LETTERS, _NAMES, _SESSION, _OTHER
cdef tuple _NAME_OF
cdef bytes _CODE_MEMBER
cdef bytearray _NO_DATA


cdef class SendHeaderReader(HeaderScanner):
    cdef readonly Send send
    cdef readonly SignedFields signed
    cdef public bint is_binary
    cdef bint _scans
    cdef int _seen
    cdef bytearray _data
    cdef bytes _topic
    cdef dict _topics

    @cython.locals(memory=cython.p_uchar, send=Send, form=cython.int)
    cpdef bint read(
        self, bytearray data, Py_ssize_t at, Py_ssize_t end, bint is_binary) except -1
    cdef release(self)
    cdef bint _parse(self, bytearray data, Py_ssize_t at, Py_ssize_t end) except -1
    @cython.locals(field=cython.int)
    cdef bint note(
        self, const unsigned char* memory, Py_ssize_t name, Py_ssize_t name_end, Py_ssize_t at,
        Py_ssize_t end, int kind) except -1
    @cython.locals(topic=bytes)
    cdef _note_topic(self, const unsigned char* memory, Py_ssize_t at, Py_ssize_t end)
    @cython.locals(value=cython.longlong, send=Send)
    cdef bint _note_number(
        self, int field, const unsigned char* memory, Py_ssize_t at, Py_ssize_t end) except -1
    @cython.locals(send=Send)
    cdef bint _note_properties(
        self, const unsigned char* memory, Py_ssize_t at, Py_ssize_t end, int kind) except -1


cdef class SendFastPath(FastPath):
    cdef SendHandler _handler
    cdef SendValidation _validation
    cdef object _flow
    cdef RequestCheck _check
    cdef list _readers
    cdef int _run_max
    cdef int _read_max
    cdef int _count
    cdef int _code
    cdef Py_ssize_t _responses_end

    @cython.locals(
        at=cython.Py_ssize_t, began_s=cython.double, handler=SendHandler, number=cython.int,
        reader=SendHeaderReader)
    cpdef Py_ssize_t take(
        self, bytearray data, Py_ssize_t start, Py_ssize_t end, Wire wire) except -1

    @cython.locals(
        wanted=cython.int, found=cython.int, allowed=cython.int, stored=cython.int,
        reader=SendHeaderReader)
    cdef Py_ssize_t _take_all(
        self, bytearray data, Py_ssize_t at, Py_ssize_t end, Wire wire) except -1

    @cython.locals(
        memory=cython.p_uchar, reader=SendHeaderReader, send=Send, found=cython.int,
        length=cython.uint, word=cython.uint, header_at=cython.Py_ssize_t,
        body_at=cython.Py_ssize_t, frame_end=cython.Py_ssize_t)
    cdef int _read_run(
        self, bytearray data, Py_ssize_t at, Py_ssize_t end, int wanted, Wire wire) except -1

    @cython.locals(
        check=RequestCheck, reader=SendHeaderReader, send=Send, signed=SignedFields,
        number=cython.int)
    cdef int _allowed_in_run(self, bytearray data, int count, Wire wire) except -1

    @cython.locals(reader=SendHeaderReader, number=cython.int)
    cdef int _store_run(self, int count) except -1


@cython.locals(
    header_at=cython.Py_ssize_t, code=cython.int, unit=cython.uchar, next_unit=cython.uchar,
    third=cython.uchar, found=cython.bint)
cdef bint _may_begin(const unsigned char* memory, Py_ssize_t at, Py_ssize_t end) noexcept

@cython.locals(size=cython.Py_ssize_t, letter=cython.uchar)
cdef int _field_of(const unsigned char* memory, Py_ssize_t at, Py_ssize_t end) except -2
