cimport cython

from cometmq.protocol cimport octets
from cometmq.protocol.octets cimport __builtin_ctzll, memmem


cdef extern from *:
    """
    #if defined(__SSE2__) || defined(_M_X64)
    #define HAS_SSE2
    #include <emmintrin.h>
    #define MARKS_OF_16(at) ((unsigned long long)(unsigned int)_mm_movemask_epi8( \
        _mm_cmpeq_epi8(_mm_loadu_si128((const __m128i *)(bytes + at)), all)) << at)
    #endif

    static inline unsigned long long marks_of_64(const unsigned char *bytes) {
    #if defined(HAS_SSE2)
        const __m128i all = _mm_set1_epi8(2);
        return MARKS_OF_16(0) | MARKS_OF_16(16) | MARKS_OF_16(32) | MARKS_OF_16(48);
    #else
        unsigned long long marks = 0;
        for (int at = 0; at < 64; at++)
            marks |= (unsigned long long)(bytes[at] == 2) << at;
        return marks;
    #endif
    }

    /* The ends of values in the 64 bytes at block, as bits; reads only from start to stop. */
    static inline unsigned long long marks_in(
        const unsigned char *memory, Py_ssize_t start, Py_ssize_t block, Py_ssize_t stop) {
        unsigned char tail[64];
        if (stop - block >= 64)
            return marks_of_64(memory + block);
        if (stop - start >= 64) /* the last bytes, some of them once more */
            return marks_of_64(memory + stop - 64) >> (64 - (stop - block));
        memset(tail, 0, 64);
        memcpy(tail, memory + block, stop - block);
        return marks_of_64(tail);
    }
    """
    unsigned long long marks_in(
        const unsigned char* memory, Py_ssize_t start, Py_ssize_t block,
        Py_ssize_t stop) noexcept


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


ctypedef Step* Steps


ctypedef struct Text:
    const unsigned char* start
    Py_ssize_t size
    int slot
    unsigned long long head
    unsigned long long mask


ctypedef Text* Texts


ctypedef struct Slot:
    Py_ssize_t start
    Py_ssize_t stop
    long long integer
    double number
    int integer_state
    int number_state


cpdef enum:  # in the order of the module, which numbers them for interpreted code
    FALSE, TRUE, NULL, ERROR

cpdef enum:
    PRESENT, SAME_TEXT, ONE_OF, CONTAINS, STARTS_WITH, ENDS_WITH, TRUE_TEXT
    INTEGER, LONG, DOUBLE, SAME_PROPERTIES, PROPERTY_ORDER
    PUSH, MAP, COMBINE, SKIP_IF, SKIP_IF_ABSENT

cdef int _NAME_END, _VALUE_END, _SEVERAL, _BLOCK_BYTES, _GOOD, _BAD, _EXACT_DIGITS, _EXACT_POWER, _EXPONENT_MAX
cdef long long _INT_MIN, _INT_MAX
cdef unsigned long long _LONG_MAX, _LONG_MAX_TENTH
cdef double _NAN, _INFINITY
cdef bytes _DIGIT_ZEROS


@cython.final
cdef class Expression:
    cdef readonly str text
    cdef dict _names
    cdef int _slots
    cdef int _length
    cdef int _stack_size
    cdef unsigned char _firsts[256]
    cdef int _sizes[64]
    cdef object _kept
    cdef Step* _steps
    cdef Text* _texts
    cdef Text* _choices

    @cython.locals(
        space=bytearray, room=bytearray, text=bytes, at=cython.Py_ssize_t, first=cython.int,
        false=cython.int,
        true=cython.int, null=cython.int)
    cdef _copy(self, list program)

    cpdef bint matches(self, object data, Py_ssize_t start, Py_ssize_t stop) except -1

    cdef bint matches_in(
        self, const unsigned char* memory, Py_ssize_t start, Py_ssize_t stop) except -1

    @cython.locals(slots=Slot[64], stack=cython.uchar[513], slot=cython.int)
    cdef int _outcome(
        self, const unsigned char* memory, Py_ssize_t start, Py_ssize_t stop,
        list spans) except -1

    @cython.locals(
        end=cython.Py_ssize_t, first=cython.Py_ssize_t, block=cython.Py_ssize_t,
        start=cython.Py_ssize_t, marks=cython.ulonglong, head=cython.ulonglong, place=cython.int,
        texts=Texts)
    cdef void _locate(
        self, const unsigned char* memory, Py_ssize_t at, Py_ssize_t stop, Slot* slots) noexcept

    @cython.locals(start=cython.Py_ssize_t, slot=cython.int)
    cdef void _take(
        self, const unsigned char* memory, Py_ssize_t at, Py_ssize_t end,
        Slot* slots) noexcept

    @cython.locals(
        place=cython.int, size=cython.Py_ssize_t, found=cython.Py_ssize_t, is_same=cython.bint)
    cdef int _slot_at(
        self, const unsigned char* memory, Py_ssize_t at, Py_ssize_t end) noexcept

    @cython.locals(first=cython.Py_ssize_t, last=cython.Py_ssize_t)
    cdef bint _is_choice(
        self, const unsigned char* memory, Py_ssize_t at, Py_ssize_t size,
        Py_ssize_t step) noexcept

    @cython.locals(
        at=cython.Py_ssize_t, top=cython.Py_ssize_t, length=cython.Py_ssize_t,
        operation=cython.int, value=cython.int, steps=Steps)
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
