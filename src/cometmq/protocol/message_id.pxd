cimport cython

cdef int _COUNTER_MASK


cdef class UniqueIds:
    cdef object __weakref__
    cdef bytes _ip
    cdef object _now_ms
    cdef long long _month_start_ms
    cdef long long _month_end_ms
    cdef str _prefix
    cdef int _counter

    cpdef _belong_to(self, pid)
    @cython.locals(now_ns=cython.longlong, now_ms=cython.longlong, passed_ms=cython.longlong, counter=cython.longlong)
    cpdef str next(self)
    cdef long long _passed_anew(self, long long passed_ms) except -1
