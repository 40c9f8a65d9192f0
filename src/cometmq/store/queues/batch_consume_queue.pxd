cimport cython

from cometmq.store.log cimport record_layout
from cometmq.store.log.segments cimport Segment
from cometmq.store.queues.consume_queue cimport ConsumeQueue


cdef int _BYTES, _STORE_TIME_AT, _BASE_AT, _COUNT_AT, _COMPACTED_AT, _NOT_COMPACTED


cdef class BatchConsumeQueue(ConsumeQueue):
    @cython.locals(memory=cython.p_uchar, at=cython.longlong)
    cpdef put_batch(
        self, long long queue_offset, long long log_offset, int size, long long tags_code,
        long long store_ms, int count)
    @cython.locals(low=cython.longlong, high=cython.longlong, middle=cython.longlong)
    cpdef long long number_of(self, long long queue_offset) except? -1
    @cython.locals(segment=Segment, at=cython.longlong)
    cpdef long long offset_of(self, long long number) except? -1
    cpdef long long offset_behind(self, long long number) except? -1
    @cython.locals(segment=Segment, at=cython.longlong)
    cpdef tuple span_of(self, long long number)
    @cython.locals(base=cython.longlong, count=cython.longlong)
    cdef _set_offsets(self)
    cdef bint _continue_at(self, long long queue_offset) except -1
