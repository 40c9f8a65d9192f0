cimport cython

from cometmq.client._sending.back_pressure cimport BackPressure, Generation
from cometmq.client._sending.outgoing cimport Outgoing, prepare
from cometmq.client._sending.queue_picker cimport RoundRobin
from cometmq.protocol cimport header_scanner, octets
from cometmq.protocol.header_scanner cimport HeaderScanner
from cometmq.protocol.message_id cimport UniqueIds
from cometmq.protocol.octets cimport copy_of, put_bytes, put_decimal, put_u32
from cometmq.remoting.inflight cimport Call, Inflight
from cometmq.remoting.wire cimport Wire

cdef int _NUMBERS_BYTES_MAX, _JOINED_BYTES_MAX, _PREFIX_BYTES, _TEXT, _REQUIRED
cdef int _OFFSET_ID, _QUEUE_ID, _QUEUE_OFFSET, _REGION_NAME, _TRACE_ON
cdef long long _NOT_PLAIN
cdef tuple _NAMES, _OTHERS
cdef bytes _REGION_BYTES
cdef object _REGION, _OK, _encode_text, _running_loop, _RUN, ANY_QUEUE, KeySelector
cdef long long _process
cdef bint _RUNNING_LOOP_IS_CHEAP


cdef class QueueTarget:
    cdef readonly object queue
    cdef readonly object address
    cdef readonly object send_address
    cdef readonly Wire connection
    cdef readonly Inflight inflight
    cdef long long heartbeat_epoch
    cdef tuple pieces
    cdef Py_ssize_t known_bytes


cdef class TopicTargets:
    cdef readonly object route
    cdef list queues
    cdef dict by_queue
    cdef RoundRobin round
    cdef long long routes_version


cdef class ResponseScanner(HeaderScanner):
    cdef int seen
    cdef long long queue_id
    cdef long long queue_offset
    cdef bint traced
    cdef Py_ssize_t offset_id_at
    cdef Py_ssize_t offset_id_end
    cdef Py_ssize_t region_at
    cdef Py_ssize_t region_end

    cdef bint read(self, const unsigned char* memory, Py_ssize_t at, Py_ssize_t end) except -1
    @cython.locals(field=cython.int, value=cython.longlong)
    cdef bint note(
        self, const unsigned char* memory, Py_ssize_t name, Py_ssize_t name_end, Py_ssize_t at,
        Py_ssize_t end, int kind) except -1


cdef class FastSend(Call):
    cdef readonly SendFastPath path
    cdef readonly object future
    cdef readonly Outgoing outgoing
    cdef readonly object target
    cdef readonly QueueTarget queue_target
    cdef readonly Wire connection
    cdef readonly bint is_awaited
    cdef readonly double started_s
    cdef readonly double send_timeout
    cdef readonly Py_ssize_t size
    cdef readonly Generation generation

    cpdef bint done(self) except -1
    cpdef set_result(self, response)
    cpdef set_exception(self, error)
    @cython.locals(
        scanner=ResponseScanner, memory=cython.p_uchar, at=cython.Py_ssize_t,
        region_end=cython.Py_ssize_t, queue_id=cython.longlong)
    cdef bint read_response(
        self, bytearray data, Py_ssize_t header_at, Py_ssize_t body_at, Py_ssize_t end,
        long long opaque) except -1


cdef class SendFastPath:
    cdef object _sender
    cdef object _instance
    cdef object _routes
    cdef object _settings
    cdef object _namespace
    cdef UniqueIds _ids
    cdef BackPressure pressure
    cdef readonly object awaited
    cdef readonly object started
    cdef object _retry
    cdef object _refusals
    cdef bint _has_refusals
    cdef dict _topics
    cdef double _attempt_s_max
    cdef public bint is_usable
    cdef bint _waits_for_flush
    cdef object _loop
    cdef object _run
    cdef long long _process
    cdef ResponseScanner scanner
    cdef bytearray _space

    @cython.locals(
        topic=TopicTargets, queue_target=QueueTarget, connection=Wire, size=cython.Py_ssize_t,
        outgoing=Outgoing, now_s=cython.double, send=FastSend, opaque=cython.longlong)
    cpdef start(self, message, target, double timeout, bint is_awaited, Generation generation)
    cdef bint _runs_here(self) except -1
    @cython.locals(
        outgoing=Outgoing, target=QueueTarget, body=bytes, properties=bytes,
        body_bytes=cython.Py_ssize_t, joined_bytes=cython.Py_ssize_t,
        size_max=cython.Py_ssize_t, space=bytearray, pieces=tuple, now_ns=cython.longlong,
        end=cython.Py_ssize_t)
    cdef _write(self, FastSend send, long long opaque)
    @cython.locals(target=QueueTarget)
    cdef complete(self, FastSend send, receipt)
    cpdef respond(self, FastSend send, response)
    cpdef fail(self, FastSend send, error)
    cdef TopicTargets _resolve(self, topic, TopicTargets known)
