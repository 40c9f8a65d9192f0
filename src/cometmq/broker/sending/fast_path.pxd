cimport cython

from cometmq.broker.sending.handler cimport SendHandler
from cometmq.broker.sending.validation cimport SendValidation
from cometmq.broker.stats.counters cimport BrokerStats
from cometmq.protocol.octets cimport copy_of, matches, two_u32
from cometmq.protocol.plain_json cimport end_of_number, end_of_text, number, opaque_in
from cometmq.remoting.wire cimport FastPath, Wire
from cometmq.store.appending cimport Appended, AppendedBatch, Appender


cdef int _PREFIX_BYTES, _HEAD_BYTES, _REQUIRED, _NEEDS_CARE, _FRAMES_MAX
cdef long long _INT32_MAX, _NOT_PLAIN


cdef class SendFastPath(FastPath):
    cdef SendHandler _send
    cdef Py_ssize_t _frame_bytes_max
    cdef SendValidation _validation
    cdef Appender _appender
    cdef BrokerStats _stats
    cdef object _flow
    cdef bytes _store_host
    cdef dict _names
    cdef bytearray _properties
    cdef bytes _known_topic
    cdef str _name
    cdef int _queues
    cdef bytes _topic
    cdef bytes _text
    cdef long long _queue_id
    cdef long long _sys_flag
    cdef long long _born_ms
    cdef long long _flag
    cdef long long _reconsumed
    cdef long long _opaque
    cdef bint _is_batch
    cdef long long _log_end

    @cython.locals(at=cython.Py_ssize_t, began_s=cython.double, heads=list, places=list)
    cpdef Py_ssize_t take(
        self, bytearray data, Py_ssize_t start, Py_ssize_t end, Wire wire) except -1

    @cython.locals(
        left=cython.int, length=cython.uint, word=cython.uint,
        header_at=cython.Py_ssize_t, body_at=cython.Py_ssize_t, frame_end=cython.Py_ssize_t,
        stored=Appended, batch=AppendedBatch, place=tuple, many=tuple, ids=bytes)
    cdef Py_ssize_t _take_all(
        self, bytearray data, Py_ssize_t at, Py_ssize_t end, Wire wire, list heads,
        list places) except -1

    @cython.locals(name=str, properties=bytes, host=bytes, flag=cython.int, stored=Appended)
    cdef Appended _store(self, bytes body, Wire wire)

    @cython.locals(properties=bytes, host=bytes, stored=AppendedBatch)
    cdef AppendedBatch _store_batch(
        self, bytearray data, Py_ssize_t start, Py_ssize_t stop, Wire wire)

    cdef bint _read(self, bytearray data, Py_ssize_t at, Py_ssize_t end) except -1
    @cython.locals(sys_flag=cython.longlong, reconsumed=cython.longlong)
    cdef bint _read_typed(self, bytes header) except -1

    @cython.locals(
        seen=cython.uint, memory=cython.p_uchar, key=cython.uchar, start=cython.Py_ssize_t,
        stop=cython.Py_ssize_t)
    cdef Py_ssize_t _read_fields(
        self, bytearray data, Py_ssize_t at, Py_ssize_t end) except -1

    @cython.locals(value=cython.longlong)
    cdef bint _note(
        self, unsigned char key, bytearray data, Py_ssize_t start, Py_ssize_t stop) except -1

    @cython.locals(
        memory=cython.p_uchar, out=cython.p_uchar, filled=cython.Py_ssize_t, unit=cython.uint)
    cdef Py_ssize_t _read_properties(
        self, bytearray data, Py_ssize_t at, Py_ssize_t end) except -1


@cython.locals(unit=cython.uchar)
cdef bint _begins_plain(bytearray data, Py_ssize_t at, Py_ssize_t end)
