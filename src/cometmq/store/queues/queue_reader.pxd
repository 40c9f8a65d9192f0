cimport cython

from cometmq.store.log cimport record_layout, record_scan
from cometmq.store.log.commit_log cimport CommitLog
from cometmq.store.queues.consume_queue cimport ConsumeQueue
from cometmq.store.queues.dispatch cimport QueueTable
from cometmq.store.log.segments cimport Segment


cdef int _RESPONSE_BYTES_MIN, _BYTES_MAX, _UNITS_MAX
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


@cython.final
cdef class _Scan:
    cdef ConsumeQueue queue
    cdef CommitLog log
    cdef ReadLimits limits
    cdef object repair
    cdef object matcher
    cdef long long max_count
    cdef long long max_bytes
    cdef long long start
    cdef long long number
    cdef long long stop
    cdef int unit_bytes
    cdef bint holds_batches
    cdef long long log_end
    cdef long long log_min
    cdef unsigned char* memory
    cdef long long shift
    cdef long long units_end
    cdef long long run_start
    cdef long long run_end
    cdef long long run_limit
    cdef long long last_end
    cdef long long count
    cdef long long size_sum
    cdef long long last_log_offset
    cdef bint is_removing
    cdef long long searches_max
    cdef bint is_one_tag
    cdef long long wanted_code
    cdef bint evaluates
    cdef bint uses_bitmaps
    cdef long long evaluated
    cdef double end_s

    @cython.locals(low=cython.longlong, high=cython.longlong, result=GetResult)
    cdef GetResult read(
        self, ConsumeQueue queue, long long offset, long long max_count, object matcher,
        long long max_bytes)
    @cython.locals(
        queue=ConsumeQueue, log_offset=cython.longlong, size=cython.int, code=cython.longlong,
        tags_code=cython.longlong, messages=cython.longlong)
    cdef bint _fill(self, GetResult result) except -1
    @cython.locals(limits=ReadLimits, units=cython.longlong, end=cython.longlong)
    cdef _begin(self, GetResult result)
    @cython.locals(queue=ConsumeQueue, units=Segment)
    cdef bint _find_units(self) except -1
    cdef bint _skip_damaged(self) except -1
    @cython.locals(limits=ReadLimits, size_sum=cython.longlong)
    cdef bint _is_full(self, long long log_offset, int size, long long messages) except -1
    @cython.locals(is_look_due=cython.bint)
    cdef bint _may_evaluate(
        self, GetResult result, long long log_offset, int size) except -1
    cdef bint _matches_properties(self, long long log_offset, int size) except -1
    @cython.locals(segment=Segment, limit=cython.longlong)
    cdef bint _begin_run(self, long long log_offset, int size) except -1
    cdef _close_run(self, GetResult result)
    @cython.locals(behind=cython.longlong, least=cython.longlong)
    cdef _finish(self, GetResult result)


cdef class QueueReader:
    cdef QueueTable _table
    cdef CommitLog _log
    cdef ReadLimits _limits
    cdef object _repair
    cdef _Scan _scan

    @cython.locals(queue=ConsumeQueue, limit=cython.longlong)
    cpdef GetResult get(
        self, str topic, long long queue_id, long long offset, long long max_count,
        object matcher, long long max_bytes)
    @cython.locals(queue=ConsumeQueue)
    cpdef (long long, long long) bounds(self, str topic, long long queue_id)
    @cython.locals(
        queue=ConsumeQueue, segment=Segment, count=cython.longlong, at=cython.longlong,
        end=cython.longlong, start=cython.longlong, stop=cython.longlong,
        written=cython.longlong, ahead=cython.longlong, number=cython.longlong,
        recent=cython.longlong, unit_bytes=cython.int)
    cpdef list cold_units(
        self, str topic, long long queue_id, long long offset, long long max_count,
        object matcher)
    cpdef list cold_records(self, GetResult found)
    cpdef GetResult verified(
        self, GetResult found, str topic, long long queue_id, long long offset,
        long long max_count, object matcher, long long max_bytes)
    @cython.locals(
        field=bytes, queue=ConsumeQueue, expected=cython.longlong, index=cython.Py_ssize_t,
        segment=Segment, start=cython.longlong, position=cython.longlong, end=cython.longlong,
        size=cython.int, number=cython.longlong)
    cdef bint _is_whole(
        self, GetResult found, str topic, long long queue_id, long long offset) except -1
    @cython.locals(
        queue=ConsumeQueue, start=cython.longlong, number=cython.longlong,
        log_offset=cython.longlong, size=cython.int,
        code=cython.longlong, log_min=cython.longlong, tags_code=cython.longlong,
        has_tags=cython.bint)
    cpdef list cold_candidates(
        self, str topic, long long queue_id, long long offset, object matcher)
    @cython.locals(
        segment=Segment, start=cython.longlong, stop=cython.longlong, first=cython.longlong,
        last=cython.longlong, end=cython.longlong, newest=cython.Py_ssize_t,
        index=cython.Py_ssize_t, written=cython.longlong)
    cdef list _cold_parts(self, list starts, list slices)


cdef bint _may_match(ConsumeQueue queue, long long code, object matcher) except -1
@cython.locals(segment=Segment, start=cython.longlong)
cdef bint _is_cold(CommitLog log, long long log_offset, long long size) except -1
