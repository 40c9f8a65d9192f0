cimport cython

from cometmq.protocol cimport octets

cdef int _DIGITS_MAX, _BINARY_FIXED_BYTES, _REQUIRED, _TEXT, _ESCAPED, _BARE
cdef int _CODE, _FLAG, _OPAQUE, _VERSION, _LANGUAGE, _FIELDS, _REMARK, _SERIALIZATION
cdef long long _INT32_MAX, _NOT_PLAIN
cdef bytes _SERIALIZATION_NAME, _ESCAPE
cdef unsigned long long _ONES, _HIGH_BITS, _QUOTES, _BACKSLASHES, _BLANKS
cdef int _SPACE_BYTES, _FORWARDED_BYTES


cdef class HeaderScanner:
    cdef readonly long long code
    cdef readonly long long flag
    cdef readonly long long opaque
    cdef readonly bytearray space
    cdef Py_ssize_t _unescaped

    cdef bint note(
        self, const unsigned char* memory, Py_ssize_t name, Py_ssize_t name_end, Py_ssize_t at,
        Py_ssize_t end, int kind) except -1

    @cython.locals(seen=cython.int, name=cython.Py_ssize_t, name_end=cython.Py_ssize_t,
        member=cython.int)
    cdef bint scan_json(
        self, const unsigned char* memory, Py_ssize_t at, Py_ssize_t end) except -1

    @cython.locals(stop=cython.Py_ssize_t, value=cython.longlong)
    cdef Py_ssize_t _scan_member(
        self, const unsigned char* memory, Py_ssize_t at, Py_ssize_t end,
        int member) except -2

    @cython.locals(name=cython.Py_ssize_t, name_end=cython.Py_ssize_t, stop=cython.Py_ssize_t,
        rest=cython.Py_ssize_t, kept=cython.bint)
    cdef Py_ssize_t _scan_fields(
        self, const unsigned char* memory, Py_ssize_t at, Py_ssize_t end) except -2

    @cython.locals(space=cython.p_uchar, filled=cython.Py_ssize_t, unit=cython.uchar)
    cdef Py_ssize_t _unescape(
        self, const unsigned char* memory, Py_ssize_t at, Py_ssize_t end) except -1

    @cython.locals(name=cython.Py_ssize_t, name_end=cython.Py_ssize_t, size=cython.Py_ssize_t)
    cdef bint scan_binary(
        self, const unsigned char* memory, Py_ssize_t at, Py_ssize_t end) except -1


@cython.locals(
    size=cython.Py_ssize_t, first=cython.uchar, found=cython.Py_ssize_t, name=bytes)
cdef Py_ssize_t find_name(
    const unsigned char* memory, Py_ssize_t at, Py_ssize_t end, tuple names) except -2

@cython.locals(unit=cython.uchar)
cdef Py_ssize_t end_of_text(
    const unsigned char* memory, Py_ssize_t at, Py_ssize_t end) noexcept

@cython.locals(unit=cython.uchar, stop=cython.Py_ssize_t, digits_at=cython.Py_ssize_t)
cdef Py_ssize_t end_of_bare(
    const unsigned char* memory, Py_ssize_t at, Py_ssize_t end) noexcept

@cython.locals(start=cython.Py_ssize_t)
cdef Py_ssize_t end_of_number(
    const unsigned char* memory, Py_ssize_t at, Py_ssize_t end) noexcept

@cython.locals(
    start=cython.Py_ssize_t, is_negative=cython.bint, value=cython.longlong, digit=cython.int)
cdef long long plain_number(
    const unsigned char* memory, Py_ssize_t at, Py_ssize_t end) noexcept

@cython.locals(
    word=cython.ulonglong, quotes=cython.ulonglong, escapes=cython.ulonglong,
    found=cython.ulonglong)
cdef bint _has_special(const unsigned char* memory) noexcept

@cython.locals(wanted=cython.p_char)
cdef bint _is(const unsigned char* memory, Py_ssize_t at, bytes text) noexcept

cdef Py_ssize_t _skip_blanks(
    const unsigned char* memory, Py_ssize_t at, Py_ssize_t end) noexcept

cdef Py_ssize_t _value_at(
    const unsigned char* memory, Py_ssize_t at, Py_ssize_t end) noexcept

cdef int _member_of(
    const unsigned char* memory, Py_ssize_t at, Py_ssize_t end) noexcept
