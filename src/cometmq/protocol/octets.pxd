cimport cython


cdef extern from *:
    """
    /* What compilers and C libraries name differently. */
    #if defined(_MSC_VER)
    #include <intrin.h>
    #include <stdlib.h>
    #include <string.h>
    #define htonl _byteswap_ulong
    #define ntohl _byteswap_ulong
    #define __builtin_prefetch(address, for_writing) \
        _mm_prefetch((const char *)(address), _MM_HINT_T0)

    #if defined(_M_ARM64)
    #undef __builtin_prefetch
    #define __builtin_prefetch(address, for_writing) __prefetch(address)
    #endif

    static __inline int __builtin_ctzll(unsigned long long bits) {
        unsigned long at;
        _BitScanForward64(&at, bits);
        return (int)at;
    }
    #else
    #include <arpa/inet.h>
    #include <string.h>
    #endif

    #if defined(_WIN32)
    static __inline const void *cometmq_memmem(
        const void *memory, size_t size, const void *wanted, size_t length) {
        const char *at = (const char *)memory, *end = at + size;
        if (length == 0)
            return memory;
        while ((size_t)(end - at) >= length) {
            at = (const char *)memchr(at, *(const char *)wanted, (size_t)(end - at) - length + 1);
            if (at == NULL || memcmp(at, wanted, length) == 0)
                return at;
            at++;
        }
        return NULL;
    }
    #else
    #define cometmq_memmem memmem
    #endif
    """
    unsigned int htonl(unsigned int number) noexcept
    unsigned int ntohl(unsigned int number) noexcept
    void prefetch "__builtin_prefetch"(const void* address, int for_writing) noexcept
    int __builtin_ctzll(unsigned long long) noexcept
    const void* memmem "cometmq_memmem"(const void*, size_t, const void*, size_t) noexcept

cdef unsigned long long _HIGH_BITS, _PAIRS, _SINGLES, _HALVES, _ONES, _SIXES, _ZERO_DIGITS
cdef unsigned long long _BLANKS, _QUOTES, _BACKSLASHES


@cython.locals(memory=cython.p_uchar)
cpdef (unsigned int, unsigned int) two_u32(object data, Py_ssize_t position)

@cython.locals(memory=cython.p_char, wanted=cython.p_char)
cpdef bint matches(object data, Py_ssize_t position, Py_ssize_t end, bytes text)

cpdef void put_u32(object space, Py_ssize_t position, unsigned int value)

@cython.locals(memory=cython.p_char, source=cython.p_char)
cpdef Py_ssize_t put_bytes(object space, Py_ssize_t position, bytes data) except -1

@cython.locals(place=cython.p_uchar)
cdef Py_ssize_t put_memory(
    object space, Py_ssize_t position, const unsigned char* memory, Py_ssize_t size) except -1

@cython.locals(memory=cython.p_uchar, half=cython.int, digits=cython.ulonglong)
cpdef Py_ssize_t put_hex(object space, Py_ssize_t position, unsigned long long value) except -1

@cython.locals(
    memory=cython.p_uchar, digits=cython.int, at=cython.int, rest=cython.longlong)
cpdef Py_ssize_t put_decimal(object space, Py_ssize_t position, long long value) except -1

cdef int i32_in(const unsigned char* memory, Py_ssize_t position) noexcept

@cython.locals(high=cython.uint, low=cython.uint)
cdef long long i64_in(const unsigned char* memory, Py_ssize_t position) noexcept

@cython.locals(place=cython.p_uchar)
cdef short i16_in(const unsigned char* memory, Py_ssize_t position) noexcept

@cython.locals(found=cython.p_void)
cdef Py_ssize_t end_of_run(
    const unsigned char* memory, Py_ssize_t at, Py_ssize_t end, int unit) noexcept

cdef const unsigned char* memory_of(const unsigned char[::1] data) noexcept

cdef unsigned char* start_of(object data) except NULL

cdef const unsigned char* window(
    const unsigned char* memory, Py_ssize_t at, Py_ssize_t size) noexcept

cdef bytes bytes_in(const unsigned char* memory, Py_ssize_t at, Py_ssize_t size)

@cython.locals(wanted=cython.p_char)
cdef bint equals(
    const unsigned char* memory, Py_ssize_t at, Py_ssize_t size, bytes text) noexcept

@cython.locals(size=cython.Py_ssize_t, first=cython.uchar, place=cython.Py_ssize_t)
cdef Py_ssize_t last_of(
    const unsigned char* memory, Py_ssize_t at, Py_ssize_t end, bytes text) noexcept

cdef bint are_same(
    const unsigned char* memory, Py_ssize_t at, Py_ssize_t other, Py_ssize_t size) noexcept

@cython.locals(seen=cython.ulonglong, word=cython.ulonglong, end=cython.Py_ssize_t)
cdef bint is_ascii(const unsigned char* memory, Py_ssize_t at, Py_ssize_t size) noexcept

@cython.locals(
    seen=cython.ulonglong, word=cython.ulonglong, below=cython.ulonglong, quotes=cython.ulonglong,
    slashes=cython.ulonglong, end=cython.Py_ssize_t)
cdef bint is_plain_text(const unsigned char* memory, Py_ssize_t at, Py_ssize_t size) noexcept

@cython.locals(memory=cython.p_char)
cpdef bytes copy_of(object data, Py_ssize_t start, Py_ssize_t end)

@cython.locals(word=cython.uint)
cdef void _put_u32(unsigned char* memory, unsigned int value) noexcept

@cython.locals(spread=cython.ulonglong, letters=cython.ulonglong)
cdef unsigned long long _hex_digits(unsigned int value) noexcept

@cython.locals(word=cython.uint)
cdef unsigned int _u32_at(const unsigned char* memory) noexcept
