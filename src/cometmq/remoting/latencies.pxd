cimport cython

cdef int _BOUNDS_MAX, _HELD, _ONEWAY, _UNSENT
cdef long long _CODES_MAX


cdef class Histogram:
    cdef double _bounds[24]
    cdef long long _counts[25]
    cdef int _size
    cdef public double sum

    @cython.locals(index=cython.int)
    cpdef add(self, double value, long long count=*)


cdef class Latencies:
    cdef list _bounds
    cdef double _units_per_s
    cdef dict _table

    @cython.locals(key=cython.longlong, histogram=Histogram)
    cpdef add(
        self, long long request_code, long long response_code, double began_s, long long count=*,
        bint is_held=*, bint is_oneway=*, bint is_unsent=*)
    cdef Histogram _new(self, long long key, long long request_code)
