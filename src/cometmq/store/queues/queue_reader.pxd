cimport cython

from cometmq.store.log cimport record_layout, record_scan
from cometmq.store.log.commit_log cimport CommitLog
from cometmq.store.queues.consume_queue cimport ConsumeQueue
from cometmq.store.queues.dispatch cimport QueueTable
from cometmq.store.log.segments cimport Segment


cdef int _UNIT_BYTES, _RESPONSE_BYTES_MIN, _BYTES_MAX, _UNITS_MAX
cdef long long _ADDRESS_MAX, _SPAN_BYTES_MAX, _GAP_BYTES_MAX, _UNITS_AHEAD_BYTES
cdef double _EVALUATION_S_MAX
cdef int _EVALUATIONS_PER_LOOK, _LONG_RECORD_BYTES, _CANDIDATES_MAX, _SCANS_MAX


cdef class GetResult:
    cdef public object status
    cdef public long long next_begin_offset
    cdef public long long min_offset
    cdef public long long max_offset
    cdef public list slices
    cdef public list starts
    cdef public int count
    cdef public long long size_bytes
    cdef public bint suggest_slave
    cdef public bint stopped_at_cold


cdef class ReadLimits:
    cdef public long long memory_bytes
    cdef readonly long long bytes_in_memory
    cdef readonly long long count_in_memory
    cdef readonly long long bytes_on_disk
    cdef readonly long long count_on_disk
    cdef readonly long long units


cdef class QueueReader:
    cdef QueueTable _table
    cdef CommitLog _log
    cdef ReadLimits _limits
    cdef object _repair

    @cython.locals(queue=ConsumeQueue, limit=cython.longlong)
    cpdef GetResult get(
        self, str topic, long long queue_id, long long offset, long long max_count,
        object matcher, long long max_bytes)
    @cython.locals(
        queue=ConsumeQueue, segment=Segment, count=cython.longlong, at=cython.longlong,
        end=cython.longlong, start=cython.longlong, stop=cython.longlong,
        written=cython.longlong, ahead=cython.longlong)
    cpdef list cold_units(
        self, str topic, long long queue_id, long long offset, long long max_count,
        object matcher)
    cpdef list cold_records(self, GetResult found)
    cpdef GetResult verified(
        self, GetResult found, str topic, long long queue_id, long long offset,
        long long max_count, object matcher, long long max_bytes)
    @cython.locals(
        field=bytes, expected=cython.longlong, index=cython.Py_ssize_t,
        segment=Segment, start=cython.longlong, position=cython.longlong, end=cython.longlong,
        size=cython.int, number=cython.longlong)
    cdef bint _is_whole(
        self, GetResult found, str topic, long long queue_id, long long offset) except -1
    @cython.locals(
        queue=ConsumeQueue, number=cython.longlong, log_offset=cython.longlong, size=cython.int,
        code=cython.longlong, log_min=cython.longlong, tags_code=cython.longlong,
        has_tags=cython.bint)
    cpdef list cold_candidates(
        self, str topic, long long queue_id, long long offset, object matcher)
    @cython.locals(
        segment=Segment, start=cython.longlong, stop=cython.longlong, first=cython.longlong,
        last=cython.longlong, end=cython.longlong, newest=cython.Py_ssize_t,
        index=cython.Py_ssize_t, written=cython.longlong)
    cdef list _cold_parts(self, list starts, list slices)


@cython.locals(low=cython.longlong, high=cython.longlong, result=GetResult)
cpdef GetResult read_queue(
    ConsumeQueue queue, CommitLog log, ReadLimits limits, object repair, long long offset,
    long long max_count, object matcher, long long max_bytes)

@cython.locals(
    log_end=cython.longlong, log_min=cython.longlong, stop=cython.longlong, units=Segment,
    shift=cython.longlong, memory=cython.p_uchar, units_end=cython.longlong, run_start=cython.longlong,
    run_end=cython.longlong, run_limit=cython.longlong, last_end=cython.longlong,
    count=cython.longlong, size_sum=cython.longlong, last_log_offset=cython.longlong,
    removing=cython.bint, log_offset=cython.longlong, size=cython.int, code=cython.longlong,
    tags_code=cython.longlong, segment=Segment, wanted_code=cython.longlong, is_one_tag=cython.bint,
    evaluates=cython.bint, uses_bitmaps=cython.bint, evaluated=cython.longlong,
    is_look_due=cython.bint, end_s=cython.double)
cdef bint _scan(
    GetResult result, ConsumeQueue queue, CommitLog log, ReadLimits limits, object repair,
    long long offset, long long max_count, object matcher, long long max_bytes) except -1

cdef bint _may_match(ConsumeQueue queue, long long code, object matcher) except -1
@cython.locals(segment=Segment, start=cython.longlong)
cdef bint _is_cold(CommitLog log, long long log_offset, long long size) except -1
