cimport cython

from cometmq.protocol cimport octets


cdef extern from "<string.h>":
    const void* memmem(const void*, size_t, const void*, size_t) noexcept


ctypedef struct Step:
    int operation
    int slot
    int operand
    int orders
    int results
    long long integer
    double number
    const unsigned char* text
    Py_ssize_t size


ctypedef struct Text:
    const unsigned char* start
    Py_ssize_t size
    int slot


ctypedef struct Slot:
    Py_ssize_t start
    Py_ssize_t stop
    long long integer
    double number
    int integer_state
    int number_state


cdef int _FALSE, _TRUE, _NULL, _ERROR
cdef int _PRESENT, _SAME_TEXT, _ONE_OF, _TRUE_TEXT, _CONTAINS, _ENDS_WITH
cdef int _INTEGER, _LONG, _DOUBLE, _SAME_PROPERTIES, _PROPERTY_ORDER
cdef int _PUSH, _MAP, _COMBINE, _SKIP_IF
cdef int _NAME_END, _VALUE_END, _GOOD, _BAD, _EXACT_DIGITS, _EXACT_POWER, _EXPONENT_MAX
cdef long long _INT_MIN, _INT_MAX
cdef unsigned long long _LONG_MAX, _LONG_MAX_TENTH
cdef double _NAN, _INFINITY
cdef bytes _DIGIT_ZEROS


cdef class Expression:
    cdef readonly str text
    cdef dict _names
    cdef int _slots
    cdef int _length
    cdef int _stack_size
    cdef unsigned long long _lengths
    cdef object _kept
    cdef Step* _steps
    cdef Text* _texts
    cdef Text* _choices

    @cython.locals(
        space=bytearray, room=bytearray, text=bytes, at=cython.Py_ssize_t, false=cython.int,
        true=cython.int, null=cython.int)
    cdef _copy(self, list program)

    cpdef bint matches(self, object data, Py_ssize_t start, Py_ssize_t stop) except -1

    cdef bint matches_in(
        self, const unsigned char* memory, Py_ssize_t start, Py_ssize_t stop) except -1

    @cython.locals(slots=Slot[64], stack=cython.uchar[512], slot=cython.int)
    cdef int _outcome(
        self, const unsigned char* memory, Py_ssize_t start, Py_ssize_t stop,
        list spans) except -1

    @cython.locals(end=cython.Py_ssize_t, name_end=cython.Py_ssize_t, slot=cython.int)
    cdef void _locate(
        self, const unsigned char* memory, Py_ssize_t at, Py_ssize_t stop, Slot* slots) noexcept

    @cython.locals(place=cython.Py_ssize_t)
    cdef int _slot_of(self, const unsigned char* memory, Py_ssize_t at, Py_ssize_t size) noexcept

    @cython.locals(first=cython.Py_ssize_t, last=cython.Py_ssize_t)
    cdef bint _is_choice(
        self, const unsigned char* memory, Py_ssize_t at, Py_ssize_t size,
        Py_ssize_t step) noexcept

    @cython.locals(
        at=cython.Py_ssize_t, top=cython.Py_ssize_t, operation=cython.int, value=cython.int)
    cdef int _run(self, const unsigned char* memory, Slot* slots, unsigned char* stack) except -1

    cdef int _result(self, Py_ssize_t step, int outcome) noexcept

    @cython.locals(
        operation=cython.int, slot=cython.int, start=cython.Py_ssize_t, size=cython.Py_ssize_t,
        length=cython.Py_ssize_t, integer=cython.longlong, order=cython.int)
    cdef int _test(self, const unsigned char* memory, Slot* slots, Py_ssize_t step) except -1

    @cython.locals(
        slot=cython.int, other=cython.int, start=cython.Py_ssize_t, second=cython.Py_ssize_t,
        size=cython.Py_ssize_t, order=cython.int)
    cdef int _test_two(self, const unsigned char* memory, Slot* slots, Py_ssize_t step) except -1

    cdef Py_ssize_t _size_of(self, Py_ssize_t step) noexcept


cdef int _satisfies(int orders, int order) noexcept

@cython.locals(first=cython.double, second=cython.double)
cpdef int compare_doubles(double one, double other) noexcept

@cython.locals(middle=cython.Py_ssize_t, order=cython.Py_ssize_t)
cdef Py_ssize_t _search(
    Text* texts, Py_ssize_t low, Py_ssize_t high, const unsigned char* wanted,
    Py_ssize_t size) noexcept

cdef int _equals(
    const unsigned char* memory, Py_ssize_t at, Py_ssize_t size, const unsigned char* text,
    Py_ssize_t length) noexcept

cdef int _contains(
    const unsigned char* memory, Py_ssize_t at, Py_ssize_t size, const unsigned char* text,
    Py_ssize_t length) noexcept

cdef int _is_true(const unsigned char* memory, Py_ssize_t at, Py_ssize_t size) noexcept

@cython.locals(
    at=cython.Py_ssize_t, stop=cython.Py_ssize_t, is_negative=cython.bint, digit=cython.int,
    magnitude=cython.ulonglong)
cdef int _read_integer(const unsigned char* memory, Slot* slots, int slot) except -1

@cython.locals(
    lead=cython.int, point=cython.int, width=cython.int, least=cython.int, index=cython.Py_ssize_t,
    zeros=cython.p_uchar, zero=cython.int)
cdef int _wide_digit(const unsigned char* memory, Py_ssize_t at, Py_ssize_t stop) except -2

@cython.locals(
    at=cython.Py_ssize_t, stop=cython.Py_ssize_t, start=cython.Py_ssize_t,
    first=cython.Py_ssize_t, end=cython.Py_ssize_t, exponent_at=cython.Py_ssize_t,
    is_negative=cython.bint, has_digit=cython.bint, has_point=cython.bint, falls=cython.bint,
    digit=cython.int, digits=cython.Py_ssize_t, scale=cython.Py_ssize_t,
    exponent=cython.Py_ssize_t, mantissa=cython.longlong, number=cython.double)
cdef int _read_number(const unsigned char* memory, Slot* slots, int slot) except -1

@cython.locals(power=cython.double, factors=cython.Py_ssize_t)
cdef double _scaled(long long mantissa, Py_ssize_t scale) noexcept
