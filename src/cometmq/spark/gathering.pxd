cimport cython


cdef long long _TIME_MS_MAX
cdef int _LOG_OFFSET_AT
cdef bytes _HEX

@cython.locals(made=bytearray, row=cython.Py_ssize_t, out=cython.p_int)
cdef bytearray i32s(
    const unsigned char* memory, const long long[::1] places, Py_ssize_t count, int delta)

@cython.locals(made=bytearray, row=cython.Py_ssize_t, out=cython.p_longlong)
cdef bytearray i64s(
    const unsigned char* memory, const long long[::1] places, Py_ssize_t count, int delta)

@cython.locals(made=bytearray, row=cython.Py_ssize_t, time_ms=cython.longlong, out=cython.p_longlong)
cdef bytearray times(
    const unsigned char* memory, const long long[::1] places, Py_ssize_t count, int delta)

@cython.locals(made=bytearray, row=cython.Py_ssize_t, out=cython.p_int)
cdef bytearray numbers(const int[::1] values, Py_ssize_t count)

@cython.locals(made=bytearray, row=cython.Py_ssize_t)
cdef bytearray bits(const int[::1] values, Py_ssize_t count, int kind, int kinds)

@cython.locals(made=bytearray, row=cython.Py_ssize_t, end=cython.int, out=cython.p_int)
cdef bytearray offsets(const int[::1] sizes, Py_ssize_t count, int kind, int kinds)

@cython.locals(
    made=bytearray, row=cython.Py_ssize_t, size=cython.int, start=cython.longlong,
    total=cython.Py_ssize_t, out=cython.p_char, made_up=cython.p_char)
cdef bytearray texts(
    const unsigned char* memory, bytearray extra, const long long[::1] starts,
    const int[::1] sizes, Py_ssize_t count, int kind, int kinds)

@cython.locals(
    ends=bytearray, made=bytearray, row=cython.Py_ssize_t, total=cython.int, size=cython.int,
    end_of=cython.p_int, out=cython.p_uchar)
cdef tuple offset_ids(
    const unsigned char* memory, const long long[::1] stores, const long long[::1] records,
    const int[::1] host_sizes, Py_ssize_t count)

@cython.locals(at=cython.int, digits=cython.p_uchar)
cdef void _put_hex(unsigned char* out, const unsigned char* memory, int size) noexcept

@cython.locals(high=cython.uint)
cdef int _i32_at(const unsigned char* place) noexcept

@cython.locals(high=cython.ulonglong)
cdef long long _i64_at(const unsigned char* place) noexcept
