cimport cython


cdef int _TICK_MS


cdef class HeldPull:
    cdef public str topic
    cdef public int queue_id
    cdef public long long offset
    cdef public object matcher
    cdef public object owner
    cdef public bint is_short_poll
    cdef public double until_s
    cdef public long long deadline
    cdef public bint is_held
    cdef public long long seen_to

    cpdef rerun(self)
    cpdef fail(self, object problem)


cdef class HeldPulls:
    cdef long long _held_max
    cdef dict _by_queue
    cdef dict _by_owner
    cdef dict _by_deadline
    cdef list _deadlines
    cdef dict _deferred
    cdef dict _evaluating
    cdef object _timer
    cdef double _timer_s
    cdef readonly dict awaited
    cdef long long _held
    cdef object _notified
    cdef object _steps
    cdef bint _is_working
    cdef object _next_slice
    cdef bint _is_open
    cdef bint _is_ending
    cdef public object on_hold

    @cython.locals(waits_ms=cython.longlong, due=dict)
    cpdef bint hold(self, HeldPull pull, object hold_ms) except -1
    @cython.locals(waiting=dict, pull=HeldPull, queue=tuple)
    cpdef object arrived(
        self, str topic, object queue_id, object queue_offset, object tags_code,
        object store_time_ms=*, bytes properties=*)
    cdef object _defer_arrival(self, tuple queue, tuple message)
    cdef object _notify(self, HeldPull pull)
    cdef object _schedule(self, object steps)
    cdef object _run_step(self)
    cdef object _rerun(self, HeldPull pull)
    @cython.locals(others=cython.long)
    cdef object _remove(self, HeldPull pull)


cdef bint _matches(
    HeldPull pull, object queue_offset, object tags_code, object properties) except -1
@cython.locals(pulls=dict)
cdef object _insert(dict table, object key, HeldPull pull)
@cython.locals(pulls=dict)
cdef object _remove_from(dict table, object key, HeldPull pull)
