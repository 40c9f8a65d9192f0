cdef class Cell:
    cdef object _minute
    cdef object _hour
    cdef object _day
    cdef public long long calls
    cdef public long long messages
    cdef public long long size_bytes
    cdef public long idle_hours

    cpdef add(self, long long messages, long long size_bytes=*, long long calls=*)


cdef class StoredCell(Cell):
    cdef public long long over_1k
    cdef public long long over_4k
    cdef public long long over_512k
    cdef public long long over_1m
    cdef public long long over_2m
    cdef public long long over_4m

    cpdef add_large(self, long long messages, long long size_bytes)
