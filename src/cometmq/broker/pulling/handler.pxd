cimport cython

from cometmq.broker.pulling.long_polling cimport HeldPull, HeldPulls
from cometmq.broker.stats.counters cimport BrokerStats
from cometmq.protocol.command cimport Command
from cometmq.remoting.latencies cimport Latencies
from cometmq.remoting.requests cimport Request, Response, SuccessFormat
from cometmq.remoting.wire cimport Wire
from cometmq.store.appender cimport Appender
from cometmq.store.queues.queue_reader cimport GetResult, QueueReader


cdef int _FOUND, _NOT_FOUND, _RETRY, _MOVED
cdef int _COMMIT_OFFSET, _SUSPEND, _SUBSCRIPTION
cdef int _READ, _PULL, _LITE_PULL, _COLD_READS_MAX


cdef class Pull(HeldPull):
    cdef readonly PullHandler handler
    cdef readonly Wire wire
    cdef public long long opaque
    cdef readonly bint is_binary
    cdef readonly Request original
    cdef public str group
    cdef public long long count_max
    cdef public long long bytes_max
    cdef public long long flags
    cdef public long long commit_offset
    cdef public long long suspend_ms
    cdef public str expression
    cdef public str kind
    cdef public object own_matcher
    cdef public long long version
    cdef public bint is_lite
    cdef public bint is_bulk
    cdef public bint is_physical
    cdef public object logical
    cdef public int cold_reads
    cdef public bint reads_exactly
    cdef public bint was_held
    cdef readonly double began_s
    cdef public bytes access_key
    cdef public object accounts

    cpdef rerun(self)
    cpdef Request request(self)
    @cython.locals(request=Request, latencies=Latencies)
    cpdef succeed(self, bytes head, GetResult found)


cdef class PullHandler:
    cdef object _logical
    cdef dict _static_topics
    cdef object _store
    cdef QueueReader _reader
    cdef QueueReader _bulk_reader
    cdef Appender _appender
    cdef object _topics
    cdef object _groups
    cdef dict _topic_configs
    cdef dict _group_configs
    cdef object _consumers
    cdef object _filters
    cdef object _offsets
    cdef HeldPulls _held
    cdef object _cold_reads
    cdef object _settings
    cdef object _role
    cdef object _applied
    cdef BrokerStats _stats
    cdef SuccessFormat _found_json
    cdef SuccessFormat _found_binary
    cdef SuccessFormat _logical_json
    cdef SuccessFormat _logical_binary
    cdef bint _is_readable
    cdef bint _serves_lite
    cdef bint _filters_by_properties
    cdef bint _filters_retries
    cdef bint _serves_resets
    cdef bint _polls_long
    cdef long long _short_poll_ms
    cdef bint _suggests
    cdef object _ip
    cdef readonly Latencies latencies
    cdef object _access

    cpdef object handle(self, Request request)
    @cython.locals(pull=Pull, command=Command, is_binary=cython.bint)
    cdef Pull _pull_of(self, Request request)
    cpdef object respond_to(self, Pull pull)
    cpdef object rerun(self, Pull pull)
    cpdef object note_access(self, Pull pull, bytes access_key)

    cdef object _run_again(self, Pull pull, bint may_hold)

    @cython.locals(
        result=GetResult, code=cython.int, hold_ms=cython.longlong, count_max=cython.longlong,
        cold=list, is_stuck=cython.bint, reader=QueueReader,
        commits=cython.bint)
    cdef Response _run(self, Pull pull, bint may_hold)
    @cython.locals(low=cython.longlong, high=cython.longlong)
    cdef Response _send_to_master(
        self, Pull pull, object group, GetResult result, object matcher, bint may_hold)
    cdef object _apply(self, object settings)
    cdef object _check_group(self, Pull pull)
    cdef object _check_topic(self, Pull pull)
    cdef object _locate(self, Pull pull)
    cdef object _matcher(self, Pull pull, object group)
    cdef object _subscribed(self, Pull pull, object group)
    cdef Response _pending_reset(self, Pull pull)
    @cython.locals(low=cython.longlong, high=cython.longlong, success=SuccessFormat)
    cdef Response _respond(self, Pull pull, object group, GetResult result, int code)
    cdef Response _respond_behind_end(self, Pull pull, object logical)
    cdef object _read_elsewhere(self, Pull pull, object pulls, bint may_hold)
    cdef object _hold(self, Pull pull, long long hold_ms)


cdef int _code_of(GetResult result, long long requested_offset) except -1
cdef dict _fields(object suggested_broker, object next_offset, object low, object high)
cdef dict _fields_of(
    Pull pull, object suggested_broker, object next_offset, object low, object high)
