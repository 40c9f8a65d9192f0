cimport cython


cdef class HeldPull:
    cdef readonly tuple place
    cdef readonly object offset
    cdef readonly object matcher
    cdef readonly object owner
    cdef readonly object rerun
    cdef readonly bint sits_out
    cdef public object timer


cdef class HeldPulls:
    cdef long long _held_max
    cdef dict _by_place
    cdef dict _by_owner
    cdef readonly dict awaited
    cdef long long _held
    cdef list _woken
    cdef bint _is_open

    @cython.locals(seconds=cython.double)
    cpdef bint hold(self, HeldPull pull, object hold_ms) except -1
    @cython.locals(waiting=dict, pull=HeldPull)
    cpdef object arrived(
        self, str topic, object queue_id, object queue_offset, object tags_code,
        object store_time_ms=*, bytes properties=*)
    cdef object _wake(self, HeldPull pull)
    cdef object _rerun(self, HeldPull pull)
    cdef object _remove(self, HeldPull pull)


cdef bint _wants(object matcher, object tags_code, bytes properties) except -1
@cython.locals(pulls=dict)
cdef object _take_out(dict table, object key, HeldPull pull)
