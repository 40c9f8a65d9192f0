cimport cython

from cometmq.broker.sending.send cimport Send
from cometmq.broker.sending.validation cimport SendValidation
from cometmq.broker.stats.counters cimport BrokerStats
from cometmq.protocol cimport octets
from cometmq.protocol.command cimport Command
from cometmq.protocol.octets cimport copy_of, put_hex, two_u32
from cometmq.remoting.latencies cimport Latencies
from cometmq.remoting.requests cimport Request, Response, SuccessFormat
from cometmq.remoting.wire cimport WriteBatch, Wire
from cometmq.store.appender cimport AppendedBatch, Appender


cdef int _SUCCESS
cdef double _SLOW_S


cdef class SendHandler:
    cdef object _segment
    cdef readonly Appender appender
    cdef readonly SendValidation validation
    cdef readonly object flow
    cdef readonly BrokerStats stats
    cdef object _throughput
    cdef object _durability
    cdef Latencies _latencies
    cdef bytes _store_host
    cdef str _id_prefix
    cdef bytes _id_pattern
    cdef object _rules
    cdef dict _trace_fields
    cdef bytearray _responses
    cdef readonly long long log_end
    cdef str _topic
    cdef bint _wrote_slowly
    cdef list _pending
    cdef int _pending_count
    cdef SuccessFormat _one_json
    cdef SuccessFormat _many_json
    cdef SuccessFormat _timed_json
    cdef SuccessFormat _timed_binary
    cdef SuccessFormat _named_json
    cdef SuccessFormat _wrapped_json
    cdef SuccessFormat _one_binary
    cdef SuccessFormat _many_binary
    cdef SuccessFormat _named_binary
    cdef SuccessFormat _wrapped_binary

    cpdef apply_rules(self)

    @cython.locals(
        began_s=cython.double, send=Send, command=Command, end=cython.Py_ssize_t, response=bytes)
    cpdef object handle(self, Request request)

    @cython.locals(
        more=bytes, unique_id=cython.p_uchar, id_at=cython.Py_ssize_t,
        id_bytes=cython.Py_ssize_t, escaped=bytes, text=cython.p_uchar, success=SuccessFormat,
        batch=AppendedBatch, room=cython.Py_ssize_t)
    cpdef Py_ssize_t store(
        self, Send send, long long opaque, bint is_binary, Py_ssize_t at) except -1

    cpdef begin_batch(self)
    @cython.locals(batch=WriteBatch, is_alone=cython.bint)
    cpdef end_batch(
        self, Wire wire, Py_ssize_t responses_end, int count, double began_s, int code)
    @cython.locals(pending=list, began_s=cython.double)
    cpdef finish_deferred(self)

    cdef _send(self, tuple sends, int code)
    @cython.locals(wire=Wire, began_s=cython.double)
    cdef _count_latency(self, tuple sends, int response_code)

    cpdef bytes responses_to(self, Py_ssize_t end)

    @cython.locals(took_s=cython.double, took_ms=cython.long)
    cpdef _record_duration(self, double began_s)
    @cython.locals(
        space=bytearray, step=cython.Py_ssize_t, at=cython.Py_ssize_t, number=cython.Py_ssize_t,
        high=cython.ulonglong, low=cython.uint)
    cdef bytes _ids_of(self, AppendedBatch batch)
