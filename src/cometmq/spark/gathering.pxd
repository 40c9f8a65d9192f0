cimport cython


cdef long long _TIME_MS_MAX
cdef int _LOG_OFFSET_AT
cdef bytes _HEX

@cython.locals(made=bytearray, row=cython.Py_ssize_t, out="int[::1]")
cdef bytearray i32s(
    const unsigned char* memory, const long long[::1] places, Py_ssize_t count, int delta)

@cython.locals(made=bytearray, row=cython.Py_ssize_t, out="long long[::1]")
cdef bytearray i64s(
    const unsigned char* memory, const long long[::1] places, Py_ssize_t count, int delta)

@cython.locals(
    made=bytearray, row=cython.Py_ssize_t, time_ms=cython.longlong, out="long long[::1]")
cdef bytearray times(
    const unsigned char* memory, const long long[::1] places, Py_ssize_t count, int delta)

cdef bytearray numbers(const int[::1] values, Py_ssize_t count)

@cython.locals(made=bytearray, row=cython.Py_ssize_t)
cdef bytearray bits(const int[::1] values, Py_ssize_t count, int kind, int kinds)

@cython.locals(made=bytearray, row=cython.Py_ssize_t, end=cython.int, out="int[::1]")
cdef bytearray offsets(const int[::1] sizes, Py_ssize_t count, int kind, int kinds)

@cython.locals(
    made=bytearray, row=cython.Py_ssize_t, size=cython.int, start=cython.longlong,
    total=cython.Py_ssize_t, out=cython.p_uchar, made_up=cython.p_uchar)
cdef bytearray texts(
    const unsigned char* memory, bytearray extra, const long long[::1] starts,
    const int[::1] sizes, Py_ssize_t count, int kind, int kinds)

@cython.locals(
    ends=bytearray, made=bytearray, row=cython.Py_ssize_t, total=cython.int, size=cython.int,
    end_of="int[::1]", out=cython.p_uchar)
cdef tuple offset_ids(
    const unsigned char* memory, const long long[::1] stores, const long long[::1] records,
    const int[::1] host_sizes, Py_ssize_t count)

cdef bytearray _space(Py_ssize_t size)

@cython.locals(index=cython.int, digits=cython.p_uchar)
cdef void _put_hex(
    unsigned char* out, Py_ssize_t at, const unsigned char* memory, Py_ssize_t start,
    int size) noexcept

cdef void _copy(
    unsigned char* out, Py_ssize_t at, const unsigned char* memory, Py_ssize_t start,
    int size) noexcept

@cython.locals(place="const unsigned char*", high=cython.uint)
cdef int _i32_at(const unsigned char* memory, Py_ssize_t at) noexcept

@cython.locals(high=cython.ulonglong, low=cython.uint)
cdef long long _i64_at(const unsigned char* memory, Py_ssize_t at) noexcept
