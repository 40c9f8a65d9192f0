cimport cython

from cometmq.spark cimport record_rows
from cometmq.spark.record_rows cimport Entry, RecordRows, Row, i32_at, i64_at


cdef int _AT_STORE_TIME, _AT_BODY, _LOG_OFFSET_AT, _TAGS, _KEYS
cdef long long _TIME_MS_MAX
cdef bytes _HEX


cdef class RecordColumns:
    cdef readonly frozenset wanted
    cdef readonly dict buffers
    cdef readonly object problem
    cdef object _plain
    cdef RecordRows _found

    @cython.locals(found=RecordRows)
    cpdef tuple take(
        self, object data, Py_ssize_t position, Py_ssize_t stop, Py_ssize_t max_rows,
        long long max_bytes, object topics=*, long long first_offset=*, long long end_offset=*,
        long long log_base=*)

    @cython.locals(name=str)
    cdef dict _filled(self, Py_ssize_t rows)

    @cython.locals(
        made=bytearray, out=cython.p_int, number=cython.Py_ssize_t, base=cython.int,
        delta=cython.int)
    cdef bytearray _i32s(self, Py_ssize_t rows, tuple place)

    @cython.locals(
        made=bytearray, out=cython.p_longlong, number=cython.Py_ssize_t, base=cython.int,
        delta=cython.int)
    cdef bytearray _i64s(self, Py_ssize_t rows, tuple place)

    @cython.locals(made=bytearray, out=cython.p_longlong, number=cython.Py_ssize_t)
    cdef bytearray _times(self, Py_ssize_t rows, tuple place)

    @cython.locals(made=bytearray, out=cython.p_int, number=cython.Py_ssize_t)
    cdef bytearray _sys_flags(self, Py_ssize_t rows)

    @cython.locals(made=bytearray, out=cython.p_uchar, number=cython.Py_ssize_t)
    cdef bytearray _valid_bits(self, Py_ssize_t rows)

    @cython.locals(
        offsets=bytearray, text=bytearray, ends=cython.p_int, out=cython.p_uchar,
        number=cython.Py_ssize_t, length=cython.int)
    cdef tuple _texts(self, Py_ssize_t rows, int kind)

    @cython.locals(made=bytearray, out=cython.p_uchar, number=cython.Py_ssize_t)
    cdef bytearray _text_bits(self, Py_ssize_t rows, int kind)

    @cython.locals(
        offsets=bytearray, text=bytearray, ends=cython.p_int, out=cython.p_uchar,
        number=cython.Py_ssize_t, host_bytes=cython.int)
    cdef tuple _offset_ids(self, Py_ssize_t rows)

    @cython.locals(offsets=bytearray, ends=cython.p_int, number=cython.Py_ssize_t)
    cdef tuple _maps(self, Py_ssize_t rows)

    @cython.locals(
        count=cython.Py_ssize_t, offsets=bytearray, text=bytearray, ends=cython.p_int,
        out=cython.p_uchar, number=cython.Py_ssize_t)
    cdef tuple _entry_texts(self, bint values)


cdef const unsigned char* _place(Row* row, int base) noexcept
@cython.locals(made=bytearray)
cdef bytearray _no_bits(Py_ssize_t rows)
@cython.locals(digits=cython.p_uchar, at=cython.int)
cdef void _put_hex(unsigned char* out, const unsigned char* memory, int length) noexcept
