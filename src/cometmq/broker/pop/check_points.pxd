cdef class CheckPoint:
    cdef public str group
    cdef public str topic
    cdef public int queue_id
    cdef public long long start
    cdef public object offsets
    cdef public long long pop_ms
    cdef public long long invisible_ms
    cdef public int revive_queue
    cdef public object acked
    cdef public object acking
    cdef public long long record_offset
    cdef public long long tick
    cdef public long long visible_ms
    cdef public int failures

    cpdef object bit_of(self, object offset)
    cpdef object all_bits(self)
    cpdef object left(self)


cdef class PoppedQueue:
    cdef public dict check_points
    cdef public long long in_flight
    cdef public long long pulled


cdef class CheckPoints:
    cdef dict _queues
    cdef public dict _wheel
    cdef list _ticks
    cdef long long _count
    cdef public long long in_flight

    cpdef PoppedQueue queue(self, str group, str topic, int queue_id)
    cpdef CheckPoint find(
        self, str group, str topic, int queue_id, long long start, long long pop_ms)
    cpdef object add(self, CheckPoint point, long long now_ms)
    cpdef bint acknowledge(self, CheckPoint point, object bits) except -1
    cdef object _remove(self, CheckPoint point)
    cpdef object delay(self, CheckPoint point, long long visible_ms, long long now_ms)
    cdef object _unschedule(self, CheckPoint point)
    cpdef object next_due_ms(self)
